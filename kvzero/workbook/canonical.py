"""One form for every committed notebook, checked and mended.

    python -m kvzero.workbook.canonical notebooks/*.ipynb        # a line per departure; exit 1 if any
    python -m kvzero.workbook.canonical --fix notebooks/*.ipynb  # mends what needs no author

What ``--fix`` mends: outputs, execution counts, widget state, foreign metadata, key order, indent, missing or
doubled cell ids, the folding of cells tagged ``solution`` or ``hide-input``. What only an author can mend:
headings, parameters, imports, shell lines, absolute paths, pictures inside text, long cells that are not folded, a
solution that stands under its exercise.
"""

from __future__ import annotations

import argparse
import ast
import json
import re
import sys
from pathlib import Path

HEADINGS = (
    "0 Card",
    "1 Symptom",
    "2 Map",
    "3 The code of the day",
    "4 Predict",
    "5 Break",
    "6 Wrong turn",
    "7 Fix",
    "8 Knob",
    "9 Carry away",
    "The proof",
    "Verdict",
)
MAX_CODE_LINES = 25
# Of a page with a proof: what stands above the proof is read, and all claims are to be taken in at a glance.
MAX_MAIN_WORDS = 2_000
MAX_MAIN_CODE_LINES = 120
MAX_CLAIMS = 15
FOLDED_TAGS = frozenset({"solution", "hide-input"})
TAGS = FOLDED_TAGS | {"parameters", "cover"}
SLIDE_TYPES = frozenset({"slide", "subslide", "fragment", "skip", "notes"})
KERNELSPEC = {"display_name": "Python 3", "language": "python", "name": "python3"}
LANGUAGE_INFO = {"name": "python"}

_CELL_ID = re.compile(r"[a-z0-9][a-z0-9-]{0,63}")
_ABSOLUTE_PATH = re.compile(r"/[\w.-]+/|~/|[A-Za-z]:\\|file:")
_PICTURE_WITHOUT_TEXT = re.compile(r"!\[\s*\]\(|<img(?![^>]*\balt=[\"'][^\"'])", re.IGNORECASE)


def source_of(cell: dict) -> str:
    """The text of a cell, whether stored as one string or as lines."""
    source = cell.get("source", "")
    return source if isinstance(source, str) else "".join(source)


def tags_of(cell: dict) -> frozenset[str]:
    """The tags of a cell."""
    return frozenset(cell.get("metadata", {}).get("tags", ()))


def declared_parameters(notebook: dict) -> dict[str, object] | None:
    """Name to value of the cell tagged ``parameters``; None if there is no such cell.

    Raises:
        ValueError, SyntaxError: the cell holds something other than ``name = literal``, annotated or not.
    """
    for cell in notebook["cells"]:
        if "parameters" in tags_of(cell):
            return _literals(source_of(cell))
    return None


def _literals(source: str) -> dict[str, object]:
    """Name to value of a cell of plain assignments; ValueError or SyntaxError for anything else."""
    values = {}
    for node in ast.parse(source).body:
        try:
            match node:
                case ast.Assign([ast.Name(name)], value) | ast.AnnAssign(ast.Name(name), value=ast.expr() as value):
                    values[name] = ast.literal_eval(value)
                case _:
                    raise ValueError
        except (TypeError, ValueError):
            raise ValueError(f"line {node.lineno} is not `name = literal`") from None
    return values


def canonical(notebook: dict) -> dict:
    """The same notebook in the one committed form, with everything mended that needs no author.

    Args:
        notebook: nbformat 4 as JSON gives it.

    Returns:
        A new dict; ``dumps`` turns it into the bytes of the file.
    """
    metadata = {"kernelspec": KERNELSPEC, "language_info": LANGUAGE_INFO}
    if "kvzero" in notebook.get("metadata", {}):
        metadata["kvzero"] = notebook["metadata"]["kvzero"]
    cells: list[dict] = []
    used: set[str] = set()
    for number, cell in enumerate(notebook["cells"]):
        cell_id = cell.get("id", "")
        if not _CELL_ID.fullmatch(cell_id) or cell_id in used:
            cell_id = next(name for name in _ids(cell["cell_type"], number) if name not in used)
        used.add(cell_id)
        kept = {"cell_type": cell["cell_type"], "id": cell_id, "metadata": _cell_metadata(cell)}
        kept["source"] = source_of(cell).strip("\n").splitlines(keepends=True)
        if cell["cell_type"] == "code":
            kept |= {"execution_count": None, "outputs": []}
        cells.append(kept)
    return {"cells": cells, "metadata": metadata, "nbformat": 4, "nbformat_minor": 5}


