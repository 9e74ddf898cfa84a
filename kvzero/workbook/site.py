"""The executed workbook as a static site: an index of what was proven, and one page per notebook.

The pages need no network and no script: text, pictures with their text alternatives, tables, and folded
solutions. Explorers, which need a kernel, are replaced by a sentence; the figure before each one stays.
"""

from __future__ import annotations

import base64
import html
import json
import re
import shutil
from collections.abc import Sequence
from dataclasses import dataclass, field
from importlib.resources import files
from pathlib import Path

from kvzero.errors import OutputFileError
from kvzero.workbook.canonical import FOLDED_TAGS, source_of, tags_of
from kvzero.workbook.runner import Result

_PICTURES = {"image/png": "png", "image/svg+xml": "svg"}
_NOTEBOOK_LINK = re.compile(r'<a href="([\w-]+)\.ipynb((?:#[^"]*)?)">(.*?)</a>', re.DOTALL)
# Words, perhaps after one word ("proven  ...") or a question: such a line of output wraps. What is indented, or set
# in columns by runs of spaces (tables, text maps), keeps its shape and scrolls in its box.
_WORDS = re.compile(r"(?:\S+  (?=\S+ \S+ \S)|(?:\S+ )*\S+\?  )?\S+(?: \S+)*")
# "#35219 gave ..." at the start of a line is a reference; nbconvert alone takes it for a heading.
_REFERENCE = re.compile(r"^#(?=\d)", re.MULTILINE)
_WIDGET = "application/vnd.jupyter.widget-view+json"
_EXPLORER = "In JupyterLab an explorer stands here. The page is complete without it."
_PAGE = """\
<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title}</title>
<link rel="icon" href="data:,">
<link rel="stylesheet" href="style.css">
</head>
<body>
<header><nav aria-label="workbook">{navigation}</nav></header>
<main>
{body}
</main>
<footer>{navigation}</footer>
</body>
</html>
"""


@dataclass
class Page:
    """One rendered notebook.

    Args:
        result: the run that is shown.
        title: the notebook's first heading.
        summary: the first paragraph under it.
        body: HTML.
        picture: file name and text alternative of the figure on the index: the first, or that of a cell tagged
            `cover`; None without figures.
    """

    result: Result
    title: str = ""
    summary: str = ""
    body: str = ""
    picture: tuple[str, str] | None = None
    figures: list[tuple[str, str]] = field(default_factory=list)

    @property
    def file_name(self) -> str:
        """The page's file in the site."""
        return f"{self.result.name}.html"

    @property
    def number(self) -> str:
        """The notebook's number, by which the README calls it; empty without one."""
        return self.result.name[:2] if re.match(r"\d\d_", self.result.name) else ""

    @property
    def numbered_title(self) -> str:
        """Number and title."""
        return f"{self.number} {self.title}".strip()


def build(results: Sequence[Result], folder: Path) -> Path:
    """Writes the site.

    Args:
        results: executed notebooks in reading order; failed ones are shown as failed.
        folder: where to; made if it is not there. Files of an earlier site are replaced.

    Returns:
        The index page.

    Raises:
        OutputFileError: a file of the site cannot be written.
    """
    try:
        return _build(results, folder)
    except OSError as error:
        raise OutputFileError(path=error.filename or folder, detail=error.strerror) from error


def page_files(notebooks: Sequence[Path], folder: Path) -> list[Path]:
    """The files that ``build`` writes for notebooks, but for their pictures."""
    return [folder / "index.html", folder / "style.css", *(folder / f"{path.stem}.html" for path in notebooks)]


