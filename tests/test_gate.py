"""Every way in which papermill's green is not green, run for real, and the gate's answer to each."""

from __future__ import annotations

import pytest
from tiny_notebooks import read_notebook, write_notebook

from kvzero.workbook.gate import Execution, rule
from kvzero.workbook.runner import run_notebook, run_notebooks
from kvzero.workbook.verdict import MIMETYPE, Verdict

OUTPUT_WIDGET = """\
import ipywidgets
sink = ipywidgets.Output()
display(sink)
with sink:
    raise RuntimeError("hidden in an Output")"""
INTERACT = """\
import ipywidgets
def redraw(x):
    raise LookupError("hidden in an interact")
ipywidgets.interact(redraw, x=3);"""
THREAD = """\
import threading
thread = threading.Thread(target=lambda: 1 / 0)
thread.start(); thread.join()"""
BUTTON = """\
import ipywidgets
button = ipywidgets.Button()
def press(_):
    raise RuntimeError("in a callback")
button.on_click(press)
button.click()"""
CHILD = """\
import subprocess, sys
child = "import os, signal; os.kill(os.getpid(), signal.SIGSEGV)"
code = subprocess.run([sys.executable, "-c", child]).returncode"""
KILLED = "import os, signal\nos.kill(os.getpid(), signal.SIGKILL)"
# name -> (how the notebook is made, everything that the gate must say; nothing: it must pass)
TRAPS = {
    "nothing_wrong": ({}, []),
    "br{ac}es_in_the_name": ({}, []),
    "child_crashes": (
        {"sources": [CHILD], "claims": 'v.claim("the child fell to signal 11", measured=code, expected=-11)'},
        [],
    ),
    # Papermill calls this one good, from its first cell to its last.
    "all_is_green": (
        {"sources": [OUTPUT_WIDGET, INTERACT, THREAD, "!false", "%no_such_magic"]},
        [
            "widget OutputModel raised RuntimeError: hidden in an Output",
            "widget OutputModel raised LookupError: hidden in an interact",
            "cell c4 (import threading) wrote to stderr: ZeroDivisionError: division by zero",
            "cell c5 (!false) shells out",
            "cell c6 (%no_such_magic) wrote to stderr: UsageError",
        ],
    ),
    "raises": ({"sources": ["1 / 0"]}, ["cell c2 (1 / 0) raised ZeroDivisionError: division by zero"]),
    "tagged_raises_exception": (
        {"sources": ["1 / 0"], "tags": {0: "parameters", 2: "raises-exception"}},
        ["cell c2 (1 / 0) raised ZeroDivisionError"],
    ),
    "exits_with_0": (
        {"sources": ["import sys\nsys.exit(0)", "print(1)"]},
        ["nothing ran from cell c3 (print(1)) on; the last cell that ran was cell c2 (import sys)"],
    ),
    "kernel_killed": (
        {"sources": ["print(1)", KILLED, "print(2)"]},
        ["the kernel died in cell c3 (import os, signal)", "nothing ran from cell "],
    ),
    "skipped": (
        {"sources": ["1"], "tags": {0: "parameters", 2: "skip-execution"}},
        ["cell c2 (1) is tagged skip-execution"],
    ),
    "button": ({"sources": [BUTTON]}, ["raised RuntimeError: in a callback"]),
    "bash": ({"sources": ["%%bash\nexit 3"]}, ["cell c2 (%%bash) raised CalledProcessError"]),
}


@pytest.fixture(scope="module")
def rulings(tmp_path_factory):
    """All traps, run once, two at a time."""
    folder, out = tmp_path_factory.mktemp("traps"), tmp_path_factory.mktemp("executed")
    # A notebook with an `Output` widget sometimes hangs papermill (nbclient #312); it is stopped at twice its budget,
    # and one that did not get to its end says nothing of the gate, so this one gets more goes.
    paths = [
        write_notebook(folder / f"{name}.ipynb", **made, budget_seconds=12 if name == "all_is_green" else 60)
        for name, (made, _) in TRAPS.items()
    ]
    results = {result.name: result for result in run_notebooks(paths, out, device="cpu")}
    hanging = folder / "all_is_green.ipynb"
    for _ in range(3):
        if any(problem.startswith(("stopped", "nothing ran")) for problem in results["all_is_green"].ruling.problems):
            results |= {result.name: result for result in run_notebooks([hanging], out, device="cpu")}
    return results


@pytest.mark.notebook
@pytest.mark.timeout(300)
@pytest.mark.parametrize("name", TRAPS)
def test_trap(rulings, name):
    problems = rulings[name].ruling.problems
    expected = TRAPS[name][1]
    assert [text for text in expected if not any(text in problem for problem in problems)] == [], problems
    assert bool(problems) is bool(expected), problems


@pytest.mark.notebook
def test_unknown_parameter(tmp_path):
    path = write_notebook(tmp_path / "unknown.ipynb")
    out = tmp_path / "out"
    out.mkdir()
    result = run_notebook(path, out, {"device": "cpu", "colour": "blue"})
    assert "parameter colour is not declared; declared: device, size" in result.ruling.problems


@pytest.mark.notebook
def test_failure_shows_every_output(rulings):
    log = rulings["kernel_killed"].log
    assert "cell c2 (print(1))" in log
    assert "\n1" in log


@pytest.mark.notebook
def test_executed_copy_of_a_good_notebook_is_whole(rulings):
    good = read_notebook(rulings["nothing_wrong"].executed_path)
    assert [claim.name for claim in rulings["nothing_wrong"].ruling.claims] == ["one is one"]
    assert all(cell["execution_count"] for cell in good["cells"] if cell["cell_type"] == "code")


