"""Exercises that are judged, with a hint for each wrong answer.

A notebook's "Your turn" has two cells, its "Verdict" a third, and one run judges the starting point and the
solution alike:

    # 1  what is asked, and how an answer is judged (often: by the audit)
    def judge(span_bytes):
        if span_bytes == 37_440:
            return hint("That is the distance to the next page. How many of these bytes does the layer keep?")
        audit = …                                   # let the numbers speak
        return accepted(audit.sentence()) if audit.ok else hint(f"Not yet: {audit.sentence()}")

    exercise = Exercise("the span of one page", judge)

    # 2  the reader's cell; the committed notebook keeps None, which is reported as unsolved and fails nothing
    answer = None
    exercise.check(answer)

    # 3  under "## Verdict", out of the reader's way, tagged `solution` (folded): it is accepted, and each wrong
    #    answer meets a hint of its own
    exercise.prove(solution=37_376, wrong=[37_440, 149_760])

and the verdict cell says ``v.exercise(exercise)`` before ``v.show()``.
"""

from __future__ import annotations

import html
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from kvzero.errors import KvzeroError
from kvzero.workbook.verdict import ExerciseState

JUDGING_SECONDS = 10.0
UNSOLVED = "Unsolved so far. Replace None by your answer and run this cell again."


@dataclass(frozen=True)
class Judgement:
    """What a judge says of one answer: whether it is accepted, and a sentence for the reader."""

    accepted: bool
    sentence: str

    def __post_init__(self):
        if not self.sentence.strip():
            raise ValueError("a judgement needs a sentence: say what is right, or hint at what is not")


def accepted(sentence: str) -> Judgement:
    """The answer is right; ``sentence`` says what it achieves."""
    return Judgement(True, sentence)


def hint(sentence: str) -> Judgement:
    """The answer is not right; ``sentence`` helps without giving the answer away."""
    return Judgement(False, sentence)


class Exercise:
    """One question, the judge of its answers, and where the reader stands.

    Args:
        name: a short name, unique in the notebook, such as "the span of one page".
        judge: takes an answer and returns ``accepted(sentence)`` or ``hint(sentence)``. Whatever an answer makes it
            raise becomes a hint: the message of a KvzeroError, otherwise `form`.
        form: what an answer looks like, such as "three whole numbers".

    Example:
        >>> exercise = Exercise("two and two", lambda n: accepted("Yes.") if n == 4 else hint("Count again."))
        >>> exercise.judge(5)
        Judgement(accepted=False, sentence='Count again.')
    """

    def __init__(self, name: str, judge: Callable[[Any], Judgement], *, form: str = "") -> None:
        self.name = name
        self._judge = judge
        self._form = form or "the form that the question asks for"
        self._state = "unsolved"
        self._solution_accepted = False
        self._hints: list[str] = []

    def judge(self, answer: Any) -> Judgement:
        """Judges one answer and remembers nothing."""
        try:
            return self._judge(answer)
        except KvzeroError as error:
            return hint(f"This answer is refused: {error}")
        except TimeoutError:
            return hint(f"Judging this answer takes more than {JUDGING_SECONDS:g} s. Try a smaller one.")
        except Exception:  # an answer may be anything, with any behaviour
            return hint(f"This answer cannot be judged. Wanted: {self._form}.")

    def check(self, answer: Any) -> None:
        """Judges the reader's answer, shows the judgement, and remembers the state for the verdict.

        Args:
            answer: what the judge takes, or None for "not answered yet".
        """
        if answer is None:
            self._state = "unsolved"
            _show("☐ unsolved", UNSOLVED)
            return
        with _time_limit(JUDGING_SECONDS):
            judgement = self.judge(answer)
        self._state = "solved" if judgement.accepted else "wrong"
        _show("☑ solved" if judgement.accepted else "☒ not yet", judgement.sentence)

    def prove(self, *, solution: Any, wrong: Sequence[Any]) -> None:
        """Shows that the exercise is fair: the solution is accepted, each wrong answer meets its own hint.

        Args:
            solution: an answer that must be accepted.
            wrong: at least one tempting wrong answer; each is rejected, no two with the same sentence.

        Raises:
            AssertionError: naming the answer that was judged otherwise.
        """
        judgement = self.judge(solution)
        if not judgement.accepted:
            raise AssertionError(f"{self.name}: the solution {solution!r} is rejected: {judgement.sentence}")
        if not wrong:
            raise AssertionError(f"{self.name}: state at least one wrong answer")
        hints = []
        for answer in wrong:
            judgement = self.judge(answer)
            if judgement.accepted:
                sentence = judgement.sentence
                raise AssertionError(f"{self.name}: the wrong answer {answer!r} is accepted: {sentence}")
            if judgement.sentence in hints:
                raise AssertionError(f"{self.name}: the wrong answer {answer!r} has no hint of its own")
            hints.append(judgement.sentence)
        self._solution_accepted, self._hints = True, hints
        _show("the exercise, judged", f"1 accepted, {len(hints)} rejected, each with a hint of its own")

    def state(self) -> ExerciseState:
        """Where the exercise stands, for ``Verdict.exercise``."""
        return ExerciseState(self.name, self._state, self._solution_accepted, len(self._hints))


@contextmanager
def _time_limit(seconds: float) -> Iterator[None]:
    """Raise TimeoutError in the body after some seconds; without effect outside the main thread, where cells run."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def expire(*_: object) -> None:
        raise TimeoutError

    handler = signal.signal(signal.SIGALRM, expire)
    timer = signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, *timer)
        signal.signal(signal.SIGALRM, handler)


def _show(head: str, body: str) -> None:
    from IPython.display import display

    lines = "<br>".join(html.escape(line) for line in body.splitlines())
    bundle = {"text/plain": f"{head}: {body}", "text/html": f"<p><b>{html.escape(head)}</b>: {lines}</p>"}
    display(bundle, raw=True)
