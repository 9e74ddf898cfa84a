"""The public history of block zeroing as a table, and as a timeline.

Each row can be looked up: the number is that of a public issue or pull request of vllm-project/vllm, or of the
repository named with it. Words and grouping are ours.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date

from .charts import UNDER
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
    SLATE,
    SMALL_POINTS,
    SOFT,
    WIDTH_INCHES,
    Sign,
    text_width,
    title_lines,
)

# What each mistake was about; every kind has a glyph besides its colour.
KINDS: dict[str, Sign] = {
    "feature": Sign("the zeroing itself", "*", BLUE, "", PAPER, LIGHT_INK),
    "place": Sign("wrong place: stride, span, offset", "P", BROWN, "", PAPER, LIGHT_INK),
    "time": Sign("wrong time: races, capture", "T", SLATE, "", PAPER, LIGHT_INK),
    "set": Sign("wrong set: which blocks and layers", "S", GREEN, "", PAPER, LIGHT_INK),
    "launch": Sign("wrong launch: grid, compilation, pages", "L", ORANGE, "", PAPER, DARK_INK),
}


@dataclass(frozen=True)
class Step:
    """One step of the history.

    Args:
        day: the day of merging, or of opening where it is open or was closed.
        source: issue or pull request number, with the repository where it is not vllm-project/vllm.
        kind: a key of `KINDS`.
        what: what changed or broke, in a few words.
        state: "merged", "open", "closed", or "issue".
    """

    day: date
    source: str
    kind: str
    what: str
    state: str


EVENTS: tuple[Step, ...] = (
    Step(date(2026, 3, 10), "#35219", "feature", "fresh blocks are zeroed by one launch", "merged"),
    Step(date(2026, 3, 17), "#37197", "place", "unsigned addresses for Intel GPUs", "merged"),
    Step(date(2026, 5, 18), "#43009", "launch", "the first use compiles while other ranks wait", "issue"),
    Step(date(2026, 6, 2), "#43990", "feature", "the V2 runner zeroes too", "merged"),
    Step(date(2026, 7, 9), "#48085", "time", "the id buffer was refilled in flight", "merged"),
    Step(date(2026, 7, 16), "#48481", "time", "zeroing erased KV that had been loaded", "merged"),
    Step(date(2026, 7, 20), "#47574", "set", "mixed precisions are zeroed as well", "merged"),
    Step(date(2026, 7, 23), "#48399", "time", "a fresh copy of the ids for each call", "merged"),
    Step(date(2026, 7, 24), "#49704", "launch", "pages of two sizes: 2,112 and 10,496 words", "merged"),
    Step(date(2026, 7, 28), "#49903", "launch", "one compiled variant, warmed with id 0", "merged"),
    Step(date(2026, 8, 1), "#50696", "time", "offload loads wait for the compute stream", "merged"),
    Step(date(2026, 8, 6), "#50276", "place", "block stride was used as span in a slab", "merged"),
    Step(date(2026, 8, 11), "#51749", "set", "every attention layer is zeroed", "merged"),
    Step(date(2026, 8, 13), "#52058", "launch", "2,904,745,920 programs overflowed the grid", "merged"),
    Step(date(2026, 8, 13), "#52187", "set", "ids of all groups hit every segment", "open"),
    Step(date(2026, 8, 28), "1Cat-vLLM #406", "time", "the id race came back in a fork", "merged"),
    Step(date(2026, 9, 3), "#55085", "set", "a partly loaded block keeps a stale tail", "open"),
    Step(date(2026, 9, 11), "#56524", "set", "recurrent state is never zeroed", "open"),
    Step(date(2026, 9, 16), "#57156", "time", "graph capture dirties block 0 again", "open"),
)


def history_timeline(
    events: tuple[Step, ...] = EVENTS,
    sentence: str = "Six months of block zeroing, to the scale of the calendar.",
    *,
    marked: tuple[str, ...] = (),
    links: Sequence[tuple[str, str]] = (),
) -> Figure:
    """Draw the history, from top to bottom, to the scale of the calendar.

    Args:
        events: the steps, in the order of days.
        sentence: what to see, on top.
        marked: sources to set in bold, such as those of one case.
        links: (change, failure) pairs of sources, joined by a line on the right: which change set up which failure.

    Returns:
        A figure 9 inches wide.
    """
    title = title_lines(sentence, WIDTH_INCHES - 0.3)
    pitch, top = 0.285, 0.45 + 0.19 * len(title)
    height = pitch * len(events)
    sheet = Sheet(top + height + 0.2 + 0.25 * -(-len(KINDS) // 2))
    sheet.title(title)
    first, last = min(step.day for step in events), max(step.day for step in events)
    span = max((last - first).days, 1)

    def y_of(day: date) -> float:
        return top + 0.1 + (day - first).days / span * (height - 0.3)

    axis, label = 1.0, 1.9
    sheet.stroke([(axis, top), (axis, top + height - 0.1)], INK, 1.4)
    for year, month in sorted(_months(first, last)):
        if first <= date(year, month, 1) <= last:
            y = y_of(date(year, month, 1))
            sheet.stroke([(axis - 0.07, y), (axis, y)], INK, 1)
            sheet.text(axis - 0.12, y, date(year, month, 1).strftime("%b %Y"), colour=SOFT, align="right")
    ends = {}
    for index, step in enumerate(events):
        sign, y = KINDS[step.kind], top + 0.1 + index * pitch
        at = y_of(step.day)
        sheet.stroke([(axis, at), (axis + 0.12, at), (label - 0.42, y), (label - 0.3, y)], HAIR, 1, over=UNDER)
        sheet.box(label - 0.3, y - 0.095, 0.19, 0.19, sign)
        sheet.glyph(label - 0.205, y, sign, 0.085)
        bold = step.source in marked
        sheet.text(label, y, step.day.strftime("%d %b"), colour=SOFT)
        sheet.text(label + 0.6, y, step.source, bold=True)
        words = step.what + ("" if step.state == "merged" else f" ({step.state})")
        x = label + 0.75 + max(text_width(each.source, bold=True) for each in events)
        sheet.text(x, y, words, bold=bold)
        ends[step.source] = (x + text_width(words, bold=bold) + 0.1, y)
    _draw_links(sheet, ends, links)
    for index, sign in enumerate(KINDS.values()):
        x, y = 0.15 + index % 2 * WIDTH_INCHES / 2, top + height + 0.1 + 0.25 * (index // 2)
        sheet.box(x, y, 0.19, 0.19, sign)
        sheet.glyph(x + 0.095, y + 0.095, sign, 0.085)
        sheet.text(x + 0.3, y + 0.095, sign.word, SMALL_POINTS)
    return sheet.finish()


def _draw_links(sheet: Sheet, ends: dict[str, tuple[float, float]], links: Sequence[tuple[str, str]]) -> None:
    """Join each change to its failures: from the dot, down a lane of its own, to the points of the arrows."""
    failures = {change: [ends[failure] for each, failure in links if each == change] for change, _ in links}
    lows = {change: max(y for _, y in places) for change, places in failures.items()}
    lanes: list[list[tuple[float, float]]] = []  # what is taken of each, from the inside out
    for change in sorted(failures, key=lambda each: lows[each] - ends[each][1]):
        (x, y), low = ends[change], lows[change]
        lane = next((i for i, taken in enumerate(lanes) if all(b < y or a > low for a, b in taken)), len(lanes))
        if lane == len(lanes):
            lanes.append([])
        lanes[lane].append((y, low))
        at = max(x for x, _ in ends.values()) + 0.25 + 0.25 * lane
        start = y + 0.045 * any(change == failure for _, failure in links)  # below an arrow that comes in
        sheet.stroke([(x, start), (at, start), (at, low)], INK, 1.1)
        sheet.box(x - 0.03, start - 0.03, 0.06, 0.06, Sign("", "", INK), over=9)
        for x, y in failures[change]:
            tip = y - 0.045 * any(step == (x, y) for step in map(ends.get, failures))  # above a line that goes out
            sheet.stroke([(at, y), (at, tip), (x, tip)], INK, 1.1)
            sheet.stroke([(x + 0.07, tip - 0.05), (x, tip), (x + 0.07, tip + 0.05)], INK, 1.1)


def _months(first: date, last: date) -> set[tuple[int, int]]:
    """Year and month of every month between two days."""
    months = range(first.year * 12 + first.month - 1, last.year * 12 + last.month)
    return {(month // 12, month % 12 + 1) for month in months}


def history_text(events: tuple[Step, ...] = EVENTS) -> str:
    """The same history as text, a line for each step.

    >>> history_text(EVENTS[:1])
    '2026-03-10  #35219  feature: fresh blocks are zeroed by one launch (merged)'
    """
    return "\n".join(f"{step.day}  {step.source}  {step.kind}: {step.what} ({step.state})" for step in events)
