"""What a memory map shows, as plain data: nothing here draws.

`memory_map_data` takes a geometry, and a plan or an audit or both, and answers three questions: what each byte
of the whole pool is (folded into a grid), what each byte of a few chosen blocks is (exactly), and what a few
hundred bytes around one point are (exactly). The totals count every byte of the pool, shown or not.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from kvzero.audit.result import Audit
from kvzero.layout.geometry import CacheGeometry
from kvzero.layout.intervals import total, union
from kvzero.layout.records import Name
from kvzero.plan.planner import Plan

from .atlas import Atlas, Cell, Fold
from .bands import Band
from .style import bytes_text

MAX_ROWS, LEAST_ROWS = 8, 5


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


@dataclass(frozen=True, slots=True)
class MemoryMapData:
    """All that `memory_map` draws.

    Args:
        name, num_blocks, row_bytes: the pool; `row_bytes` are the bytes of one block over all bands.
        labels: short names of the layers; not_zeroed: those that a fresh block leaves alone.
        bands: see `bands`.
        planner: who planned the write; "" without a plan or an audit.
        blocks: the blocks that are written; None for the whole pool.
        rows: the rows shown, in order.
        beyond: cells past the end of the pool (or before its start) that hold an overrun which no one row holds,
            their columns counted from the first of them; else empty.
        window_bytes: the columns shown, half open.
        window_reason: why these columns, where they are not all.
        measure: what the lines under the rows measure.
        kernel_edges: columns in the window where one kernel block ends and the next begins; kernel_words: their key.
        cells: the cells of these rows and columns, in order.
        fold: the whole pool, where the rows and columns shown are not all; else None.
        focus: (storage, byte) that the byte panel is about; focus_reason: why that one; marked: whether it is
            to be bracketed.
        byte_cells: the cells around it, in the order of addresses; their columns are offsets in the storage.
        unit_bytes: bytes of one character of the byte panel, a divisor of all its edges.
        totals: kind to distinct bytes over the whole pool; "needed" and "written_twice" where known.
        first: the audit's first offender, or None.
        sentence: what to see, in one sentence.
    """

    name: str
    num_blocks: int
    row_bytes: int
    labels: tuple[str, ...]
    not_zeroed: frozenset[int]
    bands: tuple[Band, ...]
    planner: str
    blocks: tuple[int, ...] | None
    rows: tuple[int, ...]
    beyond: tuple[Cell, ...]
    window_bytes: tuple[int, int]
    window_reason: str
    measure: Measure | None
    kernel_edges: tuple[int, ...]
    kernel_words: str
    cells: tuple[Cell, ...]
    fold: Fold | None
    focus: tuple[Name, int]
    focus_reason: str
    marked: bool
    byte_cells: tuple[Cell, ...]
    unit_bytes: int
    totals: dict[str, int]
    first: dict | None
    sentence: str


def memory_map_data(
    geometry: CacheGeometry,
    plan: Plan | None = None,
    audit: Audit | None = None,
    blocks: Iterable[int] | None = None,
    *,
    rows: Iterable[int] | None = None,
    focus: tuple[Name, int] | None = None,
    sentence: str | None = None,
) -> MemoryMapData:
    """Work out a memory map.

    Args:
        geometry: the pool.
        plan: what will be written; drawn where there is no audit.
        audit: what was written (either witness); its ranges decide what each byte is.
        blocks: the blocks that the plan is to zero; the audit's, or the whole pool, if None.
        rows: the blocks to show; chosen around what went wrong if None.
        focus: (storage, byte) for the byte panel; the first offender, else the end of a page, if None.
        sentence: the sentence on top; the audit's own, or one about the plan or the layout, if None.

    Example:
        >>> from kvzero.plan.planner import plan_segments
        >>> from kvzero.workbook.toy import make_geometry
        >>> pool = make_geometry(layers=4, num_blocks=4, order="BLNHC", pad_bytes=4)
        >>> memory_map_data(pool, plan_segments(pool), blocks=[1]).totals
        {'planned': 256}
    """
    atlas = Atlas(geometry)
    chosen = _blocks(blocks, audit)
    ranges = _state_ranges(geometry, plan, audit, chosen)
    place, reason = (focus, "the byte asked for") if focus else _focus(atlas, audit, chosen)
    home = atlas.row_of(*place)
    shown = tuple(rows) if rows is not None else _rows(atlas, audit, chosen, home)
    window = atlas.window(atlas.column_of(*place))
    beyond = _beyond(atlas, audit, place, home, window) if rows is None else ()
    shown = tuple(row for row in shown if not beyond or row != home)
    cells = tuple(cell for row in shown for cell in atlas.row_cells(row, window, ranges))
    everything = window == (0, atlas.row_bytes) and set(range(geometry.num_blocks)) <= set(shown)
    byte_cells, unit = atlas.byte_cells(place, ranges)
    totals = {kind: _sum(found) for kind, found in ranges.items() if _sum(found)}
    return MemoryMapData(
        name=geometry.name,
        num_blocks=geometry.num_blocks,
        row_bytes=atlas.row_bytes,
        labels=atlas.labels,
        not_zeroed=frozenset(i for i, view in enumerate(geometry.layers) if not view.zeroed),
        bands=tuple(atlas.bands),
        planner=audit.planner if audit else (plan.planner if plan else ""),
        blocks=chosen,
        rows=shown,
        beyond=beyond,
        window_bytes=window,
        window_reason="around " + reason.partition(",")[0],
        measure=measured(atlas, plan, window),
        kernel_edges=kernel_edges(atlas, window),
        kernel_words=kernel_words(atlas),
        cells=cells,
        fold=None if everything else atlas.fold(ranges),
        focus=place,
        focus_reason=reason,
        marked=focus is not None or bool(audit and audit.first),
        byte_cells=byte_cells,
        unit_bytes=unit,
        totals=totals,
        first=audit.first if audit else None,
        sentence=sentence or _sentence(geometry, plan, audit, chosen, totals, atlas),
    )


def _blocks(blocks: Iterable[int] | None, audit: Audit | None) -> tuple[int, ...] | None:
    if blocks is not None:
        return tuple(dict.fromkeys(int(block) for block in blocks))
    return tuple(dict.fromkeys(audit.blocks)) if audit else None


def _state_ranges(geometry: CacheGeometry, plan: Plan | None, audit: Audit | None, blocks):
    """State to storage to sorted, disjoint ranges."""
    if audit is not None:
        return audit.ranges
    if plan is None:
        return {}
    issued = plan.ranges(range(geometry.num_blocks) if blocks is None else blocks)
    return {"planned": {storage: union(ranges) for storage, ranges in issued.items()}}


def _focus(atlas: Atlas, audit: Audit | None, blocks) -> tuple[tuple[Name, int], str]:
    """The first offender, else the end of a page: of one that is followed by pad, if there is one; and which it is."""
    if audit is not None and audit.first is not None:
        kind = "overrun" if audit.first["kind"] == "overrun" else f"{audit.first['kind']} byte"
        return (audit.first["storage"], audit.first["byte_offset"]), f"the first {kind}"
    block = blocks[0] if blocks else min(1, atlas.geometry.num_blocks - 1)
    pieces = atlas.pieces()
    following = {piece[0]: set(piece[3]) for piece in pieces}
    ends = [band.column_bytes + band.stride_bytes for band in atlas.bands]
    padded = [piece for piece in pieces if piece[1] not in following and piece[1] < ends[piece[2]]]
    whole = [piece for piece in pieces if not following.get(piece[1], set()) & set(piece[3])]  # no owner goes on
    _, end, index, layers, part = (padded or whole or pieces)[0]
    band, owner = atlas.bands[index], atlas.labels[zeroed_first(atlas, layers)[0]]
    whose = f"{part} of {owner} in block {block}" if part else f"{owner} in block {block}"
    reason = f"the first pad, after {whose}" if padded else f"the end of {whose}"
    return (band.storage, band.start_bytes + block * band.stride_bytes + end - band.column_bytes), reason


def _rows(atlas: Atlas, audit: Audit | None, blocks, home: int) -> tuple[int, ...]:
    """The blocks to show: all if they are few, else those written, those damaged, and their neighbours."""
    count = atlas.geometry.num_blocks
    outside = [home] if audit is not None and audit.overrun_bytes and not 0 <= home < count else []
    if count <= MAX_ROWS:
        return tuple(sorted({*range(count), *outside}))
    found: list[int] = [*outside, home] if audit is not None and audit.first is not None else []
    for block in (blocks or (0, 1, count - 1))[:3]:
        found += [block, block + 1, block - 1]
    found = [row for row in dict.fromkeys(found) if 0 <= row < count or row in outside][: MAX_ROWS - 1]
    inside = [row for row in found if row < count] or [count - 1]
    for step in range(1, LEAST_ROWS):
        near = [max(inside) + step, min(inside) - step]
        found += [row for row in near if 0 <= row < count and row not in found][: max(0, LEAST_ROWS - len(found))]
    return tuple(sorted(found))


def _beyond(atlas: Atlas, audit: Audit | None, place: tuple[Name, int], home: int, window) -> tuple[Cell, ...]:
    """The stretch outside the storage with the overrun around the focus, where row `home` does not hold it all."""
    storage, byte = place
    nbytes = atlas.geometry.storage(storage).nbytes
    if audit is None or 0 <= byte < nbytes or 0 <= home < atlas.geometry.num_blocks:
        return ()
    found = audit.ranges.get("overrun", {}).get(storage)
    side = [] if found is None else [(a, b) for a, b in found.tolist() if (b <= 0 if byte < 0 else a >= nbytes)]
    if not side:
        return ()
    low, high = side[0][0], side[-1][1]
    index = atlas.band_at(storage, byte)
    start = atlas.bands[index].start_bytes + home * atlas.bands[index].stride_bytes
    if start <= low and high <= start + atlas.bands[index].stride_bytes:
        return ()
    # As much of the way there as a row of the map has room for.
    room = max(high - low, window[1] - window[0])
    low, high = (low, min(0, low + room)) if byte < 0 else (max(nbytes, high - room), high)
    return tuple(atlas.stretch_cells(index, home, low, high, audit.ranges))


def _sum(by_storage) -> int:
    return sum(total(ranges) for ranges in by_storage.values())


def _sentence(geometry: CacheGeometry, plan: Plan | None, audit: Audit | None, blocks, totals, atlas: Atlas) -> str:
    if audit is not None:
        return audit.sentence()
    if plan is not None:
        count = geometry.num_blocks if blocks is None else len(blocks)
        where = f"all {count:,} blocks" if blocks is None else f"{count:,} block{'' if count == 1 else 's'}"
        alone = len(plan.segments) == 1
        segments = "1 segment clears" if alone else f"{len(plan.segments):,} segments clear"
        return f"The plan of {plan.planner}: {segments} {bytes_text(totals['planned'])} in {where}."
    owned = sum(end - start for start, end, *_ in atlas.pieces())
    pad = atlas.row_bytes - owned
    rest = f", {pad:,} of them pad" if pad else " and holds no pad"
    return (
        f"{geometry.name}: {geometry.num_blocks:,} blocks, {len(geometry.layers)} views; "
        f"a block takes {bytes_text(atlas.row_bytes)}{rest}."
    )


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
