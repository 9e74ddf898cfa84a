"""Boundary knob: how long must a program's piece be, so that starting programs is not what a call waits for?"""

from __future__ import annotations

from dataclasses import dataclass

from kvzero.bench.sets import TILES_BYTES, layers_apart
from kvzero.history import page_per_segment
from kvzero.plan.planner import plan_segments
from kvzero.zero.tiles import launch_for

from .figures.charts import Limit, bars
from .figures.sheet import Figure
from .knob import Knob, knob
from .speed import Rates
from .tables import table_text

HEADER = ("bytes a program", "programs", "to start them, µs", "what the call waits for")


@dataclass(frozen=True)
class Tiles:
    """One cache, cut in every way.

    Args:
        rows: (most bytes of a program, programs, µs to start them), the common divisor of #49704 first.
        write_us: what writing the bytes takes at the memory's limit.
        chunk_bytes: the common divisor.
        sentence: what to see.
    """

    rows: tuple[tuple[int, int, float], ...]
    write_us: float
    chunk_bytes: int
    sentence: str

    @property
    def waits_for_starts(self) -> tuple[int, ...]:
        """The tiles of kvzero's table for which starting programs takes longer than writing."""
        return tuple(piece for piece, _, us in self.rows[1:] if us > self.write_us)

    @property
    def text(self) -> str:
        """The numbers as text."""
        rows = [
            [piece, programs, us, "starts" if us > self.write_us else "the memory"] for piece, programs, us in self.rows
        ]
        return "\n".join([self.sentence, f"writing the bytes: {self.write_us:,.0f} µs", table_text(HEADER, rows)])


def tile_data(*, long_bytes: int, short_bytes: int, layers: int, blocks: int, rates: Rates) -> Tiles:
    """Cut pages of two lengths into programs in every way, and hold their starts against the writing.

    Args:
        long_bytes, short_bytes: the two pages, multiples of 4; each layer has both.
        layers: layers.
        blocks: blocks zeroed in one call.
        rates: the two limits of a GPU.

    Example: pages of 41,984 and 8,448 bytes have 256 as their largest common power of two.
        >>> data = tile_data(long_bytes=41_984, short_bytes=8_448, layers=61, blocks=512, rates=Rates(4.5e6, 1_650))
        >>> data.chunk_bytes, data.waits_for_starts
        (256, (512, 1024, 2048))
    """
    geometry = layers_apart("two page sizes", [long_bytes, short_bytes] * layers, blocks)
    plan = plan_segments(geometry)
    old = page_per_segment.launch(page_per_segment.plan(geometry), blocks, limits=None)
    cuts = [(old.tile_bytes, old.programs)]
    cuts += [(piece, launch_for(plan, blocks, tile_bytes=piece).programs) for piece in TILES_BYTES]
    rows = tuple((piece, programs, programs / rates.programs_per_us) for piece, programs in cuts)
    write_us = blocks * plan.bytes_per_block / rates.bytes_per_us
    times = rows[0][2] / write_us
    if times > 1:
        sentence = f"The common divisor, {old.tile_bytes:,} bytes, makes the call wait {times:,.1f} times as long"
        sentence += " as the memory needs."
    else:
        sentence = f"A common divisor of {old.tile_bytes:,} bytes keeps up with the memory."
    return Tiles(rows, write_us, old.tile_bytes, sentence)


def tile_figure(tiles: Tiles) -> Figure:
    """Draw the time to start the programs of each cut, against the time to write the bytes."""
    named = [(f"common divisor, {tiles.chunk_bytes:,} B", tiles.rows[0][2])]
    named += [(f"tile, {piece:,} B", us) for piece, _, us in tiles.rows[1:]]
    limit = Limit("the same bytes at the memory's limit, µs", tiles.write_us)
    return bars(named, f"{tiles.sentence}\nBars: to start the programs.", unit="µs", limits=[limit], log=True)


PRESETS = {
    "GLM-5.2-like: 41,984 and 8,448 B": dict(long_bytes=41_984, short_bytes=8_448),
    "one page shorter by 256 B: 8,192": dict(long_bytes=41_984, short_bytes=8_192),
    "powers of two: 32,768 and 16,384 B": dict(long_bytes=32_768, short_bytes=16_384),
    "DeepSeek-V4-like: 37,376 and 1,168 B": dict(long_bytes=37_376, short_bytes=1_168),
}


def tile_knob(rates: Rates, *, layers: int = 61, blocks: int = 512) -> Knob:
    """The knob over the two page sizes.

    Args:
        rates: the two limits of a GPU.
        layers, blocks: as in `tile_data`.
    """

    def draw(long_bytes: int, short_bytes: int) -> tuple[Figure, str, str]:
        tiles = tile_data(long_bytes=long_bytes, short_bytes=short_bytes, layers=layers, blocks=blocks, rates=rates)
        return tile_figure(tiles), tiles.sentence, tiles.text

    controls = {"long_bytes": range(16_384, 65_537, 4), "short_bytes": range(16, 16_385, 4)}
    return knob(draw, controls=controls, steps=PRESETS, title="Which cut keeps up with the memory?")
