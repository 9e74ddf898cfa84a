"""Lines over a knob, drawn by Matplotlib as SVG in the style of the other figures."""

from __future__ import annotations

import io
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

from .charts import DASHES, Limit, number_text, series_sign
from .sheet import PIXELS_PER_INCH, Figure
from .style import BODY_POINTS, INK, PAPER, SMALL_POINTS, SOFT, TITLE_POINTS, WIDTH_INCHES, title_lines

if TYPE_CHECKING:
    from matplotlib.figure import Figure as MatplotlibFigure

MARKED = 20  # a line of up to so many points shows them
# Words stay words; names of clip paths depend on the content alone, so that the same figure is the same text.
STYLE = {"svg.fonttype": "none", "svg.hashsalt": "kvzero", "font.family": "DejaVu Sans", "font.size": SMALL_POINTS}


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
    # Not on top: `kvzero triage --html` draws maps without the extra that brings Matplotlib.
    import matplotlib
    from matplotlib.figure import Figure as MatplotlibFigure
    from matplotlib.ticker import FuncFormatter, MaxNLocator

    title = title_lines(sentence, WIDTH_INCHES - 0.3)
    top = 0.35 + 0.19 * len(title) + 0.2 * len(flips)
    bottom = 0.5 + 0.22 * (-(-len(series) // 2) if len(series) > 1 else 0)
    height = top + 2.1 + bottom
    xs = [x for _, points in series for x, _ in points] + [flip.value for flip in flips]
    ys = [y for _, points in series for _, y in points]
    with matplotlib.rc_context(STYLE):
        figure = MatplotlibFigure(figsize=(WIDTH_INCHES, height), facecolor=PAPER)
        left = 0.4 + 0.075 * len(number_text(max([*ys, 1])))
        box = (left / WIDTH_INCHES, bottom / height, (WIDTH_INCHES - 0.35 - left) / WIDTH_INCHES, 2.1 / height)
        axes = figure.add_axes(box, facecolor=PAPER)
        for index, (name, points) in enumerate(series):
            upright = len({x for x, _ in points}) < len(points)  # a staircase of corners has no points to mark
            axes.plot(
                *zip(*points, strict=True), color=series_sign(name, index).fill, linestyle=DASHES[index % 4],
                linewidth=2.4, label=name, drawstyle="steps-mid" if steps else "default", markersize=5,
                marker="o" if steps or (len(points) <= MARKED and not upright) else "", clip_on=False,
            )  # fmt: skip
        low, high = min(xs), max(xs)
        axes.set_xlim(0 if 0 < low <= high / 7 else low, high if high > low else low + 1)
        axes.set_ylim(0, max([*ys, 1]) * 1.06)
        for axis, values, most in ((axes.xaxis, xs, 6), (axes.yaxis, ys, 4)):
            axis.set_major_locator(MaxNLocator(most, integer=all(value == int(value) for value in values)))
            axis.set_major_formatter(FuncFormatter(lambda value, _: number_text(round(value, 9))))
        axes.tick_params(colors=SOFT, length=3)
        axes.grid(axis="y", color="#e3e3e3")
        axes.spines[["left", "top", "right"]].set_visible(False)
        axes.set_xlabel(x_label, color=SOFT)

        def write(x: float, y: float, words: str, **options) -> None:
            """Words at a place in inches from the upper left corner."""
            figure.text(x / WIDTH_INCHES, 1 - y / height, words, va="center", **options)

        for index, line in enumerate(title):
            write(0.15, 0.18 + 0.19 * index, line, fontsize=TITLE_POINTS, fontweight="bold", color=INK)
        write(0.15, top - 0.2 * len(flips) - 0.08, y_label, color=SOFT)
        for index, flip in enumerate(flips):
            axes.axvline(flip.value, color=INK, linestyle="--", linewidth=1.4)
            place = axes.transData.transform((flip.value, 0))[0] / figure.dpi
            right = place > 0.6 * WIDTH_INCHES
            words = f"{flip.name}: {number_text(flip.value)}"
            y = top - 0.2 * (len(flips) - index) + 0.08
            write(place + (-0.06 if right else 0.06), y, words, ha="right" if right else "left", color=INK)
        if here is not None:
            axes.axvline(here, color=INK, linewidth=1)
            axes.plot([here], [0], marker="^", color=INK, markersize=9, clip_on=False)
        if len(series) > 1:
            handles = axes.get_legend_handles_labels()
            figure.legend(
                *handles, loc="lower left", ncols=2, frameon=False, handlelength=3.4, fontsize=BODY_POINTS,
                labelcolor=INK, bbox_to_anchor=(0.01, 0.0),
            )  # fmt: skip
        return _finished(figure)


def _finished(drawn: MatplotlibFigure) -> Figure:
    """A Matplotlib figure as one of ours: its SVG as a part, and where its words stand."""
    from matplotlib.text import Text

    file = io.StringIO()
    drawn.savefig(file, format="svg", metadata={"Date": None})
    width, height = drawn.get_size_inches()
    body = re.sub(r"<metadata>.*?</metadata>|<style.*?</style>", "", file.getvalue(), flags=re.DOTALL)
    body = body[body.index("<svg") :].replace("xlink:href", "href")
    inner = body[body.index(">") + 1 : body.rindex("</svg>")]
    view = re.search(r'viewBox="([^"]+)"', body).group(1)
    pixels = f'width="{width * PIXELS_PER_INCH:g}" height="{height * PIXELS_PER_INCH:g}"'
    figure = Figure(float(width), float(height), [f'<svg {pixels} viewBox="{view}">{inner}</svg>'])
    for text in drawn.findobj(Text):
        if text.get_text() and text.get_visible():
            (left, low), (right, high) = text.get_window_extent(dpi=drawn.dpi).get_points() / drawn.dpi
            figure.placed.append((*map(float, (left, height - high, right, height - low)), text.get_text()))
            figure.smallest_points = min(figure.smallest_points, text.get_fontsize())
    return figure
