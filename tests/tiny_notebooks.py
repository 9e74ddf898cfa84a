"""Small notebooks, made for one test each."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from kvzero.workbook.canonical import canonical, dumps
from kvzero.workbook.verdict import MIMETYPE

PARAMETERS = 'device = "auto"\nsize = 3'
IMPORTS = "from kvzero.workbook.verdict import Verdict"


def write_notebook(
    path: Path,
    sources: Sequence[str] = (),
    *,
    tags: dict[int, str] | None = None,
    claims: str = "",
    **metadata,
) -> Path:
    """Writes a notebook that proves one claim, with the given cells between its first and its last.

    Args:
        path: where to; the verdict gets its stem.
        sources: code of the cells c2, c3, … in the middle.
        tags: tags by number of cell (0: the parameters cell, tagged by itself unless this is given).
        claims: code in place of the one true claim of the last cell.
        metadata: the notebook's `kvzero` metadata.

    Returns:
        The path.
    """
    proof = claims or 'v.claim("one is one", measured=1, expected=1)'
    last = f'v = Verdict("{path.stem}", device=device)\n{proof}\nv.show()'
    tags = {0: "parameters"} if tags is None else tags
    cells = []
    for number, source in enumerate([PARAMETERS, IMPORTS, *sources, last]):
        tagged = {"tags": [tags[number]]} if number in tags else {}
        cells.append({"cell_type": "code", "id": f"c{number}", "metadata": tagged, "source": source})
    notebook = canonical({"cells": cells, "metadata": {"kvzero": metadata} if metadata else {}})
    path.write_text(dumps(notebook), encoding="utf-8")
    return path


def read_notebook(path: Path) -> dict:
    """A notebook as JSON gives it."""
    return json.loads(path.read_text(encoding="utf-8"))


def executed_notebook(verdict: dict) -> dict:
    """A notebook as papermill leaves it, without having run it.

    Args:
        verdict: the output of its last cell.
    """
    sources = {"parameters": PARAMETERS, "injected-parameters": 'device = "cpu"', "": IMPORTS, "last": "v.show()"}
    cells = [
        {"cell_type": "code", "id": f"c{number}", "metadata": {"tags": [tag]}, "source": source}
        | {"execution_count": number + 1, "outputs": []}
        for number, (tag, source) in enumerate(sources.items())
    ]
    cells[-1]["outputs"] = [{"output_type": "display_data", "metadata": {}, "data": {MIMETYPE: verdict}}]
    return {"cells": cells, "metadata": {}, "nbformat": 4, "nbformat_minor": 5}