def _build(results: Sequence[Result], folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    style = files("kvzero.workbook").joinpath("site.css").read_text(encoding="utf-8")
    (folder / "style.css").write_text(f"{style}\n{_code_style()}\n", encoding="utf-8")
    executed = [result for result in results if result.executed_path.exists()]
    names = {result.name for result in executed}
    pages = [_render(result, folder, names) for result in executed]
    for number, page in enumerate(pages):
        text = _PAGE.format(
            title=html.escape(page.numbered_title), navigation=_navigation(pages, number), body=page.body
        )
        (folder / page.file_name).write_text(text, encoding="utf-8")
    index = folder / "index.html"
    body = _index(pages, results)
    index.write_text(
        _PAGE.format(title="The kvzero workbook", navigation=_navigation(pages, None), body=body),
        encoding="utf-8",
    )
    return index


def _navigation(pages: Sequence[Page], number: int | None) -> str:
    def link(page: Page, relation: str) -> str:
        words = f"{_ARROWS[relation]} {html.escape(page.numbered_title)}"
        return f'<a href="{page.file_name}" rel="{relation}">{words}</a>'

    if number is None:
        return "<strong>kvzero</strong>"
    parts = ['<a href="index.html">All cases</a>']
    if number:
        parts.append(link(pages[number - 1], "prev"))
    if number + 1 < len(pages):
        parts.append(link(pages[number + 1], "next"))
    return " ".join(parts)


_ARROWS = {"prev": "←", "next": "→"}


def _index(pages: Sequence[Page], results: Sequence[Result]) -> str:
    claims = [claim for result in results for claim in result.ruling.claims]
    proven = sum(claim.passed for claim in claims)
    notebooks = sum(result.proven for result in results)
    missing = [result for result in results if not result.executed_path.exists()]
    lines = [
        "<h1>The kvzero workbook</h1>",
        "<p>Bugs in zeroing freshly allocated KV-cache blocks: rebuilt, seen in memory, fixed, proven.</p>",
        f"<p>{notebooks} of {len(results)} notebooks proven, {proven} of {len(claims)} claims.</p>",
        *(f"<p class='failed'>{html.escape(result.name)} produced no page.</p>" for result in missing),
        "<ul class='cases'>",
        *map(_case, pages),
        "</ul>",
    ]
    return "\n".join(lines)


def _case(page: Page) -> str:
    ruling = page.result.ruling
    state = "proven" if page.result.proven else "<span class='failed'>FAILED</span>"
    device = ruling.device or "no device"
    number = f"<span class='number'>{page.number}</span> " if page.number else ""
    link = f'<a href="{page.file_name}">{number}{html.escape(page.title)}</a>'
    picture = ""
    if page.picture:
        source, alt = page.picture
        picture = f'<img src="{source}" alt="{html.escape(alt)}" loading="lazy">'
    claims = "".join(
        f"<li>{'✓ proven' if claim.passed else '✗ FAILED'}: {html.escape(claim.name)}</li>" for claim in ruling.claims
    )
    return (
        f"<li><div><h2>{link}</h2><p>{html.escape(page.summary)}</p>"
        f"<p>{state}: {len(ruling.claims)} claims in {page.result.seconds:.1f} s on {html.escape(device)}</p>"
        f"<details><summary>Claims</summary><ul>{claims}</ul></details></div>{picture}</li>"
    )


def _render(result: Result, folder: Path, names: set[str]) -> Page:
    notebook = json.loads(result.executed_path.read_text(encoding="utf-8"))
    page = Page(result, title=result.name)
    parts = []
    for cell in notebook["cells"]:
        if cell["cell_type"] == "markdown":
            parts.append(f"<div class='text'>{_text(cell, page, folder, names)}</div>")
        elif cell["cell_type"] == "code" and "injected-parameters" not in tags_of(cell):
            parts.append(_code(cell, page, folder))
    page.body = "\n".join(parts)
    return page


def _text(cell: dict, page: Page, folder: Path, names: set[str]) -> str:
    from nbconvert.filters import markdown2html

    source = source_of(cell)
    heading = re.match(r"# (.+)\n+([^\n#](?:.|\n(?!\n))*)?", source)
    if heading and page.title == page.result.name:
        page.title, page.summary = heading.group(1).strip(), _plain(heading.group(2) or "")
    for path in re.findall(r"!\[[^\]]*\]\(([\w./-]+)\)", source):
        picture = page.result.notebook.parent / path
        if picture.is_file():
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(picture, folder / path)
    text = markdown2html(_REFERENCE.sub(r"\\#", source))
    return _NOTEBOOK_LINK.sub(lambda link: _linked(link, names), text)


def _linked(link: re.Match, names: set[str]) -> str:
    """A link to another page, or its words alone where that notebook is not in the site."""
    name, anchor, words = link.groups()
    return f'<a href="{name}.html{anchor}">{words}</a>' if name in names else words


def _plain(markdown: str) -> str:
    text = re.sub(r"\[([^\]]+)\]\([^)]*\)", r"\1", " ".join(markdown.split()))
    return re.sub(r"[*`]|(?<!\w)_|_(?!\w)", "", text)


def _code(cell: dict, page: Page, folder: Path) -> str:
    from pygments import highlight
    from pygments.formatters import HtmlFormatter
    from pygments.lexers import PythonLexer

    code = highlight(source_of(cell), PythonLexer(), HtmlFormatter(nowrap=True)).rstrip()
    code = f"<div class='code'><pre tabindex='0'>{code}</pre></div>"
    before = len(page.figures)
    outputs = "".join(_output(output, page, folder) for output in cell.get("outputs", ()))
    outputs = f"<div class='output'>{outputs}</div>" if outputs else ""
    tags = tags_of(cell)
    if page.figures[before:] and (page.picture is None or "cover" in tags):
        page.picture = page.figures[before]
    if "solution" in tags:
        return f"<details><summary>Solution</summary>{code}{outputs}</details>"
    if FOLDED_TAGS & tags:
        return f"<details><summary>Code</summary>{code}</details>{outputs}"
    return code + outputs


def _output(output: dict, page: Page, folder: Path) -> str:
    if output["output_type"] == "error":
        return terminal("".join(output["traceback"]) or f"{output['ename']}: {output['evalue']}")
    if output["output_type"] == "stream":
        return terminal(_joined(output["text"]))
    data = output["data"]
    picture = next((_picture(kind, output, page, folder) for kind in _PICTURES if kind in data), "")
    if _WIDGET in data:
        return f"{picture}<p class='explorer'>{_EXPLORER}</p>"
    return picture or _joined(data.get("text/html", "")) or terminal(_joined(data.get("text/plain", "")))


def _picture(kind: str, output: dict, page: Page, folder: Path) -> str:
    data, metadata = output["data"], output.get("metadata", {})
    content = _joined(data[kind])
    name = f"{page.result.name}-{len(page.figures) + 1}.{_PICTURES[kind]}"
    binary = base64.b64decode(content) if kind == "image/png" else content.encode()
    (folder / name).write_bytes(binary)
    text = _joined(data.get("text/plain", "")).strip()
    alt = metadata.get(kind, {}).get("alt") or metadata.get("alt") or text.partition("\n")[0]
    page.figures.append((name, alt))
    caption = "" if not alt else f"<figcaption>{html.escape(alt)}</figcaption>"
    # The workbook's own figures bear their sentence as title: it is not shown a second time, see the style sheet.
    titled = " class='titled'" if 'class="kvzero-figure"' in _joined(data.get("text/html", "")) else ""
    # A text map says what the picture shows; it is there for whoever reads text, folded for whoever sees.
    text_form = f"<details><summary>As text</summary>{terminal(text)}</details>" if "\n" in text else ""
    width = metadata.get(kind, {}).get("width")
    size = f" style='--width:{int(width)}px'" if width else ""
    picture = f"<img src='{name}' alt='{html.escape(alt)}'{size}>"
    return f"<figure{titled} tabindex='0'>{picture}{caption}{text_form}</figure>"


def terminal(text: str) -> str:
    """Text output as HTML, line by line: words wrap, columns and what is coloured keep their shape.

    Args:
        text: what a cell printed.
    """
    from nbconvert.filters import ansi2html

    text = text.rstrip()
    if "\x1b" in text:
        return f"<pre tabindex='0'>{ansi2html(text)}</pre>"
    lines = "\n".join(map(_line, text.split("\n")))
    return f"<pre tabindex='0'>{lines}</pre>"


def _line(line: str) -> str:
    words = html.escape(line)
    return f"<span class='words'>{words}</span>" if _WORDS.fullmatch(line) else words


def _joined(text: str | list[str]) -> str:
    return text if isinstance(text, str) else "".join(text)


def _code_style() -> str:
    from pygments.formatters import HtmlFormatter

    return HtmlFormatter(style="default", nobackground=True).get_style_defs(".code pre")
