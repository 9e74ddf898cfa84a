"""`kvzero run`, as a user calls it."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import tiny_notebooks
import torch
from refusals import raises_rule
from tiny_notebooks import write_notebook

from kvzero.__main__ import main
from kvzero.workbook.runner import _typed, find_notebooks, progress_line, run_notebook, run_notebooks


@pytest.mark.notebook
def test_run_prints_progress_then_the_claims_and_writes_the_executed_notebooks(tmp_path, capfd):
    good = write_notebook(
        tmp_path / "good.ipynb",
        ["import sys\nprefix = sys.prefix"],
        claims=(
            'v.claim("the kernel is of this environment", measured=prefix, '
            f'expected={sys.prefix!r})\nv.claim("size", measured=size, expected=5)'
        ),
    )
    bad = write_notebook(tmp_path / "bad.ipynb", claims='v.claim("two is one", measured=2, expected=1)')
    out = tmp_path / "out"
    command = ["run", str(good), str(bad), "--device", "cpu", "-o", str(out), "-p", "size", "5"]
    assert main(command) == 1
    text = capfd.readouterr().out
    assert "[ 1/2] proven  good  2 claims, " in text
    assert "[ 2/2] FAILED  bad  0 of 1 claims, " in text
    assert "  problem: claim failed: FAILED  two is one: 2 (= 1)" in text
    assert text.endswith("\n1 of 2 notebooks proven, 2 of 3 claims proven\n")
    assert sorted(path.name for path in out.iterdir()) == ["bad.ipynb", "good.ipynb"]


@pytest.mark.notebook
def test_run_exits_0_when_all_is_proven(tmp_path, capfd):
    path = write_notebook(tmp_path / "good.ipynb")
    assert main(["run", str(path), "--device", "cpu", "-o", str(tmp_path / "out")]) == 0
    assert capfd.readouterr().out.endswith("\n1 of 1 notebooks proven, 1 of 1 claims proven\n")


@pytest.mark.notebook
def test_a_notebook_that_cannot_be_judged_does_not_lose_the_others(tmp_path, capfd, monkeypatch):
    good = write_notebook(tmp_path / "good.ipynb")
    long = write_notebook(tmp_path / "long.ipynb", budget_seconds="long")
    monkeypatch.setattr(tiny_notebooks, "PARAMETERS", 'device: str = "auto"\nsize: int = 3')
    annotated = write_notebook(tmp_path / "annotated.ipynb", claims='v.claim("size", measured=size, expected=4)')
    monkeypatch.setattr(tiny_notebooks, "PARAMETERS", 'device = "auto"\nsize = 2 * 3')
    computed = write_notebook(tmp_path / "computed.ipynb")
    paths = map(str, (computed, long, annotated, good))
    assert main(["run", *paths, "--device", "cpu", "-o", str(tmp_path / "out"), "-p", "size", "4"]) == 1
    text = capfd.readouterr().out
    assert "  problem: the parameters cell holds more than plain literals: line 2 is not `name = literal`\n" in text
    assert "  problem: its budget_seconds is 'long', not a number" in text
    assert "proven  annotated  1 claims" in text and "proven  good  1 claims" in text
    assert text.endswith("\n2 of 4 notebooks proven, 4 of 4 claims proven\n")


@pytest.mark.notebook
def test_a_file_left_behind_fails_the_notebook_that_wrote_it(tmp_path, capfd):
    """Both run at a time, in one folder."""
    clean = write_notebook(tmp_path / "clean.ipynb", ["import time\ntime.sleep(1)"])
    litter = write_notebook(tmp_path / "litter.ipynb", ["open('left.txt', 'w').close()"])
    out = tmp_path / "out"
    assert main(["run", str(clean), str(litter), "--device", "cpu", "-o", str(out)]) == 1
    text = capfd.readouterr().out
    assert f"problem  it left {tmp_path / 'left.txt'} written" in text and "proven  clean" in text
    assert "\n1 of 2 notebooks proven, 2 of 2 claims proven, FAILED: 1 file(s) left behind\n" in text


@pytest.mark.notebook
def test_a_file_left_behind_by_a_child_process_fails_the_run(tmp_path, capfd):
    child = "import subprocess\nsubprocess.run(['touch', 'left.txt'], check=True);"
    litter = write_notebook(tmp_path / "litter.ipynb", [child])
    assert main(["run", str(litter), "--device", "cpu", "-o", str(tmp_path / "out")]) == 1
    text = capfd.readouterr().out
    assert f"\nFAILED  {tmp_path / 'left.txt'} was left behind by one of the notebooks; delete it\n" in text
    assert text.endswith("\n1 of 1 notebooks proven, 1 of 1 claims proven, FAILED: 1 file(s) left behind\n")


@pytest.mark.notebook
def test_a_value_that_kvzero_refuses_is_one_line_without_a_traceback(tmp_path, capfd):
    source = "from kvzero.device import pick_device\npick_device(size)"
    path = write_notebook(tmp_path / "refused.ipynb", [source])
    assert main(["run", str(path), "-o", str(tmp_path / "out"), "--device", "cpu", "-p", "size", "5"]) == 1
    text = capfd.readouterr().out
    assert "\nCommandError: device 5 is not available here. Choose one of ('auto', 'cpu'" in text
    assert "Traceback" not in text and "--->" not in text
    assert "Traceback" in (tmp_path / "out" / "refused.ipynb").read_text()


@pytest.mark.notebook
def test_what_hangs_is_stopped_tried_once_more_and_named(tmp_path, monkeypatch):
    tries = tmp_path / "tries"
    hang = f"import pathlib, time\npathlib.Path({str(tries)!r}).open('a').write('x')\ntime.sleep(600)"
    monkeypatch.setattr(tiny_notebooks, "IMPORTS", hang)
    (tmp_path / "a" / "b").mkdir(parents=True)
    path = write_notebook(tmp_path / "a" / "b" / "hangs.ipynb", budget_seconds=10)
    result = run_notebook(path, tmp_path, {})
    assert tries.read_text() == "xx"
    assert result.attempts == 2
    assert "stopped after 20 s without an end, in cell c1 (import pathlib, time)" in result.ruling.problems
    assert progress_line(result, 1, 1).endswith("second try: the first one hung")


def test_a_path_that_is_no_notebook_is_refused(tmp_path, capfd):
    missing = tmp_path / "no.ipynb"
    assert main(["run", str(missing)]) == 2
    out, err = capfd.readouterr()
    assert out == ""
    assert err.startswith(f"error [notebook-not-found]: {missing}: no such notebook.")
    assert err.count("\n") == 1


def test_a_folder_without_notebooks_is_refused(tmp_path):
    with raises_rule("notebook-not-found"):
        find_notebooks(folder=tmp_path)


@pytest.mark.skipif(torch.cuda.is_available(), reason="a GPU is there, so asking for it is no mistake")
def test_a_gpu_that_is_not_there_is_refused(tmp_path, capfd):
    path = write_notebook(tmp_path / "good.ipynb")
    assert main(["run", str(path), "--device", "cuda", "-o", str(tmp_path / "out")]) == 2
    assert "error [device-not-available]: device 'cuda' is not available here." in capfd.readouterr().err


def test_a_notebook_is_never_written_over(tmp_path):
    path = write_notebook(tmp_path / "good.ipynb")
    before = path.read_bytes()
    (tmp_path / "other").mkdir()
    twin = write_notebook(tmp_path / "other" / "good.ipynb")
    for notebooks, out in (
        ([path], tmp_path),
        ([path, twin], tmp_path / "out"),
        ([path], path),
        ([path], path / "out"),
    ):
        with raises_rule("output-file"):
            run_notebooks(notebooks, out, device="cpu")
    assert path.read_bytes() == before and not (tmp_path / "out").exists()


@pytest.mark.parametrize("obstacle", ["good.ipynb/", "site", "site/index.html/", "site/good.html/"])
def test_an_output_that_cannot_be_written_is_refused_before_anything_runs(tmp_path, obstacle, capfd):
    path = write_notebook(tmp_path / "good.ipynb")
    out = tmp_path / "out"
    (out / obstacle).parent.mkdir(parents=True)
    (out / obstacle).mkdir() if obstacle.endswith("/") else (out / obstacle).touch()
    before = sorted(out.rglob("*"))
    assert main(["run", str(path), "--html", "-o", str(out)]) == 2
    printed = capfd.readouterr()
    assert printed.out == "" and printed.err.startswith("error [output-file]: ") and printed.err.count("\n") == 1
    assert sorted(out.rglob("*")) == before


def test_an_index_page_does_not_go_over_a_notebooks_page(tmp_path, capfd):
    path = write_notebook(tmp_path / "index.ipynb")
    assert main(["run", str(path), "--html", "-o", str(tmp_path / "out")]) == 2
    assert "it is another output" in capfd.readouterr().err and not (tmp_path / "out").exists()


@pytest.mark.parametrize("module", ["nbformat", "papermill", "ipykernel", "nbconvert"])
def test_without_the_extra_the_error_says_what_to_install(tmp_path, module, capfd, monkeypatch):
    monkeypatch.setitem(sys.modules, module, None)
    path = write_notebook(tmp_path / "good.ipynb")
    assert main(["run", str(path), "--html", "-o", str(tmp_path / "out")]) == 2
    printed = capfd.readouterr()
    assert printed.err.startswith(f"error [extra-missing]: `kvzero run` needs what is not installed here: {module}. ")
    assert printed.out == "" and printed.err.endswith("Run `pip install -e '.[workbook]'` in a clone of the project.\n")


def test_a_parameter_that_is_not_declared_is_refused_before_anything_runs(tmp_path, capfd):
    path = write_notebook(tmp_path / "good.ipynb")
    with raises_rule("notebook-parameter", match="'colour' is not declared"):
        run_notebooks([path], tmp_path / "out", device="cpu", parameters={"colour": "blue"})
    assert main(["run", str(path), "-o", str(tmp_path / "out"), "-p", "colour", "blue"]) == 2
    assert capfd.readouterr().out == "" and not (tmp_path / "out").exists()


@pytest.mark.parametrize("content", ["", "no json", "[]", "{}", '{"cells": [{"cell_type": "x"}], "nbformat": 4}'])
def test_a_file_that_is_no_notebook_is_refused_before_anything_runs(tmp_path, content, capfd):
    path = tmp_path / "broken.ipynb"
    path.write_text(content)
    assert main(["run", str(path), "-o", str(tmp_path / "out")]) == 2
    printed = capfd.readouterr()
    assert printed.out == "" and len(printed.err.splitlines()) == 1 and "not a notebook" in printed.err
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("value", ["abc", "1.5", "1e99", "nan", ""])
def test_a_parameter_of_another_type_is_refused(tmp_path, value, capfd):
    path = write_notebook(tmp_path / "good.ipynb", ["1"])
    assert main(["run", str(path), "-o", str(tmp_path / "out"), "-p", "size", value]) == 2
    assert "the notebook has the int" in capfd.readouterr().err


def test_a_folder_without_a_name_is_refused(tmp_path):
    assert main(["run", str(write_notebook(tmp_path / "good.ipynb", ["1"])), "-o", ""]) == 2


@pytest.mark.parametrize(
    ("default", "word", "value"),
    [
        ("3", "5", 5), ("1.5", "2", 2.0), ("True", "false", False), ("[1]", "[2, 3]", [2, 3]), ("'a'", "5", "5"),
        ("None", "7", 7), ("True", "no", None), ("[1]", "abc", None), ("[1]", "5", None), ("3", "1.5", None),
    ],
)  # fmt: skip
def test_a_parameter_gets_the_type_of_its_default(tmp_path, monkeypatch, default, word, value):
    monkeypatch.setattr(tiny_notebooks, "PARAMETERS", f'device = "auto"\nsize = {default}')
    path = write_notebook(tmp_path / "typed.ipynb")
    if value is None:
        with raises_rule("notebook-parameter-type"):
            _typed(path, {"size": word})
    else:
        typed = _typed(path, {"size": word})
        assert typed == {"size": value} and type(typed["size"]) is type(value)


@pytest.mark.notebook
@pytest.mark.timeout(1_800)
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_every_process_and_says_where_it_was(tmp_path, number):
    (tmp_path / "pages").mkdir()
    source = "import pathlib, time\npathlib.Path('../started').touch()\ntime.sleep(600)"
    path = write_notebook(tmp_path / "pages" / "sleeps.ipynb", [source], budget_seconds=500)
    command = [sys.executable, "-m", "kvzero", "run", str(path), "--device", "cpu", "-o", str(tmp_path / "out")]
    run = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        # A shell starts its background jobs with SIGINT ignored, and children inherit that.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )  # fmt: skip
    while not (tmp_path / "started").exists():
        assert run.poll() is None
        time.sleep(0.1)
    run.send_signal(number)
    _, said = run.communicate(timeout=200)
    assert run.returncode == 130 and "interrupted" in said
    assert "in cell c2 (import pathlib, time)" in said
    assert not [entry for entry in Path("/proc").glob("[0-9]*") if _belongs_to(entry, tmp_path)]


def _belongs_to(entry: Path, folder: Path) -> bool:
    try:
        return str(folder).encode() in (entry / "cmdline").read_bytes()
    except OSError:
        return False


@pytest.mark.notebook
def test_modules_in_the_current_folder_shadow_nothing_and_no_home_is_needed(tmp_path, monkeypatch):
    """`random.py` in the current folder must not pass for the module of the standard library."""
    for name in "random.py", "click.py":
        (tmp_path / name).write_text("raise SystemExit('shadowed')")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", "/nonexistent")  # as in a container with any user id
    (tmp_path / "pages").mkdir()
    path = write_notebook(tmp_path / "pages" / "good.ipynb")
    (tmp_path / "out").mkdir()
    assert run_notebook(path, tmp_path / "out", {"device": "cpu"}).ruling.problems == ()
