"""The static site of executed notebooks: complete, every picture described, nothing fetched."""

from __future__ import annotations

import pytest
from site_check import PageCheck, site_problems
from tiny_notebooks import read_notebook, write_notebook

from kvzero.__main__ import main
from kvzero.workbook.canonical import canonical, dumps
from kvzero.workbook.site import terminal

PIXEL = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
FIGURE = f"""\
from IPython.display import display
bundle = {{"image/png": "{PIXEL}", "text/plain": "map\\n[0] a < b"}}
display(bundle, raw=True, metadata={{"image/png": {{"alt": "block 98 wipes block 99 & more"}}}})"""
COVER = FIGURE.replace("block 98 wipes block 99", "the same")
EXPLORER = "import ipywidgets\nipywidgets.IntSlider(description='block')"
SOLUTION = 'print("the solution")'
OWN = """\
from kvzero.workbook.figures import bars, show
show(bars([("a", 1.0)], "One bar."), "One bar.", "bar  length\\na         1")"""
STORY = """\
# Wrong <place>

A *stride* taken for a [span](02_b.ipynb#1-Symptom).

| a | b |
|---|---|
| 1 | 2 |

Who?
#35219 gave it."""


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """Two notebooks, run and written as a site by the command."""
    folder, out = tmp_path_factory.mktemp("notebooks"), tmp_path_factory.mktemp("out")
    first = write_notebook(
        folder / "01_a.ipynb",
        [FIGURE, EXPLORER, SOLUTION, COVER, OWN],
        tags={0: "parameters", 4: "solution", 5: "cover"},
    )
    _prepend(first, STORY, "![a drawing](images/map.png)")
    (folder / "images").mkdir()
    (folder / "images" / "map.png").write_bytes(b"picture")
    second = write_notebook(folder / "02_b.ipynb", claims='v.claim("2 < 1", measured=2, expected=1)')
    _prepend(second, "# Second\n\nMore.", "## 1 Symptom\n\nBack to [it](01_a.ipynb), on to [*gone*](03_c.ipynb#x).")
    assert main(["run", str(first), str(second), "--device", "cpu", "-o", str(out), "--html"]) == 1
    return out / "site"


def _prepend(path, *texts: str):
    notebook = read_notebook(path)
    cells = [{"cell_type": "markdown", "id": f"t{n}", "metadata": {}, "source": text} for n, text in enumerate(texts)]
    path.write_text(dumps(canonical({"cells": cells + notebook["cells"], "metadata": {}})), encoding="utf-8")


@pytest.mark.notebook
def test_the_site_is_whole_described_and_fetches_nothing(site):
    assert site_problems(site) == []
    assert sorted(path.name for path in site.glob("*.html")) == ["01_a.html", "02_b.html", "index.html"]


@pytest.mark.notebook
def test_a_page_carries_text_pictures_and_folded_solution(site):
    text = (site / "01_a.html").read_text(encoding="utf-8")
    page = PageCheck(site / "01_a.html")
    assert "<em>gone</em>." in (site / "02_b.html").read_text(encoding="utf-8")
    assert "<title>01 Wrong &lt;place&gt;</title>" in text
    assert "<figure tabindex='0'>" in text, "a picture that bears no title keeps its caption in sight"
    assert "#35219 gave it.</p>" in text, "a line that begins with a reference is no heading"
    assert page.pictures == [
        ("images/map.png", "a drawing"),
        ("01_a-1.png", "block 98 wipes block 99 & more"),
        ("01_a-2.png", "the same & more"),
        ("01_a-3.png", "One bar."),
    ]
    assert "<figure class='titled' tabindex='0'>" in text and "<figcaption>One bar.</figcaption>" in text
    assert "block 98 wipes block 99 & more" in "".join(page.text)
    assert "[0] a < b" in "".join(page.text)
    assert '<a href="02_b.html#1-Symptom">span</a>' in text
    assert "In JupyterLab an explorer stands here." in text
    assert text.index("<summary>Solution</summary>") < text.index("the solution")
    assert (site / "images" / "map.png").read_bytes() == b"picture"


@pytest.mark.notebook
def test_the_index_says_what_was_proven_and_what_was_not(site):
    page = PageCheck(site / "index.html")
    text = " ".join("".join(page.text).split())
    assert "1 of 2 notebooks proven, 1 of 2 claims." in text
    assert "A stride taken for a span." in text
    assert "✗ FAILED: 2 < 1" in text
    assert "01 Wrong <place>" in text and "02 Second" in text
    assert page.pictures == [("01_a-2.png", "the same & more")]


@pytest.mark.parametrize(
    ("line", "wraps"),
    [
        ("recorded, not measured here: one NVIDIA H200, 2026-11-30, clocks as found, not set", True),
        ("proven  bytes past the end: 0 bytes (= 0)", True),
        ("✓ wait 1,000 ms ≤ limit 1,000 ms?  Yes.", True),
        ("layer     base  block stride  span", False),
        ("layer.0     0           216    64", False),
        ("a row with many words in front  465", False),
        ("block 98  aaaaaaaa_bbbbbbbb_", False),
        ("  [X]XXXX  an indented line of many words", False),
    ],
)
def test_lines_of_words_wrap_and_columns_keep_their_shape(line, wraps):
    assert ("class='words'" in terminal(line)) == wraps
    assert terminal(f"{line}\n{line}").count("\n") == 1


@pytest.mark.parametrize(
    ("damage", "problem"),
    [
        ('<img src="data:,x">', "has no text alternative"),
        ('<img src="data:,x" alt="<Figure size 640x480>">', "has no text alternative"),
        ('<img src="https://example.org/x.png" alt="x">', "external request: https://example.org/x.png"),
        ('<script src="//cdn.example.org/x.js"></script>', "external request: //cdn.example.org/x.js"),
        ("<script>1</script>", "a script"),
        ('<img src="gone.png" alt="x">', "gone.png is not in the site"),
        ('<a href="gone.html">x</a>', "link to gone.html, which is not in the site"),
        ('<a href="#gone">x</a>', "link to #gone, which has no such place"),
        ("<div>", "never closed: ['div']"),
        ("</div>", "</div> closes nothing"),
    ],
)
def test_the_check_sees_each_fault(tmp_path, damage, problem):
    (tmp_path / "style.css").write_text("p { color: black }")
    (tmp_path / "index.html").write_text("<p>good</p>")
    assert site_problems(tmp_path) == []
    (tmp_path / "index.html").write_text(damage)
    assert any(problem in found for found in site_problems(tmp_path))
