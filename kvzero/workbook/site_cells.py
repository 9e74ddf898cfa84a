"""The cells of an executed notebook as HTML that can neither run a script nor ask anybody for anything.

Text and outputs are other people's: tags and attributes that are not on a short list go, pictures come from the
notebook's own folder or its outputs and travel inside the page.
"""

from __future__ import annotations

import base64
import html
import json
import re
from collections.abc import Callable
from pathlib import Path
from urllib.parse import unquote
from xml.etree import ElementTree

from kvzero.workbook.canonical import FOLDED_TAGS, source_of, tags_of
from kvzero.workbook.knob import MIMETYPE as KNOB
from kvzero.workbook.verdict import MIMETYPE as VERDICT
from kvzero.workbook.verdict import Claim

_WIDGET = "application/vnd.jupyter.widget-view+json"
_PICTURES = {".png": "image/png", ".svg": "image/svg+xml", ".jpg": "image/jpeg", ".gif": "image/gif"}
_TAGS = frozenset(
    "a abbr b blockquote br caption code col colgroup dd del details div dl dt em figcaption figure h1 h2 h3 h4 h5 h6 "
    "hr i img kbd li ol p pre q s samp small span strong sub summary sup table tbody td tfoot th thead tr ul "
    "var".split()
)
_ATTRIBUTES = {
    "*": ["class"], "a": ["href"], "img": ["src", "alt"], "td": ["colspan", "rowspan"], "ol": ["start"],
    "th": ["colspan", "rowspan", "scope"], **{f"h{level}": ["id"] for level in range(1, 7)},
}  # fmt: skip
_SVG = "{http://www.w3.org/2000/svg}"
_SVG_TAGS = frozenset(_SVG + tag for tag in ("svg", "g", "path", "rect", "text", "title", "pattern"))
_SVG_ATTRIBUTES = frozenset(
    "role aria-label width height viewBox font-family font-size font-weight fill stroke stroke-width stroke-dasharray "
    "stroke-linecap d x y textLength text-anchor id patternUnits transform class pointer-events".split()
)
_LOCAL_FILL = re.compile(r"url\(#[\w-]+\)|(?!.*\burl\b).*")
# "#35219 gave ..." at the start of a line is a reference; Markdown alone takes it for a heading.
_REFERENCE = re.compile(r"^#(?=\d)", re.MULTILINE)
# Words, perhaps after one word ("proven  ...") or a question: such a line of output wraps. What is indented, or set
# in columns by runs of spaces (tables, text maps), keeps its shape and scrolls in its box.
_WORDS = re.compile(r"(?:\S+  (?=\S+ \S+ \S)|(?:\S+ )*\S+\?  )?\S+(?: \S+)*")
_SET_UP = re.compile(r"(from|import) ")  # a cell that begins with imports
ElementTree.register_namespace("", _SVG[1:-1])


def sanitized(text: str) -> str:
    """HTML with nothing in it but the tags and attributes of a text."""
    import bleach

    text = re.sub(r"(?is)<(script|style)\b.*?</\1\s*>", "", text)
    text = re.sub(r"""style=(["'])[^"']*text-align:\s*(right|center)[^"']*\1""", r'class="\2"', text)
    protocols = ["https", "http", "mailto", "data"]
    text = bleach.clean(text, tags=_TAGS, attributes=_ATTRIBUTES, protocols=protocols, strip=True)
    text = re.sub(r'(?i)href="\s*data:[^"]*"', "", text)
    text = re.sub(r"<th(?=[\s>])(?![^>]*\bscope=)", '<th scope="col"', text)
    return re.sub(r"<table\b.*?</table>", r"<div class='scroll'>\g<0></div>", text, flags=re.DOTALL)


