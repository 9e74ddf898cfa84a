"""How a plan is carried out: `CpuBackend` by tensor indexing, `InterpretedBackend` and `GpuBackend` by the kernel."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Sequence

import numpy as np
import torch

from kvzero.errors import IdTypeError, LaunchTooLargeError, ReplayRoomError, SkippedIdsError, StorageDeviceError
from kvzero.zero import tiles as launch
from kvzero.zero.idring import IdRing
from kvzero.zero.ids import argument_values, checked_ids
from kvzero.zero.kernel import (
    BY_VALUE,
    COUNTED,
    IN_ARRAY,
    MOST_BY_VALUE,
    VALUES,
    Specialization,
    tile_table,
    zero_interpreted,
)
from kvzero.zero.memory import BoundStorages

# Ascending ids are 2 to 4 % faster on an H200; sorting 1,024 of them costs the host 7 us.
SORT_BYTES = 1 << 30


class CpuBackend:
    """Zeroes CPU memory by tensor indexing, one `index_fill_` for each segment.

    Args:
        plan: the plan.
        bound: the memory of its storages.
    """

    def __init__(self, plan, bound: BoundStorages) -> None:
        self._plan = plan
        self._pages = [
            bound.tensors[each.storage][each.base_bytes :].as_strided(
                (plan.num_blocks, each.span_bytes), (each.block_stride_bytes, 1)
            )
            for each in plan.segments
        ]

    def checked(self, block_ids) -> Sequence[int]:
        """The ids, checked; see `checked_ids`."""
        return checked_ids(block_ids, self._plan)

    def zero(self, block_ids) -> None:
        """Zero blocks whose ids were checked."""
        ids = torch.tensor(np.asarray(block_ids, dtype=np.int64), device="cpu")
        for pages in self._pages:
            pages.index_fill_(0, ids, 0)

    def warmup(self) -> None:
        """Nothing to compile."""

    def wait(self) -> None:
        """Nothing is in flight."""

    def report_skipped(self) -> None:
        """Every id was checked on the host."""


class InterpretedBackend(CpuBackend):
    """Zeroes CPU memory with the kernel, run by Triton's interpreter: slow, for tests and lessons.

    Args:
        plan: the plan.
        bound: the memory of its storages.
        tile_bytes: bytes of a tile; None takes the largest, since the interpreter's time grows with the programs.
    """

    def __init__(self, plan, bound: BoundStorages, tile_bytes: int | None) -> None:
        super().__init__(plan, bound)
        self.table, self.constants = tiles_of(plan, bound, tile_bytes, launch.INTERPRETER_TILE_BYTES)
        self._ids_per_launch = launch.ids_per_launch(len(self.table), launch.CUDA, self.constants[3])

    def zero(self, block_ids) -> None:
        """Zero blocks whose ids were checked."""
        ids = np.unique(np.asarray(block_ids, dtype=np.int64))  # an id given twice would be interpreted twice
        for start in range(0, len(ids), self._ids_per_launch):
            part = ids[start : start + self._ids_per_launch]
            zero_interpreted(self.table, self.constants, part, self._plan.num_blocks)


def tiles_of(
    plan, bound: BoundStorages, tile_bytes: int | None, most_bytes: int | None
) -> tuple[np.ndarray, tuple[int, int, int, int]]:
    """The kernel's table for a plan over bound memory, and the constants that the kernel is compiled for."""
    addresses = np.array([bound.addresses[each.storage] for each in plan.segments], dtype=np.uint64)
    address_bits = int(np.bitwise_or.reduce(addresses))
    tiling = launch.tiling_for(plan, tile_bytes, most_bytes, address_bits)
    # A storage that starts at an odd address narrows the stores, whatever the plan's numbers divide by.
    low_bits = address_bits | plan.alignment_bytes
    constants = tiling.tile_bytes, tiling.step_bytes, low_bits & -low_bits, tiling.ids_per_program
    return tile_table(plan, addresses, tiling.step_bytes), constants


# What launches in flight may still read or write after their zeroer is gone: it is freed at the next wait for the
# device, which `warmup` and `check` make. Freeing it anywhere else would need a wait that can end a graph capture.
_retired: list[tuple[torch.device, object]] = []
_retiring = threading.Lock()
# Compiled kernels by device and constants, shared by all zeroers and never unloaded.
_specializations: dict[tuple, Specialization] = {}
_compiling = threading.Lock()
# One for each GPU, never freed.
_rings: dict[torch.device, IdRing] = {}


