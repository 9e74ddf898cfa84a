"""Runs notebooks through papermill and lets the gate judge each one.

Each notebook runs in a papermill process of its own (``session``), with a kernel of this interpreter whose errors and
end are watched (``watch``).
"""

from __future__ import annotations

import ast
import json
import os
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from math import isfinite
from pathlib import Path

import nbformat

from kvzero.device import pick_device
from kvzero.errors import CommandError
from kvzero.outputs import check_outputs
from kvzero.workbook.canonical import declared_parameters
from kvzero.workbook.gate import Execution, Ruling, budget_seconds, rule, text_outputs
from kvzero.workbook.session import NOT_OURS, Session

# What takes twice its budget hangs. It is stopped and, once, started again: nbclient can miss the reply to a cell
# that shows an Output widget and then waits for ever (its issue 312). A second hang is the notebook's own.
HANG_BUDGETS = 2
ATTEMPTS = 2


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
        CommandError: for a path that is no notebook, or a folder without any.
    """
    found = [Path(path) for path in paths] or sorted(folder.glob("*.ipynb"))
    for path in found:
        if path.suffix != ".ipynb" or not path.is_file():
            raise CommandError("notebook-not-found", path=str(path))
    if not found:
        raise CommandError("notebook-not-found", path=str(folder / "*.ipynb"))
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
        CommandError: "cuda" where there is no GPU, a file that is no notebook, a parameter that a notebook does not
            declare or has of another type, a folder that cannot be made, or a copy that would go over a notebook or
            over another copy.
    """
    settled = pick_device(device)
    given = {path: {"device": settled, **_typed(path, parameters or {})} for path in notebooks}
    check_outputs([out / path.name for path in notebooks], *notebooks)
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise CommandError("output-file", path=out, detail=error.strerror) from error
    return _run_all(given, out, 1 if settled == "cuda" else max(1, min(2, os.cpu_count() or 1)))


def _typed(notebook: Path, parameters: Mapping[str, str]) -> dict[str, object]:
    """Words of the command line as values of the types that the notebook's own values have."""
    declared = _declared(notebook)
    if declared is None:
        return dict(parameters)
    values = {}
    for name, word in parameters.items():
        if name not in declared:
            raise CommandError("notebook-parameter", path=notebook, name=name, declared=sorted(declared))
        try:
            values[name] = _value(word, type(declared[name]))
        except (OverflowError, SyntaxError, ValueError) as error:
            expected = type(declared[name]).__name__
            raise CommandError(
                "notebook-parameter-type",
                path=notebook,
                name=name,
                value=word,
                default=declared[name],
                expected=expected,
            ) from error
    return values


def _value(word: str, kind: type) -> object:
    if kind is str:
        return word
    if kind is bool:
        return {"true": True, "false": False}[word.lower()] if word.lower() in ("true", "false") else _refuse()
    if kind in (int, float):
        value = kind(word)
        return value if isfinite(value) else _refuse()
    value = ast.literal_eval(word)
    return value if type(value) is kind or kind is type(None) else _refuse()


def _refuse() -> object:
    raise ValueError


def _declared(notebook: Path) -> dict[str, object] | None:
    """The parameters of a notebook and their values; None if that cannot be told, which the gate then says."""
    try:
        content = nbformat.read(notebook, as_version=4)
        nbformat.validate(content)
    except Exception as error:  # whatever nbformat and its validator make of a file that is no notebook
        detail = (str(error) or type(error).__name__).splitlines()[0].rstrip(".")
        raise CommandError("notebook-format", path=notebook, detail=detail) from error
    try:
        return declared_parameters(content)
    except (ValueError, SyntaxError):
        return None