def markdown(source: str, folder: Path, link: Callable[[str, str, str], str]) -> str:
    """A text cell as HTML.

    Args:
        source: Markdown.
        folder: the notebook's folder, in which its pictures lie.
        link: called with (name, anchor, words) of each link to another notebook; returns what stands there.
    """
    from nbconvert.filters import markdown2html

    text = re.sub(r'<a class="anchor-link"[^>]*>.*?</a>', "", markdown2html(_REFERENCE.sub(r"\\#", source)))
    text = sanitized(text)
    text = re.sub(r"<img\b[^>]*>", lambda image: _embedded(image.group(), folder), text)
    return re.sub(
        r'<a href="([^":/]+)\.ipynb((?:#[^"]*)?)">(.*?)</a>', lambda found: link(*found.groups()), text, flags=re.DOTALL
    )


def _embedded(image: str, folder: Path) -> str:
    """A picture of the notebook's folder inside the page; what lies elsewhere, or is no picture, leaves its words."""
    source, alt = (re.search(rf'{name}="([^"]*)"', image) for name in ("src", "alt"))
    words = alt.group(1) if alt else ""
    path = (folder / unquote(html.unescape(source.group(1) if source else ""))).resolve()
    if path.is_relative_to(folder.resolve()) and path.suffix in _PICTURES and path.is_file():
        data = base64.b64encode(path.read_bytes()).decode()
        return f'<img src="data:{_PICTURES[path.suffix]};base64,{data}" alt="{words}">'
    return words


def code(cell: dict) -> tuple[str, str]:
    """A code cell as (code, outputs), the code folded if its tags say so."""
    from pygments import highlight
    from pygments.formatters import HtmlFormatter
    from pygments.lexers import PythonLexer

    text = highlight(source_of(cell), PythonLexer(), HtmlFormatter(nowrap=True)).rstrip()
    text = f"<div class='code'><pre>{text}</pre></div>"
    outputs = "".join(_output(output) for output in cell.get("outputs", ()))
    outputs = f"<div class='output'>{outputs}</div>" if outputs else ""
    tags = tags_of(cell)
    if "solution" in tags:
        return f"<details><summary>Solution</summary>{text}{outputs}</details>", ""
    if FOLDED_TAGS & tags or _SET_UP.match(source_of(cell)):
        return f"<details><summary>Code</summary>{text}</details>", outputs
    return text, outputs


def _output(output: dict) -> str:
    if output["output_type"] == "error":
        return terminal("".join(output["traceback"]) or f"{output['ename']}: {output['evalue']}")
    if output["output_type"] == "stream":
        return terminal(_joined(output["text"]))
    data = output["data"]
    if KNOB in data:
        return _knob(data[KNOB])
    if VERDICT in data:
        return _verdict(data[VERDICT])
    text = _joined(data.get("text/plain", "")).strip()
    for kind in ("image/svg+xml", "image/png"):
        if kind in data:
            return _figure(kind, _joined(data[kind]), output.get("metadata", {}), text)
    if _WIDGET in data:
        return "" if text.startswith("VBox(") else "<p class='explorer'>In JupyterLab a control stands here.</p>"
    return sanitized(_joined(data.get("text/html", ""))) or terminal(text)


def _figure(kind: str, content: str, metadata: dict, text: str) -> str:
    """A picture with its words under it; a text map is there for whoever reads text, folded for whoever sees."""
    alt = metadata.get(kind, {}).get("alt") or metadata.get("alt") or text.partition("\n")[0]
    picture = _drawing(content, alt) if kind == "image/svg+xml" else _image(kind, content, alt)
    caption = f"<figcaption>{html.escape(alt)}</figcaption>" if alt else ""
    folded = f"<details><summary>As text</summary>{terminal(text)}</details>" if "\n" in text else ""
    # Figures of the workbook bear their sentence as title: on a wide window the caption would say it again.
    titled = " class='titled'" if picture.startswith("<svg") else ""
    return f"<figure{titled}><div class='picture'>{picture}</div>{caption}{folded}</figure>"


def _drawing(content: str, alt: str) -> str:
    """An SVG inside the page, or as an image, in which nothing can run, if it does more than draw."""
    return svg(content) or _image("image/svg+xml", base64.b64encode(content.encode()).decode(), alt)


def _image(kind: str, data: str, alt: str) -> str:
    data = re.sub(r"[^A-Za-z0-9+/=]", "", data)
    return f'<img src="data:{kind};base64,{data}" alt="{html.escape(alt)}">'


