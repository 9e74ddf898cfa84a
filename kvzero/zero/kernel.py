"""The zeroing kernel: one Triton source, compiled for a GPU, and run by Triton's interpreter for tests and lessons.

Annotations are evaluated here (no ``from __future__``): Triton reads them.
"""

import os
import threading
from collections.abc import Callable

import numpy as np
import torch
import triton
import triton.language as tl

from kvzero.zero.tiles import ENDS, NBYTES, OFFSET, SEGMENT, strips, tile_rows

# Triton 3.9 warns at the first compilation unless float fusion is chosen explicitly; this kernel adds no floats.
NO_FLOATS = {"enable_fp_fusion": False}


def jit_both(function, **options):
    """Decorates one Triton function twice, as compiled and as interpreted.

    Triton decides when it decorates, from ``TRITON_INTERPRET``, which of the two a function is; a process
    that has CPU and GPU tensors needs both. The function may use the builtins of `triton.language` (load,
    store, arange, where, full), but not its own jitted helpers (zeros, cdiv, sum): those were decorated
    once, when it was imported.

    Args:
        function: the plain Python function.
        options: passed on to `triton.jit`.

    Returns:
        (compiled, interpreted): the first is for GPU tensors, the second for CPU tensors.
    """
    before = os.environ.get("TRITON_INTERPRET")
    kernels = []
    try:
        for interpret in "0", "1":
            os.environ["TRITON_INTERPRET"] = interpret
            kernels.append(triton.jit(**options)(function))
    finally:
        del os.environ["TRITON_INTERPRET"]
        if before is not None:
            os.environ["TRITON_INTERPRET"] = before
    compiled, interpreted = kernels
    return compiled, _OneAtATime(interpreted)


class _OneAtATime:
    """An interpreted kernel that one thread runs at a time.

    The interpreter stores the current program id in globals and patches `triton.language` for the whole process
    while it runs, so another thread must not compile a Triton kernel meanwhile.
    """

    _lock = threading.Lock()

    def __init__(self, kernel) -> None:
        self._kernel = kernel

    def __getitem__(self, grid: tuple[int, ...]) -> Callable[..., None]:
        def launch(*arguments, **options) -> None:
            with self._lock:
                self._kernel[grid](*arguments, **options)

        return launch


# Where a launch finds its block ids: in an array; in an array after their number; in its own arguments.
IN_ARRAY, COUNTED, BY_VALUE = range(3)
# Two 32-bit ids to an argument.
VALUES = 32
MOST_BY_VALUE = 2 * VALUES
NO_VALUES = (0,) * VALUES
OPTIONS = {"num_warps": 1, **NO_FLOATS}


