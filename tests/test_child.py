"""A function in a child process: however the child ends, the parent gets a result and goes on."""

from __future__ import annotations

import os
import signal
import time

import pytest

from kvzero.audit.child import run_in_child


def shell(line: str, **options):
    return run_in_child("subprocess:call", {"args": line, "shell": True}, **options)


def test_a_function_that_fails_or_hangs_is_reported_and_not_raised():
    failed = run_in_child("math:sqrt", {})
    assert (failed.ok, failed.exit_code, failed.value) == (False, 1, None) and "TypeError" in failed.stderr
    late = run_in_child("kvzero.history:does_not_exist", {}, timeout_s=0.01)
    assert (late.ok, late.timed_out) == (False, True)


@pytest.mark.parametrize(
    "number, name", [(signal.SIGSEGV, "SIGSEGV"), (signal.SIGRTMIN, "SIGRTMIN"), (signal.SIGRTMIN + 3, "SIGRTMIN+3")]
)
def test_any_signal_has_a_name(number, name):
    killed = shell(f"kill -{int(number)} $PPID; sleep 20")
    assert (killed.ok, killed.exit_code, killed.signal_name) == (False, None, name)


@pytest.mark.parametrize("printed", ["\\377", "kvzero-child-result:{", "kvzero-child-result:5"])
def test_what_the_child_prints_is_not_taken_for_its_result(printed):
    child = run_in_child("subprocess:call", {"args": ["printf", f"\n{printed}\n"]})
    assert (child.ok, child.value) == (True, 0)


def test_long_arguments_reach_the_child():
    text = "x" * 3_000_000
    assert run_in_child("builtins:dict", {"text": text}).value == {"text": text}


def test_a_result_that_is_no_json_is_a_failure_of_the_child():
    child = run_in_child("builtins:complex", {"real": 1})
    assert (child.ok, child.value) == (False, None) and "not JSON serializable" in child.stderr


def test_a_process_that_the_child_leaves_behind_is_ended_and_not_waited_for(tmp_path):
    start = time.monotonic()
    child = shell(f"sleep 300 & echo $! > {tmp_path}/pid")
    assert (child.ok, child.timed_out) == (True, False) and time.monotonic() - start < 100
    pid = int((tmp_path / "pid").read_text())
    deadline = time.monotonic() + 20
    while _runs(pid) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not _runs(pid)


def _runs(pid: int) -> bool:
    try:
        os.kill(pid, 0)
        with open(f"/proc/{pid}/stat", encoding="ascii") as stat:
            return stat.read().rsplit(")", 1)[1].split()[0] != "Z"
    except (ProcessLookupError, FileNotFoundError):
        return False
