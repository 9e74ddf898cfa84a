"""What the lines under the rows of a memory map measure: numbers of the plan or of the layout, never of the picture."""

from __future__ import annotations

from dataclasses import dataclass

from kvzero.plan.planner import Plan

from .atlas import Atlas


@dataclass(frozen=True, slots=True)
class Measure:
    """A stretch of a row with its size, and the distance from one block to the next.

    Args:
        band: index of the band that holds it.
        start_bytes, end_bytes: columns of the whole map, half open: all of the stretch.
        words: what is measured: a span of the plan, or a layer's page or a part of it, and its bytes.
        stride_bytes: block stride; None in a pool of one block.
    """

    band: int
    start_bytes: int
    end_bytes: int
    words: str
    stride_bytes: int | None


def measured(atlas: Atlas, plan: Plan | None, window: tuple[int, int]) -> Measure | None:
    """The first stretch that lies wholly in a window of columns, else one that the window cuts.

    Args:
        atlas: the pool.
        plan: its segments are measured if it has any in the window; else the pages of the layers are.
        window: the columns shown, half open.

    Returns:
        None where no layer and no segment keeps to the rows of its band.

    >>> from kvzero.plan.planner import plan_segments
    >>> from kvzero.workbook.toy import make_geometry
    >>> pool = make_geometry(layers=2, heads=3, order="BHLNC")
    >>> measured(Atlas(pool), plan_segments(pool), (0, 192)).words, measured(Atlas(pool), None, (0, 192)).words
    ('span 192 B', 'head 0 of layer 0: 32 B')
    """
    low, high = window
    alone = atlas.geometry.num_blocks == 1
    heads = [  # of the layers that share bytes, a map names the first
        (start, end, zeroed_first(atlas, layers)[0])
        for start, end, _, layers, _ in atlas.pieces()
        if start < high and end > low
    ]
    found = []
    for index, band in enumerate(atlas.bands):
        if band.column_bytes >= high or band.column_bytes + band.stride_bytes <= low:
            continue
        for segment in plan.segments if plan else ():
            start = band.column_bytes + segment.base_bytes - band.start_bytes
            end = start + segment.span_bytes
            inside = band.column_bytes <= start and end <= band.column_bytes + band.stride_bytes
            regular = alone or segment.block_stride_bytes == band.stride_bytes
            if segment.storage == band.storage and inside and regular and start < high and end > low:
                found.append((0, not low <= start < end <= high, 0, start, end, 0, index, "span"))
        for run in atlas.homes[index]:
            start = band.column_bytes + run.base_bytes - band.start_bytes
            end = start + run.span_bytes
            if start < high and end > low:
                name = f"{run.part or 'page'} of {atlas.labels[run.layer]}:"
                cut = not low <= start < end <= high
                other = any(layer != run.layer for a, b, layer in heads if a < end and b > start)
                found.append((1, cut, other, start, end, run.layer, index, name))
    if not found:
        return None
    *_, start, end, _, index, name = min(found)
    return Measure(index, start, end, f"{name} {end - start:,} B", None if alone else atlas.bands[index].stride_bytes)


def zeroed_first(atlas: Atlas, layers: tuple[int, ...]) -> list[int]:
    """Layers that share bytes, in the order in which a map names them."""
    return sorted(layers, key=lambda layer: not atlas.geometry.layers[layer].zeroed)


def kernel_edges(atlas: Atlas, window: tuple[int, int]) -> tuple[int, ...]:
    """The columns at which one kernel block ends and the next begins, inside the unbroken stretches of a page.

    >>> from kvzero.workbook.toy import make_geometry
    >>> kernel_edges(Atlas(make_geometry(layers=1, tokens=4, kernel_blocks=4)), (0, 64))
    (16, 32, 48)
    """
    found = set()
    for band, runs in zip(atlas.bands, atlas.homes, strict=True):
        if band.column_bytes >= window[1] or band.column_bytes + band.stride_bytes <= window[0]:
            continue
        for run in runs:
            view = atlas.geometry.layers[run.layer]
            step = view.stride[view.block_dim] * view.itemsize
            if view.kernel_blocks_per_block > 1 and 0 < step < run.span_bytes:
                start = band.column_bytes + run.base_bytes - band.start_bytes
                found.update(range(start + step, start + run.span_bytes, step))
    return tuple(sorted(column for column in found if window[0] < column < window[1]))


def kernel_words(atlas: Atlas) -> str:
    """What the marks of `kernel_edges` stand for, with the numbers of the views; "" without kernel blocks."""
    views = [view for view in atlas.geometry.layers if view.kernel_blocks_per_block > 1]
    counts = sorted({view.kernel_blocks_per_block for view in views})
    sizes = sorted({view.page_bytes // view.kernel_blocks_per_block for view in views})
    several = len(counts) > 1 or len(sizes) > 1
    if not views:
        return ""
    if several:
        return "edge of a kernel block"
    return f"edge of a kernel block: {counts[0]:,} of {sizes[0]:,} B in each block"
