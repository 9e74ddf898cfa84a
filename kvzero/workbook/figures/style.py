"""The one key of colours, glyphs and hatches, and the sheet that every figure is drawn on.

A figure is one sheet measured in inches from its upper left corner, so that type and boxes have the size a
reader gets. Colours are Okabe and Ito's, safe for colour-blind readers; each also has a glyph and a hatch,
because colour is never the only sign.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache

import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.collections import LineCollection
from matplotlib.figure import Figure
from matplotlib.font_manager import FontProperties
from matplotlib.patches import PathPatch
from matplotlib.path import Path
from matplotlib.textpath import TextPath
from matplotlib.transforms import Affine2D

from ...textmap import GLYPHS as TEXT

WIDTH_INCHES = 9.0
BODY_POINTS, SMALL_POINTS, TITLE_POINTS = 9.5, 9.0, 11.0

INK, SOFT, HAIR, PAPER = "#1a1a1a", "#595959", "#b8b8b8", "#ffffff"
BLUE, SKY, GREEN, YELLOW = "#0072B2", "#56B4E9", "#009E73", "#F0E442"
ORANGE, VERMILION, PURPLE, BLACK = "#E69F00", "#D55E00", "#CC79A7", "#000000"


@dataclass(frozen=True, slots=True)
class Sign:
    """How one kind of byte is shown: a word, a glyph, a fill, a hatch in its own colour, and the glyph's ink."""

    word: str
    glyph: str
    fill: str
    hatch: str = ""
    line: str = HAIR
    ink: str = INK


# What a byte is in a figure. The order is that of the key below each figure, and the worst comes last: where
# several kinds share a pixel, the last one is seen. The glyphs are those of the audit's text map.
SIGNS: dict[str, Sign] = {
    "kept": Sign("kept: not written; colour and hatch by layer", TEXT["live"][0], "#e8eef3", ink="#8a949c"),
    "idle_pad": Sign("pad: belongs to no layer", TEXT["intact pad"][0], "#f7f7f7", "....", "#bdbdbd", "#8a8a8a"),
    "redzone": Sign("outside the storage", ":", "#e2e2e2", "////", "#ababab", "#7a7a7a"),
    "planned": Sign("the plan writes here", "w", SKY, "", BLUE, INK),
    "cleared": Sign("cleared: needed and written", TEXT["cleared"][0], BLUE, "", "#4c9ccb", PAPER),
    "pad": Sign("pad written: belongs to no layer", TEXT["pad"][0], PURPLE, "...", INK, INK),
    "missed": Sign("missed: needed, left dirty", TEXT["missed"][0], YELLOW, "\\\\\\", "#a58f00", INK),
    "stomped": Sign("stomped: live bytes of another", TEXT["stomped"][0], VERMILION, "xxx", "#ffd9bf", PAPER),
    "overrun": Sign("overrun: written outside the storage", TEXT["overrun"][0], BLACK, "///", "#8a8a8a", PAPER),
}
COLOURS = {name: sign.fill for name, sign in SIGNS.items()}
GLYPHS = {name: sign.glyph for name, sign in SIGNS.items()}
HATCHES = {name: sign.hatch for name, sign in SIGNS.items()}

# Layers take these in turn: pale enough that what a write did stands out, with a hatch each.
OWNERS: tuple[Sign, ...] = (
    Sign("", ".", "#d3e6f3", "", "#8fb9d6"),
    Sign("", ".", "#d5ecdf", "////", "#a3cfb8"),
    Sign("", ".", "#f6ead0", "\\\\\\\\", "#dcc288"),
    Sign("", ".", "#ecdfec", "||||", "#cbaecb"),
)


def owner_sign(layer: int) -> Sign:
    """The fill and hatch of a layer, by its index."""
    return OWNERS[layer % len(OWNERS)]


def bytes_text(count: int) -> str:
    """A byte count for reading: exact below 10 KiB, else exact with its size in KiB, MiB or GiB.

    >>> bytes_text(64), bytes_text(149_760)
    ('64 B', '149,760 B (146.2 KiB)')
    """
    if count < 10_240:
        return f"{count:,} B"
    return f"{count:,} B ({round_bytes(count)})"


