"""Charts, timelines and the display of a figure: each says its numbers, and nothing is cut off or slopes."""

from __future__ import annotations

import io
import re
from datetime import date

import numpy as np
from PIL import Image

from kvzero.plan import plan_segments
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
    png_bytes,
    show,
    sweep,
    timeline,
)
from kvzero.workbook.figures.charts import stairs
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
    for lines in figure.axes[0].collections:
        for (x0, y0), (x1, y1) in (pair for path in lines.get_segments() for pair in zip(path, path[1:], strict=False)):
            assert x0 == x1 or y0 == y1
    slopes = sweep([("a", [(0, 0.5), (1, 1)])], "…", x_label="x", y_label="y").words
    assert "0.5" in slopes, "values that are not whole keep their fractions"
    assert stairs([(5, 2)]) == [(4.5, 2), (5.5, 2)]


def test_a_late_label_lies_inside_the_axis_and_beside_the_line():
    events = [("rank 0", 0, 1180, "compiles", "compile"), ("rank 0", 1180, 1200, "all-reduce", "run")]
    figure = timeline(events, "…", unit="ms", flips=[Limit("watchdog", 1180)])
    assert "a kernel is compiled or loaded" in figure.words
    pixels = np.asarray(picture(figure))
    # Beyond the right end of the axis there is nothing but paper.
    assert (pixels[:, int((9 - 0.2) * 192) :] == 255).all()


def picture(figure):
    """The pixels of a figure."""
    return Image.open(io.BytesIO(png_bytes(figure))).convert("L")


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
    def inked(count: int) -> int:
        points = [(x, 5) for x in range(count)]
        corners = [point for point in points for _ in range(2)]  # the same line as a staircase: nothing to mark
        pixels = [picture(sweep([("a", each)], "…", x_label="x", y_label="y")) for each in (points, corners)]
        marked, plain = (int((np.asarray(each) < 250).sum()) for each in pixels)
        return marked - plain

    assert inked(20) > 500 > inked(21) == 0


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
    bundled, metadata = bundle(draw_memory_map(data), data.sentence, map_text(data))
    assert set(bundled) == {"text/html", "image/png", "text/plain"}
    page = bundled["text/html"]
    assert f'<img alt="{data.sentence}"' in page and f"<figcaption>{data.sentence}</figcaption>" in page
    assert "block 1" in page and not re.search(r'(src|href)="(?!data:)', page)
    assert bundled["text/plain"] == map_text(data)
    assert metadata["image/png"]["alt"] == data.sentence and metadata["image/png"]["width"] <= 864

    shown = []
    monkeypatch.setattr("IPython.display.display", lambda *items, **options: shown.append((items, options)))
    assert show(memory_map(pool), "A pool.") is None
    assert len(shown) == 1 and shown[0][1]["raw"] is True, "one display, and nothing left open"
    import matplotlib.pyplot as plt

    assert plt.get_fignums() == []


def test_html_is_escaped():
    page = bundle(memory_map(make_geometry()), 'a < b & "c"', "x < y")[0]["text/html"]
    assert 'alt="a &lt; b &amp; &quot;c&quot;"' in page and "x &lt; y" in page