def _run_all(given: Mapping[Path, Mapping[str, object]], out: Path, at_a_time: int) -> Iterator[Result]:
    with _interruptible() as stop, ThreadPoolExecutor(at_a_time) as pool:
        futures = [pool.submit(run_notebook, path, out, values, stop) for path, values in given.items()]
        try:
            for future in futures:
                yield future.result()
        except KeyboardInterrupt:
            stop.set()
            for future in futures:
                future.cancel()
            interrupted = [future.result() for future in futures if future.running() or future.done()]
            where = [text for result in interrupted for text in result.ruling.problems if "stopped after" in text]
            print("\n".join(where) or "no notebook was running", file=sys.stderr)
            raise
        finally:
            pool.shutdown(cancel_futures=True)


@contextmanager
def _interruptible() -> Iterator[threading.Event]:
    """An event that ends running notebooks; SIGTERM, which `timeout` and CI send, counts as an interrupt."""

    def interrupt(*_):
        raise KeyboardInterrupt

    in_main_thread = threading.current_thread() is threading.main_thread()
    before = signal.signal(signal.SIGTERM, interrupt) if in_main_thread else None
    try:
        yield threading.Event()
    finally:
        if in_main_thread:
            signal.signal(signal.SIGTERM, before)


def run_notebook(
    notebook: Path, out: Path, parameters: Mapping[str, object], stop: threading.Event | None = None
) -> Result:
    """Runs one notebook, in its own folder, and judges it.

    Args:
        notebook: the notebook; it is only read.
        out: an existing folder; the executed copy gets the same name there.
        parameters: papermill parameters, name to value.
        stop: ends the run when it is set.

    Returns:
        The result; a notebook that fails is a result too, never an exception.
    """
    executed_path, source = out / notebook.name, notebook.read_bytes()
    stop = stop or threading.Event()
    attempts, exit_code = 0, None
    while attempts < ATTEMPTS and exit_code is None and not stop.is_set():
        attempts += 1
        executed_path.unlink(missing_ok=True)
        start = time.monotonic()
        with tempfile.TemporaryDirectory(prefix="kvzero-run-", ignore_cleanup_errors=True) as folder:
            session = Session(Path(folder))
            limit = HANG_BUDGETS * budget_seconds(_read(notebook))
            exit_code, stderr = session.papermill(notebook, executed_path, parameters, limit, stop)
            seconds = time.monotonic() - start
            left = [f"a process that it started was left: {name}" for name in session.end()]
            reports = session.reports()
            left += [f"it left {path} written" for path in reports.pop("written")]
    if notebook.read_bytes() != source:
        left.append("the notebook's own file was changed while it ran")
    executed = _read(executed_path)
    if executed is None:
        executed_path.unlink(missing_ok=True)  # torn where papermill was stopped
    execution = Execution(notebook.stem, executed, exit_code, stderr, seconds, parameters, left=left, **reports)
    ruling = rule(execution)
    log = "" if ruling.proven or executed is None else text_outputs(executed)
    return Result(notebook, executed_path, seconds, ruling, log, attempts)


def _read(notebook: Path) -> dict | None:
    """A notebook as JSON gives it; None if it is not there or is not one."""
    try:
        return json.loads(notebook.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None


def files_beside(notebooks: Sequence[Path]) -> set[Path]:
    """What lies in the notebooks' folders, but for what Jupyter and Python leave there themselves.

    A notebook leaves nothing behind: taken before a run and after it, the two are equal. They are taken once for all
    notebooks: what a kernel wrote itself is known (see ``watch``), but of what its child processes wrote nobody can
    tell which notebook left it.
    """
    folders = {path.resolve().parent for path in notebooks}
    return {path for folder in folders for path in folder.iterdir() if path.name not in NOT_OURS}


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


def table(results: Sequence[Result], left: Sequence[Path] = ()) -> str:
    """The claims of every notebook, one line each, and the counts at the end.

    Args:
        results: in the order in which they are to be shown.
        left: files that were left beside the notebooks.

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
    lines.append("")
    lines += [f"FAILED  {path} was left behind by one of the notebooks; delete it" for path in left]
    files = f", FAILED: {len(left)} file(s) left behind" if left else ""
    lines.append(f"{notebooks} of {len(results)} notebooks proven, {proven} of {len(claims)} claims proven{files}")
    return "\n".join(lines[1:])
