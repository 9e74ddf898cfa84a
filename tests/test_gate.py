"""Every way in which papermill's green is not green, run for real, and the gate's answer to each."""

from __future__ import annotations

import pytest
from tiny_notebooks import executed_notebook, read_notebook, write_notebook

from kvzero.workbook.gate import Execution, printable, rule, text_outputs
from kvzero.workbook.runner import run_notebook, run_notebooks
from kvzero.workbook.shell import runs_a_shell
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
THREAD_CLEARED = f"{THREAD}\nfrom IPython.display import clear_output\nclear_output()"
CAPTURED = """\
%%capture
import threading
def fail():
    raise LookupError("captured")
thread = threading.Thread(target=fail)
thread.start(); thread.join()"""
TASK = """\
import asyncio
async def fail():
    raise ValueError("a task that nobody awaits")
task = asyncio.get_event_loop().create_task(fail())"""
SINK_CLEARED = """\
import ipywidgets
sink = ipywidgets.Output()
with sink:
    raise RuntimeError("cleared from an Output")
sink.outputs = ()"""
FINALIZER = """\
class Thing:
    def __del__(self):
        raise OverflowError("in __del__")
from IPython.utils.capture import capture_output
with capture_output():
    Thing()"""
KILLED = "import os, signal\nos.kill(os.getpid(), signal.SIGKILL)"
# name -> (how the notebook is made, everything that the gate must say; nothing: it must pass)
TRAPS = {
    "nothing_wrong": ({}, []),
    "br{ac}es_in_the_name": (
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
    # Errors that no saved output shows.
    "unseen": (
        {"sources": [THREAD_CLEARED, CAPTURED, TASK, "import gc\ndel task\ngc.collect()", SINK_CLEARED, FINALIZER]},
        [
            "in a thread: ZeroDivisionError: division by zero",
            "in a thread: LookupError: captured",
            "ValueError: a task that nobody awaits",
            "RuntimeError: cleared from an Output",
            "in a finalizer or at exit: OverflowError: in __del__",
        ],
    ),
    "dies_at_exit": (
        {"sources": ["import atexit, os\natexit.register(os._exit, 0)\natexit.register(lambda: 1 / 0)"]},
        ["in a finalizer or at exit: ZeroDivisionError", "the kernel left before its exit handlers had run (os._exit)"],
    ),
    "held_to_the_end": (
        {
            "sources": [
                'async def fail(): raise ValueError("in a task that is kept")\nimport asyncio\n'
                "task = asyncio.create_task(fail())",
                'class Item:\n    def __del__(self): raise ValueError("in a finalizer at the end")\nitem = Item()',
                "def uses(name): assert item\nimport atexit\natexit.register(uses, 1);",
                'import threading, time\ndef late(): time.sleep(0.5); raise ValueError("in a late thread")\n'
                "threading.Thread(target=late).start()",
                "open('../above.txt', 'w').close(); open('beside.txt', 'w').close(); open('gone.txt', 'w').close()",
                "import os\nos.remove('gone.txt')",
            ]
        },
        [
            "ValueError: in a task that is kept",
            "ValueError: in a finalizer at the end",
            "ValueError: in a late thread",
            "above.txt written",
            "beside.txt written",
        ],
    ),
    "does_not_end": (
        {"sources": ["import threading, time\nthreading.Thread(None, time.sleep, 'sleeper', (60,)).start()"]},
        ["after the last cell the kernel did not end: sleeper still ran"],
    ),
    "segfault_at_exit": (
        {"sources": ["import atexit, os\natexit.register(os.kill, os.getpid(), 11)"]},
        ["after the last cell the kernel exited with -11"],
    ),
    "second_verdict": (
        {
            "sources": [
                'v = Verdict("second_verdict", device=device)\nv.claim("two is one", measured=2, expected=1);',
                "import subprocess\nchild = subprocess.Popen(['sleep', '600'], start_new_session=True)",
                "import pathlib\npathlib.Path('second_verdict.ipynb').open('a').write('\\n')",
            ]
        },
        [
            "the verdict's verdicts_made is 2, not 1",
            "a process that it started was left: sleep 600",
            "the notebook's own file was changed while it ran",
        ],
    ),
}


def runs_notebooks(test):
    """Mark a test: all traps run in one fixture, for whichever test is first. The limit only ends what hangs."""
    return pytest.mark.notebook(pytest.mark.timeout(1_800)(test))


@pytest.fixture(scope="module")
def rulings(tmp_path_factory):
    """All traps, run once, two at a time."""
    folder, out = tmp_path_factory.mktemp("traps"), tmp_path_factory.mktemp("executed")
    # A notebook with an `Output` widget sometimes hangs papermill (nbclient #312); it is stopped at twice its budget,
    # and one that did not get to its end says nothing of the gate, so this one gets more goes.
    paths = [
        write_notebook(folder / f"{name}.ipynb", **made, budget_seconds=40 if name == "all_is_green" else 120)
        for name, (made, _) in TRAPS.items()
    ]
    results = {result.name: result for result in run_notebooks(paths, out, device="cpu")}
    hanging = folder / "all_is_green.ipynb"
    for _ in range(3):
        if any(problem.startswith(("stopped", "nothing ran")) for problem in results["all_is_green"].ruling.problems):
            results |= {result.name: result for result in run_notebooks([hanging], out, device="cpu")}
    return results


@runs_notebooks
@pytest.mark.parametrize("name", TRAPS)
def test_trap(rulings, name):
    problems = rulings[name].ruling.problems
    expected = TRAPS[name][1]
    assert [text for text in expected if not any(text in problem for problem in problems)] == [], problems
    assert bool(problems) is bool(expected), problems
    assert not any("gone.txt" in problem or "AssertionError" in problem for problem in problems)


@runs_notebooks
def test_unknown_parameter(tmp_path):
    path = write_notebook(tmp_path / "unknown.ipynb")
    out = tmp_path / "out"
    out.mkdir()
    result = run_notebook(path, out, {"device": "cpu", "colour": "blue"})
    assert "parameter colour is not declared; declared: device, size" in result.ruling.problems


@runs_notebooks
def test_failure_shows_every_output(rulings):
    log = rulings["kernel_killed"].log
    assert "cell c2 (print(1))" in log
    assert "\n1" in log


@runs_notebooks
def test_executed_copy_of_a_good_notebook_is_whole(rulings):
    good = read_notebook(rulings["nothing_wrong"].executed_path)
    assert [claim.name for claim in rulings["nothing_wrong"].ruling.claims] == ["one is one"]
    assert all(cell["execution_count"] for cell in good["cells"] if cell["cell_type"] == "code")


def _ruling(verdict: dict | None, seconds: float = 1.0, **metadata):
    """The gate's ruling on a good execution whose verdict is exchanged for another."""
    executed = executed_notebook(_verdict(one=1).to_dict() | {"verdicts_made": 1})
    executed["metadata"] |= {"kvzero": metadata}
    executed["cells"][-1]["outputs"] = [] if verdict is None else [_output(verdict)]
    return rule(Execution("nothing_wrong", executed, 0, "", seconds))


def _output(verdict: dict) -> dict:
    if isinstance(verdict, dict) and "verdicts_made" in verdict:
        verdict = verdict | {"verdicts_made": 1}  # these tests make many in one process
    return {"output_type": "display_data", "metadata": {}, "data": {MIMETYPE: verdict}}


def _verdict(**measured) -> Verdict:
    verdict = Verdict("nothing_wrong", device="cpu")
    for name, value in measured.items():
        verdict.claim(name, measured=value, expected=1, unit="bytes")
    return verdict


def test_good_verdict_passes():
    assert _ruling(_verdict(one=1).to_dict()).problems == ()


def test_missing_empty_and_foreign_verdicts():
    assert _ruling(None).problems == ("the last code cell emitted 0 verdicts, not 1",)
    assert _ruling(_verdict().to_dict()).problems == ("the verdict makes no claim",)
    other = _verdict(one=1).to_dict() | {"notebook": "other"}
    assert _ruling(other).problems == ("the verdict's notebook is 'other', not 'nothing_wrong'",)


def test_failing_and_nan_claims():
    ruling = _ruling(_verdict(one=1, two=2, nan=float("nan")).to_dict())
    assert ruling.problems == (
        "claim failed: FAILED  two: 2 bytes (= 1)",
        "claim failed: FAILED  nan: NaN bytes (= 1)",
    )


def test_forged_verdict_is_judged_from_its_numbers():
    record = _verdict(two=2).to_dict()
    record["passed"] = record["claims"][0]["passed"] = True
    assert _ruling(record).problems == ("claim failed: FAILED  two: 2 bytes (= 1)",)


def test_failed_claim_cannot_be_replaced_by_a_good_one():
    verdict = _verdict(number=2)
    verdict.claim("number", measured=1, expected=1)
    assert _ruling(verdict.to_dict()).problems == ("claimed twice under one name: number",)


@pytest.mark.parametrize("record", [[], {}, {"claims": [{"name": "no bound"}]}, "text"])
def test_unreadable_verdict(record):
    (problem,) = _ruling(record).problems
    assert problem.startswith("the verdict cannot be read: ")


def test_without_a_parameters_cell_nothing_can_be_passed():
    executed = executed_notebook(_verdict(one=1).to_dict() | {"verdicts_made": 1})
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
def test_parameters_are_plain_literals_annotated_or_not(source, problem):
    executed = executed_notebook(_verdict(one=1).to_dict() | {"verdicts_made": 1})
    parameters = next(cell for cell in executed["cells"] if cell["metadata"]["tags"] == ["parameters"])
    parameters["source"] = source
    ruling = rule(Execution("nothing_wrong", executed, 0, "", 1.0, {"device": "cpu"} if problem is None else {}))
    assert ruling.problems == (() if problem is None else (problem,))


@pytest.mark.parametrize("stated", ["long", None, True, 0, -1, float("nan"), 1e9])
def test_a_budget_that_is_no_time_is_a_problem_and_the_usual_one_holds(stated):
    (problem,) = _ruling(_verdict(one=1).to_dict(), seconds=119, budget_seconds=stated).problems
    assert problem == f"its budget_seconds is {stated!r}, not a number above 0 and up to 86400"


def test_budget():
    good = _verdict(one=1).to_dict()
    assert _ruling(good, seconds=121).problems == ("took 121 s, its budget is 120 s",)
    assert _ruling(good, seconds=3, budget_seconds=2).problems == ("took 3 s, its budget is 2 s",)
    assert _ruling(good, seconds=121, budget_seconds=200).problems == ()


def test_no_notebook_written():
    ruling = rule(Execution("lost", None, 1, "OSError: no space left on device\n", 1.0))
    assert ruling.problems == ("papermill wrote no notebook (exit 1): OSError: no space left on device",)


def test_papermills_own_stderr_counts():
    executed = executed_notebook(_verdict(one=1).to_dict() | {"verdicts_made": 1})
    harmless = "[IPKernelApp] WARNING | Kernel is running over TCP without encryption. And so on.\n"
    harmless += "[IPKernelApp] ERROR | KeyboardInterrupt caught in kernel.\n"
    assert rule(Execution("nothing_wrong", executed, 0, harmless, 1.0)).proven
    ruling = rule(Execution("nothing_wrong", executed, 0, harmless + "Exception ignored in thread\n", 1.0))
    assert ruling.problems == ("papermill wrote to stderr: Exception ignored in thread",)


@pytest.mark.parametrize(
    "source",
    [
        "!false", "x = !false", "x[0] = !false", "%sx false", "%system false", "%%sx\nfalse", "%%system\nfalse",
        "%time !false", "%%time\n!false", "%%capture\n!false", "%%bash --no-raise-error\nfalse",
        "%%script --bg bash\n1",
        "get_ipython().run_line_magic('sx', 'false')", "ip = get_ipython()\nip.system('false')",
        "get_ipython().getoutput('false')", "import os\nos.system('false')", "if True:\n    !false",
    ],
)  # fmt: skip
def test_a_shell_whose_status_is_dropped_is_seen(source):
    assert runs_a_shell(source)


@pytest.mark.parametrize(
    "source",
    [
        "print('!false')", 'text = """\n!false\n"""', "a != b", "%%bash\nfalse", "# !false", "%time 1",
        "import platform\nplatform.system()",
    ],
)  # fmt: skip
def test_what_is_no_shell_passes(source):
    assert not runs_a_shell(source)


def _with_cells(*cells, parameters):
    executed = executed_notebook(_verdict(one=1).to_dict() | {"verdicts_made": 1})
    at = next(k for k, cell in enumerate(executed["cells"]) if "injected-parameters" in cell["metadata"]["tags"])
    added = [
        {"cell_type": "code", "id": f"a{k}", "metadata": {"tags": tags}, "source": source, "outputs": [],
         "execution_count": 1}
        for k, (source, tags) in enumerate(cells)
    ]  # fmt: skip
    executed["cells"][at + 1 : at + 1] = added
    return rule(Execution("nothing_wrong", executed, 0, "", 1.0, parameters)).problems


def test_a_parameter_that_is_set_again_is_a_problem():
    passed = {"device": "cpu", "size": 5}
    (problem,) = _with_cells(("size = 3", []), parameters=passed)
    assert problem == "cell a0 (size = 3) sets the parameter size to something else than what was passed"
    assert _with_cells(("size = min(size, 9)", []), parameters=passed) == ()
    assert _with_cells(("size = 3", []), parameters={"device": "cpu"}) == ()
    (problem,) = _with_cells(("size = 3", ["parameters"]), parameters=passed)
    assert problem == "2 cells are tagged `parameters`, not 1"


def test_a_verdict_of_another_device_or_interpreter():
    executed = executed_notebook(_verdict(one=1).to_dict() | {"verdicts_made": 1})
    (problem,) = rule(Execution("nothing_wrong", executed, 0, "", 1.0, {"device": "cuda"})).problems
    assert problem == "the verdict's device is 'cpu', not 'cuda'"
    record = _verdict(one=1).to_dict() | {"executable": "/elsewhere/python"}
    (problem,) = _ruling(record).problems
    assert problem.startswith("the verdict's executable is '/elsewhere/python', not ")


def test_a_claimed_mapping_keeps_its_keys_apart():
    verdict = _verdict(one=1)
    for measured in {1: 5, "1": 6}, {float("nan"): 1}:
        with pytest.raises(TypeError, match="keys"):
            verdict.claim("keys", measured=measured, expected={"1": 6})


def test_nothing_that_a_terminal_obeys_is_printed():
    verdict = Verdict("nothing_wrong", device="cpu")
    verdict.claim("x\n12 of 12 notebooks proven\x1b[2J", measured=1, expected=1)
    ruling = _ruling(verdict.to_dict())
    assert ruling.problems == () and "\n" not in str(ruling.claims[0]) and "\x1b" not in str(ruling.claims[0])
    assert printable("a\x1b[2Jb\nc\x1b]0;title\x07d") == "ab cd"


@pytest.mark.parametrize("widgets", ["text", {"application/vnd.jupyter.widget-state+json": "text"}, 5])
def test_a_malformed_notebook_is_one_problem(widgets):
    executed = executed_notebook(_verdict(one=1).to_dict() | {"verdicts_made": 1})
    executed["metadata"]["widgets"] = widgets
    (problem,) = rule(Execution("nothing_wrong", executed, 0, "", 1.0)).problems
    assert problem.startswith("the executed notebook cannot be judged: ")


def test_papermills_own_reason_comes_before_what_follows_from_it():
    executed = executed_notebook(_verdict(one=1).to_dict() | {"verdicts_made": 1})
    for cell in executed["cells"][2:]:
        cell["execution_count"], cell["outputs"] = None, []
    problems = rule(Execution("nothing_wrong", executed, 1, "OSError: too many open files", 1.0)).problems
    assert problems[0] == "papermill exited with 1: OSError: too many open files"
    assert problems[1].startswith("nothing ran from cell ")


def test_a_long_output_is_cut():
    executed = executed_notebook(_verdict(one=1).to_dict() | {"verdicts_made": 1})
    executed["cells"][-1]["outputs"].append({"output_type": "stream", "name": "stdout", "text": "x" * 50_000_000})
    log = text_outputs(executed)
    assert len(log) < 25_000 and "characters ..." in log