# fmt: off
def _zero_tiles(
    tiles_ptr,  # *int64 (num_tiles, 4), see `tile_table`
    ids_ptr,  # *int64 (num_ids,), or (1 + num_ids,) with their number first if IDS is COUNTED
    refused_ptr,  # *int64 (1,): grows by the number of ids outside the pool
    started_ptr,  # *int64 (1,): grows by 1 once the launch has started
    num_ids: tl.int32, num_blocks: tl.int64,
    # Up to 64 ids, two to an argument, if IDS is BY_VALUE.
    v0: tl.int64, v1: tl.int64, v2: tl.int64, v3: tl.int64, v4: tl.int64, v5: tl.int64, v6: tl.int64, v7: tl.int64,
    v8: tl.int64, v9: tl.int64, v10: tl.int64, v11: tl.int64, v12: tl.int64, v13: tl.int64, v14: tl.int64,
    v15: tl.int64, v16: tl.int64, v17: tl.int64, v18: tl.int64, v19: tl.int64, v20: tl.int64, v21: tl.int64,
    v22: tl.int64, v23: tl.int64, v24: tl.int64, v25: tl.int64, v26: tl.int64, v27: tl.int64, v28: tl.int64,
    v29: tl.int64, v30: tl.int64, v31: tl.int64,
    TILE_BYTES: tl.constexpr,  # most that one program can write of one block
    STEP_BYTES: tl.constexpr,  # from one cut of a segment to the next: a tile, or a line less
    STORE_WIDTH: tl.constexpr,  # bytes: divides every address, stride and length
    IDS_PER_PROGRAM: tl.constexpr,
    IDS: tl.constexpr,  # IN_ARRAY, COUNTED or BY_VALUE, as plain numbers
):
    # fmt: on
    """Zero one tile of IDS_PER_PROGRAM blocks; the grid has one program for each tile and batch of ids.

    Every address, stride and length in the table is in bytes. A block id outside [0, num_blocks) writes nothing and
    is counted.
    """
    program = tl.program_id(0)
    batches = (num_ids + (IDS_PER_PROGRAM - 1)) // IDS_PER_PROGRAM
    if num_ids <= 64:
        # A few ids: tile by tile, so that the tile is found without reading anything first.
        row = program // batches
        batch = program - batches * row
    else:
        # Many ids: strip by strip (`tile_table`) and within a strip batch by batch, so that programs that run at the
        # same time write neighbouring memory. Every row of a strip holds the strip's first row and number of rows.
        strip = tl.load(tiles_ptr + (program // batches).to(tl.int64) * 4 + 3)
        count = (strip >> 32).to(tl.int32)
        first = (strip & 0x7FFFFFFF).to(tl.int32)
        local = program - batches * first
        batch = local // count
        row = first + local - batch * count
    row_ptr = tiles_ptr + row.to(tl.int64) * 4
    start = tl.load(row_ptr)
    stride = tl.load(row_ptr + 1)
    nbytes_and_ends = tl.load(row_ptr + 2)
    nbytes = nbytes_and_ends >> 2
    is_first = (nbytes_and_ends & 1) != 0
    is_last = (nbytes_and_ends & 2) != 0
    # From here on what depends on an id has shape (IDS_PER_PROGRAM, 1).
    which = batch * IDS_PER_PROGRAM + tl.arange(0, IDS_PER_PROGRAM)[:, None]
    live = which < num_ids
    if IDS == 2:
        values = (
            v0, v1, v2, v3, v4, v5, v6, v7, v8, v9, v10, v11, v12, v13, v14, v15,
            v16, v17, v18, v19, v20, v21, v22, v23, v24, v25, v26, v27, v28, v29, v30, v31,
        )  # fmt: skip
        # Every thread selects its id, which takes as long as its stores, so a few ids are selected among few arguments.
        pair = tl.where(which < 2, v0, v1)
        if num_ids > 4:
            for k in tl.static_range(2, 4):
                pair = tl.where(which // 2 == k, values[k], pair)
        if num_ids > 8:
            for k in tl.static_range(4, 8):
                pair = tl.where(which // 2 == k, values[k], pair)
        if num_ids > 16:
            for k in tl.static_range(8, 32):
                pair = tl.where(which // 2 == k, values[k], pair)
        block = (pair >> ((which % 2) * 32).to(tl.int64)) & 0xFFFFFFFF
    elif IDS == 1:
        live = live & (which < tl.load(ids_ptr))
        block = tl.load(ids_ptr + 1 + which, mask=live, other=0).to(tl.int64)
    else:
        block = tl.load(ids_ptr + which, mask=live, other=0).to(tl.int64)
    # A mask and no branch: the compiler would move the other loads behind it.
    in_pool = (block >= 0) & (block < num_blocks)
    writes = in_pool & live
    start += block * stride
    end = start + nbytes
    if STEP_BYTES == TILE_BYTES:
        body, skip, stop = start, 0, nbytes // 16
    else:
        # The cuts inside a segment move down to the next line, so that all stores but those at its first and
        # last bytes fill whole lines. A tile stays within TILE_BYTES of the line that it begins in.
        body = start & (STEP_BYTES - TILE_BYTES)
        start = tl.where(is_first, start, body)
        end = tl.where(is_last, end, body + STEP_BYTES)
        body_start = (start + 15) & -16
        body_end = end & -16
        skip, stop = (body_start - body) // 16, (body_end - body) // 16
    # Without the hint a pointer out of a table has no known alignment and gets 4-byte stores; a mask of whole
    # 16 bytes is as wide as the store.
    word = tl.arange(0, TILE_BYTES // 4)[None, :]
    word_ptr = tl.multiple_of(body.to(tl.pointer_type(tl.int32)) + word, [1, 16])
    mask = writes & (word // 4 >= skip) & (word // 4 < stop)
    if STORE_WIDTH == 16:
        # Zeros that nobody reads soon need not stay in the cache: 1 to 2 % on an H200. Where narrow stores fill
        # up half-written sectors it costs as much.
        tl.store(word_ptr, 0, mask=mask, cache_modifier=".cs")
    else:
        tl.store(word_ptr, 0, mask=mask)
        if is_first | is_last:
            # 16 bytes of lanes for the head, 16 for the tail, each as wide as the plan allows.
            lane = (tl.arange(0, 32 // STORE_WIDTH) * STORE_WIDTH)[None, :]
            is_head = lane < 16
            tail_start = tl.where(body_end > body_start, body_end, body_start)
            head_end = tl.where(body_start < end, body_start, end)
            address = tl.where(is_head, start + lane, tail_start + (lane - 16))
            inside = writes & (address < tl.where(is_head, head_end, end))
            if STORE_WIDTH == 8:
                tl.store(address.to(tl.pointer_type(tl.int64)), 0, mask=inside)
            elif STORE_WIDTH == 4:
                tl.store(address.to(tl.pointer_type(tl.int32)), 0, mask=inside)
            elif STORE_WIDTH == 2:
                tl.store(address.to(tl.pointer_type(tl.int16)), 0, mask=inside)
            else:
                tl.store(address.to(tl.pointer_type(tl.int8)), 0, mask=inside)
    if row == 0:
        refused = live & (in_pool == 0)
        tl.atomic_add(refused_ptr + which * 0, 1, mask=refused, sem="relaxed", scope="sys")
    if program == 0:
        tl.atomic_add(started_ptr, 1, sem="relaxed", scope="sys")


# No number may cause another compilation: neither the ids nor how many there are.
zero_tiles_compiled, zero_tiles_interpreted = jit_both(
    _zero_tiles,
    do_not_specialize=["num_ids", "num_blocks", *(f"v{i}" for i in range(VALUES))],
    do_not_specialize_on_alignment=["tiles_ptr", "ids_ptr", "refused_ptr", "started_ptr"],
)


def tile_table(plan, addresses, step_bytes: int) -> np.ndarray:
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


class Specialization:
    """The kernel compiled for one set of constants, on the current GPU.

    Args:
        constants: TILE_BYTES, STEP_BYTES, STORE_WIDTH and IDS_PER_PROGRAM of the kernel.
        ids: IN_ARRAY, COUNTED or BY_VALUE.
    """

    def __init__(self, constants: tuple[int, int, int, int], ids: int) -> None:
        self._constants = (*constants, ids)
        arrays = (torch.int64,) * 4
        self._compiled = zero_tiles_compiled.warmup(
            *arrays, 1, 1, *NO_VALUES, *self._constants, grid=(1,), **OPTIONS
        )

    def launch(
        self, programs: int, tiles: int, ids: int, refused: int, started: int, num_ids: int, num_blocks: int,
        values: tuple[int, ...] = NO_VALUES,
    ) -> None:  # fmt: skip
        """Launch the kernel on the current stream.

        Args:
            programs: size of the one-dimensional grid.
            tiles, ids, refused, started: device addresses of the kernel's arrays.
            num_ids, num_blocks: ids of the launch, blocks of the pool.
            values: the ids, two to a number, if they travel as arguments.
        """
        self._compiled[(programs, 1, 1)](
            tiles, ids, refused, started, num_ids, num_blocks, *values, *self._constants
        )


def zero_interpreted(table: np.ndarray, constants: tuple[int, int, int, int], block_ids: np.ndarray, num_blocks: int):
    """Run the kernel through Triton's interpreter on CPU memory, about 1,000 programs a second.

    Args:
        table: the kernel's table, int64 of shape (tiles, 4), with addresses of CPU memory.
        constants: TILE_BYTES, STEP_BYTES, STORE_WIDTH and IDS_PER_PROGRAM of the kernel.
        block_ids: int64, shape (ids,).
        num_blocks: blocks of the pool.

    Returns:
        How many ids the kernel refused.
    """
    refused, started = torch.zeros(2, 1, dtype=torch.int64, device="cpu")
    batches = -(-len(block_ids) // constants[3])
    if batches:
        zero_tiles_interpreted[(len(table) * batches,)](
            torch.from_numpy(table), torch.from_numpy(block_ids), refused, started, len(block_ids), num_blocks,
            *NO_VALUES, *constants, IN_ARRAY,
        )  # fmt: skip
    return int(refused[0])
