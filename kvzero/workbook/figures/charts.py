"""Bars with limit lines, and what all charts share."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil, floor, log10

from .sheet import Figure, Sheet
from .style import (
    BODY_POINTS,
    BROWN,
    GREEN,
    INK,
    ORANGE,
    PAPER,
    SIGNS,
    SLATE,
    SOFT,
    STONE,
    VERMILION,
    WIDTH_INCHES,
    Sign,
    text_width,
    title_lines,
)

# Bars and lines take these in turn, none of which stands for a fate of bytes on a map.
SERIES = (
    Sign("", "", SLATE, "", PAPER, PAPER),
    Sign("", "", ORANGE, "////", "#fff1d6", INK),
    Sign("", "", GREEN, "....", "#d9f2e9", PAPER),
    Sign("", "", BROWN, "\\\\\\\\", "#efe0d2", PAPER),
    Sign("", "", STONE, "xxxx", "#eef1f4", INK),
    Sign("", "", INK, "----", "#8a8a8a", PAPER),
)
DASHES = ("-", "--", ":", "-.")
UNDER = -15  # grid lines lie under the bars


@dataclass(frozen=True)
class Limit:
    """A line across a chart: what it stands for and where it is."""

    name: str
    value: float


def series_sign(name: str, index: int) -> Sign:
    """The sign of a bar or a line: that of its fate if its name begins with one ("missed", "stomped bytes"), else the
    next one of `SERIES`."""
    return SIGNS.get(name.lower().split(" ")[0].rstrip(":,"), SERIES[index % len(SERIES)])


def number_text(value: float) -> str:
    """A number for reading: whole or of three digits, with thousands separators."""
    return f"{value:,.0f}" if abs(value) >= 100 or value == int(value) else f"{value:,.3g}"


def bars(
    values: Sequence[tuple[str, float]],
    sentence: str,
    *,
    unit: str = "",
    limits: Sequence[Limit] = (),
    log: bool = False,
) -> Figure:
    """Draw horizontal bars, each with its name and its value, and limits as lines across them.

    Args:
        values: (name, value) in order; 0 has no bar, and one past a limit is hatched red and marked ✗.
        sentence: what to see, on top.
        unit: of the values, after each number.
        limits: lines; a bar is over a limit when it is larger.
        log: a logarithmic scale from 1.

    Returns:
        A figure 9 inches wide.

    Example:
        bars([("flat grid", 2_904_745_920), ("masked grid", 12_434_700)], "…",
             limits=[Limit("CUDA, grid x", 2**31 - 1)], log=True)
    """
    title = title_lines(sentence, WIDTH_INCHES - 0.3)
    over = [next((limit.name for limit in limits if value > limit.value), "") for _, value in values]
    words = [
        f"{number_text(value)}{' ' + unit if unit else ''}" + (" ✗" if name else "")
        for (_, value), name in zip(values, over, strict=True)
    ]
    left = 0.3 + max(text_width(name, BODY_POINTS) for name, _ in values)
    right = WIDTH_INCHES - 0.35 - max(text_width(word, BODY_POINTS, True) for word in words)
    largest = max([value for _, value in values] + [limit.value for limit in limits] + [1e-12])
    top = 0.22 + 0.19 * len(title) + 0.2 * len(limits)
    bottom = top + 0.36 * len(values)
    sheet = Sheet(bottom + (0.5 if log else 0.15))
    sheet.title(title)
    high = max(1, ceil(log10(largest) + 0.02)) if log else largest * 1.02

    def x(value: float) -> float:
        return left + (log10(max(value, 1)) if log else value) / high * (right - left)

    if log:
        powers = [power for power in range(int(high) + 1) if power % 3 == 0 or high < 7]
        for power in powers:
            sheet.stroke([(x(10**power), top), (x(10**power), bottom)], "#e3e3e3", 0.8, over=UNDER)
            tick = f"{10**power:,}" if high < 7 else _power(power)
            sheet.text(x(10**power), bottom + 0.12, tick, colour=SOFT, align="center")
        scale = f"{unit}, logarithmic scale: each line is ten times the one before" if high < 7 else "logarithmic scale"
        sheet.text((left + right) / 2, bottom + 0.31, scale.lstrip(", "), colour=SOFT, align="center")
    for index, ((name, value), word) in enumerate(zip(values, words, strict=True)):
        y = top + 0.36 * index + 0.04
        sign = Sign("", "", VERMILION, "xxx", "#ffd9bf") if over[index] else series_sign(name, 0)
        sheet.text(left - 0.12, y + 0.14, name, BODY_POINTS, align="right")
        if value > 0:
            sheet.box(left, y, max(x(value) - left, 0.015), 0.28, sign)
        sheet.text(right + 0.2, y + 0.14, word, BODY_POINTS, "#a63c00" if over[index] else INK, bold=True)
    for index, limit in enumerate(limits):
        y, place = top - 0.2 * (len(limits) - index) + 0.06, x(limit.value)
        sheet.stroke([(place, y + 0.02), (place, bottom)], INK, 1.4, DASHES[(index + 1) % 4], over=6)
        label = f"{limit.name}: {number_text(limit.value)}"
        fits = place + 0.08 + text_width(label) < WIDTH_INCHES
        sheet.text(place + (0.06 if fits else -0.06), y, label, align="left" if fits else "right")
    return sheet.finish()


def _power(power: int) -> str:
    names = {0: "1", 3: "thousand", 6: "million", 9: "billion", 12: "trillion"}
    return names.get(power) or "10" + str(power).translate(str.maketrans("0123456789", "⁰¹²³⁴⁵⁶⁷⁸⁹"))


def ticks(low: float, high: float, most: int, whole: bool = False) -> list[float]:
    """Round numbers between two values, at most `most` steps apart; whole ones only, if asked.

    >>> ticks(0, 149_760, 4)
    [0, 50000, 100000]
    >>> ticks(0, 1, 4), ticks(0, 1, 4, whole=True)
    ([0, 0.25, 0.5, 0.75, 1], [0, 1])
    """
    raw = (high - low) / most or 1
    raw = max(raw, 1) if whole else raw
    size = 10 ** floor(log10(raw))
    sizes = [size * factor for factor in (1, 2, 2.5, 5, 10)]
    step = next(each for each in sizes if each >= raw and not (whole and each % 1))
    first = ceil(low / step)
    return [
        int(n * step) if (n * step).is_integer() else n * step for n in map(float, range(first, floor(high / step) + 1))
    ]
