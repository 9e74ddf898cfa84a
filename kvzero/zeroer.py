"""`BlockZeroer`: clears blocks, exactly the bytes of a proven plan, on the CPU or on a GPU."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from .binding import BoundStorages, Memory
from .errors import PlanMismatchError, StorageDeviceError, UnknownGroupError, UnprovenPlanError
from .ids import checked_ids
from .targets import CpuTarget, GpuTarget, Job, ReplayableIds


class BlockZeroer:
    """Zeroes blocks of one pool: every byte of the plan once, and no other byte.

    Args:
        plan: a plan made by `plan_segments`.
        storages: storage id to its memory: a one-dimensional uint8 tensor of exactly the storage's bytes,
            or any tensor or `UntypedStorage`, whose whole storage is then meant. All on the CPU or all on
            one GPU. They are not kept alive; one that was freed or resized is noticed before anything is
            written.
        group_plans: a plan for each cache group (`plan_segments(geometry, groups=[g])`), for `zero({g:
        ids})`.
        tile_bytes: most bytes that one program writes, a power of two from 32 to 262,144; None takes the best
            known.

    On the CPU the kernel runs through Triton's interpreter, about 1,000 programs a second. On a GPU it runs on the
    current stream, and the call returns at once. Up to 64 ids on the host travel as kernel arguments; more go
    through a ring of slots of fixed size, and a call waits for the GPU if tens of thousands of ids are in flight.
    A call looks whether each storage is still in its place, about 0.1 us for each.

    Raises:
        UnprovenPlanError: a plan is not a proof.
        PlanMismatchError: a group's plan is of another pool.
        StorageMissingError, StorageSizeError, StorageDeviceError, TensorKindError: the memory does not fit the
            plan.
        StorageAliasError: two storages share memory.
        TileBytesError: not such a power of two.
        LaunchTooLargeError: one block alone needs more programs than a launch may hold.

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
        self.plan = plan
        self.group_plans = dict(group_plans or {})
        for each in (plan, *self.group_plans.values()):
            if not each.proven:
                raise UnprovenPlanError(planner=each.planner, name=each.name)
        for group, each in self.group_plans.items():
            if (each.num_blocks, each.storages) != (plan.num_blocks, plan.storages):
                raise PlanMismatchError(
                    group=group, group_num_blocks=each.num_blocks, num_blocks=plan.num_blocks,
                    group_storages=[storage.id for storage in each.storages],
                    storages=[storage.id for storage in plan.storages],
                )  # fmt: skip
        self._bound = BoundStorages(plan.storages, storages)
        self.device = self._bound.device
        self._target = GpuTarget(self.device) if self.device.type == "cuda" else CpuTarget()
        self._job = Job(plan, self._bound, self._target, tile_bytes)
        self._group_jobs = {
            group: Job(each, self._bound, self._target, tile_bytes) for group, each in self.group_plans.items()
        }

    def zero(self, block_ids) -> None:
        """Zeroes blocks.

        Args:
            block_ids: integers of shape (ids,), as a list, a NumPy array, a CPU tensor, a tensor on the
                zeroer's GPU, or `replayable_ids`; or a mapping of group to such ids, which clears a block
                only where the views of that group lie (bytes that overlaid groups share belong to each).
                Duplicates are harmless; no ids do nothing.

        Ids on the host are checked first and copied: the caller may reuse them at once. Ids on the GPU are
        neither copied nor looked at by the host; the kernel skips those outside the pool and counts them,
        and the next call, or `check`, raises. Host ids of a captured call stay as they were at the capture;
        the zeroer must outlive the graph.

        Raises:
            IdOutOfRangeError: an id outside the pool; of this call for host ids, of an earlier one for GPU
                ids (whose other ids were zeroed). This call writes nothing.
            IdTypeError: not integers, or not one-dimensional.
            StorageMovedError: a storage was freed or resized.
            UnknownGroupError: a group that has no plan.
            CaptureRoomError: during a graph capture, more host ids than are reserved for graphs.
        """
        self._target.report_refused(self.plan)
        self._bound.check()
        if isinstance(block_ids, Mapping):
            self._zero_groups(block_ids)
        else:
            self._target.zero(self._job, block_ids)

    def _zero_groups(self, ids_of: Mapping) -> None:
        checked = []
        for group, ids in ids_of.items():
            if group not in self._group_jobs:
                raise UnknownGroupError(group=group, known=list(self._group_jobs))
            if isinstance(ids, torch.Tensor) and ids.device.type != "cpu" and self.device.type == "cuda":
                self._target.check_gpu_ids(ids)
            elif not isinstance(ids, ReplayableIds):
                ids = checked_ids(ids, self.plan)
            checked.append((self._group_jobs[group], ids))
        for job, ids in checked:
            self._target.zero(job, ids)

    def warmup(self) -> None:
        """Compiles, loads and launches every form of the kernel; leaves every byte of the storages as it
        was."""
        self._bound.check()
        for job in (self._job, *self._group_jobs.values()):
            self._target.warmup(job)

    def check(self) -> None:
        """Waits for the device and reports.

        Raises:
            IdOutOfRangeError: the GPU skipped an id since the last report.
            StorageMovedError: a storage was freed or resized.
        """
        self._target.wait()
        self._target.report_refused(self.plan)
        self._bound.check()

    def replayable_ids(self, max_ids: int) -> ReplayableIds:
        """At most `max_ids` ids that may change, in value and number, between replays of a captured `zero`.

        Raises:
            NumIdsError: `max_ids` is not a whole number, 0 or more.
            StorageDeviceError: the cache lies on the CPU, where nothing is captured.
        """
        self._need_gpu()
        return ReplayableIds(self._target, self.plan, max_ids)

    def reserve_for_capture(self, num_ids: int) -> None:
        """Makes room for the host ids of coming graph captures; 4,096 are reserved from the start."""
        self._need_gpu()
        self._target.ring.reserve_for_capture(num_ids)

    def _need_gpu(self) -> None:
        if self.device.type != "cuda":
            raise StorageDeviceError(what="the cache", device=str(self.device), expected="a GPU, for graphs")
