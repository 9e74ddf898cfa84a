"""The executed workbook as a static site: an index of what was proven, and one page per notebook.

A page is one file that needs no network and no server: style, pictures and a short script of ours are in it, and its
content policy lets nothing else run. Without the script a page still has everything but stepping and search.
"""

from __future__ import annotations

import base64
import hashlib
import html
import itertools
import json
import re
import shlex
import shutil
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from importlib.resources import files
from pathlib import Path
from urllib.parse import quote

from kvzero.errors import CommandError
from kvzero.workbook import site_cells
from kvzero.workbook.canonical import source_of, tags_of
from kvzero.workbook.figures.style import DARK
from kvzero.workbook.runner import Result

_HEADING = re.compile(r"<h([1-6])(?: id=\"([^\"]*)\")?>(.*?)</h\1>", re.DOTALL)
_PROOF = re.compile(r"(\d+ )?(the )?proof\b", re.IGNORECASE)
_AFTER_PROOF = re.compile(r"(\d+ )?verdict\b", re.IGNORECASE)
_HANDOUT = re.compile(r"\bhand-?out\b", re.IGNORECASE)
_PAGE = """\
<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{policy}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>{title}</title>
<link rel="icon" href="data:,">
<style>{style}</style>
</head>
<body>
<a class="skip" href="#main">Skip to the text</a>
<header><nav aria-label="Workbook">{navigation}</nav></header>
<div class="columns">{contents}
<main id="main">
{body}
</main></div>
<footer><nav aria-label="Next and previous page">{neighbours}</nav></footer>
<script>{script}</script>
</body>
</html>
"""


@dataclass
class Section:
    """What stands under one heading: for the contents list and for the search."""

    anchor: str
    title: str
    level: int
    text: list[str] = field(default_factory=list)


@dataclass
class Page:
    """One rendered notebook.

    Args:
        result: the run that is shown.
        title, summary: the notebook's first heading, and the first paragraph under it.
        body: HTML.
        picture: the figure on the index: the page's first, or that of a cell tagged `cover`; "" without figures.
        sections: its headings with what stands under each.
    """

    result: Result
    title: str = ""
    summary: str = ""
    body: str = ""
    picture: str = ""
    sections: list[Section] = field(default_factory=list)

    @property
    def file_name(self) -> str:
        """The page's file in the site."""
        return f"{self.result.name}.html"

    @property
    def link(self) -> str:
        """The page's address."""
        return quote(self.file_name)

    @property
    def numbered_title(self) -> str:
        """The number by which the README calls the notebook, if it has one, and the title, as HTML."""
        number = self.result.name[:2] if re.match(r"\d\d_", self.result.name) else ""
        return html.escape(f"{number} {self.title}".strip())


