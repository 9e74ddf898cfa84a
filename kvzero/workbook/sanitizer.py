"""compute-sanitizer as a witness from outside: it knows nothing of kvzero and sees only allocations."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

# The child says that it lived to the end: a tool that cannot work with a device still counts errors, its own.
RETURNED = "kvzero: the kernel returned"
_RUN = f"""
import json, sys
from kvzero.history.guarded import write_guarded
write_guarded(**json.loads(sys.argv[1]))
print("\\n{RETURNED}", flush=True)
"""
# A cached block of torch would be one large allocation in which nothing is out of bounds.
_NO_CACHE = {"PYTORCH_NO_CUDA_MEMORY_CACHING": "1"}


@dataclass(frozen=True)
class Memcheck:
    """What compute-sanitizer said about one child process.

    Args:
        finished: whether it came to a verdict: it found invalid writes, or saw the child return. Else `first` says
            what happened.
        errors: the errors that it counted. (Calls of the CUDA API that fail are left out: torch tries some.)
        invalid_writes: reports of an invalid write to global memory; long lists are cut by the tool.
        first: the lines of the first report.
    """

    finished: bool
    errors: int
    invalid_writes: int
    first: str


def find_sanitizer() -> str | None:
    """The path of compute-sanitizer, on PATH or in the CUDA toolkit, or None."""
    home = os.environ.get("CUDA_HOME", "/usr/local/cuda")
    return shutil.which("compute-sanitizer") or shutil.which("compute-sanitizer", path=str(Path(home) / "bin"))


def memcheck(cases: Sequence[dict[str, Any]], *, timeout_s: float = 40.0) -> list[Memcheck]:
    """Run `specimens.guarded.write_guarded` under memcheck, one child process a case, all at once.

    Args:
        cases: keyword arguments of `write_guarded`; `device="cuda"` in each.
        timeout_s: for all of them.

    Raises:
        FileNotFoundError: there is no compute-sanitizer here; ask `find_sanitizer` first.
    """
    tool = find_sanitizer()
    if tool is None:
        raise FileNotFoundError("compute-sanitizer is not on this machine")
    options = ["--tool", "memcheck", "--report-api-errors", "no", "--print-limit", "20"]
    command = [tool, *options, sys.executable, "-c", _RUN]
    children = [
        subprocess.Popen(
            [*command, json.dumps(case)], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
            env={**os.environ, **_NO_CACHE}, start_new_session=True,
        )
        for case in cases
    ]  # fmt: skip
    found, deadline = [], time.monotonic() + timeout_s
    for child in children:
        try:
            output, _ = child.communicate(timeout=max(deadline - time.monotonic(), 0.1))
        except subprocess.TimeoutExpired:
            os.killpg(child.pid, signal.SIGKILL)  # the tool alone would leave its target behind, and us waiting for it
            child.communicate()
            output = f"no verdict within {timeout_s:g} s"
        found.append(read_report(output))
    return found


def read_report(output: str) -> Memcheck:
    """Read what the tool printed.

    Example:
        >>> report = read_report("= Invalid __global__ write of size 4 bytes\\n=  at k\\n= ERROR SUMMARY: 7 errors")
        >>> report.errors, report.invalid_writes, report.finished
        (7, 1, True)
    """
    summary = re.search(r"ERROR SUMMARY: (\d+) error", output)
    lines = [line.lstrip("= ").rstrip() for line in output.splitlines()]
    starts = [index for index, line in enumerate(lines) if line.startswith("Invalid __global__ write")]
    at = starts[0] if starts else 0
    finished = summary is not None and bool(starts or RETURNED in lines) and "Device not supported" not in output
    first = "\n".join(lines[at : at + 6]) if starts or not finished else ""
    return Memcheck(finished, int(summary[1]) if summary else 0, len(starts), first)
