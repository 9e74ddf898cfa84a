"""Where a plan's tiles are launched: `CpuTarget` through Triton's interpreter, `GpuTarget` compiled."""

from __future__ import annotations

import threading
import weakref

import numpy as np
import torch

from . import launch as tiling
from .binding import BoundStorages, as_int64
from .errors import IdTypeError, StorageDeviceError
from .idring import IdRing
from .ids import checked_ids, fill_fast, out_of_range
from .kernel import CompiledVariant, zero_tiles_interpreted

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
        tile_bytes: bytes of a tile; None takes the target's.
    """

    def __init__(self, plan, bound: BoundStorages, target, tile_bytes: int | None) -> None:
        self.plan = plan
        self.num_blocks = plan.num_blocks
        self.tile_bytes = tiling.tile_bytes_for(plan, tile_bytes=tile_bytes or target.tile_bytes)
        rows = tiling.tile_rows(plan, self.tile_bytes)
        segment = rows[:, tiling.SEGMENT]
        addresses = np.array([bound.addresses[each.storage] for each in plan.segments], dtype=np.uint64)
        bases = as_int64(addresses) + np.array([each.base_bytes for each in plan.segments], dtype=np.int64)
        strides = np.array([each.block_stride_bytes for each in plan.segments], dtype=np.int64)
        columns = bases[segment] + rows[:, tiling.OFFSET], strides[segment], rows[:, tiling.NBYTES]
        table = np.stack([*columns, rows[:, tiling.ENDS]], axis=1)
        self.num_tiles = len(table)
        self.ids_per_launch = tiling.ids_per_launch(self.num_tiles, target.limits)
        # A storage that starts at an odd address narrows the stores, whatever the plan's numbers divide by.
        low_bits = int(np.bitwise_or.reduce(addresses)) | plan.alignment_bytes
        self.store_width_bytes = low_bits & -low_bits
        self.table = torch.from_numpy(table).to(bound.device)
        self.table_address = self.table.data_ptr()


class CpuTarget:
    """Runs the kernel through the interpreter, which returns when everything is written."""

    tile_bytes = tiling.INTERPRETER_TILE_BYTES
    limits = tiling.CUDA

    def __init__(self) -> None:
        self._refused = torch.zeros(2, dtype=torch.int64)

    def zero(self, job: Job, block_ids) -> None:
        ids = checked_ids(block_ids, job.plan)
        for start in range(0, len(ids), job.ids_per_launch):
            part = torch.from_numpy(ids[start : start + job.ids_per_launch].copy())
            zero_tiles_interpreted[(len(part) * job.num_tiles,)](
                job.table, part, self._refused, job.num_tiles, job.num_blocks,
                TILE_BYTES=job.tile_bytes, STORE_WIDTH=job.store_width_bytes, COUNTED=False,
            )  # fmt: skip

    def warmup(self, job: Job) -> None:
        """Nothing to compile."""

    def wait(self) -> None:
        """Nothing is ever in flight."""

    def report_refused(self, plan) -> None:
        """Every id was checked on the host."""


class GpuTarget:
    """Launches the compiled kernel on the current stream of one GPU."""

    tile_bytes = tiling.TILE_BYTES
    limits = tiling.AMD if torch.version.hip else tiling.CUDA

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.index = device.index
        self.ring = IdRing(device)
        self._variants: dict[tuple, CompiledVariant] = {}
        self._compiling = threading.Lock()
        # Written by the kernel and read by the host without waiting: how many ids were refused, and one of
        # them.
        self._refused = torch.zeros(2, dtype=torch.int64, pin_memory=True)
        self._refused_view = memoryview(self._refused.numpy())
        self._refused_address = self._refused.data_ptr()
        # Launches in flight read the ring: it may go back to its allocator only after them.
        weakref.finalize(self, _drain, device, self.ring, self._refused).atexit = False

    def zero(self, job: Job, block_ids) -> None:
        if torch.cuda.current_device() != self.index:
            with torch.cuda.device(self.index):
                self.zero(job, block_ids)
        elif isinstance(block_ids, ReplayableIds):
            self._zero_replayable(job, block_ids)
        elif isinstance(block_ids, torch.Tensor) and block_ids.device.type != "cpu":
            self._zero_gpu_ids(job, block_ids)
        else:
            self._zero_host_ids(job, block_ids)

    def _zero_host_ids(self, job: Job, block_ids) -> None:
        stream = _raw_stream(self.index)
        ring = self.ring
        capturing = torch.cuda.is_current_stream_capturing()
        most = min(job.ids_per_launch, ring.section_ids)
        if type(block_ids) in (list, np.ndarray) and 0 < len(block_ids) <= most and not capturing:
            with ring.lock:
                address, slot, slot_bytes = ring.take(len(block_ids), stream)
                if fill_fast(slot, slot_bytes, block_ids, job.num_blocks):
                    self._launch(job, len(slot), stream, address)
                    ring.launched(stream)
                    return
        ids = checked_ids(block_ids, job.plan)
        with ring.lock:
            for start in range(0, len(ids), most):
                part = ids[start : start + most]
                address, slot = (
                    ring.take_for_capture(len(part)) if capturing else ring.take(len(part), stream)[:2]
                )
                slot[:] = part
                self._launch(job, len(part), stream, address)
                if not capturing:
                    ring.launched(stream)

    def _zero_gpu_ids(self, job: Job, ids: torch.Tensor) -> None:
        self.check_gpu_ids(ids)
        if ids.dtype not in (torch.int32, torch.int64):
            ids = ids.to(torch.int64)
        ids = ids.contiguous()
        stream = _raw_stream(self.index)
        for start in range(0, len(ids), job.ids_per_launch):
            part = ids[start : start + job.ids_per_launch]
            self._launch(job, len(part), stream, part.data_ptr(), ids.dtype)

    def check_gpu_ids(self, ids: torch.Tensor) -> None:
        if ids.device != self.device:
            where = str(ids.device)
            raise StorageDeviceError(what="the tensor of block ids", device=where, expected=str(self.device))
        if ids.dim() != 1 or ids.is_floating_point() or ids.is_complex() or ids.dtype == torch.bool:
            raise IdTypeError(given=f"a tensor of {ids.dtype} and shape {tuple(ids.shape)}")

    def _zero_replayable(self, job: Job, ids: ReplayableIds) -> None:
        # A captured launch cannot be split: how many ids it will have is not known yet.
        tiling.ids_per_launch(job.num_tiles * ids.max_ids, self.limits)
        self._launch(job, ids.max_ids, _raw_stream(self.index), ids.buffer.data_ptr(), counted=True)

    def _launch(
        self,
        job: Job,
        num_ids: int,
        stream: int,
        ids: int,
        dtype: torch.dtype = torch.int64,
        counted: bool = False,
    ) -> None:
        self._variant(job, dtype, counted).launch(
            num_ids * job.num_tiles, stream, job.table_address, ids, self._refused_address, job.num_tiles,
            job.num_blocks,
        )  # fmt: skip

    def _variant(self, job: Job, dtype: torch.dtype, counted: bool) -> CompiledVariant:
        key = (job.tile_bytes, job.store_width_bytes, dtype, counted)
        variant = self._variants.get(key)
        if variant is None:
            with self._compiling:
                variant = self._variants.setdefault(key, CompiledVariant(*key))
        return variant

    def warmup(self, job: Job) -> None:
        with torch.cuda.device(self.index):
            stream = _raw_stream(self.index)
            unreported = torch.zeros(2, dtype=torch.int64, device=self.device)
            for dtype, counted in (torch.int64, False), (torch.int32, False), (torch.int64, True):
                # A real launch of the whole path, whose one id is outside every pool (or whose count is 0).
                ids = torch.full((2,), 0 if counted else -1, dtype=dtype, device=self.device)
                self._variant(job, dtype, counted).launch(
                    job.num_tiles, stream, job.table_address, ids.data_ptr(), unreported.data_ptr(),
                    job.num_tiles, job.num_blocks,
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
        self.max_ids = max_ids
        self.buffer = torch.zeros(1 + max_ids, dtype=torch.int64, device=target.device)
        self._plan = plan

    def set(self, block_ids) -> None:
        """Replaces ids and number, in the order of the current stream.

        Args:
            block_ids: ids on the host, as for `BlockZeroer.zero`; at most `max_ids`.

        Raises:
            IdOutOfRangeError, IdTypeError: as `BlockZeroer.zero`.
        """
        ids = checked_ids(block_ids, self._plan)
        if len(ids) > self.max_ids:
            raise IdTypeError(given=f"{len(ids)} ids where the captured launch has room for {self.max_ids}")
        # A fresh pinned tensor for each call: torch keeps it until the copy has passed.
        staged = torch.empty(1 + len(ids), dtype=torch.int64, pin_memory=True)
        staged[0] = len(ids)
        staged[1:] = torch.from_numpy(ids)
        self.buffer[: 1 + len(ids)].copy_(staged, non_blocking=True)


def _drain(device: torch.device, *kept) -> None:
    torch.cuda.synchronize(device)