def _ring_of(device: torch.device) -> IdRing:
    with _compiling:
        if device not in _rings:
            _rings[device] = IdRing.pinned()
        return _rings[device]


def wait_for(device: torch.device) -> None:
    """Wait for all work on a GPU, then free what zeroers that are gone have left there."""
    with _retiring:
        kept = [entry for entry in _retired if entry[0] != device]
        freed, _retired[:] = [entry for entry in _retired if entry[0] == device], kept
    torch.cuda.synchronize(device)
    del freed


class GpuBackend:
    """Launches the compiled kernel on the current stream of one GPU.

    Args:
        plan: the plan.
        bound: the memory of its storages.
        tile_bytes: bytes of a tile; None takes the best known.
    """

    limits = launch.AMD if torch.version.hip else launch.CUDA

    def __init__(self, plan, bound: BoundStorages, tile_bytes: int | None) -> None:
        self.device = bound.device
        self._plan = plan
        table, self._constants = tiles_of(plan, bound, tile_bytes, None)
        self._num_tiles = len(table)
        self._ids_per_launch = launch.ids_per_launch(self._num_tiles, self.limits, self._constants[3])
        self._table = torch.from_numpy(table).to(self.device)
        # The kernel adds to it, and the host only reads it: pinned memory, so that a look costs no wait.
        self._skipped = torch.zeros(1, dtype=torch.int64, pin_memory=True, device="cpu")
        self._skipped_view = self._skipped.numpy()
        self._reported = 0
        self._table_address, self._skipped_address = self._table.data_ptr(), self._skipped.data_ptr()
        # Counts launches whose ids lie elsewhere than in the ring; nobody reads it.
        self._scratch = torch.zeros(1, dtype=torch.int64, device=self.device)
        self._unread = self._scratch.data_ptr()
        self._ring = _ring_of(self.device)
        # Ids on the GPU that captured launches will read again at every replay.
        self._captured_ids: dict[int, torch.Tensor] = {}
        in_flight = (self._table, self._skipped, self._scratch, self._captured_ids)
        weakref.finalize(self, _retired.append, (self.device, in_flight)).atexit = False

    def checked(self, block_ids):
        """The ids, checked as far as the host can: ids on the GPU are checked by the kernel."""
        if isinstance(block_ids, ReplayableIds):
            # A captured launch cannot be split: its number of ids is not known yet.
            if block_ids.max_ids > self._ids_per_launch:
                raise LaunchTooLargeError(
                    programs_per_block=self._programs(block_ids.max_ids),
                    limit_programs=self._programs(self._ids_per_launch),
                    device=self.limits.name,
                )
            return block_ids
        if not isinstance(block_ids, torch.Tensor) or block_ids.device.type == "cpu":
            return checked_ids(block_ids, self._plan)
        if block_ids.device != self.device:
            where = str(block_ids.device)
            raise StorageDeviceError(what="the tensor of block ids", device=where, expected=str(self.device))
        dtype = block_ids.dtype
        if block_ids.dim() != 1 or dtype.is_floating_point or dtype.is_complex or dtype == torch.bool:
            raise IdTypeError(given=f"a tensor of {dtype} and shape {tuple(block_ids.shape)}")
        return block_ids

    def zero(self, block_ids) -> None:
        """Enqueue the launches for ids that `checked` returned."""
        if torch.cuda.current_device() != self.device.index:
            with torch.cuda.device(self.device):
                self.zero(block_ids)
        elif isinstance(block_ids, ReplayableIds):
            if block_ids.max_ids:
                ids = self._kept_if_captured(block_ids.buffer)
                self._launch(COUNTED, block_ids.max_ids, ids.data_ptr(), self._unread)
        elif isinstance(block_ids, torch.Tensor):
            self._zero_from(self._kept_if_captured(block_ids.to(torch.int64).contiguous()))
        elif len(block_ids) <= MOST_BY_VALUE:
            self._zero_by_value(block_ids)
        elif torch.cuda.is_current_stream_capturing():
            # A graph copies arguments when it is captured; memory for ids would have to live as long as the graph.
            for start in range(0, len(block_ids), MOST_BY_VALUE):
                self._zero_by_value(block_ids[start : start + MOST_BY_VALUE])
        else:
            most = min(self._ids_per_launch, self._ring.section_ids)
            sort = len(block_ids) * self._plan.bytes_per_block >= SORT_BYTES
            for start in range(0, len(block_ids), most):
                self._ring.send(block_ids[start : start + most], sort, self._send)

    def _send(self, pinned: torch.Tensor, started: int) -> None:
        ids = torch.empty(len(pinned), dtype=torch.int64, device=self.device)
        ids.copy_(pinned, non_blocking=True)
        self._launch(IN_ARRAY, len(pinned), ids.data_ptr(), started)

    def _zero_by_value(self, block_ids: Sequence[int]) -> None:
        most = self._ids_per_launch
        for start in range(0, len(block_ids), most):
            part = block_ids[start : start + most]
            self._launch(BY_VALUE, len(part), 0, self._unread, argument_values(part))

    def _zero_from(self, ids: torch.Tensor) -> None:
        for start in range(0, len(ids), self._ids_per_launch):
            part = ids[start : start + self._ids_per_launch]
            self._launch(IN_ARRAY, len(part), part.data_ptr(), self._unread)

    def _kept_if_captured(self, ids: torch.Tensor) -> torch.Tensor:
        if torch.cuda.is_current_stream_capturing():
            self._captured_ids[ids.data_ptr()] = ids
        return ids

    def _programs(self, num_ids: int) -> int:
        return self._num_tiles * -(-num_ids // self._constants[3])

    def _launch(self, kind: int, num_ids: int, ids: int, started: int, *values: tuple[int, ...]) -> None:
        self._specialization(kind).launch(
            self._programs(num_ids), self._table_address, ids, self._skipped_address, started, num_ids,
            self._plan.num_blocks, *values,
        )  # fmt: skip

    def _specialization(self, kind: int) -> Specialization:
        key = (self.device.index, *self._constants, kind)
        if key not in _specializations:
            with _compiling:
                if key not in _specializations:
                    _specializations[key] = Specialization(self._constants, kind)
        return _specializations[key]

    def warmup(self) -> None:
        """Compile, load and launch every specialization, on ids that write nothing; waits for the device."""
        with torch.cuda.device(self.device):
            unreported = torch.zeros(1, dtype=torch.int64, device=self.device)
            for kind in IN_ARRAY, COUNTED, BY_VALUE:
                # One id, outside every pool; or a count of 0.
                ids = torch.full((2,), 0 if kind == COUNTED else -1, dtype=torch.int64, device=self.device)
                self._specialization(kind).launch(
                    1, self._table_address, ids.data_ptr(), unreported.data_ptr(), self._unread, 1,
                    self._plan.num_blocks, (-1,) * VALUES,
                )  # fmt: skip
            wait_for(self.device)

    def wait(self) -> None:
        """Wait for the device."""
        wait_for(self.device)

    def report_skipped(self) -> None:
        """Raise `SkippedIdsError` if the kernel skipped ids since the last report."""
        seen = int(self._skipped_view[0])
        if seen != self._reported:
            num_ids, self._reported = seen - self._reported, seen
            raise SkippedIdsError(num_ids=num_ids, capacity_blocks=self._plan.num_blocks, plan=self._plan.name)


class ReplayableIds:
    """Block ids in GPU memory, preceded by their number; made by `BlockZeroer.replayable_ids`.

    Args:
        device: the GPU.
        plan: the plan whose pool the ids are of.
        max_ids: most ids it holds; a captured launch has programs for that many.

    Example (needs a GPU):
        ids = zeroer.replayable_ids(64)
        with torch.cuda.graph(graph):
            zeroer.zero(ids)
        ids.set([5, 9])
        graph.replay()
    """

    def __init__(self, device: torch.device, plan, max_ids: int) -> None:
        self.max_ids = launch.checked_num_ids(max_ids)
        self.buffer = torch.zeros(1 + self.max_ids, dtype=torch.int64, device=device)
        self._plan = plan

    def set(self, block_ids) -> None:
        """Replace the ids and their number, in the order of the current stream.

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
        staged = torch.empty(1 + len(ids), dtype=torch.int64, pin_memory=True, device="cpu")
        array = staged.numpy()
        array[0] = len(ids)
        array[1:] = ids
        self.buffer[: 1 + len(ids)].copy_(staged, non_blocking=True)
