"""Bars with limit lines, and sweeps with the point where they flip."""

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
MARKED = 20  # a line of up to so many points shows them
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


def sweep(
    series: Sequence[tuple[str, Sequence[tuple[float, float]]]],
    sentence: str,
    *,
    x_label: str,
    y_label: str,
    flips: Sequence[Limit] = (),
    here: float | None = None,
    steps: bool = False,
) -> Figure:
    """Draw one or more lines over a knob, with the points where they flip, and where the knob stands.

    Args:
        series: (name, points) with points (x, y) in order of x.
        sentence: what to see, on top.
        x_label, y_label: what the axes hold, with units.
        flips: vertical lines at which safe becomes unsafe, with what they are.
        here: where the knob stands.
        steps: the knob has no places between the points: each is a dot and holds halfway to its neighbours,
            so that nothing slopes.

    Returns:
        A figure 9 inches wide. An axis whose values are whole has whole numbers on it; one that starts near 0
        starts at 0. Up to 20 points of a line are marked, so that they can be told from what lies between them.
    """
    title = title_lines(sentence, WIDTH_INCHES - 0.3)
    top = 0.5 + 0.19 * len(title) + 0.2 * len(flips)
    height = 2.1
    sheet = Sheet(top + height + 0.5 + 0.22 * (ceil(len(series) / 2) if len(series) > 1 else 0))
    sheet.title(title)
    xs = [x for _, points in series for x, _ in points] + [flip.value for flip in flips]
    ys = [y for _, points in series for _, y in points]
    x_low, x_high, y_high = min(xs), max(xs), max([*ys, 1])
    whole_x, whole_y = (all(value == int(value) for value in values) for values in (xs, ys))
    lines = [(name, stairs(points) if steps else points) for name, points in series]
    if steps:
        every = [x for _, points in lines for x, _ in points]
        x_low, x_high = min([x_low, *every]), max([x_high, *every])
    if 0 < x_low <= x_high / 7:
        x_low = 0
    left, right = 0.35 + text_width(number_text(y_high)), WIDTH_INCHES - 0.35

    def place(x: float, y: float) -> tuple[float, float]:
        return left + (x - x_low) / (x_high - x_low or 1) * (right - left), top + height - y / y_high * height * 0.94

    for tick in ticks(0, y_high, 4, whole_y):
        y = place(x_low, tick)[1]
        sheet.stroke([(left, y), (right, y)], "#e3e3e3", 0.8, over=UNDER)
        sheet.text(left - 0.08, y, number_text(tick), colour=SOFT, align="right")
    for tick in ticks(x_low, x_high, 6, whole_x):
        x = place(tick, 0)[0]
        sheet.stroke([(x, top + height), (x, top + height + 0.05)], SOFT, 0.8)
        sheet.text(x, top + height + 0.14, number_text(tick), colour=SOFT, align="center")
    sheet.stroke([(left, top + height), (right, top + height)], SOFT, 1)
    sheet.text(0.15, top - 0.2 * len(flips) - 0.14, y_label, colour=SOFT)
    sheet.text((left + right) / 2, top + height + 0.33, x_label, colour=SOFT, align="center")
    for index, flip in enumerate(flips):
        x, y = place(flip.value, 0)[0], top - 0.2 * (len(flips) - index) + 0.06
        sheet.stroke([(x, y + 0.02), (x, top + height)], INK, 1.4, "--", over=2)
        words = f"{flip.name}: {number_text(flip.value)}"
        fits = x + 0.08 + text_width(words) < WIDTH_INCHES
        sheet.text(x + (0.06 if fits else -0.06), y, words, align="left" if fits else "right")
    for index, (name, points) in enumerate(lines):
        colour, dash = series_sign(name, index).fill, DASHES[index % 4]
        sheet.stroke([place(*point) for point in points], colour, 2.4, dash, over=4)
        own = series[index][1]
        upright = len({x for x, _ in own}) < len(own)  # a staircase of corners has no points to mark
        for point in own if steps or (len(own) <= MARKED and not upright) else ():
            sheet.dot(*place(*point), colour)
        if len(series) == 1:
            continue
        y = top + height + 0.58 + 0.22 * (index // 2)
        x = 0.15 + index % 2 * WIDTH_INCHES / 2
        sheet.stroke([(x, y), (x + 0.45, y)], colour, 2.4, dash, over=4)
        sheet.text(x + 0.55, y, name)
    if here is not None:
        x = place(here, 0)[0]
        sheet.stroke([(x, top), (x, top + height)], INK, 1.0, over=5)
        sheet.stroke(
            [(x - 0.07, top + height + 0.09), (x, top + height), (x + 0.07, top + height + 0.09)], INK, 2.2, over=6
        )
    return sheet.finish()


def stairs(points: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """Points in order of x as the corners of a staircase: each holds from halfway before it to halfway after it.

    >>> stairs([(16, 0), (17, 1)])
    [(15.5, 0), (16.5, 0), (16.5, 1), (17.5, 1)]
    """
    xs = [x for x, _ in points]
    middles = [(a + b) / 2 for a, b in zip(xs, xs[1:], strict=False)]
    first, last = (middles[0] - xs[0], xs[-1] - middles[-1]) if middles else (0.5, 0.5)
    edges = [xs[0] - first, *middles, xs[-1] + last]
    return [(edge, y) for (_, y), left, right in zip(points, edges, edges[1:], strict=False) for edge in (left, right)]


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
