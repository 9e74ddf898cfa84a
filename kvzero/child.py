"""Run a function in a child process: after a fault on a GPU, or a stray write, nothing in that process counts."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from dataclasses import dataclass
from typing import Any

MARK = "kvzero-child-result:"
STDERR_LINES = 60

_BOOT = f"""
import importlib, json, os, sys, traceback
try:
    module, name = sys.argv[1].split(":")
    result = getattr(importlib.import_module(module), name)(**json.loads(sys.argv[2]))
    print("\\n{MARK}" + json.dumps(result), flush=True)
except BaseException:
    # After a GPU fault even freeing memory aborts; leave at once, with the reason still on stderr.
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
        signal_name: "SIGSEGV" and the like, or None.
        timed_out: whether the time limit ended it.
        stderr: the last lines that it wrote to stderr.
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
    """Call a function in a fresh Python process, so that its crash is a result and not ours.

    Args:
        function: "package.module:name"; its arguments and its result are plain data (JSON).
        arguments: keyword arguments.
        timeout_s: after so many seconds the child is killed.
        environment: variables to add to the child's environment.

    Returns:
        The value, or how the child died.

    Example:
        >>> run_in_child("math:fsum", {}).ok, run_in_child("builtins:dict", {"a": 1}).value
        (False, {'a': 1})
    """
    command = [sys.executable, "-c", _BOOT, function, json.dumps(arguments)]
    # A fault handler would print a stack of the child into our output; the signal says enough.
    variables = {**os.environ, "PYTHONFAULTHANDLER": "", **(environment or {})}
    try:
        # Whatever bytes the child prints are its own affair.
        done = subprocess.run(command, capture_output=True, errors="replace", timeout=timeout_s, env=variables)
    except subprocess.TimeoutExpired as expired:
        stderr = expired.stderr or b""
        return ChildResult(None, None, None, True, _tail(stderr.decode(errors="replace")))
    value, found = None, False
    for line in done.stdout.splitlines():
        if line.startswith(MARK):
            value, found = json.loads(line[len(MARK) :]), True
    died = done.returncode < 0
    return ChildResult(
        value=value,
        exit_code=None if died else (done.returncode or (0 if found else 1)),
        signal_name=signal.Signals(-done.returncode).name if died else None,
        timed_out=False,
        stderr=_tail(done.stderr),
    )


def _tail(text: str) -> str:
    return "\n".join(text.splitlines()[-STDERR_LINES:])
