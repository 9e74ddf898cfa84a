"""Boundary knob: when may a buffer of block ids be filled again? Only after the copy that reads it has ended."""

from __future__ import annotations

from dataclasses import dataclass

import ipywidgets as widgets

from kvzero.errors import KvzeroError
from kvzero.workbook.figures.charts import Limit
from kvzero.workbook.figures.sheet import Figure
from kvzero.workbook.figures.timeline import Event, timeline, timeline_text

from .base import Explorer, View, call_text

FILL_US, COPY_US, ZERO_US = 2, 4, 6


class RaceOptionError(KvzeroError):
    """The race is asked for with a time or a count that makes no sense."""

    rule = "race-option"
    messages = {"race-option": "{option} = {value!r} is not possible: {need}."}


@dataclass(frozen=True)
class IdRace:
    """What became of some calls whose id copies wait behind a held stream.

    Args:
        held_us, gap_us, buffers, calls: the state; see `id_race_data`.
        asked, zeroed: the block id that each call asked for, and the one that its kernel zeroed.
        dirty: blocks asked for that nobody zeroed.
        events: the timeline.
        arrows: (lane, time, lane, time): from each fill to the copy that read it.
        flip: the moment of the fill that decides; None where every call has a buffer of its own.
        inequality: the rule with its numbers.
        sentence: what happens.
    """

    held_us: int
    gap_us: int
    buffers: int
    calls: int
    asked: tuple[int, ...]
    zeroed: tuple[int, ...]
    dirty: tuple[int, ...]
    events: tuple[Event, ...]
    arrows: tuple[tuple[str, float, str, float], ...]
    flip: Limit | None
    inequality: str
    sentence: str

    @property
    def text(self) -> str:
        """The numbers and the timeline as text."""
        asked = ", ".join(map(str, self.asked))
        zeroed = ", ".join(map(str, self.zeroed))
        head = [self.sentence, self.inequality, f"asked for blocks {asked}; zeroed blocks {zeroed}"]
        return "\n".join([*head, timeline_text(self.events)])


def id_race_data(*, held_us: int, gap_us: int, buffers: int = 1, calls: int = 2) -> IdRace:
    """Model calls that put their block id into a host buffer, a copy to the device, and a kernel.

    Args:
        held_us: until when work already in the stream holds the first copy back.
        gap_us: from one call to the next; call k (from 1) asks for block k.
        buffers: host buffers, used in turn; 1 is the old path, a ring has more.
        calls: how many calls.

    Returns:
        The model's outcome. It is a model: the host never waits, a copy takes 4 µs, a kernel 6 µs, a fill 2 µs,
        and a copy reads what the last fill begun before its end has written.

    Raises:
        RaceOptionError: a negative time, a gap shorter than a fill, no buffer or no call.

    Example:
        >>> race = id_race_data(held_us=30, gap_us=20)
        >>> race.zeroed, race.dirty
        ((2, 2), (1,))
        >>> id_race_data(held_us=30, gap_us=20, buffers=2).dirty
        ()
    """
    for option, value, least in (
        ("held_us", held_us, 0),
        ("gap_us", gap_us, FILL_US),
        ("buffers", buffers, 1),
        ("calls", calls, 1),
    ):
        if value < least:
            raise RaceOptionError(option=option, value=value, need=f"at least {least}")
    asked = tuple(range(1, calls + 1))
    fills = [index * gap_us for index in range(calls)]
    events = [Event("host", at, at + FILL_US, f"fill [{index + 1}]", "fill") for index, at in enumerate(fills)]
    if held_us:
        events.append(Event("stream", 0, held_us, "earlier work", "run"))
    free, zeroed, arrows, ends = held_us, [], [], []
    for index, at in enumerate(fills):
        start = max(free, at + FILL_US)
        end = start + COPY_US
        mine = [other for other in range(index, calls, buffers) if fills[other] < end]
        read = mine[-1]
        zeroed.append(read + 1)
        ends.append(end)
        events.append(Event("stream", start, end, f"copy {index + 1}", "copy"))
        wrong = read != index
        events.append(Event("stream", end, end + ZERO_US, f"zero [{read + 1}]", "wrong" if wrong else "zero"))
        arrows.append(("host", fills[read] + FILL_US, "stream", max(start, fills[read] + FILL_US)))
        free = end + ZERO_US
    dirty = tuple(block for block in asked if block not in zeroed)
    flip, inequality = _rule(fills, ends, buffers)
    return IdRace(
        held_us, gap_us, buffers, calls, asked, tuple(zeroed), dirty, tuple(events), tuple(arrows), flip, inequality,
        _sentence(asked, zeroed, dirty, buffers),
    )  # fmt: skip


