"""Every notebook of the workbook through papermill and the gate, two at a time, and the site they make."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from picture_check import picture_problems
from site_check import site_problems

from kvzero.device import pick_device
from kvzero.workbook import site
from kvzero.workbook.knob import MIMETYPE, STEPS_VARIABLE
from kvzero.workbook.runner import failure_text, files_beside, run_notebook

NOTEBOOKS = sorted((Path(__file__).parent.parent / "notebooks").glob("*.ipynb"))
SVG = "image/svg+xml"
FILES = files_beside(NOTEBOOKS)


@pytest.fixture(scope="module")
def executions(request, tmp_path_factory):
    """A future per notebook that this session selected; each test waits for its own."""
    out = tmp_path_factory.mktemp("executed")
    device = pick_device()
    # The knobs draw their steps and the ends of their controls too, for the site and for the test of the pictures.
    patch = pytest.MonkeyPatch()
    patch.setenv(STEPS_VARIABLE, "extremes")
    request.addfinalizer(patch.undo)
    items = [item for item in request.session.items if item.path == request.path and hasattr(item, "callspec")]
    selected = [item.callspec.params["path"] for item in items]
    with ThreadPoolExecutor(1 if device == "cuda" else 2) as pool:
        yield {path: pool.submit(run_notebook, path, out, {"device": device}) for path in selected}


@pytest.mark.notebook
@pytest.mark.timeout(1_800)
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebook_proves_its_claims(executions, path):
    result = executions[path].result()
    assert result.proven, failure_text(result)
    assert {state for _, state in result.ruling.exercises} <= {"unsolved"}, (
        "committed with an answer filled in"
    )


@pytest.mark.notebook
@pytest.mark.timeout(1_800)
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_pictures_overlap_no_labels_and_show_what_they_say(executions, path):
    result = executions[path].result()
    notebook = json.loads(result.executed_path.read_text(encoding="utf-8"))
    outputs = [output.get("data", {}) for cell in notebook["cells"] for output in cell.get("outputs", ())]
    drawings = [("".join(data[SVG]), "") for data in outputs if SVG in data]
    steps = [step for data in outputs for step in data.get(MIMETYPE, {"steps": ()})["steps"]]
    drawings += [(step["picture"], step["sentence"]) for step in steps]
    found = [problem for drawing, sentence in drawings for problem in picture_problems(drawing, sentence)]
    assert found == []


@pytest.mark.notebook
@pytest.mark.timeout(1_800)
def test_the_notebooks_leave_nothing_behind(executions):
    for future in executions.values():
        future.result()
    assert files_beside(NOTEBOOKS) == FILES


@pytest.mark.notebook
@pytest.mark.timeout(1_800)
def test_the_site_of_the_workbook_is_whole_described_and_fetches_nothing(executions, tmp_path):
    results = [future.result() for future in executions.values()]
    if len(results) < len(NOTEBOOKS):
        pytest.skip("not all notebooks were selected, and links to the others lead nowhere")
    site.build(results, tmp_path)
    assert site_problems(tmp_path) == []