def _ruling(rulings, verdict: dict | None, seconds: float = 1.0, **metadata):
    """The gate's ruling on a good execution whose verdict is exchanged for another."""
    executed = read_notebook(rulings["nothing_wrong"].executed_path)
    executed["metadata"] |= {"kvzero": metadata}
    executed["cells"][-1]["outputs"] = [] if verdict is None else [_output(verdict)]
    return rule(Execution("nothing_wrong", executed, 0, "", seconds))


def _output(verdict: dict) -> dict:
    return {"output_type": "display_data", "metadata": {}, "data": {MIMETYPE: verdict}}


def _verdict(**measured) -> Verdict:
    verdict = Verdict("nothing_wrong", device="cpu")
    for name, value in measured.items():
        verdict.claim(name, measured=value, expected=1, unit="bytes")
    return verdict


def test_good_verdict_passes(rulings):
    assert _ruling(rulings, _verdict(one=1).to_dict()).problems == ()


def test_missing_empty_and_foreign_verdicts(rulings):
    assert _ruling(rulings, None).problems == ("the last code cell emitted 0 verdicts, not 1",)
    assert _ruling(rulings, _verdict().to_dict()).problems == ("the verdict makes no claim",)
    other = _verdict(one=1).to_dict() | {"notebook": "other"}
    assert _ruling(rulings, other).problems == ("the verdict is of 'other', not of 'nothing_wrong'",)


def test_failing_and_nan_claims(rulings):
    ruling = _ruling(rulings, _verdict(one=1, two=2, nan=float("nan")).to_dict())
    assert ruling.problems == (
        "claim failed: FAILED  two: 2 bytes (= 1)",
        "claim failed: FAILED  nan: NaN bytes (= 1)",
    )


def test_forged_verdict_is_judged_from_its_numbers(rulings):
    record = _verdict(two=2).to_dict()
    record["passed"] = record["claims"][0]["passed"] = True
    assert _ruling(rulings, record).problems == ("claim failed: FAILED  two: 2 bytes (= 1)",)


def test_failed_claim_cannot_be_replaced_by_a_good_one(rulings):
    verdict = _verdict(number=2)
    verdict.claim("number", measured=1, expected=1)
    assert _ruling(rulings, verdict.to_dict()).problems == ("claimed twice under one name: number",)


@pytest.mark.parametrize("record", [[], {}, {"claims": [{"name": "no bound"}]}, "text"])
def test_unreadable_verdict(rulings, record):
    (problem,) = _ruling(rulings, record).problems
    assert problem.startswith("the verdict cannot be read: ")


def test_without_a_parameters_cell_nothing_can_be_passed(rulings):
    executed = read_notebook(rulings["nothing_wrong"].executed_path)
    for cell in executed["cells"]:
        cell["metadata"]["tags"] = []
    ruling = rule(Execution("nothing_wrong", executed, 0, "", 1.0))
    assert ruling.problems == ("no cell is tagged `parameters`",)


@pytest.mark.parametrize(
    ("source", "problem"),
    [
        ('device: str = "auto"\nsize: int = 3', None),
        ("n = 2 * 3", "the parameters cell holds more than plain literals: line 1 is not `name = literal`"),
        ("n: int", "the parameters cell holds more than plain literals: line 1 is not `name = literal`"),
        ("n = {[]: 1}", "the parameters cell holds more than plain literals: line 1 is not `name = literal`"),
        ("%time 1", "the parameters cell holds more than plain literals: invalid syntax (<unknown>, line 1)"),
    ],
)
def test_parameters_are_plain_literals_annotated_or_not(rulings, source, problem):
    executed = read_notebook(rulings["nothing_wrong"].executed_path)
    parameters = next(cell for cell in executed["cells"] if cell["metadata"]["tags"] == ["parameters"])
    parameters["source"] = source
    ruling = rule(Execution("nothing_wrong", executed, 0, "", 1.0, ["device"] if problem is None else []))
    assert ruling.problems == (() if problem is None else (problem,))


@pytest.mark.parametrize("stated", ["long", None, True, 0, -1, float("nan"), 1e9])
def test_a_budget_that_is_no_time_is_a_problem_and_the_usual_one_holds(rulings, stated):
    (problem,) = _ruling(rulings, _verdict(one=1).to_dict(), seconds=119, budget_seconds=stated).problems
    assert problem == f"its budget_seconds is {stated!r}, not a number above 0 and up to 86400"


def test_budget(rulings):
    good = _verdict(one=1).to_dict()
    assert _ruling(rulings, good, seconds=121).problems == ("took 121 s, its budget is 120 s",)
    assert _ruling(rulings, good, seconds=3, budget_seconds=2).problems == ("took 3 s, its budget is 2 s",)
    assert _ruling(rulings, good, seconds=121, budget_seconds=200).problems == ()


def test_no_notebook_written():
    ruling = rule(Execution("lost", None, 1, "OSError: no space left on device\n", 1.0))
    assert ruling.problems == ("papermill wrote no notebook (exit 1): OSError: no space left on device",)


def test_papermills_own_stderr_counts(rulings):
    executed = read_notebook(rulings["nothing_wrong"].executed_path)
    harmless = "[IPKernelApp] WARNING | Kernel is running over TCP without encryption. And so on.\n"
    harmless += "[IPKernelApp] ERROR | KeyboardInterrupt caught in kernel.\n"
    assert rule(Execution("nothing_wrong", executed, 0, harmless, 1.0)).proven
    ruling = rule(Execution("nothing_wrong", executed, 0, harmless + "Exception ignored in thread\n", 1.0))
    assert ruling.problems == ("papermill wrote to stderr: Exception ignored in thread",)
