"""The one key of colours, glyphs and hatches, and how wide words are.

Colours are Okabe and Ito's, safe for colour-blind readers; each also has a glyph and a hatch, because colour is
never the only sign. One colour means one thing in all figures: what a write does to bytes has the colours of `SIGNS`,
and charts take others for what is not one of these.
"""

from __future__ import annotations

from dataclasses import dataclass

from kvzero.audit.textmap import GLYPHS as TEXT

WIDTH_INCHES = 9.0
BODY_POINTS, SMALL_POINTS, TITLE_POINTS = 9.5, 9.0, 11.0

INK, SOFT, HAIR, PAPER = "#1a1a1a", "#595959", "#b8b8b8", "#ffffff"
BLUE, SKY, GREEN, YELLOW = "#0072B2", "#56B4E9", "#009E73", "#F0E442"
ORANGE, VERMILION, PURPLE, BLACK = "#E69F00", "#D55E00", "#CC79A7", "#000000"
SLATE, STONE, BROWN = "#4f6272", "#b9c2cb", "#8a6239"  # for charts: they stand for nothing that a write does

# On a fill, ink and paper stay what they are; elsewhere a dark page changes these colours.
DARK_INK, LIGHT_INK = "#1b1b1b", "#fefefe"
DARK = {
    PAPER: "#1c2127", INK: "#e8eaed", SOFT: "#b3bac2", HAIR: "#59616a", "#e3e3e3": "#363d45", "#a63c00": "#ff9a5c",
    "#e8eef3": "#2b333b", "#d3e6f3": "#22394c", "#8fb9d6": "#436882", "#d5ecdf": "#1e4030", "#a3cfb8": "#40715a",
    "#f6ead0": "#453b20", "#dcc288": "#7d6a38", "#ecdfec": "#412f41", "#cbaecb": "#705070", "#f7f7f7": "#262c33",
    "#bdbdbd": "#5b636c", "#e2e2e2": "#30363e", "#ababab": "#616973", SLATE: "#8ba3b8", "#dcdcdc": "#59616a",
    "#f4f4f4": "#2b3138",
}  # fmt: skip


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
    "planned": Sign("the plan writes here", "w", SKY, "", BLUE, DARK_INK),
    "cleared": Sign("cleared: needed and written", TEXT["cleared"][0], BLUE, "", "#4c9ccb", LIGHT_INK),
    "pad": Sign("pad written: belongs to no layer", TEXT["pad"][0], PURPLE, "...", DARK_INK, DARK_INK),
    "missed": Sign("missed: needed, left dirty", TEXT["missed"][0], YELLOW, "\\\\\\", "#a58f00", DARK_INK),
    "stomped": Sign("stomped: live bytes of another", TEXT["stomped"][0], VERMILION, "xxx", "#ffd9bf", LIGHT_INK),
    "overrun": Sign("overrun: written outside the storage", TEXT["overrun"][0], BLACK, "///", "#8a8a8a", LIGHT_INK),
}
GLYPHS = {name: sign.glyph for name, sign in SIGNS.items()}

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


# Widths of the characters from " " to "~" in DejaVu Sans, regular and bold, in hundredths of the size of the type. A
# browser sets another typeface to these widths (`textLength`), so that words fit their places everywhere.
_REGULAR, _BOLD = (
    [int(width) for width in widths.split()]
    for widths in (
        "32 40 46 84 64 95 78 27 39 39 50 84 32 36 32 34 64 64 64 64 64 64 64 64 64 64 34 34 84 84 84 53 100 68 69 "
        "70 77 63 58 77 75 30 30 66 56 86 75 79 60 79 69 63 61 73 68 99 68 61 68 39 34 39 84 50 50 61 63 55 63 62 "
        "35 63 63 28 28 58 28 97 63 61 63 63 41 52 39 63 59 82 59 59 52 64 34 64 84 ",
        "35 46 52 84 70 100 87 31 46 46 52 84 38 41 38 37 70 70 70 70 70 70 70 70 70 70 40 40 84 84 84 58 100 77 76 "
        "73 83 68 68 82 84 37 37 77 64 100 84 85 73 85 77 72 68 81 77 110 77 72 73 46 37 46 84 50 50 67 72 59 72 68 "
        "43 72 71 34 34 66 34 104 71 69 72 72 49 60 48 71 65 92 64 65 58 71 37 71 84 ",
    )
)
_NARROW, _USUAL, _WIDE = "\u00a0·‘’⁰¹²³°", "µ€é", "…—"


def text_width(text: str, points: float = SMALL_POINTS, bold: bool = False) -> float:
    """The width of a line of text in inches."""
    widths = _BOLD if bold else _REGULAR
    hundredths = 0
    for letter in text:
        if " " <= letter <= "~":
            hundredths += widths[ord(letter) - 32]
        else:
            hundredths += 36 if letter in _NARROW else 64 if letter in _USUAL else 100 if letter in _WIDE else 84
    return hundredths * points / 7200


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
