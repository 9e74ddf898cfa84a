"""A verdict proves what its numbers bear out, and nothing else."""

from __future__ import annotations

import json

import numpy
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from IPython.core.interactiveshell import InteractiveShell
from IPython.utils.capture import capture_output
from traitlets.config import Config

from kvzero.workbook.exercise import Exercise, accepted, hint
from kvzero.workbook.verdict import MIMETYPE, Claim, ClaimsFailedError, Verdict, plain

NAN, INF = float("nan"), float("inf")


@pytest.fixture(scope="module", autouse=True)
def shell():
    """What a notebook has and a test has not: something that displays."""
    InteractiveShell.instance(config=Config(HistoryManager={"enabled": False}))
    yield
    InteractiveShell.clear_instance()


@pytest.mark.parametrize(
    ("measured", "bound", "holds"),
    [
        (112_320, {"expected": 112_320}, True),
        (112_319, {"expected": 112_320}, False),
        ((1, 2), {"expected": [1, 2]}, True),
        ({"a": 1}, {"expected": {"a": 1}}, True),
        ({"a": 1}, {"expected": {"a": 1, "b": 2}}, False),
        (numpy.int64(7), {"expected": 7}, True),
        (torch.tensor(7), {"expected": numpy.int32(7)}, True),
        (1, {"expected": True}, False),
        ([1], {"expected": [True]}, False),
        (numpy.bool_(True), {"expected": True}, True),
        (None, {"expected": 0}, False),
        (NAN, {"expected": NAN}, False),
        ([1, NAN], {"expected": [1, NAN]}, False),
        (INF, {"expected": INF}, True),
        (1.3, {"at_least": 1.2}, True),
        (1.1, {"at_least": 1.2}, False),
        (NAN, {"at_least": 0}, False),
        (INF, {"at_least": 0}, False),
        (1.2, {"at_least": NAN}, False),
        (10, {"at_most": 10}, True),
        (11, {"at_most": 10}, False),
        (NAN, {"at_most": 0}, False),
        (True, {"at_least": 0}, False),
        ("2", {"at_least": 1}, False),
    ],
)
def test_a_claim_holds_only_by_its_numbers(measured, bound, holds):
    claim = Verdict("n", device="cpu").claim("c", measured=measured, **bound)
    assert claim.passed is holds
    assert str(claim).startswith("proven" if holds else "FAILED")
    assert Claim.from_dict(json.loads(json.dumps(claim.to_dict()))) == claim


PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=8,
)


@given(PLAIN)
def test_every_plain_value_survives_json(value):
    claim = Verdict("n", device="cpu").claim("c", measured=value, expected=value)
    text = json.dumps(claim.to_dict(), allow_nan=False)
    assert Claim.from_dict(json.loads(text)) == claim
    assert claim.passed is ("NaN" not in json.dumps(plain(value)))


@pytest.mark.parametrize("value", [numpy.zeros(3), torch.zeros(2), object(), {1, 2}, 1j])
def test_values_that_are_not_plain_are_refused(value):
    with pytest.raises(TypeError, match="a claim takes plain values"):
        Verdict("n", device="cpu").claim("c", measured=value, expected=0)


@pytest.mark.parametrize("bound", [{}, {"expected": 1, "at_least": 1}, {"about": 1}])
def test_a_claim_has_exactly_one_bound(bound):
    with pytest.raises(TypeError, match="takes exactly one of expected, at_least, at_most"):
        Verdict("n", device="cpu").claim("c", measured=1, **bound)


def _shown(verdict: Verdict) -> tuple[dict, BaseException | None]:
    error = None
    with capture_output() as captured:
        try:
            verdict.show()
        except ClaimsFailedError as failure:
            error = failure
    (output,) = captured.outputs
    return output.data, error


def test_show_emits_json_html_and_text():
    verdict = Verdict("04_case", device="cpu")
    verdict.claim("bytes past <the end>", measured=112_320, expected=112_320, unit="bytes")
    verdict.note("sanitizer", "not available here")
    data, error = _shown(verdict)
    assert error is None
    assert data[MIMETYPE]["passed"] is True
    assert data["text/plain"] == (
        "04_case on cpu: 1 of 1 claims proven\n"
        "  proven  bytes past <the end>: 112,320 bytes (= 112,320)\n"
        "  note  sanitizer: not available here"
    )
    assert "bytes past &lt;the end&gt;" in data["text/html"]
    assert "✓ proven" in data["text/html"]


def test_show_raises_after_emitting_when_a_claim_fails():
    verdict = Verdict("04_case", device="cpu")
    verdict.claim("one", measured=1, expected=1)
    failed = verdict.claim("two", measured=2, expected=1)
    data, error = _shown(verdict)
    assert data[MIMETYPE]["passed"] is False
    assert error.failed == (failed,)
    assert str(error) == "04_case: 1 claim(s) do not hold\n  FAILED  two: 2 (= 1)"


