"""Charts, timelines and the display of a figure: each says its numbers, and nothing is cut off or slopes."""

from __future__ import annotations

import re
from datetime import date
from xml.etree import ElementTree

from kvzero.plan.planner import plan_segments
from kvzero.workbook.figures import (
    EVENTS,
    GLYPHS,
    SIGNS,
    Limit,
    bars,
    bundle,
    draw_memory_map,
    history_text,
    history_timeline,
    map_text,
    memory_map,
    memory_map_data,
    show,
    sweep,
    timeline,
)
from kvzero.workbook.figures.charts import SERIES
from kvzero.workbook.figures.style import OWNERS
from kvzero.workbook.toy import make_geometry


def test_bars_over_a_limit_say_so():
    figure = bars([("flat", 3e9), ("split", 7e6), ("none", 0)], "…", limits=[Limit("x", 2**31 - 1)], log=True, unit="p")
    assert "3,000,000,000 p ✗" in figure.words and "7,000,000 p" in figure.words
    assert "x: 2,147,483,647" in figure.words


def test_bars_of_small_numbers_are_drawn():
    for values in ([("a", 0)], [("a", 0.5), ("b", 1)], [("a", 1.0)]):
        words = bars(values, "…", log=True).words
        assert {name for name, _ in values} <= set(words)


def test_whole_values_have_whole_ticks_and_steps_do_not_slope():
    points = [(x, int(x > 16)) for x in range(14, 20)]
    flips = [Limit("last safe", 16)]
    figure = sweep([("a", points)], "…", x_label="µs", y_label="dirty blocks", flips=flips, steps=True)
    numbers = [word for word in figure.words if re.fullmatch(r"[\d.,]+", word)]
    assert {"0", "1", "14", "19"} <= set(numbers) and not [word for word in numbers if "." in word]
    assert lines_of(figure)
    for (x0, y0), (x1, y1) in (pair for line in lines_of(figure) for pair in zip(line, line[1:], strict=False)):
        assert x0 == x1 or y0 == y1
    slopes = sweep([("a", [(0, 0.5), (1, 1)])], "…", x_label="x", y_label="y").words
    assert [word for word in slopes if "." in word], "values that are not whole keep their fractions"


def test_a_late_label_lies_inside_the_axis_and_beside_the_line():
    events = [("rank 0", 0, 1180, "compiles", "compile"), ("rank 0", 1180, 1200, "all-reduce", "run")]
    figure = timeline(events, "…", unit="ms", flips=[Limit("watchdog", 1180)])
    assert "a kernel is compiled or loaded" in figure.words
    assert max(right for _, _, right, _, _ in figure.placed) < 9 - 0.2


def lines_of(figure) -> list[list[tuple[float, float]]]:
    """The lines of a chart that Matplotlib drew, as points."""
    paths = re.findall(r'<path d="([^"]*)"[^>]*style="fill: none; stroke: #4', figure.svg(""))
    each = [re.findall(r"[ML] ([\d.]+) ([\d.]+)", path) for path in paths]
    return [[(float(x), float(y)) for x, y in points] for points in each]


def dots_of(figure) -> int:
    """How many points of the lines are marked; ticks are drawn with the same element, in ink of their own."""
    return len(re.findall(r"<use [^>]*style=\"fill: #4", figure.svg("")))


def test_timeline_and_sweep_hold_their_words():
    events = [("host", 0, 2, "fill [1]", "fill"), ("stream", 30, 34, "copy 1", "copy")]
    words = timeline(events, "…", flips=[Limit("second fill", 20)], arrows=[("host", 2, "stream", 30)]).words
    assert {"host", "stream", "fill [1]", "copy 1", "second fill: 20 µs", "a copy reads a buffer"} <= set(words)
    lines = [("a", [(0, 0), (10, 5)])]
    words = sweep(lines, "…", x_label="knob", y_label="harm", flips=[Limit("flip", 4)], here=3).words
    assert {"knob", "harm", "flip: 4"} <= set(words)