def round_bytes(count: int) -> str:
    """A byte count in the largest fitting unit, rounded.

    >>> round_bytes(149_760), round_bytes(65_536)
    ('146.2 KiB', '64 KiB')
    """
    size = float(count)
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if size < 1024 or unit == "TiB":
            break
        size /= 1024
    return f"{size:.1f}".removesuffix(".0") + f" {unit}"


@lru_cache(maxsize=64)
def glyph_path(glyph: str) -> Path:
    """A character as an outline of height 1, centred at the origin."""
    if glyph == ".":
        return Path.unit_circle().transformed(Affine2D().scale(0.11))
    path = TextPath((0, 0), glyph, size=1, prop=FontProperties(family="DejaVu Sans", weight="bold"))
    box = path.get_extents()
    return path.transformed(Affine2D().translate(-(box.x0 + box.x1) / 2, -(box.y0 + box.y1) / 2).scale(1, -1))


def text_width(text: str, points: float = SMALL_POINTS, bold: bool = False) -> float:
    """The width of a line of text in inches."""
    return sum(_letter(letter, bold)[1] for letter in text) * points / 72


@lru_cache(maxsize=4096)
def _outline(text: str, bold: bool) -> tuple[np.ndarray, np.ndarray, float]:
    """A line of text as an outline of size 1 (vertices with y downwards, codes) and its width.

    Matplotlib sets each string anew, which takes most of the time of a figure; outlines are kept.
    """
    vertices, codes, x = [np.empty((0, 2))], [np.empty(0, np.uint8)], 0.0
    for letter in text:
        path, advance = _letter(letter, bold)
        vertices.append(path.vertices * (1, -1) + (x, 0))
        codes.append(path.codes)
        x += advance
    return np.concatenate(vertices), np.concatenate(codes), x


@lru_cache(maxsize=1024)
def _letter(letter: str, bold: bool) -> tuple[Path, float]:
    prop = FontProperties(family="DejaVu Sans", weight="bold" if bold else "normal")
    advance = _right_edge(f"|{letter}|", bold) - _right_edge("||", bold)  # what it adds between two bars
    if letter.isspace():
        return Path(np.empty((0, 2)), np.empty(0, np.uint8)), advance
    return TextPath((0, 0), letter, size=1, prop=prop), advance


@lru_cache(maxsize=1024)
def _right_edge(text: str, bold: bool) -> float:
    """Where a text that ends in a bar ends; a bar is straight, so its corners are its extent."""
    prop = FontProperties(family="DejaVu Sans", weight="bold" if bold else "normal")
    return float(TextPath((0, 0), text, size=1, prop=prop).vertices[:, 0].max())


def wrap(text: str, width_inches: float, points: float, bold: bool = False) -> list[str]:
    """Break text at spaces into lines that fit a width; a no-break space holds words together.

    >>> wrap("four numbers are four numbers", 1.2, 9)
    ['four numbers are', 'four numbers']
    """
    lines = [""]
    for word in text.split(" "):
        longer = f"{lines[-1]} {word}" if lines[-1] else word
        if lines[-1] and text_width(longer, points, bold) > width_inches:
            lines.append(word)
        else:
            lines[-1] = longer
    return lines


def title_lines(sentence: str, width_inches: float) -> list[str]:
    """A figure's sentence broken into the lines of its title; a newline begins a new one."""
    return [line for part in sentence.split("\n") for line in wrap(part, width_inches, TITLE_POINTS, bold=True)]


