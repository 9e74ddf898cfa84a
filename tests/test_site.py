"""The static site of executed notebooks: complete, every picture described, nothing fetched, nothing run but ours."""

from __future__ import annotations

import re

import pytest
from site_check import PageCheck, site_problems
from tiny_notebooks import read_notebook, write_notebook

from kvzero.__main__ import main
from kvzero.workbook import bars
from kvzero.workbook.canonical import canonical, dumps
from kvzero.workbook.figures import bundle
from kvzero.workbook.site_cells import markdown, sanitized, svg, terminal

PIXEL = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
FIGURE = f"""\
from IPython.display import display
bundle = {{"image/png": "{PIXEL}", "text/plain": "map\\n[0] a < b"}}
display(bundle, raw=True, metadata={{"image/png": {{"alt": "block 98 wipes block 99 & more"}}}})"""
CONTROL = "import ipywidgets\nipywidgets.IntSlider(description='block')"
SOLUTION = 'print("the solution")'
OWN = """\
from kvzero.workbook import bars, knob, show
def count(pages):
    sentence = f"{pages} pages."
    return bars([("pages", pages)], sentence), sentence, f"pages  {pages}"
show(*count(1))"""
KNOB = """\
knob(count, controls={"pages": range(1, 9)}, title="How many?",
     steps={"one": {"pages": 1}, "two": {"pages": 2}, "eight": {"pages": 8}}, boundary="two")"""
HOSTILE = """\
from IPython.display import HTML
HTML("<b onclick='alert(1)'>seen</b><script>alert(2)</script><iframe src='https://example.org'></iframe>")"""
STORY = """\
# Wrong *place* & time

A *stride* taken for a [span](02_b.ipynb#1-Symptom).

| a | b |
|---|---|
| 1 | 2 |

Who?
#35219 gave it."""
PROOF = "## The proof\n\nFirst."


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """Two notebooks, run and written as a site by the command."""
    folder, out = tmp_path_factory.mktemp("notebooks"), tmp_path_factory.mktemp("out")
    cells = [FIGURE, CONTROL, SOLUTION, OWN, KNOB, HOSTILE]
    first = write_notebook(folder / "01_a.ipynb", cells, tags={0: "parameters", 4: "solution", 5: "cover"})
    (folder / "images").mkdir()
    (folder / "images" / "map.png").write_bytes(b"picture")
    (folder.parent / "secret.png").write_bytes(b"secret")
    _prepend(first, STORY, "![a drawing](images/map.png) ![not yours](../secret.png)")
    second = write_notebook(folder / "02_b c.ipynb", claims='v.claim("2 < 1", measured=2, expected=1)')
    links = "Back to [it](01_a.ipynb), on to [*gone*](03_c.ipynb#x)."
    _prepend(second, "# Second\n\nMore.", f"## 1 Symptom\n\n{links}", PROOF)
    assert main(["run", str(first), str(second), "--device", "cpu", "-o", str(out), "--html"]) == 1
    return out / "site"


def _prepend(path, *texts: str):
    notebook = read_notebook(path)
    cells = [{"cell_type": "markdown", "id": f"t{n}", "metadata": {}, "source": text} for n, text in enumerate(texts)]
    path.write_text(dumps(canonical({"cells": cells + notebook["cells"], "metadata": {}})), encoding="utf-8")


def text_of(site, name: str) -> str:
    return (site / f"{name}.html").read_text(encoding="utf-8")


@pytest.mark.notebook
def test_the_site_is_whole_described_and_fetches_nothing(site):
    assert site_problems(site) == []
    names = ["01_a.html", "01_a.ipynb", "02_b c.html", "02_b c.ipynb", "index.html"]
    assert sorted(path.name for path in site.iterdir()) == names


@pytest.mark.notebook
def test_a_page_carries_text_pictures_and_folded_parts(site):
    text, page = text_of(site, "01_a"), PageCheck(site / "01_a.html")
    assert "<title>01 Wrong place &amp; time</title>" in text
    assert "#35219 gave it.</p>" in text, "a line that begins with a reference is no heading"
    assert page.pictures[:3] == ["a drawing", "block 98 wipes block 99 & more", "1 pages."]
    assert "[0] a < b" in "".join(page.text) and "not yours" in "".join(page.text)
    assert "In JupyterLab a control stands here." in text
    assert text.index("<summary>Solution</summary>") < text.index("the solution")
    assert "secret" not in text and "c2VjcmV0" not in text, "a picture outside the notebook's folder stays there"
    second = text_of(site, "02_b c")
    assert "<em>gone</em>." in second and 'href="01_a.html"' in second
    assert second.index("<summary>Show the proof</summary>") < second.index("claims proven on")
    assert "kvzero run &#x27;notebooks/02_b c.ipynb&#x27;" in second and 'href="02_b%20c.ipynb" download' in second


@pytest.mark.notebook
def test_a_knob_has_every_step_as_the_function_draws_it(site):
    text = text_of(site, "01_a")
    knob = text.partition('<div class="knob">')[2].partition("<b>seen</b>")[0]
    assert re.findall(r'data-label="(\w+)"', knob) == ["one", "two", "eight"]
    assert re.findall(r'class="(state[^"]*)"', knob) == ["state shown", "state shown", "state"]
    assert re.findall(r"<figcaption>(.*?)</figcaption>", knob) == ["1 pages.", "2 pages.", "8 pages."]


