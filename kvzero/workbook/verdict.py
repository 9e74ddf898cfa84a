"""The claims that a notebook proves, collected while it runs and emitted as one machine-readable output.

    v = Verdict("04_packed_stride_overflow", device=device)
    v.claim("the old plan overruns the storage", measured=audit.overrun_bytes, expected=112_320, unit="bytes")
    v.claim("zeroing 64 blocks", measured=speedup, at_least=1.2, unit="x")
    v.note("sanitizer", "not available here")
    v.show()            # the last cell

The runner reads the output of the last cell and judges every claim again from its numbers, so a notebook
cannot declare itself proven.
"""

from __future__ import annotations

import html
import math
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

MIMETYPE = "application/vnd.kvzero.verdict+json"
_RELATIONS = {"expected": "=", "at_least": "≥", "at_most": "≤"}


class ClaimsFailedError(AssertionError):
    """A notebook's last cell was reached with claims that do not hold; ``failed`` holds them."""

    def __init__(self, notebook: str, failed: Sequence[Claim]):
        self.failed = tuple(failed)
        head = f"{len(self.failed)} claim(s) do not hold" if failed else "no claim was made"
        super().__init__("\n  ".join([f"{notebook}: {head}", *map(str, self.failed)]))


def plain(value: Any) -> Any:
    """Turns a measured value into what JSON can carry and a reader can compare.

    Args:
        value: a number, bool, string, None, a NumPy or torch scalar, or a list, tuple or dict of these.

    Returns:
        The same as builtin types; tuples become lists, NaN and infinities "NaN", "Infinity", "-Infinity".

    Raises:
        TypeError: for anything else, an array with more than one element included.

    Example:
        >>> plain((1, float("nan")))
        [1, 'NaN']
    """
    if value is None or isinstance(value, (bool, int, str)):
        return value
    if isinstance(value, float):
        if math.isnan(value):
            return "NaN"
        return value if math.isfinite(value) else ("Infinity" if value > 0 else "-Infinity")
    if isinstance(value, Mapping):
        keys = {str(key): key for key in value}
        if len(keys) < len(value) or any(key != key for key in value):  # NaN is unequal to itself
            raise TypeError("the keys of a claimed mapping must stay apart as text, and none may be NaN")
        return {name: plain(value[key]) for name, key in keys.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    if getattr(value, "shape", None) == () and hasattr(value, "item"):  # a NumPy or torch scalar
        return plain(value.item())
    kind = type(value).__name__
    raise TypeError(f"a claim takes plain values, not {kind}: use .tolist(), a count or a digest")


def _has_nan(value: Any) -> bool:
    if isinstance(value, dict):
        return any(map(_has_nan, value.values()))
    return any(map(_has_nan, value)) if isinstance(value, list) else value == "NaN"


def _same(left: Any, right: Any) -> bool:
    """Equality in which True is not 1, at any depth."""
    if isinstance(left, bool) or isinstance(right, bool):
        return left is right
    if isinstance(left, list) and isinstance(right, list):
        return len(left) == len(right) and all(map(_same, left, right))
    if isinstance(left, dict) and isinstance(right, dict):
        return left.keys() == right.keys() and all(_same(left[key], right[key]) for key in left)
    return left == right


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


@dataclass(frozen=True)
class Claim:
    """One sentence with the number that was measured and the number it is held to.

    Args:
        name: the claim as a sentence a reader understands without the code.
        measured: what this run found (plain values, see ``plain``).
        relation: "expected" (equal), "at_least" or "at_most".
        bound: the value that ``measured`` is held to.
        unit: of both, such as "bytes", "ms" or "x"; empty for counts of things named in the sentence.
    """

    name: str
    measured: Any
    relation: str
    bound: Any
    unit: str = ""

    @property
    def passed(self) -> bool:
        """Whether the numbers bear the claim out; never with a NaN, and never by an order on non-numbers."""
        if _has_nan(self.measured) or _has_nan(self.bound):
            return False
        if self.relation == "expected":
            return _same(self.measured, self.bound)
        if not (_is_number(self.measured) and _is_number(self.bound)):
            return False
        return self.measured >= self.bound if self.relation == "at_least" else self.measured <= self.bound

    @classmethod
    def from_dict(cls, record: Mapping[str, Any]) -> Claim:
        """Reads a claim back from a verdict's output; KeyError or ValueError where it is malformed."""
        relation = next((key for key in _RELATIONS if key in record), None)
        if relation is None:
            raise ValueError(f"claim {record['name']!r} has none of {', '.join(_RELATIONS)}")
        if not isinstance(record["name"], str) or not isinstance(record["unit"], str):
            raise ValueError(f"the name and the unit of a claim are text, not {record['name']!r}, {record['unit']!r}")
        measured, bound = plain(record["measured"]), plain(record[relation])
        return cls(record["name"], measured, relation, bound, record["unit"])

    def to_dict(self) -> dict[str, Any]:
        """The claim in a verdict's output: ``{"name", "measured", "expected", "unit", "passed"}``."""
        return {
            "name": self.name,
            "measured": self.measured,
            self.relation: self.bound,
            "unit": self.unit,
            "passed": self.passed,
        }

    def __str__(self) -> str:
        word = "proven" if self.passed else "FAILED"
        measured, bound = _shown(self.measured), _shown(self.bound)
        unit = f" {self.unit}" if self.unit else ""
        text = f"{word}  {self.name}: {measured}{unit} ({_RELATIONS[self.relation]} {bound})"
        return "".join(letter if letter.isprintable() else " " for letter in text)

    # A cell that ends in a claim shows what was claimed.
    __repr__ = __str__


def _shown(value: Any) -> str:
    if _is_number(value):
        return f"{value:,}" if isinstance(value, int) else f"{value:,.4g}"
    text = value if isinstance(value, str) else repr(value)
    return text if len(text) <= 60 else f"{text[:57]}…"


@dataclass(frozen=True)
class ExerciseState:
    """Where an exercise stands: ``state`` is "unsolved", "wrong" or "solved"; see ``exercise``."""

    name: str
    state: str
    solution_accepted: bool
    wrong_answers_hinted: int


class Verdict:
    """Collects the claims of one notebook and shows them in its last cell.

    Args:
        notebook: the notebook's name without its ending.
        device: where it ran, "cpu" or "cuda" (what ``pick_device`` returned).

    Example:
        >>> v = Verdict("00_start_here", device="cpu")
        >>> v.claim("a block of four pages", measured=4 * 37_440, expected=149_760, unit="bytes").passed
        True
        >>> v.passed
        True
    """

    # In this process. A second verdict would drop the claims of the first one.
    _made = 0

    def __init__(self, notebook: str, *, device: str):
        Verdict._made += 1
        self.notebook = notebook
        self.device = device
        self.notes: dict[str, str] = {}
        self.exercises: dict[str, ExerciseState] = {}
        self._claims: dict[str, Claim] = {}
        self._claimed_again: list[str] = []

    @property
    def claims(self) -> tuple[Claim, ...]:
        """The claims in the order in which they were first made."""
        return tuple(self._claims.values())

    @property
    def passed(self) -> bool:
        """True if there is at least one claim and all hold."""
        return bool(self._claims) and all(claim.passed for claim in self.claims)

    def claim(self, name: str, *, measured: Any, unit: str = "", **bound: Any) -> Claim:
        """Records one claim; a failing one is kept, and raised by ``show``.

        Args:
            name: a sentence, unique in the notebook. (A cell that is run again replaces its claim; the
                runner, which runs each cell once, refuses a name that was used twice.)
            measured: what this run found.
            unit: of ``measured``.
            bound: exactly one of ``expected``, ``at_least``, ``at_most``.

        Returns:
            The claim.

        Raises:
            TypeError: for no bound, or several, or a value that is not plain.
        """
        if len(bound) != 1 or not bound.keys() <= _RELATIONS.keys():
            options = ", ".join(_RELATIONS)
            raise TypeError(f"claim {name!r} takes exactly one of {options}, not {sorted(bound)}")
        ((relation, value),) = bound.items()
        claim = Claim(name, plain(measured), relation, plain(value), unit)
        if name in self._claims:
            self._claimed_again.append(name)
        self._claims[name] = claim
        return claim

    def note(self, name: str, text: str) -> None:
        """Records what is no claim but belongs into the report, such as a witness not available here."""
        self.notes[name] = text

    def exercise(self, exercise: Any) -> None:
        """Records where an ``Exercise`` stands, and claims that its solution passes and its hints work."""
        state = exercise.state()
        self.exercises[state.name] = state
        name = f"exercise “{state.name}”"
        judged = state.solution_accepted if state.wrong_answers_hinted else "not judged: run the cell above this one"
        self.claim(f"{name}: the solution is accepted", measured=judged, expected=True)
        self.claim(f"{name}: wrong answers met with a hint", measured=state.wrong_answers_hinted, at_least=1)

    def to_dict(self) -> dict[str, Any]:
        """The output that the runner reads (``MIMETYPE``)."""
        return {
            "notebook": self.notebook,
            "device": self.device,
            "executable": sys.executable,
            "verdicts_made": Verdict._made,
            "passed": self.passed,
            "claims": [claim.to_dict() for claim in self.claims],
            "claimed_again": list(self._claimed_again),
            "notes": dict(self.notes),
            "exercises": [asdict(state) for state in self.exercises.values()],
        }

    def to_text(self) -> str:
        """The verdict as plain text: one line per claim, the counts first."""
        proven = sum(claim.passed for claim in self.claims)
        lines = [f"{self.notebook} on {self.device}: {proven} of {len(self.claims)} claims proven"]
        lines += [f"  {claim}" for claim in self.claims]
        lines += [f"  exercise  {state.name}: {state.state}" for state in self.exercises.values()]
        return "\n".join(lines + [f"  note  {name}: {text}" for name, text in self.notes.items()])

    def to_html(self) -> str:
        """The verdict in short: failed claims in a table, the others folded; words carry the meaning, never colour."""
        head, *_ = self.to_text().splitlines()
        failed = [claim for claim in self.claims if not claim.passed]
        proven = [claim for claim in self.claims if claim.passed]
        extra = [f"exercise {state.name}: {state.state}" for state in self.exercises.values()]
        extra += [f"{name}: {text}" for name, text in self.notes.items()]
        return (
            f"<div class='kvzero-verdict'><p><b>{html.escape(head)}</b></p>"
            + (_table("✗ FAILED", failed) if failed else "")
            + (f"<details><summary>Claims proven</summary>{_table('✓ proven', proven)}</details>" if proven else "")
            + "".join(f"<p>{html.escape(line)}</p>" for line in extra)
            + "</div>"
        )

    def show(self) -> None:
        """Emits the verdict (JSON for the runner, HTML and text for readers); the notebook's last cell.

        Raises:
            ClaimsFailedError: if a claim does not hold, or none was made.
        """
        from IPython.display import display

        bundle = {MIMETYPE: self.to_dict(), "text/html": self.to_html(), "text/plain": self.to_text()}
        display(bundle, raw=True)
        if not self.passed:
            raise ClaimsFailedError(self.notebook, [claim for claim in self.claims if not claim.passed])


def _table(word: str, claims: Sequence[Claim]) -> str:
    """Claims with one verdict, each with its numbers."""
    left = " style='text-align:left'"
    titles = "".join(f"<th scope='col'{left}>{title}</th>" for title in ("verdict", "claim", "measured", "held to"))
    rows = "".join(
        f"<tr><td style='text-align:left;white-space:nowrap'>{word}</td><td{left}>{html.escape(claim.name)}</td>"
        f"<td>{html.escape(_shown(claim.measured))} {html.escape(claim.unit)}</td>"
        f"<td>{_RELATIONS[claim.relation]} {html.escape(_shown(claim.bound))}</td></tr>"
        for claim in claims
    )
    return f"<table><thead><tr>{titles}</tr></thead><tbody>{rows}</tbody></table>"
