"""The knob: what it draws, says and offers, that errors surface, and that a site gets every step."""

from __future__ import annotations

import pytest
from IPython.core.interactiveshell import InteractiveShell
from IPython.utils.capture import capture_output
from picture_check import picture_problems

from kvzero.workbook import bars, knob
from kvzero.workbook.figures import SIGNS, Sheet
from kvzero.workbook.knob import MIMETYPE, STEPS_VARIABLE

STEPS = {"one page": {"pages": 1, "unit": "pages"}, "eight": {"pages": 8}, "in blocks": {"unit": "blocks"}}
CONTROLS = {"pages": range(9), "unit": ["pages", "blocks"]}


def count(pages, unit):
    if pages == 0:
        raise ZeroDivisionError("nothing to count")
    sentence = f"{pages} {unit} & no more."
    return bars([(unit, pages)], sentence), sentence, f"count {pages}"


@pytest.fixture
def turned():
    return knob(count, controls=CONTROLS, steps=STEPS, title="How many?")


def shown(one) -> list[dict]:
    InteractiveShell.instance()
    with capture_output() as captured:
        one._ipython_display_()
    return [output.data for output in captured.outputs]


def test_it_starts_at_the_first_step_and_turns(turned):
    assert turned.state == {"pages": 1, "unit": "pages"} and turned.sentence == "1 pages & no more."
    turned.set(pages=5, unit="blocks")
    assert turned.sentence == "5 blocks & no more."
    turned.controls["pages"].value = 7  # as a hand on it would
    assert turned.sentence == "7 blocks & no more." and turned.state["pages"] == 7


def test_a_second_run_of_the_cell_starts_again(turned):
    turned.set(pages=5)
    again = knob(count, controls=CONTROLS, steps=STEPS, title="How many?")
    assert again.state == {"pages": 1, "unit": "pages"} and turned.state["pages"] == 5


def test_the_output_carries_picture_words_text_and_code(turned):
    controls, picture = shown(turned)
    assert "1 pages &amp; no more." in picture["text/html"] and "count 1" in picture["text/html"]
    assert "show(*count(pages=1, unit=&#x27;pages&#x27;))" in picture["text/html"]
    assert picture["text/plain"].splitlines() == ["1 pages & no more.", "count 1"]
    assert "application/vnd.jupyter.widget-view+json" in controls and MIMETYPE not in picture


def test_the_code_of_a_state_runs_as_pasted(turned):
    shown(turned)
    turned.set(pages=3)
    from kvzero.workbook import show
    from kvzero.workbook.knob import state_code

    with capture_output() as captured:
        exec(state_code(count, turned.state), {"show": show, "count": count})
    assert captured.outputs[0].data["text/plain"].startswith("3 pages & no more.")


def test_for_a_site_every_step_is_drawn_by_the_same_function(turned, monkeypatch):
    monkeypatch.setenv(STEPS_VARIABLE, "steps")
    record = shown(turned)[1][MIMETYPE]
    assert [step["label"] for step in record["steps"]] == list(STEPS) and record["boundary"] == 2
    for step, state in zip(record["steps"], turned.steps.values(), strict=True):
        _, sentence, text = count(**state)
        assert (step["sentence"], step["text"]) == (sentence, text)


def test_an_error_is_recorded_shown_and_raised(turned):
    with pytest.raises(ZeroDivisionError):
        turned.set(pages=0)
    assert len(turned.errors) == 1 and "nothing to count" in turned._words.value
    turned.set(pages=2)
    assert turned.sentence == "2 pages & no more." and "nothing" not in turned._words.value


@pytest.mark.parametrize(
    "steps",
    [{}, {"a": {"pages": 1}}, {"a": {"pages": 1, "unit": "pages", "x": 1}}, {"a": {"pages": 9, "unit": "pages"}}],
)
def test_steps_that_do_not_fit_the_controls_are_refused(steps):
    with pytest.raises(ValueError):
        knob(count, controls=CONTROLS, steps=steps, title="How many?")


def test_the_check_of_pictures_sees_each_fault(turned):
    figure = Sheet(1.0)
    figure.text(0.2, 0.3, "one label")
    assert picture_problems(figure.finish().svg("Fine.")) == []
    for x, y, words, problem in (
        (0.5, 0.32, "another", "'one label' lies on 'another'"),
        (8.8, 0.6, "too far right", "'too far right' is cut off"),
    ):
        wrong = Sheet(1.0)
        wrong.text(0.2, 0.3, "one label")
        wrong.text(x, y, words)
        assert [found.partition(": ")[2] for found in picture_problems(wrong.finish().svg("…"))] == [problem]
    quiet = Sheet(1.0)
    quiet.box(1, 0.5, 1, 0.2, SIGNS["cleared"])
    assert picture_problems(quiet.figure.svg("a")) == []
    drawn = quiet.finish().svg("old: wipes 5 live bytes that are not its own.")
    assert picture_problems(drawn) == ["old: wipes 5 live bytes that are not its: says stomped bytes and draws none"]


def test_the_ends_of_all_controls_are_drawn_for_a_test(monkeypatch):
    monkeypatch.setenv(STEPS_VARIABLE, "extremes")
    turned = knob(count, controls={"pages": range(1, 9), "unit": ["pages", "blocks"]}, steps=STEPS, title="How many?")
    record = shown(turned)[1][MIMETYPE]
    said = {step["sentence"] for step in record["steps"][3:]}
    assert said == {"1 pages & no more.", "8 pages & no more.", "1 blocks & no more.", "8 blocks & no more."}