def test_history_is_in_order_and_can_be_looked_up():
    days = [step.day for step in EVENTS]
    assert days == sorted(days) and date(2026, 3, 10) == days[0]
    assert all(re.fullmatch(r"([\w-]+ )?#\d+", step.source) for step in EVENTS)
    assert len({step.source for step in EVENTS}) == len(EVENTS)
    assert {step.source for step in EVENTS} <= set(history_timeline().words)
    assert len(history_text().splitlines()) == len(EVENTS)


def test_an_axis_that_starts_near_zero_starts_at_zero():
    words = sweep([("a", [(20, 0), (240, 60)])], "…", x_label="requests", y_label="percent").words
    assert words.count("0") == 2, "on both axes"
    words = sweep([("a", [(200, 0), (240, 60)])], "…", x_label="requests", y_label="percent").words
    assert words.count("0") == 1


def test_few_points_are_marked_and_many_are_not():
    for count, marked in ((20, 20), (21, 0)):
        points = [(x, 5) for x in range(count)]
        assert dots_of(sweep([("a", points)], "…", x_label="x", y_label="y")) == marked
    corners = [(x, 5) for x in range(9) for _ in range(2)]  # a staircase has no points to mark
    assert dots_of(sweep([("a", corners)], "…", x_label="x", y_label="y")) == 0


def test_a_series_has_the_colour_of_what_it_counts_and_no_other_takes_it():
    fates = {sign.fill for sign in SIGNS.values()}
    assert not fates & {sign.fill for sign in SERIES}
    figure = bars([("stomped", 5), ("masked grid", 7)], "…").svg("")
    assert SIGNS["stomped"].fill in figure and SERIES[0].fill in figure and SIGNS["cleared"].fill not in figure


def test_signs_differ_without_colour():
    kinds = [name for name in SIGNS if name != "kept"]
    assert len({GLYPHS[name] for name in SIGNS}) == len(SIGNS), "each kind has a glyph of its own"
    hatched = [(SIGNS[name].hatch, SIGNS[name].fill) for name in kinds]
    assert len(set(hatched)) == len(kinds)
    assert len({owner.hatch for owner in OWNERS}) == len(OWNERS)

    def grey(colour: str) -> float:
        red, green, blue = (int(colour[i : i + 2], 16) for i in (1, 3, 5))
        return 0.299 * red + 0.587 * green + 0.114 * blue

    for sign in SIGNS.values():
        assert abs(grey(sign.fill) - grey(sign.ink)) > 60, f"{sign.word}: its glyph is legible without colour"


def test_a_display_carries_picture_words_and_text(monkeypatch):
    pool = make_geometry()
    data = memory_map_data(pool, plan_segments(pool), blocks=[1])
    bundled = bundle(draw_memory_map(data), data.sentence, map_text(data))
    assert set(bundled) == {"text/html", "image/svg+xml", "text/plain"}
    page = bundled["text/html"]
    assert f'<img alt="{data.sentence}"' in page and f"<figcaption>{data.sentence}</figcaption>" in page
    assert "block 1" in page and not re.search(r'(src|href)="(?!data:)', page)
    assert bundled["text/plain"] == map_text(data)
    drawing = ElementTree.fromstring(bundled["image/svg+xml"])
    assert drawing.get("aria-label") == data.sentence and float(drawing.get("width")) <= 864
    told = [title.text for title in drawing.iter("{http://www.w3.org/2000/svg}title")]
    assert "layer 1, block 1, bytes 320 to 383 of storage 0: will be written, by kvzero" in told

    shown = []
    monkeypatch.setattr("IPython.display.display", lambda *items, **options: shown.append((items, options)))
    assert show(memory_map(pool), "A pool.") is None
    assert len(shown) == 1 and shown[0][1]["raw"] is True, "one display, and nothing left open"


def test_html_is_escaped():
    page = bundle(memory_map(make_geometry()), 'a < b & "c"', "x < y")["text/html"]
    assert 'alt="a &lt; b &amp; &quot;c&quot;"' in page and "x &lt; y" in page
