"""Boundary knob: how much longer may one rank compile than another before the other's watchdog ends the job?"""

from __future__ import annotations

from dataclasses import dataclass

import ipywidgets as widgets

from .explorers.base import Explorer, View, call_text
from .figures.charts import Limit
from .figures.sheet import Figure
from .figures.timeline import timeline, timeline_text
from .first_launch import Step, Work, step

COLLECTIVE_MS = 20


@dataclass(frozen=True)
class Stall:
    """One setting of the knob.

    Args:
        step: what the ranks did.
        flips: when the waiting rank's watchdog ends the job, if the other has not come.
        sentence: what happens.
        inequality: the rule with its numbers.
    """

    step: Step
    flips: tuple[Limit, ...]
    sentence: str
    inequality: str

    @property
    def text(self) -> str:
        """The numbers and the timeline as text."""
        return "\n".join([self.sentence, self.inequality, timeline_text(self.step.events, "ms")])


def stall_data(*, compile_ms: int, cached_ms: int, limit_ms: int) -> Stall:
    """Rank 0 compiles, rank 1 loads a form that it finds compiled, both meet in an all-reduce: a model.

    Args:
        compile_ms: what the first launch takes on rank 0.
        cached_ms: what it takes on rank 1.
        limit_ms: how long a rank waits before its watchdog ends the job.

    Example:
        >>> stall_data(compile_ms=1_150, cached_ms=150, limit_ms=1_000).step.timed_out
        ()
        >>> stall_data(compile_ms=1_151, cached_ms=150, limit_ms=1_000).step.timed_out
        ('rank 1',)
    """
    prepare = Work("prepare", 30)
    ranks = {
        "rank 0": [prepare, Work("first launch: compiles", compile_ms, "compile")],
        "rank 1": [prepare, Work("loads", cached_ms, "compile")],
    }
    found = step(ranks, collective_ms=COLLECTIVE_MS, limit_ms=limit_ms)
    wait = max(found.waits_ms.values())
    waiting = max(found.waits_ms, key=found.waits_ms.get)
    sign, answer = ("✗", f"No: {wait - limit_ms:,.0f} ms too long.") if found.timed_out else ("✓", "Yes.")
    inequality = f"{sign} wait {wait:,.0f} ms ≤ limit {limit_ms:,} ms?  {answer}"
    if found.timed_out:
        sentence = f"{waiting.capitalize()} gives up in the collective: a slow compiler loses the job, at this limit."
    elif wait:
        sentence = f"{waiting.capitalize()} sits in the collective for {wait:,.0f} ms: all are as slow as the slowest."
    else:
        sentence = "Both ranks come at the same time: nobody waits."
    arrives = found.ends_ms - COLLECTIVE_MS - wait
    return Stall(found, (Limit(f"{waiting}'s watchdog", arrives + limit_ms),), sentence, inequality)


def stall_figure(stall: Stall) -> Figure:
    """Draw the ranks, who waits, and the moment that decides."""
    return timeline(stall.step.events, f"{stall.sentence}\n{stall.inequality}", unit="ms", flips=stall.flips)


PRESETS = {
    "one rank compiles": dict(compile_ms=1_200, cached_ms=150, limit_ms=1_000),
    "just in time": dict(compile_ms=1_150, cached_ms=150, limit_ms=1_000),
    "one millisecond more": dict(compile_ms=1_151, cached_ms=150, limit_ms=1_000),
    "both compile: slow, but together": dict(compile_ms=1_200, cached_ms=1_200, limit_ms=1_000),
    "both are warm": dict(compile_ms=1, cached_ms=1, limit_ms=1_000),
}


def stall_knob() -> Explorer:
    """The knob as a widget; show `stall_figure` before it, for pages without a kernel."""
    slider = widgets.IntSlider
    controls = {
        "compile_ms": slider(1_200, 1, 3_000, description="rank 0, ms"),
        "cached_ms": slider(150, 1, 3_000, description="rank 1, ms"),
        "limit_ms": slider(1_000, 100, 3_000, description="watchdog, ms"),
    }

    def draw(state) -> View:
        stall = stall_data(**state)
        sentence = f"{stall.sentence} {stall.inequality}"
        return View(stall_figure(stall), sentence, stall.text, call_text("stall_data", state))

    return Explorer("How much later may one rank come?", controls, draw, PRESETS)
