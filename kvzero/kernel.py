"""The one Triton kernel: compiled for a GPU, run by Triton's interpreter on a CPU, from the same source.

Annotations are evaluated here (no ``from __future__``): Triton reads them.
"""

import os

import torch
import triton
import triton.language as tl

from .launch import WARPS_PER_PROGRAM

# `CompiledKernel.run` takes the same arguments in these versions (tests/test_kernel.py holds it to that);
# in any other the public `kernel[grid](...)` launches, at several times the host cost.
FAST_LAUNCH_VERSIONS = ((3, 6), (3, 7), (3, 8), (3, 9))
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
    return tuple(kernels)


def _zero_tiles(
    tiles_ptr,  # *int64 (tiles, 4): address of the tile in block 0, block stride, bytes, HEAD/TAIL bits
    ids_ptr,  # *int32 or *int64 (ids,): block ids; if COUNTED, the number of ids comes first
    refused_ptr,  # *int64 (2,): how many ids were outside the pool, and one of them
    num_tiles: tl.int32,
    num_blocks: tl.int64,
    TILE_BYTES: tl.constexpr,
    STORE_WIDTH: tl.constexpr,  # bytes: divides every address, stride and length
    COUNTED: tl.constexpr,
):
    program = tl.program_id(0)
    which = program // num_tiles
    tile = program % num_tiles
    # All loads before any branch on one of them, so that they wait for memory together.
    row_ptr = tiles_ptr + tile.to(tl.int64) * 4
    start = tl.load(row_ptr)
    stride = tl.load(row_ptr + 1)
    nbytes = tl.load(row_ptr + 2)
    live = True
    if COUNTED:
        live = which < tl.load(ids_ptr)
        ids_ptr += 1
    if live:
        block = tl.load(ids_ptr + which).to(tl.int64)
        if (block >= 0) & (block < num_blocks):
            start += block * stride
            end = start + nbytes
            if STORE_WIDTH == 16:
                body_start = start
                body_end = end
            else:
                # The inner cuts of a segment move down to the next 16-byte boundary, so that only its first
                # and its last tile have a ragged end. The body of a tile stays within TILE_BYTES.
                ends = tl.load(row_ptr + 3)
                start = tl.where((ends & 1) != 0, start, start & -16)
                end = tl.where((ends & 2) != 0, end, end & -16)
                body_start = (start + 15) & -16
                body_end = end & -16
                if ends != 0:
                    # 16 bytes of lanes for the head, 16 for the tail, each as wide as the plan allows.
                    lane = tl.arange(0, 32 // STORE_WIDTH) * STORE_WIDTH
                    is_head = lane < 16
                    tail_start = tl.where(body_end > body_start, body_end, body_start)
                    head_end = tl.where(body_start < end, body_start, end)
                    address = tl.where(is_head, start + lane, tail_start + (lane - 16))
                    inside = address < tl.where(is_head, head_end, end)
                    if STORE_WIDTH == 8:
                        tl.store(address.to(tl.pointer_type(tl.int64)), 0, mask=inside)
                    elif STORE_WIDTH == 4:
                        tl.store(address.to(tl.pointer_type(tl.int32)), 0, mask=inside)
                    elif STORE_WIDTH == 2:
                        tl.store(address.to(tl.pointer_type(tl.int16)), 0, mask=inside)
                    else:
                        tl.store(address.to(tl.pointer_type(tl.int8)), 0, mask=inside)
            # Without these hints a pointer out of a table has no known alignment and gets 4-byte stores; the
            # word count keeps the mask as wide as the store.
            body_ptr = tl.multiple_of(body_start.to(tl.pointer_type(tl.int32)), 16)
            body_words = tl.multiple_of(((body_end - body_start) // 16) * 4, 4)
            word = tl.arange(0, TILE_BYTES // 4)
            tl.store(body_ptr + word, 0, mask=word < body_words)
        else:
            if tile == 0:
                tl.atomic_add(refused_ptr, 1, sem="relaxed", scope="sys")
                tl.store(refused_ptr + 1, block)


# Nothing here may compile again because a number changed: not the ids, not how many there are.
zero_tiles_compiled, zero_tiles_interpreted = jit_both(
    _zero_tiles,
    do_not_specialize=["num_tiles", "num_blocks"],
    do_not_specialize_on_alignment=["tiles_ptr", "ids_ptr", "refused_ptr"],
)


class CompiledVariant:
    """One compiled form of the kernel on the current GPU, launched with integer addresses.

    Args:
        tile_bytes: bytes of a tile, a power of two of at least 32.
        store_width_bytes: 16, 8, 4, 2 or 1; divides every address, stride and length.
        id_dtype: torch.int32 or torch.int64, the type of the ids in memory.
        counted: whether the number of ids precedes them in memory.
    """

    def __init__(self, tile_bytes: int, store_width_bytes: int, id_dtype: torch.dtype, counted: bool) -> None:
        self._constants = (tile_bytes, store_width_bytes, counted)
        self._types = (torch.int64, id_dtype, torch.int64)
        self.kernel = zero_tiles_compiled.warmup(
            *self._types, 1, 1, *self._constants, grid=(1,), num_warps=WARPS_PER_PROGRAM
        )
        self.fast = TRITON_VERSION in FAST_LAUNCH_VERSIONS

    def launch(
        self, programs: int, stream: int, tiles: int, ids: int, refused: int, num_tiles: int, num_blocks: int
    ) -> None:
        """Launches programs.

        Args:
            programs: how many, in one grid dimension.
            stream: raw handle of the current stream.
            tiles, ids, refused: addresses of the kernel's arrays, as the device sees them.
            num_tiles, num_blocks: rows of the tile table; blocks of the pool.
        """
        kernel = self.kernel
        # Hooks are a profiler's: the public launch serves them.
        if self.fast and triton.knobs.runtime.launch_enter_hook is None:
            kernel.run(
                programs, 1, 1, stream, kernel.function, kernel.packed_metadata, None, None, None,
                tiles, ids, refused, num_tiles, num_blocks, *self._constants,
            )  # fmt: skip
        else:
            arrays = map(_Array, (tiles, ids, refused), self._types)
            zero_tiles_compiled[(programs,)](
                *arrays, num_tiles, num_blocks, *self._constants, num_warps=WARPS_PER_PROGRAM
            )


class _Array:
    """What Triton's public launch asks of a tensor: an address and an element type."""

    def __init__(self, address: int, dtype: torch.dtype) -> None:
        self._address = address
        self.dtype = dtype

    def data_ptr(self) -> int:
        return self._address
