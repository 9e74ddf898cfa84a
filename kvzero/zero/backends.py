"""How a plan is carried out: `SliceBackend` by NumPy on the CPU, `KernelBackend` by the kernel."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
import triton

from kvzero.errors import SkippedIdsError, ZeroingError
from kvzero.zero import tiles
from kvzero.zero.ids import NO_BLOCK, ReplayableIds, argument_values, checked_ids
from kvzero.zero.kernel import (
    FEW_BY_VALUE,
    MOST_BY_VALUE,
    NO_FLOATS,
    VALUES,
    zero_tiles_compiled,
    zero_tiles_interpreted,
)
from kvzero.zero.memory import BoundStorages

# Ascending ids are 2 to 4 % faster on an H200; sorting 1,024 of them costs the host 7 us.
SORT_BYTES = 1 << 30
# A copy of at most 64 KB from pageable memory is asynchronous (CUDA C++ Programming Guide, "Concurrent Execution
# between Host and Device"), and the driver has read that memory when the copy returns: no buffer is ever shared.
IDS_PER_COPY = (64 << 10) // 4
NO_VALUES = (0,) * VALUES


class SliceBackend:
    """Zeroes CPU memory through NumPy, one block of a segment after the other.

    Args:
        plan: the plan.
        bound: the memory of its storages.
    """

    def __init__(self, plan, bound: BoundStorages) -> None:
        self._plan = plan
        # NumPy checks that each lies inside its storage, and keeps torch from resizing it.
        self._pages = [
            np.ndarray(
                (plan.num_blocks, each.span_bytes), np.uint8, bound.tensors[each.storage].numpy(),
                each.base_bytes, (each.block_stride_bytes, 1),
            )
            for each in plan.segments
        ]  # fmt: skip

    def checked(self, block_ids: Any) -> Sequence[int] | np.ndarray:
        """The ids, checked; see `checked_ids`."""
        return checked_ids(block_ids, self._plan)

    def zero(self, ids: Sequence[int] | np.ndarray) -> None:
        """Zero blocks whose ids were checked."""
        for pages in self._pages:
            for block in ids:
                pages[block] = 0

    def warmup(self) -> None:
        """Nothing is compiled."""


class SkippedIds:
    """How many ids on the GPU the kernel found outside the pool: the kernel adds, the host only reads.

    Args:
        plan: the plan whose pool it is.
        pinned: whether a GPU adds to it; a look at pinned memory costs no wait.
    """

    # Launches in flight may add to the counter of a zeroer that is gone, so no counter is ever freed.
    _kept: list[torch.Tensor] = []

    def __init__(self, plan, pinned: bool) -> None:
        self.counter = torch.zeros(1, dtype=torch.int64, device="cpu", pin_memory=pinned)
        self._kept.append(self.counter)
        self._plan = plan
        self._count = memoryview(self.counter.numpy())
        self._reported = 0
        self._reporting = threading.Lock()

    def report(self) -> None:
        """Raise `SkippedIdsError` if ids were skipped since the last report."""
        if self._count[0] == self._reported:
            return
        with self._reporting:
            num_ids = self._count[0] - self._reported
            self._reported += num_ids
        if num_ids:
            raise SkippedIdsError(num_ids=num_ids, capacity_blocks=self._plan.num_blocks, plan=self._plan.name)


class _Tiles:
    """A plan cut into tiles of one size, with the kernels compiled for them.

    Args:
        plan: the plan.
        bound: the memory of its storages.
        tile_bytes, most_bytes: see `tiles.tiling_for`.
        num_warps: warps of a program.
    """

    def __init__(
        self, plan, bound: BoundStorages, tile_bytes: int | None, most_bytes: int | None, num_warps: int
    ) -> None:
        addresses = np.array([bound.addresses[each.storage] for each in plan.segments], dtype=np.uint64)
        address_bits = int(np.bitwise_or.reduce(addresses))
        tiling = tiles.tiling_for(plan, tile_bytes, most_bytes, address_bits)
        # A storage that starts at an odd address narrows the stores, whatever the plan's numbers divide by.
        low_bits = address_bits | plan.alignment_bytes
        table = tiles.tile_table(plan, addresses, tiling.step_bytes)
        limits = tiles.AMD if torch.version.hip else tiles.CUDA
        self.table = torch.from_numpy(table).to(bound.device)
        self.address = self.table.data_ptr()
        self.num_tiles = len(table)
        self.ids_per_program = tiling.ids_per_program
        self.ids_per_launch = tiles.ids_per_launch(self.num_tiles, limits, tiling.ids_per_program)
        self.constants = tiling.tile_bytes, tiling.step_bytes, low_bits & -low_bits, tiling.ids_per_program
        self.options = {"num_warps": num_warps, **NO_FLOATS}
        # By whether the ids are arguments.
        self.compiled: dict[bool, Any] = {}


class KernelBackend:
    """Zeroes memory with the kernel: compiled, on the current stream of a GPU, or interpreted on the CPU.

    Args:
        plan: the plan.
        bound: the memory of its storages.
        tile_bytes: bytes of a tile; None takes the best known.
        skipped: where the kernel counts ids outside the pool.
    """

    def __init__(self, plan, bound: BoundStorages, tile_bytes: int | None, skipped: SkippedIds) -> None:
        self.device = bound.device
        self._on_gpu = self.device.type == "cuda"
        self._plan, self._bound, self._skipped = plan, bound, skipped
        self._bytes_per_block = plan.bytes_per_block
        if self._on_gpu:
            self._jit = zero_tiles_compiled
            self._tiles = _Tiles(plan, bound, tile_bytes, None, num_warps=1)
            # For more than a few ids in the arguments: picking one costs a program more, so there are fewer programs.
            self._wide = _Tiles(plan, bound, tile_bytes, tiles.WIDE_TILE_BYTES, num_warps=2)
        else:
            self._jit = zero_tiles_interpreted
            self._tiles = self._wide = _Tiles(plan, bound, tile_bytes, tiles.INTERPRETER_TILE_BYTES, num_warps=1)
        self._no_ids = torch.zeros(1, dtype=torch.int32, device=self.device)
        self._counter_address = skipped.counter.data_ptr()
        # Ids on the GPU that captured launches read again at every replay.
        self._captured: list[torch.Tensor] = []
        # Streams that have read the tables: their memory is given to nobody else before these have passed.
        self._streams: set[int] = set()

    def checked(self, block_ids: Any) -> Any:
        """The ids, checked as far as the host can: ids on the GPU are checked by the kernel."""
        if type(block_ids) is list:
            return checked_ids(block_ids, self._plan)
        if isinstance(block_ids, ReplayableIds):
            where = block_ids.buffer.device
        elif isinstance(block_ids, torch.Tensor) and block_ids.device.type == "cuda":
            dtype = block_ids.dtype
            if block_ids.dim() != 1 or dtype.is_floating_point or dtype.is_complex or dtype == torch.bool:
                raise ZeroingError("id-type", given=f"a tensor of {dtype} and shape {tuple(block_ids.shape)}")
            where = block_ids.device
        else:
            return checked_ids(block_ids, self._plan)
        if where != self.device:
            raise ZeroingError(
                "storage-device", what="the tensor of block ids", device=str(where), expected=str(self.device)
            )
        return block_ids

    def zero(self, ids: Any) -> None:
        """Launch the kernel for ids that `checked` returned."""
        if not self._on_gpu:
            self._zero_by_value(np.unique(ids).tolist())  # an id given twice would be interpreted twice
            return
        if torch.cuda.current_device() != self.device.index:
            with torch.cuda.device(self.device):
                self.zero(ids)
            return
        capturing = torch.cuda.is_current_stream_capturing()
        if capturing:
            self._bound.check()
        if isinstance(ids, (list, np.ndarray)):
            if capturing or len(ids) <= MOST_BY_VALUE:
                # A graph holds the arguments of its launches: it needs no memory that must outlive it.
                self._zero_by_value(ids if isinstance(ids, list) else ids.tolist())
            else:
                self._zero_copied(ids)
            return
        if isinstance(ids, ReplayableIds):
            words, no_block = ids.buffer, NO_BLOCK
        else:
            words = (ids if ids.dtype in (torch.int32, torch.int64) else ids.to(torch.int64)).contiguous()
            no_block = 0  # which is never outside the pool: there are no free places
        if capturing:
            self._captured.append(words)
        for part in _parts(words, self._tiles.ids_per_launch):
            self._launch(self._tiles, len(part), part, no_block)

    def _zero_by_value(self, ids: list[int]) -> None:
        cut = self._tiles if len(ids) <= FEW_BY_VALUE else self._wide
        for part in _parts(ids, min(MOST_BY_VALUE, cut.ids_per_launch)):
            self._launch(cut, len(part), values=argument_values(part))

    def _zero_copied(self, ids: Any) -> None:
        if len(ids) * self._bytes_per_block >= SORT_BYTES:
            ids.sort()
        for part in _parts(ids, min(IDS_PER_COPY, self._tiles.ids_per_launch)):
            self._launch(self._tiles, len(part), torch.from_numpy(part).to(self.device, non_blocking=True))

    def _launch(
        self, cut: _Tiles, num_ids: int, ids: Any = None, no_block: int = 0, values=NO_VALUES
    ) -> None:
        by_value = ids is None
        if by_value:
            ids = self._no_ids
        grid, by_strips = tiles.grid_for(
            cut.num_tiles, num_ids or 1, cut.ids_per_program, num_ids * self._bytes_per_block
        )  # fmt: skip
        num_blocks, words_per_id = self._plan.num_blocks, ids.itemsize // 4
        if self._on_gpu:
            stream = triton.runtime.driver.active.get_current_stream(self.device.index)
            if stream not in self._streams:
                self._meet(stream)
            compiled = cut.compiled.get(by_value)
            if compiled is not None:
                # A third of what Triton's other launch costs the host: that one looks for the specialization each time.
                compiled[grid](
                    cut.address, ids.data_ptr(), self._counter_address, num_ids, num_blocks, words_per_id, no_block,
                    by_strips, *values, *cut.constants, by_value, stream=stream,
                )  # fmt: skip
                return
        # Interpreted, this returns None.
        cut.compiled[by_value] = self._jit[grid](
            cut.table, ids.view(torch.int32), self._skipped.counter, num_ids, num_blocks, words_per_id, no_block,
            by_strips, *values, *cut.constants, by_value, **cut.options,
        )  # fmt: skip

    def _meet(self, stream: int) -> None:
        self._streams.add(stream)
        for each in (self._tiles.table, self._wide.table, self._no_ids):
            each.record_stream(torch.cuda.current_stream(self.device))

    def warmup(self) -> None:
        """Compile, load and launch every specialization of the kernel, with no ids."""
        if self._on_gpu and torch.cuda.current_device() != self.device.index:
            with torch.cuda.device(self.device):
                self.warmup()
            return
        for cut, ids in (self._tiles, None), (self._wide, None), (self._tiles, self._no_ids):
            self._launch(cut, 0, ids)


def _parts(ids, most_ids: int):
    """Slices of at most `most_ids` ids; none of no ids."""
    if 0 < len(ids) <= most_ids:
        return (ids,)
    return [ids[start : start + most_ids] for start in range(0, len(ids), most_ids)]