def svg(content: str) -> str:
    """An SVG that draws and does nothing else, to stand inside a page; "" if it has more in it than that."""
    try:
        drawing = ElementTree.fromstring(content)
    except ElementTree.ParseError:
        return ""
    for part in drawing.iter():
        plain = all(name in _SVG_ATTRIBUTES and _LOCAL_FILL.fullmatch(value) for name, value in part.items())
        if part.tag not in _SVG_TAGS or not plain:
            return ""
    return ElementTree.tostring(drawing, encoding="unicode")


def _knob(record: dict) -> str:
    """A knob that needs no kernel: a script shows one of its steps, no script the first and the boundary."""
    title, steps = html.escape(record["title"]), record["steps"]
    name = re.sub(r"\W+", "-", record["title"]).strip("-").lower()
    if len(steps) <= 6:
        controls = "".join(
            f'<label><input type="radio" name="{name}" value="{index}"{" checked" * (index == 0)}> '
            f"{html.escape(step['label'])}</label>"
            for index, step in enumerate(steps)
        )
    else:
        controls = (
            f'<label>step <input type="range" min="0" max="{len(steps) - 1}" value="0"></label>'
            f"<output>{html.escape(steps[0]['label'])}</output>"
        )
    states = "".join(_state(step, index in (0, record["boundary"])) for index, step in enumerate(steps))
    return (
        f'<div class="knob"><fieldset hidden><legend>{title}</legend>{controls}</fieldset>'
        f'<p class="without-script"><b>{title}</b></p><p class="said" role="status"></p>{states}</div>'
    )


def _state(step: dict, shown: bool) -> str:
    label, sentence, call = (html.escape(step[name]) for name in ("label", "sentence", "code"))
    text = f"<details><summary>As text</summary>{terminal(step['text'])}</details>" if step["text"] else ""
    picture = _drawing(step["picture"], step["sentence"])
    return (
        f'<div class="state{" shown" * shown}" data-label="{label}"><p class="without-script"><b>{label}</b></p>'
        f"<figure><div class='picture'>{picture}</div><figcaption>{sentence}</figcaption>{text}"
        f"<details><summary>This state as code</summary><div class='code'><pre>{call}</pre></div></details>"
        "</figure></div>"
    )


def _verdict(record: dict) -> str:
    """The claims as a summary: what failed stands open, the rest is folded."""
    claims = [Claim.from_dict(claim) for claim in record["claims"]]
    failed = [claim for claim in claims if not claim.passed]
    proven = len(claims) - len(failed)
    notes = [f"exercise {each['name']}: {each['state']}" for each in record.get("exercises", ())]
    notes += [f"{name}: {text}" for name, text in record.get("notes", {}).items()]
    failures = "".join(f"<li class='failed'>✗ {html.escape(str(claim))}</li>" for claim in failed)
    rows = "".join(f"<li>{'✓' if claim.passed else '✗'} {html.escape(str(claim))}</li>" for claim in claims)
    rows += "".join(f"<li>{html.escape(note)}</li>" for note in notes)
    head = f"{proven} of {len(claims)} claims proven on {html.escape(str(record['device']))}"
    return (
        f"<div class='verdict'>{f'<ul>{failures}</ul>' if failed else ''}"
        f"<details><summary>{head}</summary><ul>{rows}</ul></details></div>"
    )


def terminal(text: str) -> str:
    """Text output as HTML, line by line: words wrap, columns and what is coloured keep their shape.

    Args:
        text: what a cell printed.
    """
    from nbconvert.filters import ansi2html

    text = text.rstrip()
    if "\x1b" in text:
        return sanitized(f"<pre>{ansi2html(text)}</pre>")
    lines = (
        f"<span class='words'>{html.escape(line)}</span>" if _WORDS.fullmatch(line) else html.escape(line)
        for line in text.split("\n")
    )  # fmt: skip
    return "<pre>" + "\n".join(lines) + "</pre>"


def _joined(text: object) -> str:
    if isinstance(text, list):
        return "".join(map(str, text))
    return text if isinstance(text, str) else json.dumps(text)
