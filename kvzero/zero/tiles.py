"""How a plan becomes programs: the tile table, the launches, and the limits of the device.

Pure arithmetic on a plan: no memory, no GPU, no torch. What differs between kinds of device is stated here alone
(`CUDA`, `AMD`); nothing was run on an AMD device.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from kvzero.errors import LaunchTooLargeError, ZeroingError
from kvzero.layout.records import is_integer

# A GPU starts about 1.6 programs a nanosecond (H200), whatever they do: programs that write 4 KiB stay
# ahead of the memory, shorter ones do not. Longer ones gain nothing. So short pages share a program.
TILE_BYTES = 4096
WIDE_TILE_BYTES = 8192
LEAST_FILLED = 0.75
LEAST_TILE_BYTES = 32
# More ids make pages of a few bytes little faster, and their kernel slow to compile.
MOST_IDS_PER_PROGRAM = 32
# The old kernels have four; limits are counted for those.
MAX_WARPS_PER_PROGRAM = 4
# Up to here the order of the programs makes no difference, and the one that is found fastest is taken.
SMALL_CALL_BYTES = 256 << 20
# CUDA C++ Programming Guide, "Technical Specifications per Compute Capability": second dimension of a grid.
MAX_GRID_Y = 65_535
# A store that starts inside a line of the cache touches one line more, and half-written sectors at its ends.
LINE_BYTES = 128
# The kernel counts ids in 32 bits, and rounds their number up to a whole batch.
MOST_IDS = 2**31 - 1 - MOST_IDS_PER_PROGRAM
# The interpreter runs about 1,000 programs a second whatever their size, so its tiles are large.
INTERPRETER_TILE_BYTES = 1 << 18
MOST_TILE_BYTES = INTERPRETER_TILE_BYTES

# Columns of a tile row.
SEGMENT, OFFSET, NBYTES, ENDS = range(4)
# Bits of the ENDS column: the tile holds the first, or the last, byte of its segment.
HEAD, TAIL = 1, 2


@dataclass(frozen=True, slots=True)
class DeviceLimits:
    """What one launch may hold on a kind of device.

    Args:
        name: the device kind, for messages.
        max_grid_x: most programs in the first grid dimension.
        threads_per_warp: threads in a warp (AMD: wavefront).
        max_work_items: most threads in a launch over all dimensions, or None where only the grid counts.
    """

    name: str
    max_grid_x: int
    threads_per_warp: int
    max_work_items: int | None = None

    @property
    def max_programs(self) -> int:
        """Most programs of `MAX_WARPS_PER_PROGRAM` warps that one launch may hold."""
        if self.max_work_items is None:
            return self.max_grid_x
        return min(self.max_grid_x, self.max_work_items // (MAX_WARPS_PER_PROGRAM * self.threads_per_warp))


# CUDA C++ Programming Guide, "Technical Specifications per Compute Capability": x below 2^31.
CUDA = DeviceLimits("CUDA", max_grid_x=2**31 - 1, threads_per_warp=32)
# HIP counts work items (threads) of the whole launch and refuses 2^32 and more of them.
AMD = DeviceLimits("AMD", max_grid_x=2**31 - 1, threads_per_warp=64, max_work_items=2**32 - 1)


@dataclass(frozen=True, slots=True)
class Launch:
    """The programs that zero a number of blocks.

    Args:
        tile_bytes: most bytes that one program writes of one block.
        store_width_bytes: alignment that the plan proves, which is the width of the narrowest store.
        programs_per_block: programs that a call with one id has.
        empty_programs_per_block: those of them that have nothing to write.
        num_ids: block ids of the call.
        programs: programs in all, over all launches.
        launches: launches that the call is split into.
        grid: grid of the largest launch, (x, y, z).
        ids_per_program: blocks that one program serves.
    """

    tile_bytes: int
    store_width_bytes: int
    programs_per_block: int
    empty_programs_per_block: int
    num_ids: int
    programs: int
    launches: int
    grid: tuple[int, int, int]
    ids_per_program: int = 1

    def to_dict(self) -> dict[str, object]:
        """The same as plain data for JSON."""
        return {**asdict(self), "grid": list(self.grid)}


@dataclass(frozen=True, slots=True)
class Tiling:
    """How programs share the bytes of a plan.

    Args:
        tile_bytes: most bytes that one program writes of one block, a power of two.
        step_bytes: distance between the cuts of a segment (`step_for`).
        ids_per_program: blocks that one program writes its tile of, a power of two.
    """

    tile_bytes: int
    step_bytes: int
    ids_per_program: int


def tiling_for(plan, tile_bytes: int | None = None, most_bytes: int | None = None, addresses: int = 0) -> Tiling:
    """The tiling for a plan.

    Args:
        plan: the plan; only its segments and its number of blocks are read.
        tile_bytes: the tile wanted, for one id a program; None takes the best known.
        most_bytes: longest tile to take if none is wanted; None takes `TILE_BYTES`, or `WIDE_TILE_BYTES` where
            that leaves programs less than three quarters full and saves a quarter of them.
        addresses: the addresses of the storages, or-ed; 0 where they begin on lines.

    Returns:
        The tiling; its tile is no longer than the longest segment needs. Pages so short that a program would
        write less than three quarters of `TILE_BYTES` share one.

    Raises:
        ZeroingError: the tile wanted is not a power of two from `LEAST_TILE_BYTES` to `MOST_TILE_BYTES`.

    Example: a page of 4,224 bytes would be cut into 4,096 and 128; four of 1,152 bytes share a program.
        >>> from types import SimpleNamespace as N
        >>> page, short = (N(base_bytes=0, block_stride_bytes=size, span_bytes=size) for size in (4224, 1152))
        >>> tiling_for(N(segments=[page], num_blocks=9))
        Tiling(tile_bytes=8192, step_bytes=8192, ids_per_program=1)
        >>> tiling_for(N(segments=[short], num_blocks=9))
        Tiling(tile_bytes=2048, step_bytes=2048, ids_per_program=4)
    """
    checked_tile_bytes(tile_bytes)
    spans = [segment.span_bytes for segment in plan.segments]
    total = sum(spans)

    longest = tile_bytes or most_bytes
    if longest is None:
        steps = (step_for(plan, size, addresses) for size in (WIDE_TILE_BYTES, TILE_BYTES))
        few, many = (sum(_tile_counts(spans, step)) for step in steps)
        sparse = total < LEAST_FILLED * TILE_BYTES * many
        longest = WIDE_TILE_BYTES if sparse and few < LEAST_FILLED * many else TILE_BYTES
    tile = LEAST_TILE_BYTES
    while tile < longest and step_for(plan, tile, addresses) < max(spans):
        tile *= 2
    step = step_for(plan, tile, addresses)
    ids = 1
    if tile_bytes is None:
        mean_bytes = total / sum(_tile_counts(spans, step))
        most_ids = min(WIDE_TILE_BYTES // tile, MOST_IDS_PER_PROGRAM)
        while ids * mean_bytes < LEAST_FILLED * TILE_BYTES and ids < most_ids:
            ids *= 2
    return Tiling(tile, step, ids)


def _tile_counts(spans_bytes: Sequence[int], step_bytes: int) -> list[int]:
    """Tiles of each segment; plain integers, since a page may be larger than any table of its tiles could be."""
    return [-(-span // step_bytes) for span in spans_bytes]


def checked_tile_bytes(tile_bytes: Any) -> None:
    """Raise `ZeroingError` unless a wanted tile is None or a power of two within bounds."""
    if tile_bytes is None:
        return
    in_bounds = type(tile_bytes) is int and LEAST_TILE_BYTES <= tile_bytes <= MOST_TILE_BYTES
    if not in_bounds or tile_bytes & (tile_bytes - 1):
        raise ZeroingError("tile-bytes", tile_bytes=tile_bytes, least=LEAST_TILE_BYTES, most=MOST_TILE_BYTES)


def strips(plan) -> np.ndarray:
    """Which segments lie interleaved: those whose blocks share a range of memory have one number.

    Programs go strip by strip, so that addresses ascend with the ids where every layer is an array of blocks, and
    the pages of one block are written together where blocks hold several.

    Args:
        plan: the plan.

    Returns:
        int64, shape (segments,): numbers from 0, ascending with the storage and the base.

    Example:
        >>> from types import SimpleNamespace as N
        >>> pages = [N(storage=0, base_bytes=base, block_stride_bytes=64, span_bytes=64) for base in (0, 640)]
        >>> strips(N(segments=pages, num_blocks=10)).tolist(), strips(N(segments=pages, num_blocks=11)).tolist()
        ([0, 1], [0, 0])
    """
    place = {storage: index for index, storage in enumerate(dict.fromkeys(each.storage for each in plan.segments))}
    strip = np.zeros(len(plan.segments), dtype=np.int64)
    number, storage, end = -1, None, 0
    ascending = sorted(enumerate(plan.segments), key=lambda item: (place[item[1].storage], item[1].base_bytes))
    for index, segment in ascending:
        if segment.storage != storage or segment.base_bytes >= end:
            number, storage, end = number + 1, segment.storage, 0
        extent = (plan.num_blocks - 1) * segment.block_stride_bytes + segment.span_bytes
        end = max(end, segment.base_bytes + extent)
        strip[index] = number
    return strip


def step_for(plan, tile_bytes: int, addresses: int = 0) -> int:
    """Distance between the cuts of a segment, in bytes.

    Args:
        plan: the plan.
        tile_bytes: most bytes that one program can write.
        addresses: the addresses of the storages, or-ed; 0 where they begin on lines.

    Returns:
        `tile_bytes` if every page begins and ends on a line. Else one line less: the cuts inside a page are moved
        down to lines, and its last tile may grow by what the first one lost.

    Example:
        >>> from types import SimpleNamespace as N
        >>> page = N(base_bytes=0, block_stride_bytes=37_440, span_bytes=37_376)
        >>> step_for(N(segments=[page], num_blocks=9), 4096)
        3968
    """
    line_bytes = min(LINE_BYTES, tile_bytes // 2)
    bits = addresses
    for segment in plan.segments:
        bits |= segment.base_bytes | segment.span_bytes
        if plan.num_blocks > 1:
            bits |= segment.block_stride_bytes
    return tile_bytes if bits % line_bytes == 0 else tile_bytes - line_bytes


def tile_rows(plan, step_bytes: int) -> np.ndarray:
    """Cuts every segment of a plan into tiles.

    Args:
        plan: the plan; only its segments are read.
        step_bytes: distance between the cuts, at least 16.

    Returns:
        An int64 array of shape (tiles, 4), in the order of the segments: index of the segment, offset of the
        tile in it (bytes), bytes in the tile, and `HEAD`/`TAIL` bits. No row is empty.

    Example:
        >>> from types import SimpleNamespace as N
        >>> tile_rows(N(segments=[N(span_bytes=5000)]), 4096).tolist()
        [[0, 0, 4096, 1], [0, 4096, 904, 2]]
    """
    spans = np.array([segment.span_bytes for segment in plan.segments], dtype=np.int64)
    counts = np.array(_tile_counts(spans.tolist(), step_bytes), dtype=np.int64)
    segment = np.repeat(np.arange(len(spans)), counts)
    first_row = np.repeat(np.cumsum(counts) - counts, counts)
    offset = (np.arange(len(segment)) - first_row) * step_bytes
    left = spans[segment] - offset
    ends = np.where(offset == 0, HEAD, 0) | np.where(left <= step_bytes, TAIL, 0)
    return np.stack([segment, offset, np.minimum(left, step_bytes), ends], axis=1).astype(np.int64)


def tile_table(plan, addresses: np.ndarray, step_bytes: int) -> np.ndarray:
    """The kernel's table: one row for each tile of a block, strip by strip (`strips`).

    Args:
        plan: the plan.
        addresses: address of each segment's storage, uint64, shape (segments,).
        step_bytes: distance between the cuts of a segment.

    Returns:
        int64, shape (tiles, 4): address of the tile in block 0, block stride, bytes of the tile above the two
        HEAD/TAIL bits, and the first row of its strip with (from bit 32) the strip's number of rows.
    """
    rows = tile_rows(plan, step_bytes)
    strip = strips(plan)[rows[:, SEGMENT]]
    by_strip = np.argsort(strip, kind="stable")
    rows, strip = rows[by_strip], strip[by_strip]
    segment = rows[:, SEGMENT]
    # Signed, since the kernel adds signed numbers; bit 63 may be set on some devices (#37197).
    starts = addresses.view(np.int64) + np.array([each.base_bytes for each in plan.segments], dtype=np.int64)
    strides = np.array([each.block_stride_bytes for each in plan.segments], dtype=np.int64)
    counts = np.bincount(strip)
    firsts = np.cumsum(counts) - counts
    nbytes_and_ends = rows[:, NBYTES] << 2 | rows[:, ENDS]
    places = (firsts | counts << 32)[strip]
    return np.stack([starts[segment] + rows[:, OFFSET], strides[segment], nbytes_and_ends, places], axis=1)


def ids_per_launch(programs_per_block: int, limits: DeviceLimits = CUDA, ids_per_program: int = 1) -> int:
    """How many block ids fit into one launch; raises `LaunchTooLargeError` where not even one does."""
    fits = limits.max_programs // programs_per_block
    if fits == 0:
        raise LaunchTooLargeError(
            programs_per_block=programs_per_block, limit_programs=limits.max_programs, device=limits.name
        )
    # Whole batches, whose number a 32-bit integer holds.
    return min(fits, MOST_IDS // ids_per_program) * ids_per_program


def grid_for(num_tiles: int, num_ids: int, ids_per_program: int, nbytes: int) -> tuple[tuple[int, int, int], int]:
    """The grid of one launch, and whether its programs go strip by strip (0 or 1, as the kernel takes it).

    Args:
        num_tiles: tiles of a block.
        num_ids: ids of the launch, at least 1.
        ids_per_program: blocks that one program serves.
        nbytes: bytes that the launch writes.

    Example: 3 tiles of 100 ids each, in a small call and in a large one.
        >>> grid_for(3, 100, 1, nbytes=1 << 20), grid_for(3, 100, 1, nbytes=1 << 30)
        (((3, 100, 1), 0), ((300, 1, 1), 1))
    """
    batches = -(-num_ids // ids_per_program)
    if nbytes > SMALL_CALL_BYTES or batches > MAX_GRID_Y:
        return (num_tiles * batches, 1, 1), 1
    return (num_tiles, batches, 1), 0


def checked_num_ids(num_ids: Any) -> int:
    """A number of ids as an int; raises `ZeroingError` if it is not a whole number, 0 or more."""
    if not is_integer(num_ids) or num_ids < 0:
        raise ZeroingError("num-ids", num_ids=num_ids)
    return int(num_ids)


def launch_for(plan, num_ids: int | None = None, limits: DeviceLimits = CUDA, tile_bytes: int | None = None) -> Launch:
    """The launches that zero `num_ids` blocks of a plan: programs for every tile of every block, and no other.

    Args:
        plan: the plan; its storages are taken to begin on 128-byte lines, as allocators give them.
        num_ids: block ids of the call, at least 0; None means every block of the pool.
        limits: limits of the device.
        tile_bytes: bytes of a tile; None takes the best known.

    Returns:
        The `Launch`.

    Raises:
        LaunchTooLargeError: one block alone needs more programs than a launch may hold.
        ZeroingError: the tile wanted is not a power of two from 32 to 262,144.
        ZeroingError: `num_ids` is no such number.

    Example:
        >>> launch_for(plan, num_ids=6870).programs        # doctest: +SKIP
        6870000
    """
    num_ids = plan.num_blocks if num_ids is None else checked_num_ids(num_ids)
    tiling = tiling_for(plan, tile_bytes)
    spans = [segment.span_bytes for segment in plan.segments]
    counts = _tile_counts(spans, tiling.step_bytes)
    per_block = sum(counts)
    # A segment's last tile is the one that could begin where nothing is left to write.
    lasts = [span - (count - 1) * tiling.step_bytes for span, count in zip(spans, counts, strict=True)]
    batch = tiling.ids_per_program
    fits = ids_per_launch(per_block, limits, batch)
    return Launch(
        tile_bytes=tiling.tile_bytes,
        store_width_bytes=plan.alignment_bytes,
        programs_per_block=per_block,
        empty_programs_per_block=sum(last <= 0 for last in lasts),
        num_ids=num_ids,
        programs=per_block * -(-num_ids // batch),
        launches=-(-num_ids // fits),
        grid=grid_for(per_block, min(num_ids, fits), batch, min(num_ids, fits) * sum(spans))[0],
        ids_per_program=batch,
    )
