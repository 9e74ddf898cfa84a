"""The one Triton kernel: compiled for a GPU, run by Triton's interpreter on a CPU, from the same source.

Annotations are evaluated here (no ``from __future__``): Triton reads them.
"""

import os
import threading
from collections.abc import Callable

import numpy as np
import torch
import triton
import triton.language as tl

from .launch import ENDS, NBYTES, OFFSET, SEGMENT, WARPS_PER_PROGRAM, strips, tile_rows

# `CompiledKernel.run` takes the same arguments in these versions (tests/test_kernel.py holds it to that);
# in any other the public `kernel[grid](...)` launches, at several times the host cost.
FAST_LAUNCH_VERSIONS = ((3, 6), (3, 7), (3, 8), (3, 9))
# Fewer programs at once than the GPU could hold leave fewer pages half written: 0.5 % on an H200, and a loss of more
# than that below 16. Shared memory that they do not use keeps the others out; only the fast launch can ask for it.
RESIDENT_PROGRAMS = 18
# No kernel of ours adds floats. Said outright, since Triton 3.9 warns of a coming default where nothing is said.
NO_FLOATS = {"enable_fp_fusion": False}
TRITON_VERSION = tuple(int(part) for part in triton.__version__.split(".")[:2])


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
    """An interpreted kernel. The interpreter keeps the program it is at in globals: two threads would share it."""

    _lock = threading.Lock()

    def __init__(self, kernel) -> None:
        self._kernel = kernel

    def __getitem__(self, grid: tuple[int, ...]) -> Callable[..., None]:
        def launch(*arguments, **options) -> None:
            with self._lock:
                self._kernel[grid](*arguments, **options)

        return launch


# Where a launch finds its block ids: in an array; in an array after their number; in its own arguments, by
# value.
IN_ARRAY, COUNTED, BY_VALUE = range(3)
# Two 32-bit ids to an argument.
VALUES = 32
MOST_BY_VALUE = 2 * VALUES
_NO_VALUES = (0,) * VALUES
OPTIONS = {"num_warps": WARPS_PER_PROGRAM, **NO_FLOATS}


