"""Run a function in a child process, so that a GPU fault or a stray write cannot harm the caller."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

STDERR_LINES = 60

# The arguments come on stdin and the result goes to a file of its own, so what the function prints is not read.
_BOOT = """
import importlib, json, os, sys, traceback
try:
    module, name = sys.argv[1].split(":")
    result = getattr(importlib.import_module(module), name)(**json.load(sys.stdin))
    with open(sys.argv[2], "x", encoding="utf-8") as file:
        json.dump(result, file)
except BaseException:
    # After a GPU fault even freeing memory aborts; leave at once, with the reason already on stderr.
    traceback.print_exc()
    sys.stderr.flush()
    os._exit(1)
"""


@dataclass(frozen=True)
class ChildResult:
    """How a child ended.

    Args:
        value: what the function returned, or None if it did not return.
        exit_code: the child's exit code; None if a signal or the time limit ended it.
        signal_name: the signal that ended it, such as "SIGSEGV" or "SIGRTMIN+3", or None.
        timed_out: whether the time limit ended it.
        stderr: the last 60 lines that it wrote to stderr.
    """

    value: Any
    exit_code: int | None
    signal_name: str | None
    timed_out: bool
    stderr: str

    @property
    def ok(self) -> bool:
        """Whether the function returned and the process left normally."""
        return self.exit_code == 0


def run_in_child(
    function: str,
    arguments: dict[str, Any],
    *,
    timeout_s: float = 120.0,
    environment: dict[str, str] | None = None,
) -> ChildResult:
    """Call a function in a fresh Python process and report how that process ended.

    Args:
        function: "package.module:name"; its arguments and its result are plain data (JSON).
        arguments: keyword arguments, of any size.
        timeout_s: seconds after which the child is killed, with every process that it started.
        environment: variables to add to the child's environment.

    Returns:
        The value, or how the child died. Processes that the child leaves behind are killed and not waited for.
        The child's memory is not limited.

    Example:
        >>> run_in_child("math:fsum", {}).ok, run_in_child("builtins:dict", {"a": 1}).value
        (False, {'a': 1})
    """
    # A fault handler would print a stack of the child into our output; the signal says enough.
    variables = {**os.environ, "PYTHONFAULTHANDLER": "", **(environment or {})}
    with tempfile.TemporaryDirectory(prefix="kvzero-child-") as folder:
        given, result, errors = (Path(folder, name) for name in ("arguments", "result", "stderr"))
        given.write_text(json.dumps(arguments), encoding="utf-8")
        # Files and no pipes: a grandchild that keeps a pipe open would have to be waited for.
        with given.open() as stdin, errors.open("w") as stderr:
            child = subprocess.Popen(
                [sys.executable, "-c", _BOOT, function, str(result)],
                stdin=stdin, stdout=subprocess.DEVNULL, stderr=stderr, env=variables, start_new_session=True,
            )  # fmt: skip
            try:
                code = child.wait(timeout_s)
            except subprocess.TimeoutExpired:
                code = None
            finally:
                with contextlib.suppress(ProcessLookupError):  # nobody is left
                    os.killpg(child.pid, signal.SIGKILL)
                child.wait()
        tail = "\n".join(errors.read_text(errors="replace").splitlines()[-STDERR_LINES:])
        if code is None:
            return ChildResult(None, None, None, True, tail)
        if code < 0:
            return ChildResult(None, None, _signal_name(-code), False, tail)
        try:
            return ChildResult(json.loads(result.read_text(encoding="utf-8")), code, None, False, tail)
        except (OSError, ValueError):  # the process left before it had a result
            return ChildResult(None, code or 1, None, False, tail)


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:  # only the first and the last real-time signal have a name of their own
        return f"SIGRTMIN+{number - signal.SIGRTMIN}"
