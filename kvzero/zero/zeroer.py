"""`BlockZeroer`: clears blocks, exactly the bytes of a proven plan, on the CPU or on a GPU."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from kvzero.errors import UnprovenPlanError, ZeroingError
from kvzero.zero import tiles
from kvzero.zero.backends import KernelBackend, SkippedIds, SliceBackend
from kvzero.zero.ids import ReplayableIds
from kvzero.zero.memory import BoundStorages, Memory

MOST_BLOCKS = 2**31 - 1


class BlockZeroer:
    """Zeroes blocks of one pool: every byte of the plan once, and no other byte.

    Args:
        plan: a plan made by `plan_segments`, of at most 2**31 - 1 blocks.
        storages: storage id to its memory: a one-dimensional uint8 tensor of exactly the storage's bytes, or any
            tensor or `UntypedStorage`, whose whole storage is then meant. All on the CPU or all on one GPU.
        group_plans: a plan for each cache group (`plan_segments(geometry, groups=[g])`), for `zero({g: ids})`.
        tile_bytes: most bytes that one program of the kernel writes, a power of two from 32 to 262,144; None takes
            the best known. Without effect on the CPU, unless interpreted.
        interpret: on the CPU, run the Triton kernel itself through Triton's interpreter (about 1,000 programs a
            second). For tests and lessons: while it runs, no thread of the process may compile a Triton kernel.

    On the CPU, blocks are zeroed through NumPy. On a GPU the kernel runs on the current stream, and the call returns
    at once. Up to 64 ids on the host travel as kernel arguments; more are copied to fresh memory on the GPU.

    What must outlive what:
        * The zeroer keeps the storages alive. They must not be resized or unmapped while it is in use: it writes to
          the addresses that they had when it was built. `check`, `warmup` and a captured call notice a resize. An
          engine that unmaps its cache (sleep mode) may zero again once the same addresses are mapped again, and must
          build a new zeroer if they differ.
        * The zeroer must outlive every CUDA graph that captured one of its calls. It keeps the ids on the GPU that
          such a call reads.
        * If caches are used on one stream and zeroed on another, order the streams yourself (an event), and call
          `record_stream` on the caches as for any other use on a second stream.
        * While a graph is captured, another thread may zero too, on a stream on which it has zeroed before: a first
          call of more than 64 ids may have to allocate memory, which CUDA forbids during a capture of another
          thread.

    Raises:
        UnprovenPlanError: a plan is not a proof.
        ZeroingError: a group's plan is of another pool.
        ZeroingError, GeometryError: the memory does not fit the plan.
        ZeroingError: two storages share memory.
        ZeroingError: not such a power of two.
        ZeroingError: more blocks than a 32-bit id can name.
        LaunchTooLargeError: one block alone needs more programs than a launch may hold.

    Example:
        >>> import torch
        >>> from kvzero import CacheGeometry, plan_segments
        >>> cache = {"layer.0": torch.ones(4, 16, dtype=torch.uint8, device="cpu")}    # 4 blocks of 16 bytes
        >>> geometry = CacheGeometry.from_tensors(cache, num_blocks=4)
        >>> zeroer = BlockZeroer(plan_segments(geometry), {0: cache["layer.0"]})
        >>> zeroer.zero([1, 3])
        >>> cache["layer.0"].sum(dim=1).tolist()
        [16, 0, 16, 0]
    """

    def __init__(
        self,
        plan,
        storages: Mapping[Any, Memory],
        *,
        group_plans: Mapping[Any, Any] | None = None,
        tile_bytes: int | None = None,
        interpret: bool = False,
    ) -> None:
        self.plan = plan
        self.group_plans = dict(group_plans or {})
        for each in (plan, *self.group_plans.values()):
            if not each.proven:
                raise UnprovenPlanError(planner=each.planner, name=each.name)
        for group, each in self.group_plans.items():
            if (each.num_blocks, each.storages) != (plan.num_blocks, plan.storages):
                raise ZeroingError(
                    "plan-mismatch", group=group, group_num_blocks=each.num_blocks, num_blocks=plan.num_blocks,
                    group_storages=[storage.id for storage in each.storages],
                    storages=[storage.id for storage in plan.storages],
                )  # fmt: skip
        if plan.num_blocks > MOST_BLOCKS:
            raise ZeroingError("pool-too-large", name=plan.name, num_blocks=plan.num_blocks, limit_blocks=MOST_BLOCKS)
        tiles.checked_tile_bytes(tile_bytes)
        self._bound = BoundStorages(plan.storages, storages)
        self.device = self._bound.device
        on_gpu = self.device.type == "cuda"
        self._skipped = SkippedIds(plan, pinned=on_gpu)

        def backend(plan):
            if on_gpu or interpret:
                return KernelBackend(plan, self._bound, tile_bytes, self._skipped)
            return SliceBackend(plan, self._bound)

        self._backend = backend(plan)
        self._group_backends = {group: backend(each) for group, each in self.group_plans.items()}

    def zero(self, block_ids) -> None:
        """Zero blocks.

        Args:
            block_ids: integers of shape (ids,), as a list, a NumPy array, a CPU tensor, a tensor on the zeroer's
                GPU, or `replayable_ids`; or a mapping of group to such ids, which clears a block only where the
                views of that group lie (bytes that overlaid groups share belong to each). Duplicates are harmless;
                no ids do nothing.

        Ids on the host are checked first and copied: the caller may reuse them at once. Ids on the GPU are neither
        copied nor checked by the host; the kernel skips those outside the pool and counts them, and the next call, or
        `check`, raises. Host ids of a captured call stay as they were at the capture.

        Raises:
            IdOutOfRangeError: a host id outside the pool. Nothing is written, also not of other groups.
            ZeroingError: not integers, or not one-dimensional. Nothing is written.
            SkippedIdsError: the GPU skipped ids of an earlier call. This call writes nothing.
            ZeroingError: a group that has no plan. Nothing is written.
            ZeroingError: ids on another GPU. Nothing is written.
            ZeroingError: in a captured call, a storage was resized. Nothing is written.
        """
        if torch.compiler.is_compiling():
            # A compiled function leaves its graph here: neither plans nor launches are tensors.
            torch.compiler.disable(self.zero)(block_ids)
            return
        self._skipped.report()
        if type(block_ids) is list or not isinstance(block_ids, Mapping):
            self._backend.zero(self._backend.checked(block_ids))
            return
        for group in block_ids:
            if group not in self._group_backends:
                raise ZeroingError("unknown-group", group=group, known=list(self._group_backends))
        backends = [self._group_backends[group] for group in block_ids]
        checked = [backend.checked(ids) for backend, ids in zip(backends, block_ids.values(), strict=True)]
        for backend, ids in zip(backends, checked, strict=True):
            backend.zero(ids)

    def warmup(self) -> None:
        """Compile, load and launch every specialization of the kernel, writing no byte of the storages.

        Waits for the device, so call it while no stream is being captured.

        Raises:
            ZeroingError: a storage was resized.
        """
        self._bound.check()
        for backend in (self._backend, *self._group_backends.values()):
            backend.warmup()
        self._wait()

    def check(self) -> None:
        """Wait for the device and report; call it while no stream is being captured.

        Raises:
            SkippedIdsError: the GPU skipped ids since the last report.
            ZeroingError: a storage was resized.
        """
        self._wait()
        self._skipped.report()
        self._bound.check()

    def _wait(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)

    def replayable_ids(self, max_ids: int) -> ReplayableIds:
        """Make room on the GPU for ids that change, in value and number, between replays of a captured `zero`.

        Args:
            max_ids: most ids it holds; a captured launch has programs for that many.

        Raises:
            ZeroingError: `max_ids` is not a whole number, 0 or more.
            ZeroingError: the cache lies on the CPU, where nothing is captured.
        """
        if self.device.type != "cuda":
            raise ZeroingError(
                "storage-device", what="the cache", device=str(self.device), expected="a GPU, for graphs"
            )
        return ReplayableIds(self.device, self.plan, max_ids)