# fmt: off
def _zero_tiles(
    tiles_ptr,  # *int64 (tiles, 4), see `tile_table`
    ids_ptr,  # *int32 or *int64 (ids,)
    refused_ptr,  # *int64 (2,): how many ids were outside the pool, and one of them
    num_ids: tl.int32, num_blocks: tl.int64,
    v0: tl.int64, v1: tl.int64, v2: tl.int64, v3: tl.int64, v4: tl.int64, v5: tl.int64, v6: tl.int64, v7:
    tl.int64,
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
    # One program writes one tile of each of its blocks. Programs go strip by strip (`tile_table`), in a strip
    # batch by batch of ids, so that what runs together writes together.
    program = tl.program_id(0)
    batches = (num_ids + (IDS_PER_PROGRAM - 1)) // IDS_PER_PROGRAM
    # Whichever row of its strip this is, it says where the strip's rows begin and how many they are.
    strip = tl.load(tiles_ptr + (program // batches).to(tl.int64) * 4 + 3)
    count = (strip >> 32).to(tl.int32)
    first = (strip & 0x7FFFFFFF).to(tl.int32)
    local = program - batches * first
    row = first + local % count
    row_ptr = tiles_ptr + row.to(tl.int64) * 4
    start = tl.load(row_ptr)
    stride = tl.load(row_ptr + 1)
    nbytes_and_ends = tl.load(row_ptr + 2)
    nbytes = nbytes_and_ends >> 2
    is_first = (nbytes_and_ends & 1) != 0
    is_last = (nbytes_and_ends & 2) != 0
    # From here on what depends on an id has shape (IDS_PER_PROGRAM, 1).
    which = local // count * IDS_PER_PROGRAM + tl.arange(0, IDS_PER_PROGRAM)[:, None]
    live = which < num_ids
    if IDS == 2:
        values = (
            v0, v1, v2, v3, v4, v5, v6, v7, v8, v9, v10, v11, v12, v13, v14, v15,
            v16, v17, v18, v19, v20, v21, v22, v23, v24, v25, v26, v27, v28, v29, v30, v31,
        )  # fmt: skip
        pair = v0
        for k in tl.static_range(1, 32):
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
        tl.store(refused_ptr + 1 + which * 0, block, mask=refused)


# Nothing here may compile again because a number changed: not the ids, not how many there are.
zero_tiles_compiled, zero_tiles_interpreted = jit_both(
    _zero_tiles,
    do_not_specialize=["num_ids", "num_blocks", *(f"v{i}" for i in range(VALUES))],
    do_not_specialize_on_alignment=["tiles_ptr", "ids_ptr", "refused_ptr"],
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


class CompiledVariant:
    """One compiled form of the kernel on the current GPU, launched with integer addresses.

    Args:
        tile_bytes: most bytes that one program can write, a power of two of at least 32.
        step_bytes: distance between the cuts of a segment (`step_for`).
        store_width_bytes: 16, 8, 4, 2 or 1; divides every address, stride and length.
        ids_per_program: ids that one program serves.
        ids: IN_ARRAY, COUNTED or BY_VALUE.
        id_dtype: torch.int32 or torch.int64, the type of the ids in an array.
    """

    def __init__(
        self, tile_bytes: int, step_bytes: int, store_width_bytes: int, ids_per_program: int, ids: int,
        id_dtype: torch.dtype,
    ) -> None:  # fmt: skip
        self._constants = (tile_bytes, step_bytes, store_width_bytes, ids_per_program, ids)
        self._types = (torch.int64, id_dtype, torch.int64)
        self.kernel = zero_tiles_compiled.warmup(
            *self._types, 1, 1, *_NO_VALUES, *self._constants, grid=(1,), **OPTIONS
        )
        self.fast = TRITON_VERSION in FAST_LAUNCH_VERSIONS
        if self.fast:
            reserved_bytes = 0 if torch.version.hip else _shared_bytes(RESIDENT_PROGRAMS)
            self._launch_fast = fast_launcher(self.kernel, reserved_bytes)

    def launch(
        self, stream: int, tiles: int, ids: int, refused: int, programs: int, num_ids: int, num_blocks: int,
        values: tuple[int, ...] = _NO_VALUES,
    ) -> None:  # fmt: skip
        """Launches the programs of some ids.

        Args:
            stream: raw handle of the current stream.
            tiles, ids, refused: addresses of the kernel's arrays, as the device sees them.
            programs, num_ids, num_blocks: programs and ids of the launch; blocks of the pool.
            values: the ids, two to a number, if they go by value.
        """
        if self.fast and not _launch_hooks():
            self._launch_fast(
                programs, stream, tiles, ids, refused, num_ids, num_blocks, *values, *self._constants
            )  # fmt: skip
        else:
            arrays = map(_Array, (tiles, ids, refused), self._types)
            numbers = num_ids, num_blocks, *values, *self._constants
            zero_tiles_compiled[(programs,)](*arrays, *numbers, **OPTIONS)


def fast_launcher(kernel, shared_bytes: int) -> Callable[..., None]:
    """What `kernel[grid](*arguments, stream=stream)` of a compiled Triton kernel ends in, without the way there.

    Args:
        kernel: the compiled kernel.
        shared_bytes: least shared memory to give to each program; it gets more where the kernel needs more.

    Returns:
        A function of the number of programs, the raw handle of the stream, and the kernel's arguments, with
        addresses for tensors.
    """
    run = kernel.run  # first: it loads the kernel, so that `function` is known
    function = kernel.function
    num_warps, num_ctas, own_bytes = kernel.packed_metadata
    metadata = num_warps, num_ctas, max(own_bytes, shared_bytes)

    def launch(programs: int, stream: int, *arguments) -> None:
        run(programs, 1, 1, stream, function, metadata, None, None, None, *arguments)

    return launch


def _shared_bytes(programs: int) -> int:
    """Shared memory of a program that lets a multiprocessor hold so many of them; 1 KB of each is the driver's."""
    properties = torch.cuda.get_device_properties(torch.cuda.current_device())
    share = properties.shared_memory_per_multiprocessor // programs - 1024
    return min(share, properties.shared_memory_per_block) // 128 * 128


def _launch_hooks():
    """A profiler's hooks, which the public launch serves; Triton keeps an empty chain of them, or None."""
    hook = triton.knobs.runtime.launch_enter_hook
    return getattr(hook, "calls", hook)


class _Array:
    """What Triton's public launch asks of a tensor: an address and an element type."""

    def __init__(self, address: int, dtype: torch.dtype) -> None:
        self._address = address
        self.dtype = dtype

    def data_ptr(self) -> int:
        return self._address
