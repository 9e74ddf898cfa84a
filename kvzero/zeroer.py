"""`BlockZeroer`: clears the blocks that a plan was proven for, on the CPU or on the current GPU stream."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Mapping

import numpy as np
import torch

from . import launch as tiles
from .binding import BoundStorages, Memory, as_int64
from .errors import IdTypeError, PlanMismatchError, StorageDeviceError, UnknownGroupError, UnprovenPlanError
from .idring import IdRing
from .ids import host_ids, out_of_range, refuse_outside
from .kernel import CompiledVariant, zero_tiles_interpreted

_raw_stream = getattr(torch._C, "_cuda_getCurrentRawStream", None)


class BlockZeroer:
    """Zeroes blocks of one pool, exactly the bytes of the plan, each once.

    Args:
        plan: a plan made by `plan_segments`.
        storages: storage id to memory: a one-dimensional uint8 tensor of exactly the storage's bytes, or any tensor
            or `UntypedStorage` whose whole storage is meant. All on the CPU, or all on one GPU. They are not kept
            alive, and one that was freed or resized is noticed before anything is written.
        group_plans: plan per cache group (`plan_segments(geometry, groups=[g])`), for `zero({group: ids})`.
        tile_bytes: bytes that one program writes; None takes the default. For measurements.

    On the CPU the kernel runs through Triton's interpreter, at about 1,000 programs a second. On a GPU it runs on the
    current stream and the call returns at once. The zeroer must outlive the graphs that captured its launches.

    Raises:
        UnprovenPlanError: the plan is not a proof.
        PlanMismatchError: a group's plan is of another pool.
        StorageMissingError, StorageSizeError, StorageDeviceError: the memory does not fit the plan.
        LaunchTooLargeError: one block alone exceeds what a launch may hold.

    Example:
        >>> zeroer = BlockZeroer(plan_segments(geometry), arena.storages)        # doctest: +SKIP
        >>> zeroer.zero([1, 3])                                                  # doctest: +SKIP
    """

    def __init__(
        self,
        plan,
        storages: Mapping[object, Memory],
        *,
        group_plans: Mapping[object, object] | None = None,
        tile_bytes: int | None = None,
    ) -> None:
        group_plans = dict(group_plans or {})
        for each in (plan, *group_plans.values()):
            if not each.proven:
                raise UnprovenPlanError(planner=each.planner, name=each.name)
        for group, each in group_plans.items():
            if (each.num_blocks, each.storages) != (plan.num_blocks, plan.storages):
                raise PlanMismatchError(
                    group=group,
                    group_num_blocks=each.num_blocks,
                    group_storages=[storage.id for storage in each.storages],
                    num_blocks=plan.num_blocks,
                    storages=[storage.id for storage in plan.storages],
                )
        self.plan = plan
        self.bound = BoundStorages(plan.storages, storages)
        self.device = self.bound.device
        target = _Gpu(self.device) if self.device.type == "cuda" else _Cpu()
        self._target = target
        self._jobs = {
            group: _Job(each, self.bound, target, tile_bytes) for group, each in group_plans.items()
        }
        self._job = _Job(plan, self.bound, target, tile_bytes)

    def zero(self, block_ids) -> None:
        """Zeroes blocks.

        Args:
            block_ids: a list, a NumPy array, a CPU tensor, or a tensor on the zeroer's GPU, of integers, shape
                (ids,); or a mapping of group to such ids, which clears a block only where the views of its group lie
                (bytes that overlaid groups share are each group's). Duplicates are harmless, no ids do nothing.

        Ids on the host are checked first, and copied: the caller may reuse them at once. Ids on the GPU are neither
        copied nor looked at by the host: the kernel skips those outside the pool and counts them, and the next call,
        or `check`, raises.

        Raises:
            IdOutOfRangeError: an id outside the pool (GPU ids: of an earlier call, whose other ids were zeroed).
                Nothing is written by this call.
            IdTypeError: not integers, or not one-dimensional.
            StorageMovedError: a storage was freed or resized.
            UnknownGroupError: a group without a plan.
            CaptureRoomError: during a graph capture, more host ids than room reserved for graphs.
        """
        self._target.report_refused(self.plan)
        self.bound.check()
        if isinstance(block_ids, Mapping):
            for group in block_ids:
                if group not in self._jobs:
                    raise UnknownGroupError(group=group, known=list(self._jobs))
            checked = [
                (self._jobs[group], self._target.checked(ids, self.plan)) for group, ids in block_ids.items()
            ]
            for job, ids in checked:
                self._target.zero(job, ids)
        else:
            self._target.zero(self._job, block_ids)

    def warmup(self) -> None:
        """Compiles and loads every form of the kernel that `zero` may launch; leaves every byte of memory as it was."""
        self.bound.check()
        for job in (self._job, *self._jobs.values()):
            self._target.warmup(job)

    def check(self) -> None:
        """Waits for the device, then raises `IdOutOfRangeError` if it refused an id since the last report, or
        `StorageMovedError`."""
        self._target.wait()
        self._target.report_refused(self.plan)
        self.bound.check()

    def replayable_ids(self, max_ids: int) -> ReplayableIds:
        """Ids on the GPU that may change, in value and number, between replays of a graph that captured
        `zero(ids)`."""
        return ReplayableIds(self, max_ids)

    def reserve_for_capture(self, num_ids: int) -> None:
        """Makes room for host ids of coming graph captures (4,096 are reserved from the start)."""
        self._target.ring.reserve_for_capture(num_ids)


class ReplayableIds:
    """At most `max_ids` block ids in GPU memory, preceded by their number; made by `BlockZeroer.replayable_ids`.

    Example:
        >>> ids = zeroer.replayable_ids(64)                 # doctest: +SKIP
        >>> with torch.cuda.graph(graph):                   # doctest: +SKIP
        ...     zeroer.zero(ids)
        >>> ids.set([5, 9]); graph.replay()                 # doctest: +SKIP
    """

    def __init__(self, zeroer: BlockZeroer, max_ids: int) -> None:
        if zeroer.device.type != "cuda":
            raise StorageDeviceError(
                what="the cache", device=str(zeroer.device), expected="a GPU, for graphs"
            )
        self.max_ids = max_ids
        self.buffer = torch.zeros(1 + max_ids, dtype=torch.int64, device=zeroer.device)
        self._zeroer = zeroer

    def set(self, block_ids) -> None:
        """Replaces the ids, in the order of the current stream; raises as `BlockZeroer.zero` does for host ids."""
        ids = self._zeroer._target.checked(host_ids(block_ids), self._zeroer.plan)
        if len(ids) > self.max_ids:
            raise IdTypeError(given=f"{len(ids)} ids where the graph has room for {self.max_ids}")
        # A fresh pinned tensor: torch keeps it until the copy has passed.
        staged = torch.empty(1 + len(ids), dtype=torch.int64, pin_memory=True)
        staged[0] = len(ids)
        staged[1:] = torch.from_numpy(ids)
        self.buffer[: 1 + len(ids)].copy_(staged, non_blocking=True)


class _Job:
    """One plan's tile table on the device, ready to launch."""

    def __init__(self, plan, bound: BoundStorages, target, tile_bytes: int | None) -> None:
        self.plan = plan
        self.num_blocks = plan.num_blocks
        self.tile_bytes = tiles.tile_bytes_for(plan, tile_bytes=tile_bytes or target.tile_bytes)
        rows = tiles.tile_rows(plan, self.tile_bytes)
        starts = np.array([bound.addresses[s.storage] for s in plan.segments], dtype=np.uint64)
        bases = as_int64(starts) + np.array([s.base_bytes for s in plan.segments], dtype=np.int64)
        strides = np.array([s.block_stride_bytes for s in plan.segments], dtype=np.int64)
        segment = rows[:, tiles.SEGMENT]
        table = np.stack(
            [
                bases[segment] + rows[:, tiles.OFFSET],
                strides[segment],
                rows[:, tiles.NBYTES],
                rows[:, tiles.ENDS],
            ],
            axis=1,
        )
        self.num_tiles = len(table)
        self.ids_per_launch = tiles.ids_per_launch(self.num_tiles, target.limits)
        # A storage that starts at an odd address narrows the stores, whatever the plan's own numbers divide by.
        low_bits = int(np.bitwise_or.reduce(starts)) | plan.alignment_bytes
        self.store_width_bytes = low_bits & -low_bits
        self.table = torch.from_numpy(table).to(bound.device)
        self.table_address = self.table.data_ptr()


class _Cpu:
    """Runs the kernel through the interpreter."""

    tile_bytes = tiles.INTERPRETER_TILE_BYTES
    limits = tiles.CUDA

    def __init__(self) -> None:
        self._refused = torch.zeros(2, dtype=torch.int64)

    def checked(self, block_ids, plan) -> np.ndarray:
        ids = host_ids(block_ids)
        refuse_outside(ids, plan)
        return np.ascontiguousarray(ids, dtype=np.int64)

    def zero(self, job: _Job, block_ids) -> None:
        ids = self.checked(block_ids, job.plan)
        for start in range(0, len(ids), job.ids_per_launch):
            part = torch.from_numpy(ids[start : start + job.ids_per_launch].copy())
            zero_tiles_interpreted[(len(part) * job.num_tiles,)](
                job.table, part, self._refused, job.num_tiles, job.num_blocks,
                TILE_BYTES=job.tile_bytes, STORE_WIDTH=job.store_width_bytes, COUNTED=False,
            )  # fmt: skip

    def warmup(self, job: _Job) -> None:
        pass

    def wait(self) -> None:
        pass

    def report_refused(self, plan) -> None:
        pass


class _Gpu:
    """Launches the compiled kernel on the current stream."""

    tile_bytes = tiles.TILE_BYTES
    limits = tiles.AMD if torch.version.hip else tiles.CUDA

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.index = device.index
        self.ring = IdRing(device)
        self._variants: dict[tuple, CompiledVariant] = {}
        # Written by the kernel, read by the host without waiting: how many ids were refused, and one of them.
        self._refused = torch.zeros(2, dtype=torch.int64, pin_memory=True)
        self._refused_view = memoryview(self._refused.numpy())
        self._refused_address = self._refused.data_ptr()
        self._lock = threading.Lock()
        # Launches in flight read the ring: it may go back to the allocator only after them.
        weakref.finalize(self, _drain, device, self.ring, self._refused).atexit = False

    def checked(self, block_ids, plan):
        if isinstance(block_ids, torch.Tensor) and block_ids.device.type != "cpu":
            return block_ids
        ids = host_ids(block_ids)
        refuse_outside(ids, plan)
        return np.ascontiguousarray(ids, dtype=np.int64)

    def zero(self, job: _Job, block_ids) -> None:
        if torch.cuda.current_device() != self.index:
            with torch.cuda.device(self.index):
                self.zero(job, block_ids)
            return
        if isinstance(block_ids, ReplayableIds):
            self._zero_counted(job, block_ids)
        elif isinstance(block_ids, torch.Tensor) and block_ids.device.type != "cpu":
            self._zero_gpu_ids(job, block_ids)
        elif len(ids := self.checked(block_ids, job.plan)) > 0:
            stream = _raw_stream(self.index)
            capturing = torch.cuda.is_current_stream_capturing()
            step = min(job.ids_per_launch, self.ring.section_ids)
            with self.ring.lock:
                for start in range(0, len(ids), step):
                    part = ids[start : start + step]
                    take = self.ring.take_for_capture if capturing else self.ring.take
                    address, slot = take(len(part)) if capturing else take(len(part), stream)
                    slot[:] = part
                    self._launch(job, len(part), stream, address)
                    self.ring.launched(stream)

    def _launch(
        self, job: _Job, num_ids: int, stream: int, ids: int, dtype=torch.int64, counted=False
    ) -> None:
        variant = self._variant(job, dtype, counted)
        variant.launch(
            num_ids * job.num_tiles,
            stream,
            job.table_address,
            ids,
            self._refused_address,
            job.num_tiles,
            job.num_blocks,
        )

    def _variant(self, job: _Job, dtype: torch.dtype, counted: bool) -> CompiledVariant:
        key = (job.tile_bytes, job.store_width_bytes, dtype, counted)
        if key not in self._variants:
            with self._lock:
                self._variants[key] = CompiledVariant(*key)
        return self._variants[key]

    def _zero_gpu_ids(self, job: _Job, ids: torch.Tensor) -> None:
        if ids.device != self.device:
            raise StorageDeviceError(
                what="the tensor of block ids", device=str(ids.device), expected=str(self.device)
            )
        if ids.dim() != 1 or ids.dtype.is_floating_point or ids.dtype.is_complex or ids.dtype == torch.bool:
            raise IdTypeError(given=f"a tensor of {ids.dtype} and shape {tuple(ids.shape)}")
        if ids.dtype not in (torch.int32, torch.int64):
            ids = ids.to(torch.int64)
        ids = ids.contiguous()
        stream = _raw_stream(self.index)
        for start in range(0, len(ids), job.ids_per_launch):
            part = ids[start : start + job.ids_per_launch]
            self._launch(job, len(part), stream, part.data_ptr(), ids.dtype)

    def _zero_counted(self, job: _Job, ids: ReplayableIds) -> None:
        tiles.ids_per_launch(job.num_tiles * ids.max_ids, self.limits)  # a counted launch cannot be split
        self._launch(job, ids.max_ids, _raw_stream(self.index), ids.buffer.data_ptr(), counted=True)

    def warmup(self, job: _Job) -> None:
        with torch.cuda.device(self.index):
            nowhere = torch.full((1,), -1, dtype=torch.int64, device=self.device)
            none = torch.zeros(2, dtype=torch.int64, device=self.device)
            unreported = torch.zeros(2, dtype=torch.int64, device=self.device)
            stream = _raw_stream(self.index)
            for dtype, counted in ((torch.int64, False), (torch.int32, False), (torch.int64, True)):
                # The only id is outside every pool, or there is none: the launch is real and writes no block.
                ids = none if counted else nowhere.to(dtype)
                self._variant(job, dtype, counted).launch(
                    job.num_tiles,
                    stream,
                    job.table_address,
                    ids.data_ptr(),
                    unreported.data_ptr(),
                    job.num_tiles,
                    job.num_blocks,
                )
            torch.cuda.synchronize(self.device)

    def wait(self) -> None:
        torch.cuda.synchronize(self.device)

    def report_refused(self, plan) -> None:
        count, block_id = self._refused_view[0], self._refused_view[1]
        if count:
            self._refused_view[0] = 0
            outcome = f"The GPU skipped {count} such ids of earlier calls and zeroed the others; this call did nothing."
            raise out_of_range(block_id, plan, outcome)


def _drain(device: torch.device, *kept) -> None:
    torch.cuda.synchronize(device)
