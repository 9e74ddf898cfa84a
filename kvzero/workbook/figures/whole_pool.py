"""What a plan writes when it zeroes every block of a pool, without listing the blocks."""

from __future__ import annotations

import numpy as np

from kvzero.layout.intervals import as_ranges, total, union
from kvzero.plan.planner import Plan

from .bands import Band, rows_and_columns, to_cells


def whole_pool_cells(plan: Plan, bands: list[Band]) -> np.ndarray:
    """The cells that the plan writes over all blocks.

    Args:
        plan: the plan.
        bands: the bands of the geometry that the plan is for.

    Returns:
        As `bands.to_cells`; entries may overlap.

    A segment whose stride is its band's moves down one row per block, so its cells of block 0, stretched over
    all rows, are its cells of all blocks. Only what spills over the end of a band is listed block by block.
    """
    count, found = plan.num_blocks, [np.empty((0, 5), np.int64)]
    for storage in plan.storages:
        mine = [index for index, band in enumerate(bands) if band.storage == storage.id]
        segments = [segment for segment in plan.segments if segment.storage == storage.id]
        if not segments:
            continue
        bases, strides, spans = np.array(
            [(segment.base_bytes, segment.block_stride_bytes, segment.span_bytes) for segment in segments]
        ).T
        lows = np.array([bands[index].start_bytes for index in mine])
        place = np.maximum(np.searchsorted(lows, bases, side="right") - 1, 0)
        at = np.array(mine)[place]
        regular = (strides == np.array([bands[index].stride_bytes for index in at])) | (count == 1)
        cells = rows_and_columns(np.stack((bases, bases + spans), axis=1)[regular], at[regular], bands)
        # The rows that each band has before the next one starts; the last band's go on past the storage.
        room = np.full(len(bands), 2**62)
        for index, following in zip(mine, mine[1:], strict=False):
            room[index] = (bands[following].start_bytes - bands[index].start_bytes) // bands[index].stride_bytes
        cells[:, 2] = np.minimum(cells[:, 2] + count - 1, room[cells[:, 0]] - 1)
        found.append(cells[cells[:, 1] <= cells[:, 2]])
        # Where the whole rows of a segment's band end; past them, its ranges are listed.
        starts, steps = (np.array([getattr(bands[i], name) for i in at]) for name in ("start_bytes", "stride_bytes"))
        highs = np.where(room[at] < 2**62, starts + np.minimum(room[at], 2**40) * steps, 2**62)
        for index in np.flatnonzero(~regular | (bases + (count - 1) * strides + spans > highs)):
            over = (highs[index] - bases[index] - spans[index]) // strides[index] + 1  # the first block that spills
            first = max(0, int(over)) if regular[index] else 0
            lows_of = bases[index] + np.arange(first, count, dtype=np.int64) * strides[index]
            listed = to_cells(np.stack((lows_of, lows_of + spans[index]), axis=1), bands, storage.id)
            beyond = (listed[:, 0] != at[index]) | (listed[:, 1] >= room[at[index]])
            found.append(listed[beyond] if regular[index] else listed)
    return np.concatenate(found)


def planned_bytes(plan: Plan, bands: list[Band]) -> int:
    """Distinct bytes that the plan writes over all blocks of the pool.

    >>> from kvzero.plan.planner import plan_segments
    >>> from kvzero.workbook.figures.atlas import Atlas
    >>> from kvzero.workbook.toy import make_geometry
    >>> pool = make_geometry(layers=200, num_blocks=100_000)
    >>> planned_bytes(plan_segments(pool), Atlas(pool).bands)
    1280000000
    """
    if plan.proven:
        return plan.bytes_per_block * plan.num_blocks  # each byte once: that is what the proof says
    whole = 0
    for storage in plan.storages:
        mine = [segment for segment in plan.segments if segment.storage == storage.id]
        parts = [np.empty((0, 2), np.int64)]
        for segment in mine:
            count = plan.num_blocks
            if segment.span_bytes >= segment.block_stride_bytes:
                end = segment.start_bytes(count - 1) + segment.span_bytes
                parts.append(as_ranges([(segment.base_bytes, end)]))  # its blocks touch: one range
            else:
                starts = segment.base_bytes + np.arange(count, dtype=np.int64) * segment.block_stride_bytes
                parts.append(np.stack((starts, starts + segment.span_bytes), axis=1))
        whole += total(union(np.concatenate(parts)))
    return whole
