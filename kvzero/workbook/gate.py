"""Says whether an executed notebook proved its claims, and if not, why.

Papermill's exit status alone cannot be trusted: it is 0 for an exception inside an ``Output`` or ``interact``
widget, an error in a thread, ``!false``, ``sys.exit(0)`` halfway through, and a parameter that the notebook
does not know; and the cells that a dead kernel never ran are labelled "completed". So the gate reads the
executed notebook itself. It passes only if

- papermill exited with 0 and every code cell has an execution count;
- no output, and no output saved in a widget's state, is an error or was written to stderr;
- the kernel reported no other error (in a thread, a task, a callback, a finalizer; see ``watch``), and no crash at its
  end;
- the one cell tagged ``parameters`` holds plain literals, declares every given parameter, and none is set again later;
- no cell runs a shell whose status is ignored;
- the last cell emitted a verdict, of this notebook, this interpreter and the device that was asked for, the only one
  made in the process, with at least one claim, no name claimed twice, and every claim holds when judged again from
  its numbers;
- papermill itself had nothing to say on stderr, beyond lines known to be harmless;
- no process that the notebook started is left, and the notebook's own file is as it was;
- the time stayed within the notebook's budget.

Files that were left beside a notebook are for ``runner.files_beside``: of two that run at a time nobody can tell
which one left them.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from kvzero import errors
from kvzero.workbook.canonical import declared_parameters, source_of, tags_of
from kvzero.workbook.shell import runs_a_shell
from kvzero.workbook.verdict import MIMETYPE, Claim

# A notebook promises a minute; two of them run at a time on two cores, hence twice that.
BUDGET_SECONDS = 120.0
MOST_BUDGET_SECONDS = 86_400.0

HARMLESS_STDERR = (
    # ipykernel, at every start: the connection is to this machine itself.
    re.compile(r"\[IPKernelApp\] WARNING \| Kernel is running over TCP without encryption"),
    # The client interrupts a kernel as the first step of shutting it down; a busy machine lets the kernel say so.
    # A cell that was interrupted has an error among its outputs, or no execution count, and fails by that.
    re.compile(r"\[IPKernelApp\] ERROR \| KeyboardInterrupt caught in kernel"),
    # debugpy, on a Python whose standard library is frozen in; it spans several lines, each with this stamp.
    re.compile(r"^0\.\d\ds - "),
)
_WIDGET_STATE = "application/vnd.jupyter.widget-state+json"
# Escape sequences, and control characters other than tabs and line ends: a terminal would obey them.
_CONTROL = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)?|.)?|[\x00-\x08\x0b-\x1f\x7f-\x9f]")
MOST_LOG_CHARACTERS = 20_000


@dataclass(frozen=True)
class Execution:
    """What is known about one papermill run.

    Args:
        name: the notebook's name without its ending.
        executed: the notebook that papermill wrote, as JSON gives it; None if it wrote none.
        exit_code: papermill's exit status; None if it hung and was stopped.
        stderr: what papermill wrote to stderr.
        seconds: how long papermill took.
        parameters: the parameters that were passed, name to value.
        errors: what the kernel reported besides its outputs.
        kernel_exit: the kernel's exit status; None if it never started, or if its client ended it (on a busy machine
            the client does not wait for the end).
        finished: whether the kernel's exit handlers have all run.
        threads: the threads that the kernel still had to wait for when it was asked to end.
        left: what the run left behind, a sentence each.
    """

    name: str
    executed: dict | None
    exit_code: int | None
    stderr: str
    seconds: float
    parameters: Mapping[str, object] = field(default_factory=dict)
    errors: Sequence[str] = ()
    kernel_exit: int | None = 0
    finished: bool = True
    threads: Sequence[str] = ()
    left: Sequence[str] = ()


@dataclass(frozen=True)
class Ruling:
    """The gate's answer: what is wrong (nothing, if proven), and what the notebook's verdict says, if any."""

    problems: tuple[str, ...]
    claims: tuple[Claim, ...] = ()
    device: str = ""
    notes: tuple[tuple[str, str], ...] = ()
    exercises: tuple[tuple[str, str], ...] = ()

    @property
    def proven(self) -> bool:
        """True if nothing is wrong."""
        return not self.problems


def rule(execution: Execution) -> Ruling:
    """Judges one execution.

    Args:
        execution: the run.

    Returns:
        The ruling; its problems are ordered from the cause to what follows from it.
    """
    if execution.executed is None:
        return Ruling((f"papermill wrote no notebook (exit {execution.exit_code}): {_reason(execution.stderr)}",))
    try:
        return _rule(execution)
    except (AttributeError, KeyError, TypeError, ValueError) as error:  # parts of other types than nbformat promises
        return Ruling((f"the executed notebook cannot be judged: {type(error).__name__}: {printable(str(error))}",))


def _rule(execution: Execution) -> Ruling:
    notebook = execution.executed
    cell_problems = [*_cell_problems(execution), *_widget_problems(notebook)]
    found = list(_parameter_problems(execution))
    if execution.exit_code not in (0, None) and not any(" raised " in problem for problem in cell_problems):
        # Papermill gave up for a reason of its own, from which everything else follows.
        found.append(f"papermill exited with {execution.exit_code}: {_reason(execution.stderr)}")
    found += cell_problems
    found += [f"an error that no output shows: {printable(text)}" for text in _unshown(execution.errors, cell_problems)]
    if execution.exit_code == 0:
        if execution.kernel_exit:
            found.append(f"after the last cell the kernel exited with {execution.kernel_exit}")
        elif execution.kernel_exit == 0 and not execution.finished:
            found.append("after the last cell the kernel left before its exit handlers had run (os._exit)")
        elif execution.kernel_exit is None and execution.threads and not execution.finished:
            found.append(f"after the last cell the kernel did not end: {', '.join(execution.threads)} still ran")
        found += [f"papermill wrote to stderr: {printable(line)}" for line in _unexpected(execution.stderr)]
    ruling = _read_verdict(execution, notebook)
    found += ruling.problems
    found += execution.left
    found += _budget_problems(execution)
    return Ruling(tuple(found), ruling.claims, ruling.device, ruling.notes, ruling.exercises)


def _unshown(errors: Sequence[str], problems: Sequence[str]) -> Iterator[str]:
    """The reported errors that are not among the problems already; each once."""
    for text in dict.fromkeys(errors):
        what = text.partition(": ")[2]
        if not any(what[:120] in problem for problem in problems):
            yield text


def printable(text: str) -> str:
    """A text on one line, without what a terminal would obey."""
    return _CONTROL.sub("", " ".join(text.split("\n"))).strip()


def budget_seconds(notebook: dict | None) -> float:
    """The time that a notebook allows itself in its metadata, or the usual one where that is none."""
    stated = _stated_budget(notebook)
    return stated if _is_budget(stated) else BUDGET_SECONDS


def _stated_budget(notebook: dict | None) -> object:
    own = (notebook or {}).get("metadata", {}).get("kvzero", {})
    return own.get("budget_seconds", BUDGET_SECONDS) if isinstance(own, dict) else own


def _is_budget(stated: object) -> bool:
    return type(stated) in (int, float) and 0 < stated <= MOST_BUDGET_SECONDS


def _budget_problems(execution: Execution) -> Iterator[str]:
    stated, budget = _stated_budget(execution.executed), budget_seconds(execution.executed)
    if not _is_budget(stated):
        yield f"its budget_seconds is {stated!r}, not a number above 0 and up to {MOST_BUDGET_SECONDS:g}"
    if execution.seconds > budget:
        yield f"took {execution.seconds:.0f} s, its budget is {budget:g} s"


def text_outputs(notebook: dict) -> str:
    """Every output of every cell as text, for the log of a failed run.

    Args:
        notebook: as papermill wrote it.

    Returns:
        For each cell with outputs its first line of code and what it printed, without terminal sequences, without the
        traceback of an exception of ``kvzero.errors``, and at most 20,000 characters a cell.
    """
    parts = []
    for cell in _code_cells(notebook):
        if cell.get("outputs"):
            text = "\n".join(_CONTROL.sub("", _output_text(output)).rstrip() for output in cell["outputs"])
            if len(text) > MOST_LOG_CHARACTERS:
                half, cut = MOST_LOG_CHARACTERS // 2, len(text) - MOST_LOG_CHARACTERS
                text = f"{text[:half]}\n... {cut:,} characters ...\n{text[-half:]}"
            parts += [f"--- {_where(cell)}", text]
    return "\n".join(parts)


def _output_text(output: dict) -> str:
    if output["output_type"] == "error":
        # What kvzero refuses, its message says whole; the way there is in the executed notebook.
        traceback = [] if hasattr(errors, output["ename"]) else output["traceback"]
        return "\n".join(traceback) or f"{output['ename']}: {output['evalue']}"
    text = output.get("text") or output.get("data", {}).get("text/plain", "")
    return text if isinstance(text, str) else "".join(text)


def _code_cells(notebook: dict) -> list[dict]:
    return [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]


def _where(cell: dict) -> str:
    first = next((line for line in source_of(cell).splitlines() if line.strip()), "")
    return f"cell {cell.get('id', '?')} ({printable(first)[:60]})"


def _parameter_problems(execution: Execution) -> Iterator[str]:
    cells = [cell for cell in _code_cells(execution.executed) if "parameters" in tags_of(cell)]
    if len(cells) != 1:
        yield "no cell is tagged `parameters`" if not cells else f"{len(cells)} cells are tagged `parameters`, not 1"
        return
    try:
        declared = declared_parameters(execution.executed)
    except (ValueError, SyntaxError) as error:
        yield f"the parameters cell holds more than plain literals: {error}"
        return
    for name in sorted(set(execution.parameters) - set(declared)):
        yield f"parameter {name} is not declared; declared: {', '.join(sorted(declared))}"
    for cell in _code_cells(execution.executed):
        if not {"parameters", "injected-parameters"} & tags_of(cell):
            for name in sorted(_set_anew(source_of(cell)) & set(execution.parameters)):
                yield f"{_where(cell)} sets the parameter {name} to something else than what was passed"


def _set_anew(source: str) -> set[str]:
    """Names that a cell assigns at its top level without reading them (`device = pick_device(device)` reads it)."""
    try:
        body = ast.parse(source).body
    except SyntaxError:  # magics; the notebook's own cells are plain Python
        return set()
    names = set()
    for node in body:
        if isinstance(node, (ast.Assign, ast.AnnAssign)) and node.value is not None:
            read = {each.id for each in ast.walk(node.value) if isinstance(each, ast.Name)}
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            names |= {each.id for target in targets for each in ast.walk(target) if isinstance(each, ast.Name)} - read
    return names


def _cell_problems(execution: Execution) -> Iterator[str]:
    cells = _code_cells(execution.executed)
    yield from _broken_off(execution, cells)
    previous = "the start"
    for cell in cells:
        if runs_a_shell(source_of(cell)):
            yield f"{_where(cell)} shells out; the shell's status would be ignored"
        yield from _output_problems(_where(cell), cell.get("outputs", ()))
        if cell.get("execution_count") is None:
            # What comes after the first such cell did not run either: that is one problem, not many.
            if "skip-execution" in tags_of(cell):
                yield f"{_where(cell)} is tagged skip-execution"
                continue
            yield f"nothing ran from {_where(cell)} on; the last cell that ran was {previous}"
            return
        previous = _where(cell)


def _broken_off(execution: Execution, cells: Sequence[dict]) -> Iterator[str]:
    """Where the kernel died or papermill was stopped: in the last cell that was started."""
    started = [cell for cell in cells if cell["metadata"].get("papermill", {}).get("start_time")]
    where = _where(started[-1]) if started else "no cell"
    if "DeadKernelError" in execution.stderr:
        yield f"the kernel died in {where}"
    elif execution.exit_code is None:
        yield f"stopped after {execution.seconds:.0f} s without an end, in {where}"


def _output_problems(where: str, outputs) -> Iterator[str]:
    for output in outputs:
        if output["output_type"] == "error":
            yield f"{where} raised {printable(output['ename'])}: {printable(output['evalue'])[:300]}"
        elif output.get("name") == "stderr":
            yield f"{where} wrote to stderr: {_last_line(_output_text(output))}"


def _widget_problems(notebook: dict) -> Iterator[str]:
    state = notebook["metadata"].get("widgets", {}).get(_WIDGET_STATE, {}).get("state", {})
    for model_id, model in state.items():
        where = f"widget {model.get('model_name', model_id)}"
        yield from _output_problems(where, model.get("state", {}).get("outputs") or ())


def _read_verdict(execution: Execution, notebook: dict) -> Ruling:
    cells = _code_cells(notebook)
    records = [
        output["data"][MIMETYPE]
        for output in (cells[-1].get("outputs", ()) if cells else ())
        if MIMETYPE in output.get("data", {})
    ]
    if len(records) != 1:
        return Ruling((f"the last code cell emitted {len(records)} verdicts, not 1",))
    record = records[0]
    try:
        claims = tuple(map(Claim.from_dict, record["claims"]))
        notes = tuple((printable(name), printable(text)) for name, text in record["notes"].items())
        exercises = tuple((printable(each["name"]), printable(each["state"])) for each in record["exercises"])
        device = printable(record["device"])
        found = [f"claim failed: {claim}" for claim in claims if not claim.passed]
        found += [f"claimed twice under one name: {printable(again)}" for again in record["claimed_again"]]
        if not claims:
            found.append("the verdict makes no claim")
        expected = {
            "notebook": execution.name, "verdicts_made": 1, "executable": sys.executable,
            "device": execution.parameters.get("device", record["device"]),
        }  # fmt: skip
        for key, value in expected.items():
            if record[key] != value:
                found.append(f"the verdict's {key} is {record[key]!r}, not {value!r}")
        return Ruling(tuple(found), claims, device, notes, exercises)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        return Ruling((f"the verdict cannot be read: {error!r}",))


def _unexpected(stderr: str) -> list[str]:
    lines = [line for line in stderr.splitlines() if line.strip()]
    return [line for line in lines if not any(pattern.search(line) for pattern in HARMLESS_STDERR)]


def _last_line(text: str) -> str:
    lines = [printable(line) for line in text.splitlines() if line.strip()]
    return lines[-1][:300] if lines else "nothing on stderr"


def _reason(stderr: str) -> str:
    """What papermill said last that is not known to be harmless."""
    return _last_line("\n".join(_unexpected(stderr)))