def build(results: Sequence[Result], folder: Path) -> Path:
    """Write the site.

    Args:
        results: executed notebooks in reading order; failed ones are shown as failed.
        folder: where to; made if it is not there. Files of an earlier site are replaced.

    Returns:
        The index page.

    Raises:
        CommandError: a file of the site cannot be written.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        executed = [result for result in results if result.executed_path.exists()]
        names = {result.name for result in executed}
        pages = [_render(result, names) for result in executed]
        for number, page in enumerate(pages):
            shutil.copyfile(page.result.notebook, folder / page.result.notebook.name)
            text = _whole(page.numbered_title, page.body, _contents(page), _neighbours(pages, number))
            (folder / page.file_name).write_text(text, encoding="utf-8")
        index = folder / "index.html"
        index.write_text(_whole("The kvzero workbook", _index(pages, results)), encoding="utf-8")
        return index
    except OSError as error:
        raise CommandError("output-file", path=error.filename or folder, detail=error.strerror) from error


def page_files(notebooks: Sequence[Path], folder: Path) -> list[Path]:
    """The files that `build` writes for notebooks."""
    return [folder / "index.html", *(folder / f"{path.stem}{end}" for path in notebooks for end in (".html", ".ipynb"))]


def _whole(title: str, body: str, contents: str = "", neighbours: str = "") -> str:
    style, script = _style(), _asset("site.js")
    policy = (
        "default-src 'none'; img-src data:; base-uri 'none'; "
        f"style-src 'sha256-{_digest(style)}'; script-src 'sha256-{_digest(script)}'"
    )
    navigation = '<a href="index.html">All cases</a> <a href="index.html#search">Search</a>'
    return _PAGE.format(
        policy=policy, title=title, style=style, script=script, navigation=navigation, contents=contents,
        body=_with_unique_names(body),
        neighbours=neighbours or '<a href="index.html">All cases</a>',
    )  # fmt: skip


def _with_unique_names(body: str) -> str:
    """A page on which no two drawings call a hatch by the same name: a hatch of a hidden drawing would draw nothing."""
    count = itertools.count()

    def renamed(drawing: re.Match) -> str:
        return re.sub(r'(id="|url\(#)h[0-9a-f]+-', rf"\g<1>h{next(count)}-", drawing.group())

    return re.sub(r"<svg\b.*?</svg>", renamed, body, flags=re.DOTALL)


def _digest(text: str) -> str:
    return base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


def _asset(name: str) -> str:
    return files("kvzero.workbook").joinpath(name).read_text(encoding="utf-8")


@lru_cache
def _style() -> str:
    """The style sheet, with the colours of code, and of figures and code on a dark page."""
    from pygments.formatters import HtmlFormatter

    light, dark = (
        HtmlFormatter(style=style, nobackground=True).get_style_defs(".code pre")
        for style in ("default", "github-dark")
    )
    figures = "".join(f'svg [{part}="{a}"]{{{part}:{b}}}' for a, b in DARK.items() for part in ("fill", "stroke"))
    return f"{_asset('site.css')}\n{light}\n@media screen and (prefers-color-scheme: dark) {{\n{figures}\n{dark}\n}}\n"


def _contents(page: Page) -> str:
    items = "".join(
        f'<li class="level-{section.level}"><a href="#{section.anchor}">{section.title}</a></li>'
        for section in page.sections
        if section.level in (2, 3)
    )
    folded = f"<details open><summary>On this page</summary><ol>{items}</ol></details>"
    return f'<nav class="contents" aria-label="On this page">{folded}</nav>' if items else ""


def _neighbours(pages: Sequence[Page], number: int) -> str:
    links = ['<a href="index.html">All cases</a>']
    if number:
        links.insert(0, f'<a href="{pages[number - 1].link}" rel="prev">← {pages[number - 1].numbered_title}</a>')
    if number + 1 < len(pages):
        links.append(f'<a href="{pages[number + 1].link}" rel="next">{pages[number + 1].numbered_title} →</a>')
    return " ".join(links)


def _index(pages: Sequence[Page], results: Sequence[Result]) -> str:
    claims = [claim for result in results for claim in result.ruling.claims]
    proven = sum(claim.passed for claim in claims)
    notebooks = sum(result.proven for result in results)
    missing = [result for result in results if not result.executed_path.exists()]
    entries = [
        {
            "page": html.unescape(page.numbered_title), "title": _words(section.title), "text": " ".join(section.text),
            "link": f"{page.link}#{section.anchor}",
        }
        for page in pages for section in page.sections
    ]  # fmt: skip
    data = json.dumps(entries, ensure_ascii=False).replace("<", "\\u003c")
    lines = [
        "<h1>The kvzero workbook</h1>",
        "<p>Bugs in zeroing freshly allocated KV-cache blocks: rebuilt, seen in memory, fixed, proven.</p>",
        f"<p>{notebooks} of {len(results)} notebooks proven, {proven} of {len(claims)} claims.</p>",
        *(f"<p class='failed'>{html.escape(result.name)} produced no page.</p>" for result in missing),
        '<form id="search" role="search" action="index.html"><label for="question">Search all pages</label> '
        '<input id="question" name="q" type="search"><p id="found" role="status"></p><ul id="results"></ul></form>',
        f'<script type="application/json" id="search-index">{data}</script>',
        "<ul class='cases'>",
        *map(_case, pages),
        "</ul>",
    ]
    return "\n".join(lines)


def _case(page: Page) -> str:
    ruling = page.result.ruling
    state = "proven" if page.result.proven else "<span class='failed'>FAILED</span>"
    device = html.escape(ruling.device or "no device")
    return (
        f'<li><div><h2><a href="{page.link}">{page.numbered_title}</a></h2><p>{page.summary}</p>'
        f"<p>{state}: {len(ruling.claims)} claims in {page.result.seconds:.1f} s on {device}</p>"
        f"{_problems(page.result)}</div>{page.picture}</li>"
    )


def _problems(result: Result) -> str:
    """What is wrong with a run, if anything is."""
    items = "".join(f"<li>✗ {html.escape(problem)}</li>" for problem in result.ruling.problems)
    return f"<ul class='failed'>{items}</ul>" if items else ""


def _render(result: Result, names: set[str]) -> Page:
    notebook = json.loads(result.executed_path.read_text(encoding="utf-8"))
    page = Page(result)

    def link(name: str, anchor: str, words: str) -> str:
        """A link to another page, or its words alone where that notebook is not in the site."""
        return f'<a href="{name}.html{anchor}">{words}</a>' if name in names else words

    parts, first, cover, wrapped = [_problems(result)], "", "", ""
    for cell in notebook["cells"]:
        if "papermill-error-cell-tag" in tags_of(cell):
            continue  # papermill's own words for a failure; ours say more
        if cell["cell_type"] == "markdown":
            before = len(page.sections)
            text = _headed(site_cells.markdown(source_of(cell), result.notebook.parent, link), page)
            heads = [section.title for section in page.sections[before:] if section.level == 2]
            part = f"<div class='text'>{text}</div>"
            wrapper = _wrapper(heads[0], wrapped) if heads else wrapped
            if wrapper == wrapped:
                parts.append(part)
            else:
                opening = _WRAPPERS[wrapper][0]
                parts += [_WRAPPERS[wrapped][1], *((part, opening) if wrapper == "proof" else (opening, part))]
            wrapped = wrapper
        elif cell["cell_type"] == "code" and "injected-parameters" not in tags_of(cell):
            code, outputs = site_cells.code(cell)
            parts.append(code + outputs)
            if page.sections:
                page.sections[-1].text.append(source_of(cell))
            found = re.search(r"<div class='picture'>.*?</div>", outputs, re.DOTALL)
            picture = found.group() if found else ""
            first, cover = first or picture, picture if "cover" in tags_of(cell) else cover
    page.title = page.title or result.name
    page.picture = re.sub(r"<rect class=\"range\".*?</rect>", "", cover or first, flags=re.DOTALL)
    page.body = "\n".join([*parts, _WRAPPERS[wrapped][1], _download(result)])
    return page


# What a section is wrapped in: nothing; what a reader opens who wants the proof; a page of its own on paper.
_WRAPPERS = {
    "": ("", ""),
    "proof": ("<details class='proof'><summary>Show the proof</summary>", "</details>"),
    "handout": ("<section class='handout'>", "</section>"),
}


def _wrapper(heading: str, wrapped: str) -> str:
    """The wrapper of a section, from its heading and the wrapper before it; the proof goes on until the verdict."""
    if _PROOF.match(heading):
        return "proof"
    if _HANDOUT.search(heading):
        return "handout"
    return "proof" if wrapped == "proof" and not _AFTER_PROOF.match(heading) else ""


def _headed(text: str, page: Page) -> str:
    """Text whose headings have unique ids and links; notes them, and what stands under them, as the page's sections."""
    pieces, at = [], 0
    taken = {section.anchor for section in page.sections}
    for found in _HEADING.finditer(text):
        before, (level, anchor, title) = text[at : found.start()], found.groups()
        _note(page, before)
        anchor = anchor or "section"
        while anchor in taken:
            anchor += "-"
        taken.add(anchor)
        page.sections.append(Section(anchor, re.sub(r"</?a\b[^>]*>", "", title.strip()), int(level)))
        link = f' <a class="anchor" href="#{anchor}" aria-label="Link to this section">#</a>' if level != "1" else ""
        pieces += [before, f'<h{level} id="{anchor}">{title.strip()}{link}</h{level}>']
        at = found.end()
        if not page.title and level == "1":
            page.title = _words(title)
            paragraph = re.match(r"\s*<p>(.*?)</p>", text[at:], re.DOTALL)
            page.summary = html.escape(_words(paragraph.group(1))) if paragraph else ""
    _note(page, text[at:])
    return "".join([*pieces, text[at:]])


def _note(page: Page, text: str) -> None:
    if page.sections and (words := _words(text)):
        page.sections[-1].text.append(words)


def _words(text: str) -> str:
    """The words of some HTML."""
    return " ".join(html.unescape(re.sub(r"<[^>]*>", " ", text)).split())


def _download(result: Result) -> str:
    name = result.notebook.name
    command = f".venv/bin/python -m kvzero run {shlex.quote(f'notebooks/{name}')}"
    return (
        f'<section><h2 id="run-it">Run it</h2><p><a href="{quote(name)}" download>Download this notebook</a>, put it '
        "into <code>notebooks/</code> of a clone of kvzero, and:</p><div class='code'><pre>"
        f"make lab   # opens JupyterLab there\n{html.escape(command)}</pre></div></section>"
    )
