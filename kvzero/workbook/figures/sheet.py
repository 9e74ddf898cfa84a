"""The sheet that every figure is drawn on: boxes, lines, glyphs and words in inches, written as one small SVG.

Words stay words, so that a figure is sharp at any size, can be searched, and takes other colours on a dark page.
"""

from __future__ import annotations

import html
import re
import zlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from .style import INK, PAPER, SMALL_POINTS, SOFT, TITLE_POINTS, WIDTH_INCHES, Sign, text_width

PIXELS_PER_INCH = 96
FONT = "DejaVu Sans,Verdana,Geneva,sans-serif"
_DASHES = {"-": "", "--": "5 3", ":": "1.5 2.5", "-.": "6 2.5 1.5 2.5"}
# A hatch is a tile of 8 by 8 pixels with one mark; a longer name packs the marks closer.
_HATCHES = {
    "/": "M-2 2L2 -2M-2 10L10 -2M6 10L10 6", "\\": "M6 -2L10 2M-2 -2L10 10M-2 6L2 10", "x": "M0 0L8 8M8 0L0 8",
    "|": "M4 0V8", "-": "M0 4H8", ".": "M4 4h0",
}  # fmt: skip


@dataclass
class Figure:
    """A finished figure.

    Args:
        width_inches, height_inches: its size; `words` are as large as stated at 96 pixels an inch.
        parts: the SVG elements, in the order of drawing.
        placed: (left, top, right, bottom, words) of each line of words, in inches.
        ranges: (left, top, right, bottom, words) of what tells about itself when pointed at.
    """

    width_inches: float
    height_inches: float
    parts: list[str] = field(default_factory=list)
    placed: list[tuple[float, float, float, float, str]] = field(default_factory=list)
    ranges: list[tuple[float, float, float, float, str]] = field(default_factory=list)
    smallest_points: float = TITLE_POINTS

    @property
    def words(self) -> list[str]:
        """What the figure says, line by line."""
        return [words for *_, words in self.placed]

    @property
    def width_pixels(self) -> int:
        """The width at which type has its stated size."""
        return round(self.width_inches * PIXELS_PER_INCH)

    def svg(self, sentence: str, telling: bool = False) -> str:
        """The figure as an SVG document.

        Args:
            sentence: the text alternative.
            telling: whether its ranges are in it; an image cannot be pointed into, so only a page that holds the SVG
                itself has a use for them.
        """
        width, height = (_number(inches * PIXELS_PER_INCH) for inches in (self.width_inches, self.height_inches))
        body = "".join(self.parts) + ("".join(map(_range, self.ranges)) if telling else "")
        # Names of hatches must be unique on a page that holds several figures.
        body = body.replace("hatch-", f"h{zlib.crc32(body.encode()):x}-")
        label = html.escape(sentence)
        return (
            f'<svg xmlns="http://www.w3.org/2000/svg" role="img" aria-label="{label}" '
            f'width="{width}" height="{height}" '
            f'viewBox="0 0 {width} {height}" font-family="{FONT}">{body}</svg>'
        )


@dataclass
class Sheet:
    """A figure in the making, measured in inches from the upper left corner; like things are drawn in one stroke."""

    height_inches: float
    width_inches: float = WIDTH_INCHES
    _items: dict[tuple, list] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.figure = Figure(self.width_inches, self.height_inches)

    def box(self, x, y, width, height, sign: Sign, edge: str | None = None, line=0.6, over=0) -> None:
        """A box filled and hatched by a sign; boxes with a higher `over` lie over the others."""
        corners = (x, y, width, height)
        self._add(1 + over / 10, "box", (sign.fill, edge, line), corners)
        if sign.hatch:
            self._add(1.01 + over / 10, "hatch", (sign.hatch, sign.line), corners)

    def outline(self, x, y, width, height, colour=INK, line=1.2, over=4) -> None:
        """An empty box."""
        self.stroke([(x, y), (x + width, y), (x + width, y + height), (x, y + height), (x, y)], colour, line, over=over)

    def stroke(self, points: Iterable[tuple[float, float]], colour=SOFT, line=0.8, dash="-", over=3) -> None:
        """A line through points."""
        self._add(2 + over / 10, "line", (colour, line, dash), tuple(points))

    def dot(self, x, y, colour: str, size=0.06) -> None:
        """A round dot."""
        self._add(2.6, "dot", (colour, size), (x, y))

    def glyph(self, x, y, sign: Sign, height=0.1, clear: float = 0.0) -> None:
        """A sign's glyph centred at a point; its height is in inches, and `clear` that of a plain field behind it."""
        if clear and sign.hatch:
            self.box(x - clear * 0.5, y - clear / 2, clear, clear, Sign("", "", sign.fill), over=5)
        if sign.glyph == ".":
            self._add(2.6, "dot", (sign.ink, height * 0.3), (x, y))
        elif sign.glyph:
            self._add(2.6, "glyph", (sign.ink, height, round(y, 3)), (x, sign.glyph))

    def text(self, x, y, words, points=SMALL_POINTS, colour=INK, align="left", bold=False) -> None:
        """A line of words; `y` is the middle of its capitals."""
        width = text_width(words, points, bold)
        left = x - {"left": 0, "center": 0.5, "right": 1}[align] * width
        half = 0.365 * points / 72
        self._add(4, "text", (colour, points, bold), (left, y + half, width, words))
        self.figure.placed.append((left, y - half, left + width, y + half, words))
        self.figure.smallest_points = min(self.figure.smallest_points, points)

    def title(self, lines: Sequence[str]) -> None:
        """The lines of `title_lines`, at the top."""
        for index, line in enumerate(lines):
            self.text(0.15, 0.18 + 0.19 * index, line, TITLE_POINTS, bold=True)

    def tell(self, x, y, width, height, words: str) -> None:
        """A place that says what it is when it is pointed at."""
        self.figure.ranges.append((x, y, x + width, y + height, words))

    def _add(self, level: float, kind: str, style: tuple, item: tuple) -> None:
        self._items.setdefault((round(level, 3), kind, *style), []).append(item)

    def finish(self) -> Figure:
        """Draw what was gathered and hand over the figure."""
        parts = self.figure.parts
        parts.append(f'<rect width="100%" height="100%" fill="{PAPER}"/>')
        for number, ((_, kind, *style), items) in enumerate(sorted(self._items.items(), key=lambda pair: pair[0][0])):
            parts.append(_DRAW[kind](number, style, items))
        return self.figure


