"""The zeroing kernel: one Triton source, compiled for a GPU, or run by Triton's interpreter for tests and lessons.

Annotations are evaluated here (no ``from __future__``): Triton reads them.
"""

import os
import threading
from collections.abc import Callable

import triton
import triton.language as tl

# Triton 3.9 warns at the first compilation unless float fusion is chosen explicitly; no kernel here adds floats.
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

    The interpreter keeps the current program id in globals and patches `triton.language` for the whole process
    while it runs, so no other thread may compile a Triton kernel meanwhile.
    """

    _lock = threading.Lock()

    def __init__(self, kernel) -> None:
        self._kernel = kernel

    def __getitem__(self, grid: tuple[int, ...]) -> Callable[..., None]:
        def launch(*arguments, **options) -> None:
            with self._lock:
                self._kernel[grid](*arguments, **options)

        return launch


# Ids that travel as kernel arguments, two 32-bit ids to an argument.
VALUES = 32
MOST_BY_VALUE = 2 * VALUES
# Up to here a program reads four arguments only, and its id costs it next to nothing.
FEW_BY_VALUE = 8


# fmt: off
def _zero_tiles(
    tiles_ptr,  # *int64 (tiles, 4), see `tile_table`
    ids_ptr,  # *int32, one or two words to an id, the lower one first
    skipped_ptr,  # *int64 (1,): grows by the number of ids outside the pool
    num_ids: tl.int32,
    num_blocks: tl.int32,
    words_per_id: tl.int32,  # 1 or 2
    no_block: tl.int32,  # an id outside the pool that is not counted: a free place in `ReplayableIds`
    by_strips: tl.int32,  # the order of the programs, see below
    v0: tl.int64, v1: tl.int64, v2: tl.int64, v3: tl.int64, v4: tl.int64, v5: tl.int64, v6: tl.int64, v7: tl.int64,
    v8: tl.int64, v9: tl.int64, v10: tl.int64, v11: tl.int64, v12: tl.int64, v13: tl.int64, v14: tl.int64,
    v15: tl.int64, v16: tl.int64, v17: tl.int64, v18: tl.int64, v19: tl.int64, v20: tl.int64, v21: tl.int64,
    v22: tl.int64, v23: tl.int64, v24: tl.int64, v25: tl.int64, v26: tl.int64, v27: tl.int64, v28: tl.int64,
    v29: tl.int64, v30: tl.int64, v31: tl.int64,
    TILE_BYTES: tl.constexpr,  # most that one program can write of one block
    STEP_BYTES: tl.constexpr,  # from one cut of a segment to the next: a tile, or a line less
    STORE_WIDTH: tl.constexpr,  # bytes: divides every address, stride and length
    IDS_PER_PROGRAM: tl.constexpr,
    BY_VALUE: tl.constexpr,  # the ids are v0 to v31, two to a number, and all of them lie in the pool
):
    # fmt: on
    """Zero one tile of IDS_PER_PROGRAM blocks.

    Addresses, strides and lengths in the table are in bytes. An id outside the pool writes nothing and is counted.
    """
    if by_strips == 0:
        # Grid (tiles, batches of ids): nothing has to be read before the program knows its tile.
        row = tl.program_id(0)
        batch = tl.program_id(1)
    else:
        # Grid (tiles * batches,), strip by strip (`tiles.strips`) and in a strip batch by batch, so that programs
        # that run at the same time write neighbouring memory: 1 to 3 % for calls of gigabytes. Every row of a strip
        # holds the strip's first row and number of rows.
        program = tl.program_id(0)
        batches = (num_ids + (IDS_PER_PROGRAM - 1)) // IDS_PER_PROGRAM
        strip = tl.load(tiles_ptr + (program // batches).to(tl.int64) * 4 + 3)
        count = (strip >> 32).to(tl.int32)
        first = (strip & 0x7FFFFFFF).to(tl.int32)
        local = program - batches * first
        row = first + local % count
        batch = local // count
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
    if BY_VALUE:
        # A tree of selections, five deep. Reading the arguments after the first four costs a fetch.
        place = which // 2
        one, two, four = (place & 1) != 0, (place & 2) != 0, (place & 4) != 0
        eight, sixteen = (place & 8) != 0, (place & 16) != 0
        pair = tl.where(two, tl.where(one, v3, v2), tl.where(one, v1, v0))
        if num_ids > 8:  # FEW_BY_VALUE
            p1 = tl.where(two, tl.where(one, v7, v6), tl.where(one, v5, v4))
            p2 = tl.where(two, tl.where(one, v11, v10), tl.where(one, v9, v8))
            p3 = tl.where(two, tl.where(one, v15, v14), tl.where(one, v13, v12))
            p4 = tl.where(two, tl.where(one, v19, v18), tl.where(one, v17, v16))
            p5 = tl.where(two, tl.where(one, v23, v22), tl.where(one, v21, v20))
            p6 = tl.where(two, tl.where(one, v27, v26), tl.where(one, v25, v24))
            p7 = tl.where(two, tl.where(one, v31, v30), tl.where(one, v29, v28))
            low = tl.where(eight, tl.where(four, p3, p2), tl.where(four, p1, pair))
            high = tl.where(eight, tl.where(four, p7, p6), tl.where(four, p5, p4))
            pair = tl.where(sixteen, high, low)
        block = (pair >> ((which % 2) * 32).to(tl.int64)) & 0xFFFFFFFF
        writes = live
    else:
        id_ptr = ids_ptr + which.to(tl.int64) * words_per_id
        low_word = tl.load(id_ptr, mask=live, other=0)
        high_word = tl.load(id_ptr + (words_per_id - 1), mask=live, other=0)
        # A mask and no branch: the compiler would move the other loads behind it.
        in_pool = (low_word >= 0) & (low_word < num_blocks) & (high_word * (words_per_id - 1) == 0)
        block = low_word.to(tl.int64)
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
        # Zeros that no_block reads soon need not stay in the cache: 1 to 2 % on an H200. Where narrow stores fill
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
    if BY_VALUE == 0:
        if row == 0:
            skipped = live & (in_pool == 0) & (low_word != no_block)
            tl.atomic_add(skipped_ptr + which * 0, 1, mask=skipped, sem="relaxed", scope="sys")


# Nothing here may compile again because a number changed: not the ids, not how many there are.
zero_tiles_compiled, zero_tiles_interpreted = jit_both(
    _zero_tiles,
    do_not_specialize=[
        "num_ids", "num_blocks", "words_per_id", "no_block", "by_strips", *(f"v{i}" for i in range(VALUES))
    ],  # fmt: skip
    do_not_specialize_on_alignment=["tiles_ptr", "ids_ptr", "skipped_ptr"],
)
