"""Runs notebooks through papermill and lets the gate judge each one.

Each notebook runs in a papermill process of its own, so that a crash stays there, and nothing of papermill is
needed but its command line.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from math import isfinite
from pathlib import Path

import nbformat

from kvzero.device import pick_device
from kvzero.errors import (
    NotebookFormatError,
    NotebookNotFoundError,
    NotebookParameterError,
    NotebookParameterTypeError,
    OutputFileError,
)
from kvzero.outputs import check_outputs
from kvzero.workbook.canonical import declared_parameters
from kvzero.workbook.gate import Execution, Ruling, budget_seconds, rule, text_outputs

# What takes twice its budget hangs. It is stopped and, once, started again: nbclient can miss the reply to a cell
# that shows an Output widget and then waits for ever (its issue 312). A second hang is the notebook's own.
HANG_BUDGETS = 2
ATTEMPTS = 2
# Left behind by Jupyter and Python themselves.
_NOT_OURS = frozenset({".ipynb_checkpoints", "__pycache__"})


@dataclass(frozen=True)
class Result:
    """One notebook, run and judged.

    Args:
        notebook: the notebook that was run.
        executed_path: the executed copy; not there if papermill could not write it.
        seconds: from papermill's start to its end, on a machine that may have run another notebook beside it.
        ruling: what the gate says.
        log: the text of all outputs if something is wrong, else "".
        attempts: 1, or 2 if the first run hung.
    """

    notebook: Path
    executed_path: Path
    seconds: float
    ruling: Ruling
    log: str
    attempts: int = 1

    @property
    def name(self) -> str:
        """The notebook's name without its ending."""
        return self.notebook.stem

    @property
    def proven(self) -> bool:
        """True if the gate found nothing wrong."""
        return self.ruling.proven


def find_notebooks(paths: Sequence[str | Path] = (), folder: Path = Path("notebooks")) -> list[Path]:
    """The notebooks to run: those named, or all of a folder in the order of their names.

    Raises:
        NotebookNotFoundError: for a path that is no notebook, or a folder without any.
    """
    found = [Path(path) for path in paths] or sorted(folder.glob("*.ipynb"))
    for path in found:
        if path.suffix != ".ipynb" or not path.is_file():
            raise NotebookNotFoundError(path=str(path))
    if not found:
        raise NotebookNotFoundError(path=str(folder / "*.ipynb"))
    return found


def run_notebooks(
    notebooks: Sequence[Path], out: Path, *, device: str = "auto", parameters: Mapping[str, str] | None = None
) -> Iterator[Result]:
    """Runs notebooks, two at a time on a CPU and one at a time on a GPU; yields results in their order.

    Args:
        notebooks: paths, as ``find_notebooks`` gives them.
        out: folder for the executed copies; made if it is not there.
        device: "auto", "cpu" or "cuda"; passed to every notebook.
        parameters: further papermill parameters by name, as written on a command line.

    Returns:
        An iterator over one result per notebook; what is refused is refused at once, and then nothing is written.

    Raises:
        DeviceNotAvailableError: for "cuda" where there is no GPU.
        NotebookFormatError: a file is no notebook.
        NotebookParameterError, NotebookParameterTypeError: a notebook does not declare a parameter, or has a value
            of another type there.
        OutputFileError: the folder cannot be made, or a copy would go over a notebook or over another copy.
    """
    settled = pick_device(device)
    for path in notebooks:
        declared = _declared(path)
        for name, value in (parameters or {}).items():
            if declared is not None and name not in declared:
                raise NotebookParameterError(path=path, name=name, declared=sorted(declared))
            if declared is not None and not _fits(value, declared[name]):
                raise NotebookParameterTypeError(
                    path=path, name=name, value=value, default=declared[name], expected=type(declared[name]).__name__
                )
    check_outputs([out / path.name for path in notebooks], *notebooks)
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise OutputFileError(path=out, detail=error.strerror) from error
    return _run_all(notebooks, out, {"device": settled, **(parameters or {})})


def _fits(text: str, default: object) -> bool:
    """Whether a word of the command line can stand for a value of the default's type."""
    if type(default) not in (int, float):
        return True
    try:
        return isfinite(type(default)(text))
    except (OverflowError, ValueError):
        return False


def _declared(notebook: Path) -> dict[str, object] | None:
    """The parameters of a notebook and their values; None if that cannot be told, which the gate then says."""
    try:
        content = nbformat.read(notebook, as_version=4)
        nbformat.validate(content)
    except Exception as error:  # whatever nbformat and its validator make of a file that is no notebook
        detail = (str(error) or type(error).__name__).splitlines()[0].rstrip(".")
        raise NotebookFormatError(path=notebook, detail=detail) from error
    try:
        return declared_parameters(content)
    except (ValueError, SyntaxError):
        return None