def _ids(kind: str, number: int):
    yield f"{kind}-{number:02d}"
    extra = 1
    while True:
        yield f"{kind}-{number:02d}-{extra}"
        extra += 1


def _cell_metadata(cell: dict) -> dict:
    tags = sorted(tags_of(cell))
    metadata: dict = {"tags": tags} if tags else {}
    if FOLDED_TAGS & set(tags):
        metadata["jupyter"] = {"source_hidden": True}
    slide = cell.get("metadata", {}).get("slideshow", {}).get("slide_type")
    if slide in SLIDE_TYPES:
        metadata["slideshow"] = {"slide_type": slide}
    return metadata


def dumps(notebook: dict) -> str:
    """The text of a notebook file: sorted keys, one space of indent, a line end at the end."""
    return json.dumps(notebook, indent=1, sort_keys=True, ensure_ascii=False) + "\n"


def problems(text: str, stem: str) -> list[str]:
    """Everything in which a notebook departs from the committed form.

    Args:
        text: the file.
        stem: its name without ending; the verdict must carry it.

    Returns:
        One sentence each; empty if there is nothing to mend.
    """
    try:
        notebook = json.loads(text)
    except json.JSONDecodeError as error:
        return [f"not JSON: {error}"]
    found = []
    if text != dumps(canonical(notebook)):
        found.append("not in canonical form (outputs, ids, metadata, order): use --fix")
    for number, cell in enumerate(notebook["cells"], start=1):
        check = _code_problems if cell["cell_type"] == "code" else _text_problems
        found += [f"cell {number} ({cell.get('id', 'no id')}): {problem}" for problem in check(cell)]
    return found + _structure_problems(notebook, stem)


def _code_problems(cell: dict):
    source = source_of(cell)
    lines = sum(bool(line.strip()) for line in source.splitlines())
    if not lines:
        yield "empty"
    if lines > MAX_CODE_LINES and not tags_of(cell) & FOLDED_TAGS:
        yield f"{lines} lines of code, more than {MAX_CODE_LINES}: split it"
    unknown = tags_of(cell) - TAGS
    if unknown:
        yield f"unknown tags {sorted(unknown)}: catch an expected exception and claim on it, skip nothing"
    try:
        tree = ast.parse(source)
    except SyntaxError as error:
        yield f"not plain Python (no ! and no % lines): {error.msg}, line {error.lineno}"
        return
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and node.id == "get_ipython":
            yield "get_ipython(): a notebook is plain Python"
        value = node.value if isinstance(node, ast.Constant) else None
        if isinstance(value, str) and _ABSOLUTE_PATH.match(value):
            yield f"absolute path {value[:40]!r}"


def _text_problems(cell: dict):
    source = source_of(cell)
    if not source.strip():
        yield "empty"
    if "data:image" in source or cell.get("attachments"):
        yield "a picture inside the text: put the file beside the notebook, or draw it in a code cell"
    if _PICTURE_WITHOUT_TEXT.search(source):
        yield "a picture without a text that describes it"
    if re.search(r"!\[[^\]]*\]\(\s*https?:|<img[^>]*src=[\"']?https?:", source):
        yield "a picture from the network"


def _structure_problems(notebook: dict, stem: str):
    cells = notebook["cells"]
    code = [cell for cell in cells if cell["cell_type"] == "code"]
    found = []
    if not cells or cells[0]["cell_type"] == "code" or not source_of(cells[0]).startswith("# "):
        found.append("the first cell is not a `# Title`")
    if notebook["metadata"].get("kvzero", {}).get("kind") == "lesson":
        found += _heading_problems(cells)
    found += _bound_problems(cells)
    if not code or "parameters" not in tags_of(code[0]):
        found.append("the first code cell is not tagged `parameters`")
    else:
        try:
            if "device" not in _literals(source_of(code[0])):
                found.append("the parameters cell does not set `device`")
        except (ValueError, SyntaxError) as error:
            found.append(f"the parameters cell holds more than plain literals: {error}")
    found += _import_problems(code)
    found += _solution_problems(cells)
    last = source_of(cells[-1]).strip().splitlines()[-1:] if code and cells[-1] is code[-1] else []
    if not last or not re.fullmatch(r"\w+\.show\(\)", last[0]):
        found.append("the last cell does not end in `verdict.show()`")
    if not any(f'Verdict("{stem}"' in source_of(cell) for cell in code):
        found.append(f'no cell makes `Verdict("{stem}", …)`')
    return found


