"""Timelines: what ran when on each lane, as boxes to scale."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from .charts import UNDER, Limit, ticks
from .sheet import Figure, Sheet
from .style import (
    BLUE,
    BROWN,
    DARK_INK,
    GREEN,
    HAIR,
    INK,
    LIGHT_INK,
    ORANGE,
    PAPER,
    SMALL_POINTS,
    SOFT,
    STONE,
    VERMILION,
    WIDTH_INCHES,
    Sign,
    text_width,
    title_lines,
)

# What a box on a timeline does, with a fill, a hatch and a word each.
ACTIONS = {
    "fill": Sign("the host fills a buffer", "", ORANGE, "", INK, DARK_INK),
    "copy": Sign("a copy reads a buffer", "", STONE, "////", "#8797a5", DARK_INK),
    "zero": Sign("a kernel zeroes blocks", "", BLUE, "", PAPER, LIGHT_INK),
    "run": Sign("other work", "", "#dcdcdc", "", SOFT, INK),
    "wait": Sign("held back", "", "#f4f4f4", "....", HAIR, SOFT),
    "load": Sign("loaded bytes arrive", "", GREEN, "\\\\\\\\", "#d9f2e9", LIGHT_INK),
    "wrong": Sign("goes wrong", "", VERMILION, "xxx", "#ffd9bf", LIGHT_INK),
    "mark": Sign("", "", "#f3e3b3", "", INK, DARK_INK),
    "compile": Sign("a kernel is compiled or loaded", "", BROWN, "||||", "#c9ab8a", LIGHT_INK),
    "other": Sign("", "", BROWN, "||||", "#c9ab8a", LIGHT_INK),
}


@dataclass(frozen=True)
class Event:
    """A box on a timeline.

    Args:
        lane: the row it is on, such as "host" or "stream".
        start, end: in the unit of the timeline; equal for a moment.
        label: a few words on it.
        action: a key of `ACTIONS`.
    """

    lane: str
    start: float
    end: float
    label: str
    action: str = "run"


def timeline(
    events: Sequence[Event | tuple],
    sentence: str,
    *,
    unit: str = "µs",
    flips: Sequence[Limit] = (),
    arrows: Sequence[tuple[str, float, str, float]] = (),
) -> Figure:
    """Draw events on lanes, to scale.

    Args:
        events: `Event`s, or tuples (lane, start, end, label, action); lanes come in the order of first use.
        sentence: what to see, on top.
        unit: of the times.
        flips: vertical lines at moments that decide.
        arrows: (lane, time, lane, time) pairs that are joined, such as a buffer and the copy that reads it.

    Returns:
        A figure 9 inches wide.

    Example:
        timeline([("host", 0, 2, "ids [1]", "fill"), ("stream", 30, 34, "copy 1", "copy")], "…")
    """
    events = [event if isinstance(event, Event) else Event(*event) for event in events]
    lanes = list(dict.fromkeys(event.lane for event in events))
    title = title_lines(sentence, WIDTH_INCHES - 0.3)
    used = [action for action in ACTIONS if ACTIONS[action].word and any(event.action == action for event in events)]
    lane, top = 0.62, 0.3 + 0.19 * len(title) + 0.2 * len(flips)
    axis = top + lane * len(lanes) + 0.05
    sheet = Sheet(axis + 0.55 + 0.26 * -(-len(used) // 3))
    sheet.title(title)
    left, right = 0.35 + max(text_width(name, bold=True) for name in lanes), WIDTH_INCHES - 0.25
    low = min([0.0, *(event.start for event in events)])
    high = max([*(event.end for event in events), *(flip.value for flip in flips)]) or 1
    for _ in range(3):  # a late box without room for its label: the axis goes on until there is
        scale = (right - left) / (high - low)
        late = [event for event in events if text_width(event.label) + 0.1 > (event.end - event.start) * scale]
        rooms = [(event.start, right - left - text_width(event.label) - 0.1) for event in late]
        high = max([high, *(low + (start - low) * (right - left) / room for start, room in rooms if room > 1)])

    def x(time: float) -> float:
        return left + (time - low) / (high - low) * (right - left)

    middle = {name: top + lane * index + lane / 2 + 0.04 for index, name in enumerate(lanes)}
    for name, y in middle.items():
        sheet.text(left - 0.12, y, name, bold=True, align="right")
        sheet.stroke([(left, y), (right, y)], HAIR, 0.8, over=UNDER)
    for tick in ticks(low, high, 8):
        sheet.stroke([(x(tick), axis), (x(tick), axis + 0.05)], SOFT)
        sheet.text(x(tick), axis + 0.14, f"{tick:,g}", colour=SOFT, align="center")
    sheet.stroke([(left, axis), (right, axis)], SOFT)
    sheet.text(right, axis + 0.31, unit, colour=SOFT, align="right")
    free: dict[tuple[str, float], float] = {}
    lines = [x(flip.value) for flip in flips]
    for event in sorted(events, key=lambda event: event.start):
        _draw_event(sheet, event, x(event.start), x(event.end), middle[event.lane], free, right, lines)
    for from_lane, from_time, to_lane, to_time in arrows:
        _arrow(sheet, (x(from_time), middle[from_lane]), (x(to_time), middle[to_lane]))
    for index, flip in enumerate(flips):
        at, y = x(flip.value), top - 0.2 * (len(flips) - index) + 0.08
        sheet.stroke([(at, y + 0.02), (at, axis)], INK, 1.3, "--", over=8)
        words = f"{flip.name}: {flip.value:,g} {unit}"
        fits = at + 0.08 + text_width(words) < WIDTH_INCHES
        sheet.text(at + (0.06 if fits else -0.06), y, words, align="left" if fits else "right")
    for index, action in enumerate(used):
        at, y = 0.15 + index % 3 * (WIDTH_INCHES / 3), axis + 0.48 + 0.26 * (index // 3)
        sheet.box(at, y, 0.3, 0.18, ACTIONS[action], edge=HAIR)
        sheet.text(at + 0.4, y + 0.09, ACTIONS[action].word)
    return sheet.finish()


def _draw_event(
    sheet: Sheet, event: Event, x0: float, x1: float, y: float, free: dict, right: float, lines: list[float]
) -> None:
    sign, half = ACTIONS[event.action], 0.13
    width = max(x1 - x0, 0.04)
    sheet.box(x0, y - half, width, 2 * half, sign, edge=INK, line=0.7, over=3)
    words = text_width(event.label)
    if words + 0.1 <= width:
        sheet.box(x0 + width / 2 - words / 2 - 0.03, y - 0.085, words + 0.06, 0.17, Sign("", "", sign.fill), over=19)
        sheet.text(x0 + width / 2, y, event.label, SMALL_POINTS, sign.ink, "center")
        return
    # Beside its box the label would cover the next one: it goes above, or below if that place is taken.
    at = min(max(x0, 0.1), right - words)
    if any(abs(line - at) < 0.06 for line in lines) and at + 0.06 + words <= right:
        at += 0.06  # beside the line of the moment, not on it
    offset = min((-0.22, 0.22), key=lambda offset: max(free.get((event.lane, offset), 0), at))
    at = max(at, free.get((event.lane, offset), 0))  # where both places are taken, it stands a little later
    free[event.lane, offset] = at + words + 0.08
    sheet.box(at - 0.02, y + offset - 0.075, words + 0.04, 0.15, Sign("", "", PAPER), over=19)
    sheet.text(at, y + offset, event.label, SMALL_POINTS)


def _arrow(sheet: Sheet, start: tuple[float, float], end: tuple[float, float]) -> None:
    (x0, y0), (x1, y1) = start, end
    way = 1 if y1 > y0 else -1
    y0, y1 = y0 + way * 0.13, y1 - way * 0.13
    sheet.stroke([(x0, y0), (x1, y1)], INK, 1.1, over=6)
    length = max(((x1 - x0) ** 2 + (y1 - y0) ** 2) ** 0.5, 1e-6)
    ux, uy = (x1 - x0) / length, (y1 - y0) / length
    for side in (0.5, -0.5):
        sheet.stroke(
            [(x1, y1), (x1 - 0.09 * ux + side * 0.09 * uy, y1 - 0.09 * uy - side * 0.09 * ux)], INK, 1.1, over=6
        )


def timeline_text(events: Sequence[Event | tuple], unit: str = "µs") -> str:
    """The same timeline as text, a line for each event in the order of time.

    >>> print(timeline_text([("host", 0, 2, "ids [1]", "fill")]))
         0 to      2 µs  host: ids [1]
    """
    events = [event if isinstance(event, Event) else Event(*event) for event in events]
    ordered = sorted(events, key=lambda event: (event.start, event.end))
    return "\n".join(f"{event.start:6,g} to {event.end:6,g} {unit}  {event.lane}: {event.label}" for event in ordered)