@pytest.mark.notebook
def test_a_verdict_is_a_summary_with_failures_open(site):
    text = text_of(site, "02_b c")
    assert "<summary>0 of 1 claims proven on cpu</summary>" in text
    assert text.index("✗ FAILED  2 &lt; 1: 2 (= 1)") < text.index("0 of 1 claims proven")


@pytest.mark.notebook
def test_the_index_says_what_was_proven_and_finds_words(site):
    page = PageCheck(site / "index.html")
    text = " ".join("".join(page.text).split())
    assert "1 of 2 notebooks proven, 1 of 2 claims." in text and "A stride taken for a span." in text
    assert "✗ claim failed: FAILED 2 < 1: 2 (= 1)" in text and "01 Wrong place & time" in text
    assert page.pictures == ["1 pages."], "the picture of the cell tagged cover"
    assert '"title": "1 Symptom"' in text_of(site, "index") and "on to gone" in text_of(site, "index")


def test_what_is_no_text_does_not_reach_a_page(tmp_path):
    hostile = (
        '<a href="javascript:x">a</a><a href="data:text/html,x">b</a><img src=x onerror=y alt=z>'
        '<svg onload=x></svg><iframe src="https://example.org"></iframe><form><input></form>'
        '<b style="x" onclick="y">c</b><script>z</script>'
    )
    assert sanitized(hostile).replace("\n", "") == '<a>a</a><a >b</a><img src="x" alt="z"><b>c</b>'
    (tmp_path / "notebooks").mkdir()
    (tmp_path / "secret.png").write_bytes(b"secret")
    absolute = str(tmp_path / "secret.png")
    for path in ("../secret.png", "..%2Fsecret.png", "/etc/passwd", absolute, "x.py", "nothing.png"):
        found = markdown(f"![words]({path})", tmp_path / "notebooks", lambda name, anchor, words: words)
        assert found.strip() == "<p>words</p>", path


@pytest.mark.parametrize(
    "change",
    [
        ("<path", '<script xmlns="http://www.w3.org/2000/svg">x</script><path'),
        ("<path", '<path onclick="x"'),
        ("<path", '<path style="x"'),
        ("<path", '<path fill="url(https://example.org/x)"'),
        ("<path", '<image href="https://example.org/x.png"/><path'),
        ("</svg>", ""),
    ],
)
def test_a_drawing_that_does_more_than_draw_is_not_put_into_a_page(change):
    drawing = bundle(bars([("a", 1)], "One."), "One.")["image/svg+xml"]
    assert svg(drawing).startswith("<svg")
    assert svg(drawing.replace(*change, 1)) == ""


@pytest.mark.parametrize(
    ("line", "wraps"),
    [
        ("recorded, not measured here: one NVIDIA H200, 2026-11-30, clocks as found, not set", True),
        ("proven  bytes past the end: 0 bytes (= 0)", True),
        ("✓ wait 1,000 ms ≤ limit 1,000 ms?  Yes.", True),
        ("layer     base  block stride  span", False),
        ("layer.0     0           216    64", False),
        ("block 98  aaaaaaaa_bbbbbbbb_", False),
        ("  [X]XXXX  an indented line of many words", False),
    ],
)
def test_lines_of_words_wrap_and_columns_keep_their_shape(line, wraps):
    assert ("class='words'" in terminal(line)) == wraps
    assert terminal(f"{line}\n{line}").count("\n") == 1


GOOD = (
    "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; img-src data:\">"
    '<a href="index.html#x">x</a><h1 id="x">good</h1>'
)


@pytest.mark.parametrize(
    ("damage", "problem"),
    [
        ('<img src="data:,x">', "has no text alternative"),
        ('<img src="data:,x" alt="<Figure size 640x480>">', "has no text alternative"),
        ('<img src="https://example.org/x.png" alt="x">', "request: https://example.org/x.png"),
        ('<script src="//cdn.example.org/x.js"></script>', "request: //cdn.example.org/x.js"),
        ("<script>1</script>", "a script that the policy does not know"),
        ("<style>p {}</style>", "a style that the policy does not know"),
        ('<p onclick="x">', "a script in an attribute"),
        ('<a href="javascript:x">x</a>', "runs a script"),
        ('<a href="gone.html">x</a>', "link to gone.html, which is not in the site"),
        ('<a href="#gone">x</a>', "link to #gone, which has no such place"),
        ("<table><tr><th>x</th></tr></table>", "a table head without scope"),
        ("<h3>x</h3>", "headings out of order"),
        ("<div class='picture'></div>", "a figure without a picture"),
        ('<p id="x">', "two things are called x"),
        ("<div>", "never closed: ['div']"),
        ("</div>", "</div> closes nothing"),
    ],
)
def test_the_check_sees_each_fault(tmp_path, damage, problem):
    (tmp_path / "index.html").write_text(GOOD)
    assert site_problems(tmp_path) == []
    (tmp_path / "index.html").write_text(GOOD + damage)
    assert any(problem in found for found in site_problems(tmp_path))
    (tmp_path / "index.html").write_text("<h1>no policy</h1>")
    assert "no content policy" in site_problems(tmp_path)[0]