def _headings(cell: dict) -> list[str]:
    """The second-level headings of a text cell, each up to its colon."""
    if cell["cell_type"] != "markdown":
        return []
    return [heading.strip() for heading in re.findall(r"^## ([^\n:]+)", source_of(cell), re.MULTILINE)]


def _heading_problems(cells: list[dict]):
    found = [heading for cell in cells for heading in _headings(cell)]
    # A page may have further headings, but no other numbered one.
    found = [heading for heading in found if heading in HEADINGS or re.match(r"\d+ ", heading)]
    if found != list(HEADINGS):
        missing = [heading for heading in HEADINGS if heading not in found]
        extra = [heading for heading in found if heading not in HEADINGS]
        yield f"headings are not the {len(HEADINGS)} in order (missing {missing}, unknown {extra})"


def _bound_problems(cells: list[dict]):
    """Where a page with a proof is longer than a reader's patience."""
    proof = next((number for number, cell in enumerate(cells) if "The proof" in _headings(cell)), None)
    if proof is None:
        return
    main, text, code = cells[:proof], "", ""
    for cell in main:
        if cell["cell_type"] == "markdown":
            text += re.sub(r"\(https?://[^)]*\)", "", source_of(cell)) + "\n"
        elif not tags_of(cell) & FOLDED_TAGS:
            code += source_of(cell) + "\n"
    everything = "\n".join(source_of(cell) for cell in cells if cell["cell_type"] == "code")
    counts = {
        "words above the proof": (len(re.findall(r"\S*\w\S*", text)), MAX_MAIN_WORDS),
        "visible lines of code above the proof": (
            sum(bool(line.strip()) for line in code.splitlines()),
            MAX_MAIN_CODE_LINES,
        ),
        # An exercise makes two claims.
        "claims": (everything.count(".claim(") + 2 * everything.count("verdict.exercise("), MAX_CLAIMS),
    }
    for what, (count, most) in counts.items():
        if count > most:
            yield f"{count:,} {what}, more than {most:,}"


def _import_problems(code: list[dict]):
    for cell in code[2:] + code[:1]:
        try:
            tree = ast.parse(source_of(cell))
        except SyntaxError:
            continue  # reported with its cell
        if any(isinstance(node, (ast.Import, ast.ImportFrom)) for node in ast.walk(tree)):
            yield f"imports in cell {cell.get('id')}: they belong into the code cell after the parameters"


def _solution_problems(cells: list[dict]):
    for cell in cells:
        source = source_of(cell)
        if cell["cell_type"] == "markdown":
            if re.search(r"^## Verdict\b", source, re.MULTILINE):
                return
        elif "solution" in tags_of(cell) or ".prove(" in source:
            yield f"the solution in cell {cell.get('id')} stands before `## Verdict`: readers meet it before they try"


def main(argv: list[str] | None = None) -> int:
    """Checks (or with ``--fix`` mends) notebooks; returns 1 if something is left to mend."""
    parser = argparse.ArgumentParser(prog="python -m kvzero.workbook.canonical", description=main.__doc__)
    parser.add_argument("--fix", action="store_true", help="rewrite what needs no author")
    parser.add_argument("notebooks", nargs="+", type=Path, metavar="NOTEBOOK", help="-: stdin to stdout")
    args = parser.parse_args(argv)
    if args.notebooks == [Path("-")]:
        sys.stdout.write(dumps(canonical(json.load(sys.stdin))))
        return 0
    left = 0
    for path in args.notebooks:
        if not path.is_file():
            parser.error(f"{path}: no such notebook")
        text = path.read_text(encoding="utf-8")
        if args.fix:
            mended = dumps(canonical(json.loads(text)))
            if mended != text:
                path.write_text(mended, encoding="utf-8")
                print(f"{path}: mended")
            text = mended
        for problem in problems(text, path.stem):
            print(f"{path}: {problem}")
            left += 1
    return int(left > 0)


if __name__ == "__main__":
    sys.exit(main())
