"""Committed notebooks have one form; every departure is named, and mended where no author is needed."""

from __future__ import annotations

import copy
import json
import re
from pathlib import Path

import pytest

from kvzero.workbook.canonical import (
    HEADINGS,
    MAX_CODE_LINES,
    canonical,
    dumps,
    main,
    problems,
)

NOTEBOOKS = sorted((Path(__file__).parent.parent / "notebooks").glob("*.ipynb"))


def _cell(kind: str, source: str, cell_id: str, *tags: str) -> dict:
    return {"cell_type": kind, "id": cell_id, "metadata": {"tags": list(tags)}, "source": source}


def _lesson(**extra: str) -> dict:
    """A lesson in which there is nothing to mend; `extra` is text or code for the section of a heading's number."""
    cells = [
        _cell("markdown", "# A symptom\n\nWhat was seen.", "title"),
        _cell("code", 'device = "auto"\nsizes = [1, 2]', "parameters", "parameters"),
        _cell("code", 'from v import Verdict\n\nverdict = Verdict("01_case", device=device)', "imports"),
    ]
    for number, heading in enumerate(HEADINGS):
        cells.append(_cell("markdown", f"## {heading}\n\n{extra.get(f'text{number}', 'Text.')}", f"h{number}"))
        if f"code{number}" in extra:
            cells.append(_cell("code", extra[f"code{number}"], f"c{number}"))
    cells.append(_cell("code", "verdict.show()", "verdict"))
    return canonical({"cells": cells, "metadata": {"kvzero": {"kind": "lesson"}}})


def _problems(notebook: dict) -> list[str]:
    return problems(dumps(notebook), "01_case")


def _append(source: str, kind: str = "code", *tags: str):
    def damage(notebook):
        cell = canonical({"cells": [_cell(kind, source, "new", *tags)], "metadata": {}})["cells"][0]
        notebook["cells"].insert(5, cell)

    return damage


def test_only_a_folded_cell_may_be_long():
    notebook = _lesson()
    _append("x = 1\n" * (MAX_CODE_LINES + 1), "code", "hide-input")(notebook)
    assert _problems(notebook) == []


def _put(number: int, source: str):
    def damage(notebook):
        notebook["cells"][number]["source"] = source.splitlines(keepends=True)

    return damage


def _drop(number: int):
    return lambda notebook: notebook["cells"].pop(number)


@pytest.mark.parametrize(
    ("damage", "expected"),
    [
        (_append("!false"), "cell 6 (new): not plain Python (no ! and no % lines)"),
        (_append("%%bash\nexit 3"), "not plain Python"),
        (_append("files = !ls"), "not plain Python"),
        (_append("get_ipython().system('ls')"), "get_ipython(): a notebook is plain Python"),
        (_append('open("/home/me/cache.json")'), "absolute path '/home/me/cache.json'"),
        (_append('open("C:\\\\\\\\cache.json")'), "absolute path"),
        (_append("import os"), "imports in cell new"),
        (_append("def f():\n    from os import path"), "imports in cell new"),
        (_append("x = 1\n" * (MAX_CODE_LINES + 1)), "26 lines of code, more than 25"),
        (_append("1 / 0", "code", "raises-exception"), "unknown tags ['raises-exception']"),
        (_append("1", "code", "skip-execution"), "unknown tags ['skip-execution']"),
        (_append(""), "cell 6 (new): empty"),
        (_append("exercise.prove(solution=1, wrong=[2])"), "the solution in cell new stands before `## Verdict`"),
        (_append("answer = 1", "code", "solution"), "the solution in cell new stands before `## Verdict`"),
        (_append("", "markdown"), "cell 6 (new): empty"),
        (_append("![x](data:image/png;base64,AAAA)", "markdown"), "a picture inside the text"),
        (_append("![](images/map.png)", "markdown"), "a picture without a text"),
        (_append('<img src="map.png">', "markdown"), "a picture without a text"),
        (_append("![map](https://example.org/map.png)", "markdown"), "a picture from the network"),
        (_put(0, "A case"), "the first cell is not a `# Title`"),
        (_put(1, 'device = "auto"\nhalf = 4 // 2'), "the parameters cell holds more than plain literals"),
        (_put(1, "size = 4"), "the parameters cell does not set `device`"),
        (_put(1, 'import os\ndevice = "auto"'), "the parameters cell holds more than plain literals"),
        (_put(2, "from v import Verdict"), 'no cell makes `Verdict("01_case", …)`'),
        (_put(-1, "verdict"), "the last cell does not end in `verdict.show()`"),
        (_drop(-1), "the last cell does not end in `verdict.show()`"),
        (_drop(1), "the first code cell is not tagged `parameters`"),
        (_drop(5), "missing ['2 Map']"),
        (_put(5, "## 2 Terrain"), "unknown ['2 Terrain']"),
        (lambda notebook: notebook["cells"].insert(4, notebook["cells"].pop(5)), "not the 12 in order"),
    ],
)
def test_what_only_an_author_can_mend_is_named(damage, expected):
    notebook = _lesson()
    damage(notebook)
    found = _problems(notebook)
    assert any(expected in problem for problem in found), found


