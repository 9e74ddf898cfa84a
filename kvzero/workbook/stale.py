"""Boundary knob: how many stale values may a masked row meet before a NaN is likelier than not?"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import ceil, log

from .figures.charts import Limit, sweep
from .figures.sheet import Figure
from .knob import Knob, knob

MOST_VALUES = 1_024


@dataclass(frozen=True)
class StaleChance:
    """How likely a NaN is among a number of stale values.

    Args:
        values: stale values that the kernel reads and masks.
        share: share of values that are NaN or Inf in the format.
        chance: of at least one NaN or Inf among them, 0 to 1.
        half_values: the least number of values for which the chance is one half or more; None for a share of 0.
        points: (values, chance in percent) along the knob.
        sentence: what to see.
    """

    values: int
    share: float
    chance: float
    half_values: int | None
    points: tuple[tuple[float, float], ...]
    sentence: str


def stale_chance(*, values: int, share: float, name: str = "this format") -> StaleChance:
    """The chance that masking by probability fails, taking stale values as independent draws.

    Args:
        values: stale values read and masked.
        share: share of stale values that are NaN or Inf, at most 0.99.
        name: the format, for the sentence.

    Example:
        >>> two = stale_chance(values=2, share=0.5)
        >>> two.chance, two.half_values
        (0.75, 1)
    """
    chance = 1 - (1 - share) ** values
    half = ceil(log(0.5) / log(1 - share)) if share else None
    xs = [*range(0, MOST_VALUES + 1, 16)]
    points = tuple((x, 100 * (1 - (1 - share) ** x)) for x in xs)
    sentence = f"{values:,} stale values read as {name}: a NaN or Inf is among them with {chance:.1%} chance"
    if half:
        sentence += f"; from {half:,} values on, that is likelier than not."
    else:
        sentence += "; no pattern of it is NaN or Inf."
    return StaleChance(values, share, chance, half, points, sentence)


def draw_stale_chance(values: int, share: float, name: str) -> tuple[Figure, str]:
    """The chance over the number of values, as (figure, sentence); see `stale_chance`."""
    found = stale_chance(values=values, share=share, name=name)
    flips = [Limit("likelier than not from", found.half_values)] if found.half_values else []
    figure = sweep(
        [(name, found.points)], found.sentence, x_label="stale values that one row reads",
        y_label="chance of a NaN or Inf, percent", flips=flips, here=values,
    )  # fmt: skip
    return figure, found.sentence


def stale_knob(shares: Mapping[str, float]) -> Knob:
    """A knob over the number of stale values, for each format.

    Args:
        shares: format name to the measured share of values that are NaN or Inf.
    """

    def draw(format: str, values: int) -> tuple[Figure, str]:
        return draw_stale_chance(values, shares[format], format)

    first, *others = shares
    steps = {f"{first}, one token": {"format": first, "values": 128}}
    steps |= {f"{other}, one token": {"format": other} for other in others}
    steps["one value"] = {"values": 1}
    controls = {"format": list(shares), "values": range(1, MOST_VALUES + 1)}
    return knob(draw, controls=controls, steps=steps, title="Stale values a row may meet")