def stacked(figures: Sequence[Figure]) -> Figure:
    """Figures below each other as one."""
    if len(figures) == 1:
        return figures[0]
    whole = Figure(max(one.width_inches for one in figures), sum(one.height_inches for one in figures))
    top = 0.0
    for number, one in enumerate(figures):
        body = "".join(one.parts).replace("hatch-", f"hatch-{number}-")
        whole.parts.append(f'<g transform="translate(0 {_pixels(top)})">{body}</g>')
        for places, more in ((whole.placed, one.placed), (whole.ranges, one.ranges)):
            places += [(left, upper + top, right, lower + top, words) for left, upper, right, lower, words in more]
        whole.smallest_points = min(whole.smallest_points, one.smallest_points)
        top += one.height_inches
    return whole


def _range(place: tuple[float, float, float, float, str]) -> str:
    left, top, right, bottom, words = place
    x, y, width, height = map(_pixels, (left, top, max(right - left, 0.04), bottom - top))
    return (
        f'<rect class="range" x="{x}" y="{y}" width="{width}" height="{height}" fill="none" pointer-events="all">'
        f"<title>{html.escape(words)}</title></rect>"
    )


def _boxes(_, style, items) -> str:
    fill, edge, line = style
    stroke = f' stroke="{edge}" stroke-width="{_number(line * 4 / 3)}"' if edge else ""
    return f'<path fill="{fill}"{stroke} d="{_corners(items)}"/>'


def _hatch(number, style, items) -> str:
    hatch, colour = style
    size = _number(32 / (len(hatch) + 2))
    width = 4 if hatch[0] == "." else 1.6
    cap = ' stroke-linecap="round"' if hatch[0] == "." else ""
    return (
        f'<pattern id="hatch-{number}" width="{size}" height="{size}" viewBox="0 0 8 8" patternUnits="userSpaceOnUse">'
        f'<path d="{_HATCHES[hatch[0]]}" stroke="{colour}" stroke-width="{width}"{cap}/></pattern>'
        f'<path fill="url(#hatch-{number})" d="{_corners(items)}"/>'
    )


def _lines(_, style, items) -> str:
    colour, line, dash = style
    dashes = f' stroke-dasharray="{_DASHES[dash]}"' if _DASHES[dash] else ""
    d = "".join("M" + "L".join(f"{_pixels(x)} {_pixels(y)}" for x, y in points) for points in items)
    return f'<path fill="none" stroke="{colour}" stroke-width="{_number(line * 4 / 3)}"{dashes} d="{d}"/>'


def _dots(_, style, items) -> str:
    colour, size = style
    d = "".join(f"M{_pixels(x)} {_pixels(y)}h0" for x, y in items)
    return f'<path fill="none" stroke="{colour}" stroke-width="{_pixels(size)}" stroke-linecap="round" d="{d}"/>'


def _glyphs(_, style, items) -> str:
    ink, height, y = style
    size = height * 1.35
    places = " ".join(_pixels(x) for x, _ in items)
    letters = html.escape("".join(letter for _, letter in items))
    return (
        f'<text x="{places}" y="{_pixels(y + size * 0.36)}" font-size="{_pixels(size)}" font-weight="bold" '
        f'text-anchor="middle" fill="{ink}">{letters}</text>'
    )


def _texts(_, style, items) -> str:
    colour, points, bold = style
    weight = ' font-weight="bold"' if bold else ""
    lines = "".join(
        f'<text x="{_pixels(x)}" y="{_pixels(y)}" textLength="{_pixels(width)}">{_spaced(words)}</text>'
        for x, y, width, words in items
    )
    return f'<g font-size="{_number(points * 4 / 3)}"{weight} fill="{colour}">{lines}</g>'


def _spaced(words: str) -> str:
    """Words as XML text in which several spaces in a row stay as many."""
    return html.escape(re.sub(" {2,}", lambda spaces: "\u00a0" * len(spaces.group()), words))


_DRAW = {"box": _boxes, "hatch": _hatch, "line": _lines, "dot": _dots, "glyph": _glyphs, "text": _texts}


def _corners(items) -> str:
    return "".join(
        f"M{_pixels(x)} {_pixels(y)}h{_pixels(width)}v{_pixels(height)}h{_pixels(-width)}z"
        for x, y, width, height in items
    )


def _pixels(inches: float) -> str:
    return _number(inches * PIXELS_PER_INCH)


def _number(value: float) -> str:
    """A number with at most two digits after the point.

    >>> _number(12.0), _number(0.125), _number(-0.001)
    ('12', '0.12', '0')
    """
    text = f"{value:.2f}".rstrip("0").rstrip(".")
    return "0" if text == "-0" else text