def test_headings_may_go_on_and_pages_that_are_no_lesson_have_their_own():
    notebook = _lesson()
    notebook["cells"][7]["source"] = ["## 4 Predict: block 99\n", "\n", "### Deeper\n", "\n", "## Beside the count"]
    assert _problems(notebook) == []
    notebook["cells"] = notebook["cells"][:3] + notebook["cells"][-1:]
    assert len(_problems(notebook)) == 1
    notebook["metadata"]["kvzero"] = {"kind": "guide"}
    assert _problems(notebook) == []


def test_the_good_lesson_is_good():
    long = {"text10": "word " * 3_000, "code10": "x = 1\n" * 25, "code3": "x = 1\n" * 25}
    assert _problems(_lesson(text3="## Beside the count", **long)) == []


@pytest.mark.parametrize(
    ("extra", "expected"),
    [
        ({"text3": "word " * 2_000}, "words above the proof, more than 2,000"),
        ({f"code{n}": "x = 1\n" * 25 for n in range(1, 6)}, "129 visible lines of code above the proof, more than 120"),
        ({"code10": "v.claim()\n" * 14 + "verdict.exercise(e)"}, "16 claims, more than 15"),
        ({"text3": "## 10 Another section"}, "headings are not the 12 in order (missing [], unknown ['10 Another"),
    ],
)
def test_a_lesson_that_is_too_long_or_of_another_shape_is_named(extra, expected):
    (problem,) = _problems(_lesson(**extra))
    assert expected in problem


def test_a_lesson_without_its_proof_is_named():
    notebook = _lesson()
    notebook["cells"] = [cell for cell in notebook["cells"] if cell["id"] != "h10"]
    assert _problems(notebook) == ["headings are not the 12 in order (missing ['The proof'], unknown [])"]


def _run(notebook: dict) -> dict:
    """As an editor saves it after a run, with everything in it that must not be committed."""
    saved = copy.deepcopy(notebook)
    for count, cell in enumerate(saved["cells"]):
        cell["metadata"]["papermill"] = {"duration": 1.0}
        cell["metadata"]["collapsed"] = False
        if cell["cell_type"] == "code":
            cell |= {
                "execution_count": count,
                "outputs": [{"output_type": "stream", "name": "stdout", "text": "1"}],
            }
    saved["metadata"] |= {
        "kernelspec": {"display_name": "my env", "language": "python", "name": "my-env"},
        "language_info": {"name": "python", "version": "3.12.1"},
        "widgets": {"application/vnd.jupyter.widget-state+json": {"state": {"1": {}}}},
    }
    return saved


def test_fix_undoes_what_a_run_leaves(tmp_path, capsys):
    path = tmp_path / "01_case.ipynb"
    path.write_text(json.dumps(_run(_lesson())), encoding="utf-8")
    assert main([str(path)]) == 1
    assert "not in canonical form" in capsys.readouterr().out
    assert main(["--fix", str(path)]) == 0
    assert path.read_text(encoding="utf-8") == dumps(_lesson())
    assert main([str(path)]) == 0


def test_fix_gives_missing_and_doubled_ids_and_keeps_the_others():
    notebook = _lesson()
    del notebook["cells"][3]["id"]
    notebook["cells"][4]["id"] = "title"
    mended = canonical(notebook)
    ids = [cell["id"] for cell in mended["cells"]]
    assert len(set(ids)) == len(ids)
    assert ids[3:5] == ["markdown-03", "markdown-04"]
    assert ids[5:] == [cell["id"] for cell in notebook["cells"][5:]]
    assert canonical(mended) == mended


def test_fix_folds_solutions():
    notebook = _lesson(code11="exercise.prove(solution=1, wrong=[2])")
    notebook["cells"][-2]["metadata"]["tags"] = ["solution"]
    notebook = canonical(notebook)
    assert notebook["cells"][-2]["metadata"] == {"jupyter": {"source_hidden": True}, "tags": ["solution"]}
    assert _problems(notebook) == []


def test_fix_keeps_what_makes_slides_and_nothing_else_foreign():
    notebook = _lesson()
    notebook["cells"][0]["metadata"] = {"slideshow": {"slide_type": "slide", "x": 1}, "editable": False}
    notebook["cells"][1]["metadata"] = {"slideshow": {"slide_type": "nowhere"}}
    first, second = canonical(notebook)["cells"][:2]
    assert (first["metadata"], second["metadata"]) == ({"slideshow": {"slide_type": "slide"}}, {})


def test_what_is_not_json_is_named():
    assert problems("<<<<<<< HEAD", "x")[0].startswith("not JSON: ")


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_committed_notebook_is_canonical(path):
    assert problems(path.read_text(encoding="utf-8"), path.stem) == []


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_links_to_other_notebooks_lead_somewhere(path):
    linked = set(re.findall(r"\]\(([\w-]+\.ipynb)", path.read_text(encoding="utf-8")))
    assert sorted(name for name in linked if not (path.parent / name).is_file()) == []