def test_a_table_shows_failures_and_folds_the_rest():
    verdict = Verdict("04_case", device="cpu")
    verdict.claim("good", measured=1, expected=1)
    head = "<div class='kvzero-verdict'><p><b>04_case on cpu: 1 of 1 claims proven</b></p>"
    assert verdict.to_html().partition("<details>")[0] == head
    verdict.claim("bad", measured=2, expected=1)
    shown, _, folded = verdict.to_html().partition("<details>")
    assert "✗ FAILED" in shown and "bad" in shown and "good" not in shown
    assert "✓ proven" in folded and "good" in folded and "bad" not in folded


def test_a_verdict_without_claims_proves_nothing():
    data, error = _shown(Verdict("04_case", device="cpu"))
    assert data[MIMETYPE]["passed"] is False
    assert str(error) == "04_case: no claim was made"


def test_a_cell_run_again_replaces_its_claim_and_the_record_says_so():
    verdict = Verdict("n", device="cpu")
    verdict.claim("number", measured=2, expected=1)
    verdict.claim("number", measured=1, expected=1)
    assert verdict.passed
    assert verdict.to_dict()["claimed_again"] == ["number"]


def _exercise() -> Exercise:
    def judge(span_bytes):
        if span_bytes < 0:
            raise ValueError("a span is not negative")
        if span_bytes == 37_440:
            return hint("That is the stride.")
        return accepted("Exactly the page.") if span_bytes == 37_376 else hint(f"{span_bytes} is not it.")

    return Exercise("the span of a page", judge, form="a number of bytes")


@pytest.mark.parametrize(
    ("answer", "state", "text"),
    [
        (None, "unsolved", "☐ unsolved: Unsolved so far."),
        (37_376, "solved", "☑ solved: Exactly the page."),
        (37_440, "wrong", "☒ not yet: That is the stride."),
        (-1, "wrong", "☒ not yet: This answer cannot be judged. Wanted: a number of bytes."),
        ("many", "wrong", "☒ not yet: This answer cannot be judged. Wanted: a number of bytes."),
    ],
)
def test_an_answer_is_judged_with_a_sentence(answer, state, text):
    exercise = _exercise()
    with capture_output() as captured:
        exercise.check(answer)
    assert captured.outputs[0].data["text/plain"].startswith(text)
    assert exercise.state().state == state


class _Hostile:
    def __init__(self, error: BaseException) -> None:
        self.error = error

    def __iter__(self):
        raise self.error


@pytest.mark.parametrize("answer", [_Hostile(RuntimeError("inside")), INF, NAN, b"x", [None], {}, 10**400, object()])
def test_no_answer_breaks_an_exercise_or_shows_pythons_words(answer):
    exercise = Exercise("sum", lambda each: accepted("Yes.") if int(sum(each)) == 6 else hint("No."), form="three")
    with capture_output() as captured:
        exercise.check(answer)
    text = captured.outputs[0].data["text/plain"]
    assert text in ("☒ not yet: No.", "☒ not yet: This answer cannot be judged. Wanted: three.")
    assert exercise.state().state == "wrong"


def test_an_answer_that_costs_too_much_is_given_up(monkeypatch):
    monkeypatch.setattr("kvzero.workbook.exercise.JUDGING_SECONDS", 0.2)

    def judge(number):
        while number:
            pass

    exercise = Exercise("endless", judge)
    with capture_output() as captured:
        exercise.check(1)
    assert "takes more than 0.2 s" in captured.outputs[0].data["text/plain"]


def test_solution_and_wrong_answers_land_in_the_verdict():
    exercise, verdict = _exercise(), Verdict("n", device="cpu")
    with capture_output():
        exercise.check(None)
        exercise.prove(solution=37_376, wrong=[37_440, 149_760])
    verdict.exercise(exercise)
    assert verdict.passed
    (state,) = verdict.to_dict()["exercises"]
    assert state == {
        "name": "the span of a page",
        "state": "unsolved",
        "solution_accepted": True,
        "wrong_answers_hinted": 2,
    }


def test_an_exercise_that_was_never_proven_fails_the_verdict():
    verdict = Verdict("n", device="cpu")
    verdict.exercise(_exercise())
    assert not verdict.passed


@pytest.mark.parametrize(
    ("solution", "wrong", "message"),
    [
        (37_440, [1], "the solution 37440 is rejected: That is the stride."),
        (37_376, [37_376], "the wrong answer 37376 is accepted"),
        (37_376, [], "state at least one wrong answer"),
        (37_376, [37_440, 37_440], "the wrong answer 37440 has no hint of its own"),
    ],
)
def test_an_unfair_exercise_is_refused(solution, wrong, message):
    with pytest.raises(AssertionError, match=message):
        _exercise().prove(solution=solution, wrong=wrong)


def test_a_hint_says_something():
    with pytest.raises(ValueError, match="a judgement needs a sentence"):
        hint("  ")
