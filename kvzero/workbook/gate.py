"""Says whether an executed notebook proved its claims, and if not, why.

Papermill's exit status alone cannot be trusted: it is 0 for an exception inside an ``Output`` or ``interact``
widget, an error in a thread, ``!false``, ``sys.exit(0)`` halfway through, and a parameter that the notebook
does not know; and the cells that a dead kernel never ran are labelled "completed". So the gate reads the
executed notebook itself. It passes only if

- papermill exited with 0 and every code cell has an execution count;
- no output, and no output saved in a widget's state, is an error or was written to stderr;
- the cell tagged ``parameters`` holds plain literals, and declares every given parameter;
- no cell shells out, since a shell's status is ignored;
- the last cell emitted a verdict, of this notebook, with at least one claim, no name claimed twice, and every
  claim holds when judged again from its numbers;
- papermill itself had nothing to say on stderr, beyond lines known to be harmless;
- the time stayed within the notebook's budget.

Files that were left beside a notebook are for ``runner.files_beside``: of two that run at a time nobody can tell
which one left them.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

from kvzero import errors
from kvzero.workbook.canonical import declared_parameters, source_of, tags_of
from kvzero.workbook.verdict import MIMETYPE, Claim

# A notebook promises a minute; two of them run at a time on two cores, hence twice that.
BUDGET_SECONDS = 120.0
MOST_BUDGET_SECONDS = 86_400.0

HARMLESS_STDERR = (
    # ipykernel, at every start: the connection is to this machine itself.
    re.compile(r"\[IPKernelApp\] WARNING \| Kernel is running over TCP without encryption"),
    # The client interrupts a kernel as the first step of shutting it down; a busy machine lets the kernel say so.
    # A cell that was interrupted has an error among its outputs, or no execution count, and fails by that.
    re.compile(r"\[IPKernelApp\] ERROR \| KeyboardInterrupt caught in kernel"),
    # debugpy, on a Python whose standard library is frozen in; it spans several lines, each with this stamp.
    re.compile(r"^0\.\d\ds - "),
)
_WIDGET_STATE = "application/vnd.jupyter.widget-state+json"
_SHELL = re.compile(r"^\s*(?:[\w,. ]+=\s*)?!|get_ipython\(\)\.(?:system|getoutput)", re.MULTILINE)
_ANSI = re.compile(r"\x1b\[[0-9;]*m")


@dataclass(frozen=True)
class Execution:
    """What is known about one papermill run.

    Args:
        name: the notebook's name without its ending.
        executed: the notebook that papermill wrote, as JSON gives it; None if it wrote none.
        exit_code: papermill's exit status; None if it hung and was stopped.
        stderr: what papermill wrote to stderr.
        seconds: how long papermill took.
        parameters: the names that were passed.
    """

    name: str
    executed: dict | None
    exit_code: int | None
    stderr: str
    seconds: float
    parameters: Collection[str] = ()


@dataclass(frozen=True)
class Ruling:
    """The gate's answer: what is wrong (nothing, if proven), and what the notebook's verdict says, if any."""

    problems: tuple[str, ...]
    claims: tuple[Claim, ...] = ()
    device: str = ""
    notes: tuple[tuple[str, str], ...] = ()
    exercises: tuple[tuple[str, str], ...] = ()

    @property
    def proven(self) -> bool:
        """True if nothing is wrong."""
        return not self.problems


def rule(execution: Execution) -> Ruling:
    """Judges one execution.

    Args:
        execution: the run.

    Returns:
        The ruling; its problems are ordered from the cause to what follows from it.
    """
    if execution.executed is None:
        last_line = _last_line(execution.stderr)
        return Ruling((f"papermill wrote no notebook (exit {execution.exit_code}): {last_line}",))
    notebook = execution.executed
    found = [*_parameter_problems(execution), *_cell_problems(execution), *_widget_problems(notebook)]
    if execution.exit_code != 0 and not found:
        found.append(f"papermill exited with {execution.exit_code}: {_last_line(execution.stderr)}")
    if execution.exit_code == 0:
        found += [f"papermill wrote to stderr: {line}" for line in _unexpected(execution.stderr)]
    ruling = _read_verdict(execution.name, notebook)
    found += ruling.problems
    found += _budget_problems(execution)
    return Ruling(tuple(found), ruling.claims, ruling.device, ruling.notes, ruling.exercises)


def budget_seconds(notebook: dict | None) -> float:
    """The time that a notebook allows itself in its metadata, or the usual one where that is none."""
    stated = _stated_budget(notebook)
    return stated if _is_budget(stated) else BUDGET_SECONDS


def _stated_budget(notebook: dict | None) -> object:
    own = (notebook or {}).get("metadata", {}).get("kvzero", {})
    return own.get("budget_seconds", BUDGET_SECONDS) if isinstance(own, dict) else own


def _is_budget(stated: object) -> bool:
    return type(stated) in (int, float) and 0 < stated <= MOST_BUDGET_SECONDS


def _budget_problems(execution: Execution) -> Iterator[str]:
    stated, budget = _stated_budget(execution.executed), budget_seconds(execution.executed)
    if not _is_budget(stated):
        yield f"its budget_seconds is {stated!r}, not a number above 0 and up to {MOST_BUDGET_SECONDS:g}"
    if execution.seconds > budget:
        yield f"took {execution.seconds:.0f} s, its budget is {budget:g} s"


def text_outputs(notebook: dict) -> str:
    """Every output of every cell as text, for the log of a failed run.

    Args:
        notebook: as papermill wrote it.

    Returns:
        For each cell with outputs its first line of code and what it printed, without terminal colours, and without
        the traceback of an exception of ``kvzero.errors``.
    """
    parts = []
    for cell in _code_cells(notebook):
        if cell.get("outputs"):
            parts.append(f"--- {_where(cell)}")
            parts += [_ANSI.sub("", _output_text(output)).rstrip() for output in cell["outputs"]]
    return "\n".join(parts)


def _output_text(output: dict) -> str:
    if output["output_type"] == "error":
        # What kvzero refuses, its message says whole; the way there is in the executed notebook.
        traceback = [] if output["ename"] in errors.__all__ else output["traceback"]
        return "\n".join(traceback) or f"{output['ename']}: {output['evalue']}"
    text = output.get("text") or output.get("data", {}).get("text/plain", "")
    return text if isinstance(text, str) else "".join(text)


def _code_cells(notebook: dict) -> list[dict]:
    return [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]


def _where(cell: dict) -> str:
    first = next((line for line in source_of(cell).splitlines() if line.strip()), "")
    return f"cell {cell.get('id', '?')} ({first.strip()[:60]})"


def _parameter_problems(execution: Execution) -> Iterator[str]:
    try:
        declared = declared_parameters(execution.executed)
    except (ValueError, SyntaxError) as error:
        yield f"the parameters cell holds more than plain literals: {error}"
        return
    if declared is None:
        yield "no cell is tagged `parameters`"
    else:
        for name in sorted(set(execution.parameters) - set(declared)):
            yield f"parameter {name} is not declared; declared: {', '.join(sorted(declared))}"


def _cell_problems(execution: Execution) -> Iterator[str]:
    cells = _code_cells(execution.executed)
    yield from _broken_off(execution, cells)
    previous = "the start"
    for cell in cells:
        if _SHELL.search(source_of(cell)):
            yield f"{_where(cell)} shells out; the shell's status would be ignored"
        yield from _output_problems(_where(cell), cell.get("outputs", ()))
        if cell.get("execution_count") is None:
            # What comes after the first such cell did not run either: that is one problem, not many.
            if "skip-execution" in tags_of(cell):
                yield f"{_where(cell)} is tagged skip-execution"
                continue
            yield f"nothing ran from {_where(cell)} on; the last cell that ran was {previous}"
            return
        previous = _where(cell)


def _broken_off(execution: Execution, cells: Sequence[dict]) -> Iterator[str]:
    """Where the kernel died or papermill was stopped: in the last cell that was started."""
    started = [cell for cell in cells if cell["metadata"].get("papermill", {}).get("start_time")]
    where = _where(started[-1]) if started else "no cell"
    if "DeadKernelError" in execution.stderr:
        yield f"the kernel died in {where}"
    elif execution.exit_code is None:
        yield f"stopped after {execution.seconds:.0f} s without an end, in {where}"


def _output_problems(where: str, outputs) -> Iterator[str]:
    for output in outputs:
        if output["output_type"] == "error":
            yield f"{where} raised {output['ename']}: {_ANSI.sub('', output['evalue']).strip()[:300]}"
        elif output.get("name") == "stderr":
            yield f"{where} wrote to stderr: {_last_line(_output_text(output))}"


def _widget_problems(notebook: dict) -> Iterator[str]:
    state = notebook["metadata"].get("widgets", {}).get(_WIDGET_STATE, {}).get("state", {})
    for model_id, model in state.items():
        where = f"widget {model.get('model_name', model_id)}"
        yield from _output_problems(where, model.get("state", {}).get("outputs") or ())


def _read_verdict(name: str, notebook: dict) -> Ruling:
    cells = _code_cells(notebook)
    records = [
        output["data"][MIMETYPE]
        for output in (cells[-1].get("outputs", ()) if cells else ())
        if MIMETYPE in output.get("data", {})
    ]
    if len(records) != 1:
        return Ruling((f"the last code cell emitted {len(records)} verdicts, not 1",))
    record = records[0]
    try:
        claims = tuple(map(Claim.from_dict, record["claims"]))
        notes = tuple(record["notes"].items())
        exercises = tuple((exercise["name"], exercise["state"]) for exercise in record["exercises"])
        found = [f"claim failed: {claim}" for claim in claims if not claim.passed]
        found += [f"claimed twice under one name: {again}" for again in record["claimed_again"]]
        if not claims:
            found.append("the verdict makes no claim")
        if record["notebook"] != name:
            found.append(f"the verdict is of {record['notebook']!r}, not of {name!r}")
        return Ruling(tuple(found), claims, record["device"], notes, exercises)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        return Ruling((f"the verdict cannot be read: {error!r}",))


def _unexpected(stderr: str) -> list[str]:
    lines = [line for line in stderr.splitlines() if line.strip()]
    return [line for line in lines if not any(pattern.search(line) for pattern in HARMLESS_STDERR)]


def _last_line(text: str) -> str:
    lines = [line for line in _ANSI.sub("", text).splitlines() if line.strip()]
    return lines[-1].strip()[:300] if lines else "nothing on stderr"
