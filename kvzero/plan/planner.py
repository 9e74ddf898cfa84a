"""`plan_segments` derives the segments that zero a block from the views, and proves them before any launch."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import combinations
from typing import Any

import numpy as np

from kvzero import errors
from kvzero.layout.geometry import CacheGeometry
from kvzero.layout.intervals import total, union
from kvzero.layout.records import LayerView, Name, Segment, Storage
from kvzero.plan.overlap import same_stride_clash, two_stride_clash

STORE_WIDTHS_BYTES = (16, 8, 4, 2, 1)
MAX_RANGES_PER_BLOCK = 1 << 22  # beyond this a view is scattered element by element, which no engine does


@dataclass(frozen=True, slots=True)
class Plan:
    """The segments that zero one pool.

    Args:
        planner: "kvzero", or the name of the old planner that made it.
        name: the geometry's name.
        num_blocks: blocks in the pool; the capacity of every segment.
        storages: the storages, as the geometry lists them.
        segments: in the order of storage and base.
        needed_bytes_per_block: distinct bytes that the selected views own in a block.
        proven: True only if `plan_segments` made it; other plans are not launched on live memory. It is not an
            argument, and `dataclasses.replace` does not copy it.
    """

    planner: str
    name: str
    num_blocks: int
    storages: tuple[Storage, ...]
    segments: tuple[Segment, ...]
    needed_bytes_per_block: int
    proven: bool = field(default=False, init=False)

    @property
    def bytes_per_block(self) -> int:
        """Bytes written for one block; a byte in two segments counts twice."""
        return sum(segment.span_bytes for segment in self.segments)

    @property
    def alignment_bytes(self) -> int:
        """The widest store, of 16, 8, 4, 2 or 1 bytes, that divides every base, stride and span."""
        numbers = 16
        for segment in self.segments:
            numbers |= segment.base_bytes | segment.span_bytes
            if self.num_blocks > 1:
                numbers |= segment.block_stride_bytes
        return next(width for width in STORE_WIDTHS_BYTES if numbers % width == 0)

    def ranges(self, block_ids: Iterable[int]) -> dict[Name, np.ndarray]:
        """The byte ranges that zeroing these blocks writes.

        Args:
            block_ids: block ids, in any order; they are not checked against the capacity.

        Returns:
            Storage id to an int64 array of shape (segments * ids, 2), half open, one row per segment and id;
            rows may overlap where the plan writes a byte twice.

        >>> plan = Plan("kvzero", "p", 8, (Storage("a", 800),), (Segment("a", 3, 100, 16),), 16)
        >>> plan.ranges([1, 7])["a"].tolist()
        [[103, 119], [703, 719]]
        """
        ids = np.fromiter(block_ids, dtype=np.int64)
        rows: dict[Name, list[np.ndarray]] = {storage.id: [] for storage in self.storages}
        for segment in self.segments:
            starts = segment.base_bytes + ids * segment.block_stride_bytes
            rows[segment.storage].append(np.stack((starts, starts + segment.span_bytes), axis=1))
        empty = np.empty((0, 2), np.int64)
        return {storage: np.concatenate(parts) if parts else empty for storage, parts in rows.items()}

    def to_dict(self) -> dict[str, Any]:
        """Plain data, as `kvzero plan --json` prints it."""
        return {
            "name": self.name,
            "num_blocks": self.num_blocks,
            "segments": [
                {
                    "storage": segment.storage,
                    "base_bytes": segment.base_bytes,
                    "block_stride_bytes": segment.block_stride_bytes,
                    "span_bytes": segment.span_bytes,
                }
                for segment in self.segments
            ],
            "bytes_per_block": self.bytes_per_block,
            "needed_bytes_per_block": self.needed_bytes_per_block,
        }

    def digest(self) -> str:
        """Return a short hash that is equal for plans with equal storages, blocks and segments."""
        facts = {**self.to_dict(), "storages": [[storage.id, storage.nbytes] for storage in self.storages]}
        del facts["name"]
        return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()[:16]


def plan_segments(
    geometry: CacheGeometry,
    *,
    layers: str | Sequence[str] | None = None,
    groups: Name | Sequence[Name] | None = None,
    absorb_pad: bool = False,
) -> Plan:
    """Plan which bytes to zero for a block, and prove the plan from the views alone.

    Args:
        geometry: the pool's storages and views.
        layers: None for every view that is to be zeroed, "all" for every view, or names.
        groups: None for all groups, or the ids of those wanted.
        absorb_pad: also zero a gap between two segments if it is proven to belong to no view of any group; this
            makes fewer and longer writes.

    Returns:
        A plan that writes each byte that the selected views own in a block once, and no other byte
        (but absorbed pad).

    Raises:
        BlocksOverlapError: two blocks of the pool share a byte, in any views, selected or not.
        PlanError: one block of a view runs into the next (`span-exceeds-stride`); two selected views share bytes of
            one block at unequal block strides (`unequal-stride-overlap`); or a view is scattered into too many ranges
            (`too-many-segments`).
        GeometryError: a selected layer or group does not exist, or nothing is selected.

    The cost grows with views and segments, never with the number of blocks.

    Example:
        >>> slab = CacheGeometry.from_dict({
        ...     "name": "slab", "num_blocks": 100, "storages": [{"id": 0, "nbytes": 14_976_000}],
        ...     "layers": [{"name": f"layer.{i}", "storage": 0, "byte_offset": 37_440 * i, "itemsize": 1,
        ...                 "shape": [100, 64, 584], "stride": [149_760, 584, 1]} for i in range(4)]})
        >>> plan = plan_segments(slab)
        >>> plan.segments[3]
        Segment(storage=0, base_bytes=112320, block_stride_bytes=149760, span_bytes=37376)
        >>> plan_segments(slab, absorb_pad=True).segments
        (Segment(storage=0, base_bytes=0, block_stride_bytes=149760, span_bytes=149696),)
    """
    selected = {view.name for view in geometry.select(layers, groups)}
    nbytes = {storage.id: storage.nbytes for storage in geometry.storages}
    every: dict[tuple[Name, int], list[np.ndarray]] = {}
    wanted: dict[tuple[Name, int], list[np.ndarray]] = {}
    for view in geometry.layers:
        # A pool of one block has no next block: its ranges merge whatever strides the views carry.
        stride = view.block_stride_bytes if geometry.num_blocks > 1 else nbytes[view.storage]
        family = (view.storage, stride)
        ranges = block_ranges(view, geometry)
        every.setdefault(family, []).append(ranges)
        if view.name in selected:
            wanted.setdefault(family, []).append(ranges)
    pool = {family: _joined(parts) for family, parts in every.items()}
    clear = {family: _joined(parts) for family, parts in wanted.items()}
    if geometry.num_blocks > 1:
        _prove_blocks_apart(geometry, pool)
    _prove_written_once(geometry, clear)
    needed = sum(total(ranges) for ranges in clear.values())
    if absorb_pad:
        clear = {family: _close_gaps(ranges, family, pool, geometry) for family, ranges in clear.items()}
    order = {storage.id: index for index, storage in enumerate(geometry.storages)}
    segments = [
        Segment(storage, start, stride, stop - start)
        for (storage, stride), ranges in clear.items()
        for start, stop in ranges.tolist()
    ]
    segments.sort(key=lambda segment: (order[segment.storage], segment.base_bytes))
    plan = Plan(
        planner="kvzero",
        name=geometry.name,
        num_blocks=geometry.num_blocks,
        storages=geometry.storages,
        segments=tuple(segments),
        needed_bytes_per_block=needed,
    )
    object.__setattr__(plan, "proven", True)
    return plan


def block_ranges(view: LayerView, geometry: CacheGeometry) -> np.ndarray:
    """Return the byte ranges that one view owns in block 0, derived from its strides.

    Args:
        view: a view of the geometry, any order of dimensions.
        geometry: where it lies; names it in messages and says how many blocks there are.

    Returns:
        Sorted, disjoint int64 ranges of shape (ranges, 2), as offsets in the storage. Block b owns the same
        ranges, b block strides later.

    Raises:
        PlanError: there are more than `MAX_RANGES_PER_BLOCK` ranges, or a range is longer than the block stride in a
            pool of several blocks.

    Dimensions are folded from the smallest stride up: a dimension whose stride is at most the length of the
    contiguous run so far extends the run; any other dimension repeats it.

    Example: K and V apart, each of four tokens.
        >>> layer = {"name": "k", "storage": 0, "byte_offset": 0, "shape": [2, 3, 4], "stride": [12, 4, 1],
        ...          "itemsize": 2, "block_dim": 1}
        >>> geometry = CacheGeometry.from_dict(
        ...     {"name": "g", "num_blocks": 3, "storages": [{"id": 0, "nbytes": 48}], "layers": [layer]})
        >>> block_ranges(geometry.layer("k"), geometry).tolist()
        [[0, 8], [24, 32]]
    """
    run, repeats = view.itemsize, []
    inner = [
        (step * view.itemsize, size)
        for dim, (size, step) in enumerate(zip(view.shape, view.stride, strict=True))
        if dim != view.block_dim
    ]
    inner.append((view.stride[view.block_dim] * view.itemsize, view.kernel_blocks_per_block))
    for step, size in sorted(inner):
        if size == 1:
            continue
        if step <= run:
            run += (size - 1) * step
        else:
            repeats.append((step, size))
    starts = np.array([view.byte_offset], np.int64)
    for step, size in repeats:
        if len(starts) * size > MAX_RANGES_PER_BLOCK:
            raise errors.PlanError(
                "too-many-segments", where=_where(geometry, view), num_ranges=len(starts) * size,
                limit=MAX_RANGES_PER_BLOCK,
            )  # fmt: skip
        starts = (starts[:, None] + np.arange(size, dtype=np.int64) * step).reshape(-1)
    ranges = starts[:, None] + np.array([0, run])
    span = run
    if repeats:
        ranges = union(ranges)
        span = int((ranges[:, 1] - ranges[:, 0]).max())
    if geometry.num_blocks > 1 and span > view.block_stride_bytes:
        raise errors.PlanError(
            "span-exceeds-stride", where=_where(geometry, view), span_bytes=span,
            block_stride_bytes=view.block_stride_bytes, block_dim=view.block_dim,
        )  # fmt: skip
    return ranges


def _joined(parts: list[np.ndarray]) -> np.ndarray:
    return union(np.concatenate(parts)) if len(parts) > 1 else parts[0]


def _where(geometry: CacheGeometry, view: LayerView) -> str:
    return f"{geometry.where}, layer {view.name}"


def _prove_blocks_apart(geometry: CacheGeometry, pool: dict[tuple[Name, int], np.ndarray]) -> None:
    """Raise BlocksOverlapError if any two blocks of the pool share a byte."""
    for (storage, stride), ranges in pool.items():
        if len(ranges) == 1 and int(ranges[0, 1] - ranges[0, 0]) <= stride:
            continue
        bases, spans = ranges[:, 0], ranges[:, 1] - ranges[:, 0]
        if int(spans.max()) > stride:
            # Every view fits its stride, so two views together run from one block into the next.
            base = int(bases[spans.argmax()])
            _refuse_overlap(geometry, storage, base + stride, (stride, 1), (stride, 0))
        clash = same_stride_clash(bases, spans, stride, geometry.num_blocks)
        if clash is not None:
            i, j, block_i, block_j = clash
            byte = max(int(bases[i]) + block_i * stride, int(bases[j]) + block_j * stride)
            _refuse_overlap(geometry, storage, byte, (stride, block_i), (stride, block_j))
    for a, b, (block_a, block_b), byte in _clashes_across_strides(geometry, pool):
        if block_a != block_b:
            _refuse_overlap(geometry, a[0], byte, (a[1], block_a), (b[1], block_b))


def _prove_written_once(geometry: CacheGeometry, clear: dict[tuple[Name, int], np.ndarray]) -> None:
    """Raise PlanError if selected views of unequal strides share a byte of one block."""
    for a, b, (block, _), byte in _clashes_across_strides(geometry, clear):
        raise errors.PlanError(
            "unequal-stride-overlap", where=geometry.where, storage=a[0], byte_offset=byte, block=block,
            stride_a_bytes=a[1], stride_b_bytes=b[1],
            layer_a=_owner(geometry, a[0], byte, a[1], block), layer_b=_owner(geometry, b[0], byte, b[1], block),
        )  # fmt: skip


def _clashes_across_strides(geometry: CacheGeometry, families: dict[tuple[Name, int], np.ndarray]):
    """Yield (family a, family b, blocks, shared byte) for families of unequal strides in one storage."""
    num_blocks = geometry.num_blocks
    in_storage: dict[Name, list[tuple[Name, int]]] = {}
    for family in families:
        in_storage.setdefault(family[0], []).append(family)
    for keys in in_storage.values():
        for a, b in combinations(keys, 2):
            # Only ranges whose whole extents over all blocks meet can clash: two sorted passes find them.
            reach_a = families[a] + np.array([0, (num_blocks - 1) * a[1]])
            reach_b = families[b] + np.array([0, (num_blocks - 1) * b[1]])
            ends = np.maximum.accumulate(reach_b[:, 1])
            for row, (start, stop) in enumerate(reach_a.tolist()):
                first = int(np.searchsorted(ends, start, side="right"))
                last = int(np.searchsorted(reach_b[:, 0], stop, side="left"))
                for other in range(first, last):
                    base_a, stop_a = families[a][row].tolist()
                    base_b, stop_b = families[b][other].tolist()
                    clash = two_stride_clash(
                        (base_a, stop_a - base_a, a[1]), (base_b, stop_b - base_b, b[1]), num_blocks
                    )
                    if clash is not None:
                        yield a, b, clash, max(base_a + clash[0] * a[1], base_b + clash[1] * b[1])


def _refuse_overlap(geometry: CacheGeometry, storage: Name, byte: int, one: tuple, other: tuple) -> None:
    (stride_a, block_a), (stride_b, block_b) = one, other
    raise errors.BlocksOverlapError(
        where=geometry.where, storage=storage, byte_offset=byte, block_a=block_a, block_b=block_b,
        stride_a_bytes=stride_a, stride_b_bytes=stride_b,
        layer_a=_owner(geometry, storage, byte, stride_a, block_a),
        layer_b=_owner(geometry, storage, byte, stride_b, block_b),
    )  # fmt: skip


def _owner(geometry: CacheGeometry, storage: Name, byte: int, stride: int, block: int) -> str:
    """The layer of this stride that owns the byte in this block."""
    for view in geometry.layers:
        if view.storage == storage and view.block_stride_bytes == stride:
            ranges = block_ranges(view, geometry) + block * stride
            if ((ranges[:, 0] <= byte) & (byte < ranges[:, 1])).any():
                return view.name
    return "(unknown)"


def _close_gaps(ranges: np.ndarray, family: tuple[Name, int], pool: dict, geometry: CacheGeometry) -> np.ndarray:
    """Join neighbours over gaps that belong to no view in any block."""
    storage, stride = family
    closed = [ranges[0].tolist()]
    for start, stop in ranges[1:].tolist():
        gap = (closed[-1][1], start)
        fits = geometry.num_blocks == 1 or stop - closed[-1][0] <= stride
        if fits and not any(
            other == storage and _touches(gap, stride, other_ranges, other_stride, geometry.num_blocks)
            for (other, other_stride), other_ranges in pool.items()
        ):
            closed[-1][1] = stop
        else:
            closed.append([start, stop])
    return np.array(closed, np.int64)


def _touches(gap: tuple[int, int], stride: int, ranges: np.ndarray, other_stride: int, num_blocks: int) -> bool:
    """Whether the gap, in any block, meets one of the ranges, in any block."""
    start, stop = gap
    if stride != other_stride:
        return any(
            two_stride_clash((start, stop - start, stride), (low, high - low, other_stride), num_blocks)
            for low, high in ranges.tolist()
        )
    # Shifted by k blocks the gap meets [low, high) when low - stop < k * stride < high - start.
    least = np.maximum((ranges[:, 0] - stop) // stride + 1, 1 - num_blocks)
    most = np.minimum(-((start - ranges[:, 1]) // stride) - 1, num_blocks - 1)
    return bool((least <= most).any())