@dataclass
class Sheet:
    """A figure measured in inches from the upper left corner; boxes are gathered and drawn in few strokes."""

    height_inches: float
    width_inches: float = WIDTH_INCHES
    _boxes: dict[tuple, list] = field(default_factory=dict)
    _glyphs: dict[tuple, list] = field(default_factory=dict)
    _lines: dict[tuple, list] = field(default_factory=dict)
    _words: dict[str, list] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.figure = Figure(figsize=(self.width_inches, self.height_inches), facecolor=PAPER)
        self.figure.words = []  # what the figure says, and its smallest type: for tests and for tools
        self.figure.smallest_points = TITLE_POINTS
        FigureCanvasAgg(self.figure)
        self.axes = self.figure.add_axes((0, 0, 1, 1))
        self.axes.set_axis_off()
        self.axes.set_xlim(0, self.width_inches)
        self.axes.set_ylim(self.height_inches, 0)

    def box(self, x, y, width, height, sign: Sign, edge: str | None = None, line=0.6, over=0) -> None:
        """A box filled and hatched by a sign."""
        key = (sign.fill, sign.hatch, sign.line, edge, line, over)
        self._boxes.setdefault(key, []).append(((x, y), (x + width, y), (x + width, y + height), (x, y + height)))

    def outline(self, x, y, width, height, colour=INK, line=1.2, over=4) -> None:
        """An empty box."""
        corners = [(x, y), (x + width, y), (x + width, y + height), (x, y + height), (x, y)]
        self._lines.setdefault((colour, line, "-", over), []).append(corners)

    def stroke(self, points: Sequence[tuple[float, float]], colour=SOFT, line=0.8, dash="-", over=3) -> None:
        """A line through points."""
        self._lines.setdefault((colour, line, dash, over), []).append(list(points))

    def glyph(self, x, y, sign: Sign, height=0.1, clear: float = 0.0) -> None:
        """A sign's glyph centred at a point; its height is in inches, and `clear` that of a plain field behind it."""
        if clear and sign.hatch:
            plain = Sign("", "", sign.fill)
            self.box(x - clear * 0.5, y - clear / 2, clear, clear, plain, over=5)
        self._glyphs.setdefault((sign.glyph, sign.ink, height), []).append((x, y))

    def text(self, x, y, words, points=SMALL_POINTS, colour=INK, align="left", bold=False) -> None:
        """A line of words; `y` is the middle of its capitals."""
        vertices, codes, width = _outline(words, bold)
        left = x - {"left": 0, "center": 0.5, "right": 1}[align] * width * points / 72
        baseline = y + 0.365 * points / 72
        self._words.setdefault(colour, []).append((vertices * (points / 72) + (left, baseline), codes))
        self.figure.words.append(words)
        self.figure.smallest_points = min(self.figure.smallest_points, points)

    def title(self, lines: Sequence[str]) -> None:
        """The lines of `title_lines`, at the top."""
        for index, line in enumerate(lines):
            self.text(0.15, 0.18 + 0.19 * index, line, TITLE_POINTS, bold=True)

    def finish(self) -> Figure:
        """Draw what was gathered and hand over the figure."""
        for (fill, hatch, hatch_line, edge, width, over), corners in self._boxes.items():
            boxes = _merged(np.array([[*box, box[0]] for box in corners]), _BOX_CODES)
            style = {"facecolor": fill, "edgecolor": edge or "none", "linewidth": width if edge else 0}
            self._add(boxes, 1 + over / 10, **style)
            if hatch:
                self._add(boxes, 1.01 + over / 10, facecolor="none", edgecolor=hatch_line, linewidth=0, hatch=hatch)
        for (colour, width, dash, over), strokes in self._lines.items():
            lines = LineCollection(strokes, colors=colour, linewidths=width, linestyles=dash, zorder=2 + over / 10)
            lines.set_capstyle("butt")
            self.axes.add_collection(lines, autolim=False)
        for (glyph, ink, height), points in self._glyphs.items():
            path = glyph_path(glyph)
            vertices = path.vertices * (height * 1.35) + np.array(points)[:, None, :]
            self._add(_merged(vertices, path.codes), 2.6, facecolor=ink, linewidth=0)
        for colour, outlines in self._words.items():
            vertices, codes = (np.concatenate(parts) for parts in zip(*outlines, strict=True))
            self._add(Path(vertices, codes), 4, facecolor=colour, linewidth=0)
        self._boxes, self._lines, self._glyphs, self._words = {}, {}, {}, {}
        return self.figure

    def _add(self, path: Path, zorder: float, **style) -> None:
        # One patch for all boxes of a style: a hatch is then laid once. `add_patch` would measure every curve.
        self.axes.add_artist(PathPatch(path, zorder=zorder, transform=self.axes.transData, **style))


_BOX_CODES = np.array([Path.MOVETO, Path.LINETO, Path.LINETO, Path.LINETO, Path.CLOSEPOLY], np.uint8)


def _merged(vertices: np.ndarray, codes: np.ndarray) -> Path:
    """One path of many copies of a shape; `vertices` has shape (copies, points, 2)."""
    return Path(vertices.reshape(-1, 2), np.tile(codes, len(vertices)))