def _run_all(notebooks: Sequence[Path], out: Path, given: Mapping[str, str]) -> Iterator[Result]:
    settled = given["device"]
    at_a_time = 1 if settled == "cuda" else max(1, min(2, os.cpu_count() or 1))
    with ThreadPoolExecutor(at_a_time) as pool:
        futures = [pool.submit(run_notebook, path, out, given) for path in notebooks]
        try:
            for future in futures:
                yield future.result()
        finally:
            pool.shutdown(cancel_futures=True)


def run_notebook(notebook: Path, out: Path, parameters: Mapping[str, str]) -> Result:
    """Runs one notebook, in its own folder, and judges it.

    Args:
        notebook: the notebook; it is only read.
        out: an existing folder; the executed copy gets the same name there.
        parameters: papermill parameters by name, as written on a command line.

    Returns:
        The result; a notebook that fails is a result too, never an exception.
    """
    executed_path = out / notebook.name
    executed_path.unlink(missing_ok=True)
    # Papermill takes a path for a format string.
    paths = [str(path.resolve()) for path in (notebook, executed_path)]
    command = [sys.executable, "-m", "papermill"]
    command += [path.replace("{", "{{").replace("}", "}}") for path in paths]
    command += ["--kernel", "python3", "--cwd", str(notebook.parent)]
    command += ["--no-progress-bar", "--log-level", "WARNING"]
    for name, value in parameters.items():
        command += ["-p", name, value]
    attempts = 0
    while attempts < ATTEMPTS:
        attempts += 1
        start = time.monotonic()
        exit_code, stderr = _papermill(command, HANG_BUDGETS * budget_seconds(_read(notebook)))
        seconds = time.monotonic() - start
        if exit_code is not None:
            break
    executed = _read(executed_path)
    if executed is None:
        executed_path.unlink(missing_ok=True)  # torn where papermill was stopped
    ruling = rule(Execution(notebook.stem, executed, exit_code, stderr, seconds, tuple(parameters)))
    log = "" if ruling.proven or executed is None else text_outputs(executed)
    return Result(notebook, executed_path, seconds, ruling, log, attempts)


def _papermill(command: Sequence[str], hang_seconds: float) -> tuple[int | None, str]:
    """Exit status and stderr of one papermill run; the status is None if it hung and was stopped."""
    options = {"stdin": subprocess.DEVNULL, "capture_output": True, "text": True, "errors": "replace"}
    try:
        done = subprocess.run(command, timeout=hang_seconds, **options)
    except subprocess.TimeoutExpired:
        return None, ""
    return done.returncode, done.stderr


def _read(notebook: Path) -> dict | None:
    """A notebook as JSON gives it; None if it is not there or is not one."""
    try:
        return json.loads(notebook.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None


def files_beside(notebooks: Sequence[Path]) -> set[Path]:
    """What lies in the notebooks' folders, but for what Jupyter and Python leave there themselves.

    A notebook leaves nothing behind: taken before a run and after it, the two are equal. They are taken once for all
    notebooks, since of two that run side by side in one folder nobody can tell which one left a file.
    """
    folders = {path.parent for path in notebooks}
    return {path for folder in folders for path in folder.iterdir() if path.name not in _NOT_OURS}


def progress_line(result: Result, number: int, total: int) -> str:
    """One line for a finished notebook: ``[ 3/12] proven  02_memory_layouts  14 claims, 8.2 s, cpu``."""
    claims = result.ruling.claims
    word = "proven" if result.proven else "FAILED"
    proven = sum(claim.passed for claim in claims)
    counted = f"{proven} claims" if proven == len(claims) else f"{proven} of {len(claims)} claims"
    device = result.ruling.device or "no verdict"
    again = ", second try: the first one hung" if result.attempts > 1 else ""
    return f"[{number:2}/{total}] {word}  {result.name}  {counted}, {result.seconds:.1f} s, {device}{again}"


def failure_text(result: Result) -> str:
    """What is wrong with a notebook, and everything that its cells printed."""
    problems = "\n".join(f"  problem: {problem}" for problem in result.ruling.problems)
    return f"{problems}\n{result.log}".rstrip()


def table(results: Sequence[Result]) -> str:
    """The claims of every notebook, one line each, and the counts at the end.

    Args:
        results: in the order in which they are to be shown.

    Returns:
        Text without colours; "proven" and "FAILED" carry the meaning.
    """
    lines = []
    for result in results:
        word = "proven" if result.proven else "FAILED"
        where = result.ruling.device or "no device"
        lines += ["", f"{result.name}: {word} in {result.seconds:.1f} s on {where}"]
        lines += [f"  {claim}" for claim in result.ruling.claims]
        lines += [f"  exercise  {name}: {state}" for name, state in result.ruling.exercises]
        lines += [f"  note  {name}: {text}" for name, text in result.ruling.notes]
        lines += [f"  problem  {problem}" for problem in result.ruling.problems]
    notebooks = sum(result.proven for result in results)
    claims = [claim for result in results for claim in result.ruling.claims]
    proven = sum(claim.passed for claim in claims)
    lines += ["", f"{notebooks} of {len(results)} notebooks proven, {proven} of {len(claims)} claims proven"]
    return "\n".join(lines[1:])
