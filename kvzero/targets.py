"""Where a plan's tiles are launched: `CpuTarget` through Triton's interpreter, `GpuTarget` compiled."""

from __future__ import annotations

import threading
import weakref

import numpy as np
import torch

from . import launch
from .binding import BoundStorages
from .errors import IdTypeError, LaunchTooLargeError, ReplayRoomError, StorageDeviceError
from .idring import IdRing
from .ids import ArgumentIds, checked_ids, fill_fast, out_of_range
from .kernel import (
    BY_VALUE,
    COUNTED,
    IN_ARRAY,
    MOST_BY_VALUE,
    VALUES,
    CompiledVariant,
    tile_table,
    zero_tiles_interpreted,
)

INT32_BLOCKS = 2**31
# Ascending ids are 2 to 4 % faster on the GPU; sorting 1,024 costs 7 us of the host.
SORT_BYTES = 1 << 30

# Triton's own driver reads the current stream through this; the public way costs 5 us more.
_raw_stream = getattr(torch._C, "_cuda_getCurrentRawStream", None) or (
    lambda index: torch.cuda.current_stream(index).cuda_stream
)


class Job:
    """One plan's tile table on the device, ready to launch.

    Args:
        plan: the plan.
        bound: where its storages lie.
        target: where it will be launched.
        tile_bytes: bytes of a tile; None takes the best known.
    """

    def __init__(self, plan, bound: BoundStorages, target, tile_bytes: int | None) -> None:
        self.plan = plan
        self.num_blocks = plan.num_blocks
        self.bytes_per_block = plan.bytes_per_block
        addresses = np.array([bound.addresses[each.storage] for each in plan.segments], dtype=np.uint64)
        address_bits = int(np.bitwise_or.reduce(addresses))
        self.tiling = launch.tiling_for(plan, tile_bytes, target.most_bytes, address_bits)
        table = tile_table(plan, addresses, self.tiling.step_bytes)
        self.num_tiles = len(table)
        ids_per_program = self.tiling.ids_per_program
        self.ids_per_launch = launch.ids_per_launch(self.num_tiles, target.limits, ids_per_program)
        # A storage that starts at an odd address narrows the stores, whatever the plan's numbers divide by.
        low_bits = address_bits | plan.alignment_bytes
        self.store_width_bytes = low_bits & -low_bits
        # Of the kernel, in its order.
        self.constants = self.tiling.tile_bytes, self.tiling.step_bytes, self.store_width_bytes, ids_per_program
        # Compiled forms of the kernel, by where the ids come from and their type; equal ones are shared by all jobs.
        self.variants: dict[tuple, CompiledVariant] = {}
        self.table = torch.from_numpy(table).to(bound.device)
        target.kept.append(self.table)
        self.table_address = self.table.data_ptr()

    def programs(self, num_ids: int) -> int:
        """Programs of a launch for so many ids."""
        return self.num_tiles * -(-num_ids // self.tiling.ids_per_program)


class CpuTarget:
    """Runs the kernel through the interpreter, which returns when everything is written."""

    most_bytes = launch.INTERPRETER_TILE_BYTES
    limits = launch.CUDA

    def __init__(self) -> None:
        self.kept: list = []
        self._refused = torch.zeros(2, dtype=torch.int64)

    def zero(self, job: Job, block_ids) -> None:
        ids = np.unique(checked_ids(block_ids, job.plan))  # an id given twice would be interpreted twice
        for start in range(0, len(ids), job.ids_per_launch):
            part = torch.from_numpy(ids[start : start + job.ids_per_launch])
            zero_tiles_interpreted[(job.programs(len(part)),)](
                job.table, part, self._refused, len(part), job.num_blocks, *[0] * VALUES, *job.constants, IN_ARRAY
            )

    def warmup(self, job: Job) -> None:
        """Nothing to compile."""

    def wait(self) -> None:
        """Nothing is ever in flight."""

    def report_refused(self, plan) -> None:
        """Every id was checked on the host."""


class GpuTarget:
    """Launches the compiled kernel on the current stream of one GPU."""

    most_bytes = None
    limits = launch.AMD if torch.version.hip else launch.CUDA

    def __init__(self, device: torch.device) -> None:
        _free_retired()
        self.device = device
        self.index = device.index
        self.ring = IdRing(device)
        self._arguments = ArgumentIds()
        self._variants: dict[tuple, CompiledVariant] = {}
        self._compiling = threading.Lock()
        # Written by the kernel and read by the host without waiting: how many ids were refused, and one of
        # them.
        self._refused = torch.zeros(2, dtype=torch.int64, pin_memory=True)
        self._refused_view = memoryview(self._refused.numpy())
        self._refused_address = self._refused.data_ptr()
        # What copies and launches in flight use: it may go back to its allocators only after them.
        self.kept: list = [self.ring, self._refused]
        weakref.finalize(self, _retired.append, (device, self.kept)).atexit = False

    def zero(self, job: Job, block_ids) -> None:
        if torch.cuda.current_device() != self.index:
            with torch.cuda.device(self.index):
                self.zero(job, block_ids)
        elif isinstance(block_ids, ReplayableIds):
            self._zero_replayable(job, block_ids)
        elif isinstance(block_ids, torch.Tensor) and block_ids.device.type != "cpu":
            self._zero_gpu_ids(job, block_ids)
        elif not (type(block_ids) in (list, np.ndarray) and self._zero_fast(job, block_ids)):
            # Any other kind of ids, more than a launch takes, or something is wrong with them.
            ids = checked_ids(block_ids, job.plan)
            most = min(job.ids_per_launch, self.ring.section_ids)
            for start in range(0, len(ids), most):
                self._zero_fast(job, ids[start : start + most])

    def _zero_fast(self, job: Job, block_ids: list[int] | np.ndarray) -> bool:
        """Launches unless the ids are not 1 to `section_ids` plain integers inside the pool."""
        if type(block_ids) is np.ndarray and block_ids.ndim != 1:
            return False
        num_ids = len(block_ids)
        ring = self.ring
        stream = _raw_stream(self.index)
        if not 0 < num_ids <= job.ids_per_launch:
            return False
        if num_ids <= MOST_BY_VALUE and job.num_blocks <= INT32_BLOCKS:
            with ring.lock:
                values = self._arguments.pack(block_ids, job.num_blocks)
                if values is None:
                    return False
                self._variant(job, BY_VALUE).launch(
                    stream, job.table_address, 0, self._refused_address, job.programs(num_ids), num_ids,
                    job.num_blocks, values,
                )  # fmt: skip
            return True
        if num_ids > ring.section_ids:
            return False
        capturing = torch.cuda.is_current_stream_capturing()
        if capturing:  # room for graphs is never given back, so nothing may be wrong once it is taken
            block_ids = checked_ids(block_ids, job.plan)
        with ring.lock:
            slot = ring.take_for_capture(num_ids) if capturing else ring.take(num_ids, stream)
            if not fill_fast(slot.ids, block_ids, job.num_blocks):
                return False
            if num_ids * job.bytes_per_block >= SORT_BYTES:
                slot.ids.sort()
            try:
                self._launch(job, stream, num_ids, slot.send(stream))
            finally:
                if not capturing:
                    ring.launched(stream)
        return True

    def _zero_gpu_ids(self, job: Job, ids: torch.Tensor) -> None:
        self.check_gpu_ids(ids)
        if ids.dtype not in (torch.int32, torch.int64):
            ids = ids.to(torch.int64)
        ids = ids.contiguous()
        stream = _raw_stream(self.index)
        for start in range(0, len(ids), job.ids_per_launch):
            part = ids[start : start + job.ids_per_launch]
            self._launch(job, stream, len(part), part.data_ptr(), dtype=ids.dtype)

    def check_gpu_ids(self, ids: torch.Tensor) -> None:
        if ids.device != self.device:
            where = str(ids.device)
            raise StorageDeviceError(what="the tensor of block ids", device=where, expected=str(self.device))
        if ids.dim() != 1 or ids.is_floating_point() or ids.is_complex() or ids.dtype == torch.bool:
            raise IdTypeError(given=f"a tensor of {ids.dtype} and shape {tuple(ids.shape)}")

    def _zero_replayable(self, job: Job, ids: ReplayableIds) -> None:
        if ids.max_ids == 0:
            return
        # A captured launch cannot be split: how many ids it will have is not known yet.
        if ids.max_ids > job.ids_per_launch:
            raise LaunchTooLargeError(
                programs_per_block=job.programs(ids.max_ids),
                limit_programs=job.programs(job.ids_per_launch),
                device=self.limits.name,
            )
        self._launch(job, _raw_stream(self.index), ids.max_ids, ids.buffer.data_ptr(), kind=COUNTED)

    def _launch(
        self, job: Job, stream: int, num_ids: int, ids: int, kind: int = IN_ARRAY, dtype: torch.dtype = torch.int64
    ) -> None:
        self._variant(job, kind, dtype).launch(
            stream, job.table_address, ids, self._refused_address, job.programs(num_ids), num_ids, job.num_blocks
        )

    def _variant(self, job: Job, kind: int, dtype: torch.dtype = torch.int64) -> CompiledVariant:
        variant = job.variants.get((kind, dtype))
        if variant is None:
            key = (*job.constants, kind, dtype)
            with self._compiling:
                if key not in self._variants:
                    self._variants[key] = CompiledVariant(*key)
                variant = job.variants[kind, dtype] = self._variants[key]
        return variant

    def warmup(self, job: Job) -> None:
        with torch.cuda.device(self.index):
            stream = _raw_stream(self.index)
            unreported = torch.zeros(2, dtype=torch.int64, device=self.device)
            int64, int32 = torch.int64, torch.int32
            for kind, dtype in (IN_ARRAY, int64), (IN_ARRAY, int32), (COUNTED, int64), (BY_VALUE, int64):
                # A real launch whose one id is outside every pool, or whose count is 0.
                ids = torch.full((2,), 0 if kind == COUNTED else -1, dtype=dtype, device=self.device)
                self._variant(job, kind, dtype).launch(
                    stream, job.table_address, ids.data_ptr(), unreported.data_ptr(), job.num_tiles, 1,
                    min(job.num_blocks, INT32_BLOCKS), (-1,) * VALUES,
                )  # fmt: skip
            torch.cuda.synchronize(self.device)

    def wait(self) -> None:
        torch.cuda.synchronize(self.device)

    def report_refused(self, plan) -> None:
        count = self._refused_view[0]
        if count:
            self._refused_view[0] = 0
            outcome = f"The GPU skipped {count} such ids of earlier calls; this call wrote nothing."
            raise out_of_range(self._refused_view[1], plan, outcome)


class ReplayableIds:
    """Block ids in GPU memory, preceded by their number; made by `BlockZeroer.replayable_ids`.

    Args:
        target: the GPU.
        plan: the plan whose pool the ids are of.
        max_ids: most ids it holds; a captured launch has programs for that many.

    Example:
        >>> ids = zeroer.replayable_ids(64)                     # doctest: +SKIP
        >>> with torch.cuda.graph(graph):                       # doctest: +SKIP
        ...     zeroer.zero(ids)
        >>> ids.set([5, 9]); graph.replay()                     # doctest: +SKIP
    """

    def __init__(self, target: GpuTarget, plan, max_ids: int) -> None:
        self.max_ids = launch.checked_num_ids(max_ids)
        self.buffer = torch.zeros(1 + max_ids, dtype=torch.int64, device=target.device)
        self._plan = plan

    def set(self, block_ids) -> None:
        """Replaces ids and number, in the order of the current stream.

        Args:
            block_ids: ids on the host, as for `BlockZeroer.zero`; at most `max_ids`.

        Raises:
            IdOutOfRangeError, IdTypeError: as `BlockZeroer.zero`.
            ReplayRoomError: more than `max_ids`.
        """
        ids = checked_ids(block_ids, self._plan)
        if len(ids) > self.max_ids:
            raise ReplayRoomError(num_ids=len(ids), max_ids=self.max_ids)
        # A fresh pinned tensor for each call: torch keeps it until the copy has passed.
        staged = torch.empty(1 + len(ids), dtype=torch.int64, pin_memory=True)
        staged[0] = len(ids)
        staged[1:] = torch.from_numpy(ids)
        self.buffer[: 1 + len(ids)].copy_(staged, non_blocking=True)


# Devices and memory of targets that are gone. A target may be collected at any time, even while some stream is
# captured, when to wait would end the capture; a new target is never made then, for memory cannot be pinned.
_retired: list[tuple[torch.device, list]] = []
_freeing = threading.Lock()


def _free_retired() -> None:
    with _freeing:
        waited_for = _retired[:]
        for device in {device for device, _ in waited_for}:
            torch.cuda.synchronize(device)
        del _retired[: len(waited_for)]