def _rule(fills: list[int], ends: list[int], buffers: int) -> tuple[Limit | None, str]:
    """The closest pair of a copy and the fill that reuses its buffer, as a line and as an inequality."""
    pairs = [(fills[index + buffers] - ends[index], index) for index in range(len(fills) - buffers)]
    if not pairs:
        return None, f"✓ {buffers} buffers for {len(fills)} calls: none is filled again, so no order is needed."
    spare, index = min(pairs)
    fill = fills[index + buffers]
    verdict = f"Yes, {spare} µs to spare." if spare >= 0 else f"No: {-spare} µs too late."
    return (
        Limit(f"fill {index + buffers + 1} reuses the buffer of copy {index + 1}", fill),
        f"{'✓' if spare >= 0 else '✗'} copy {index + 1} ends at {ends[index]} µs ≤ "
        f"fill {index + buffers + 1} begins at {fill} µs?  {verdict}",
    )


def _sentence(asked, zeroed, dirty, buffers: int) -> str:
    many = f"{buffers} buffers" if buffers > 1 else "one buffer"
    if not dirty and tuple(zeroed) == asked:
        return f"With {many} every copy reads its own ids: each block is zeroed once."
    times = {block: zeroed.count(block) for block in sorted(set(zeroed)) if zeroed.count(block) > 1}
    again = ", ".join(f"block {block} is zeroed {'twice' if n == 2 else f'{n} times'}" for block, n in times.items())
    left = f"block{'s' * (len(dirty) > 1)} {', '.join(map(str, dirty))} stay{'s' * (len(dirty) == 1)} dirty"
    return f"With {many} a copy reads ids of a later call: {again}, {left}, and no error is raised."


def id_race_figure(race: IdRace) -> Figure:
    """Draw the host, the stream, who read what, and the moment that decides."""
    title = f"{race.sentence}\n{race.inequality}"
    return timeline(race.events, title, flips=[race.flip] if race.flip else [], arrows=race.arrows)


FLIP_US = 20 - COPY_US
PRESETS = {
    "the race: the copy waits 30 µs, the next call comes after 20 µs": dict(held_us=30, gap_us=20, buffers=1, calls=2),
    "an idle stream: the copy runs at once": dict(held_us=0, gap_us=20, buffers=1, calls=2),
    "just safe": dict(held_us=FLIP_US, gap_us=20, buffers=1, calls=2),
    "one microsecond more": dict(held_us=FLIP_US + 1, gap_us=20, buffers=1, calls=2),
    "the ring: two buffers, same times": dict(held_us=30, gap_us=20, buffers=2, calls=2),
    "a ring too small: two buffers, four calls": dict(held_us=70, gap_us=20, buffers=2, calls=4),
    "a fresh buffer for each call": dict(held_us=70, gap_us=20, buffers=4, calls=4),
}


def id_race_knob() -> Explorer:
    """The knob as a widget; show `id_race_figure` before it, for pages without a kernel."""
    slider = widgets.IntSlider
    controls = {
        "held_us": slider(30, 0, 120, description="stream held, µs"),
        "gap_us": slider(20, FILL_US, 60, description="call to call, µs"),
        "buffers": slider(1, 1, 4, description="buffers"),
        "calls": slider(2, 2, 4, description="calls"),
    }

    def draw(state) -> View:
        race = id_race_data(**state)
        return View(
            id_race_figure(race), f"{race.sentence} {race.inequality}", race.text, call_text("id_race_data", state)
        )

    return Explorer("When may the id buffer be filled again?", controls, draw, PRESETS)
