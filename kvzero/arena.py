"""Memory in which every byte can testify: position-dependent canaries and redzones around each storage."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence

import numpy as np
import torch

from . import errors
from .comparing import judge_arena
from .geometry import CacheGeometry
from .views import LayerView, Name

ALIGNMENT_BYTES = 256
REDZONE_BYTES = 4096
# Two primes just under 2**16: together the pattern repeats only after 4.29 GB.
PERIODS_BYTES = (65_521, 65_519)
# Buffer, canary, and the masks of one audit, per byte of storage.
MEMORY_FACTOR = 6


class Arena:
    """One buffer per storage, filled with a canary, with redzones on both sides.

    The canary is never zero and depends on the position, so that a shifted copy of live bytes does not pass
    for intact ones.

    Args:
        geometry: storages and views to lay out.
        device: torch device that holds the memory.
        redzone_bytes: least size of each redzone; rounded up to a multiple of 256 bytes.

    Attributes:
        storages: storage id to a uint8 tensor of exactly the storage's bytes, aligned to 256 bytes.
        views: layer name to the layer's tensor over it, of the layer's dtype where torch knows it, else of an
            integer of that size; a view that no torch tensor can describe (its offset or strides are not
            whole elements from an aligned start) is uint8 with a last dimension of `itemsize`.

    Raises:
        ArenaTooLargeError: the arena and one audit would not fit in the device's free memory.

    Example:
        >>> layer = {"name": "k", "storage": 0, "byte_offset": 12, "shape": [5, 4], "stride": [12, 1],
        ...          "itemsize": 4}
        >>> geometry = CacheGeometry.from_dict(
        ...     {"name": "g", "num_blocks": 5, "storages": [{"id": 0, "nbytes": 240}], "layers": [layer]})
        >>> arena = Arena(geometry)
        >>> _ = arena.views["k"][3].zero_()
        >>> arena.audit([3]).ok, arena.audit([2]).missed_bytes
        (True, 16)
    """

    def __init__(
        self, geometry: CacheGeometry, device: str | torch.device = "cpu", redzone_bytes: int = REDZONE_BYTES
    ) -> None:
        self.geometry = geometry
        self.device = torch.device(device)
        self.redzone_bytes = -(-max(redzone_bytes, 1) // ALIGNMENT_BYTES) * ALIGNMENT_BYTES
        sizes = {storage.id: storage.nbytes + 2 * self.redzone_bytes for storage in geometry.storages}
        _check_fits(geometry, sum(sizes.values()) * MEMORY_FACTOR, self.device)
        self._buffers: dict[int | str, torch.Tensor] = {}
        self._canaries: dict[int | str, torch.Tensor] = {}
        self.storages: dict[int | str, torch.Tensor] = {}
        for index, storage in enumerate(geometry.storages):
            raw = torch.empty(sizes[storage.id] + ALIGNMENT_BYTES, dtype=torch.uint8, device=self.device)
            start = -raw.data_ptr() % ALIGNMENT_BYTES
            buffer = raw[start : start + sizes[storage.id]]
            self._buffers[storage.id] = buffer
            self._canaries[storage.id] = canary(len(buffer), self.device, phase=index)
            self.storages[storage.id] = buffer[self.redzone_bytes : self.redzone_bytes + storage.nbytes]
        self.views = {view.name: _layer_tensor(view, self.storages[view.storage]) for view in geometry.layers}
        self.refill()

    def refill(self) -> None:
        """Fill every byte, redzones included, with its canary again."""
        for storage, buffer in self._buffers.items():
            buffer.copy_(self._canaries[storage])

    def audit(
        self,
        block_ids: Sequence[int],
        *,
        layers: str | Sequence[str] | None = None,
        groups: Sequence[int | str] | None = None,
        planner: str = "",
        written_bytes: int | None = None,
        pad_allowed: bool = False,
    ):
        """Compare every byte with what zeroing these blocks should have left.

        Args:
            block_ids: the blocks that were to be zeroed.
            layers, groups: what was to be zeroed in them, as in `CacheGeometry.select`.
            planner: who wrote, for the report.
            written_bytes: bytes the writer issued, each write counted; None takes the distinct bytes that
                changed.
            pad_allowed: whether bytes of no view may be written (`absorb_pad`).

        Returns:
            An `Audit` with witness "bytes".

        Raises:
            UnknownBlockError: an id outside the pool.
            UnknownSelectionError, NothingSelectedError: see `CacheGeometry.select`.
        """
        return judge_arena(
            self, block_ids, layers=layers, groups=groups, planner=planner, written_bytes=written_bytes,
            pad_allowed=pad_allowed,
        )  # fmt: skip

    def changed(self, storage: int | str) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Masks of the bytes that no longer hold their canary: (redzone before, storage, redzone after)."""
        mask = self._buffers[storage] != self._canaries[storage]
        end = len(mask) - self.redzone_bytes
        return mask[: self.redzone_bytes], mask[self.redzone_bytes : end], mask[end:]

    def mark(self, views: Sequence[LayerView], storage: Name, block_ids: Sequence[int] | None) -> torch.Tensor:
        """A mask of the storage's bytes that the views keep in the blocks: naive indexing, no arithmetic.

        Args:
            views: the views to mark; those in other storages are ignored.
            storage: storage id.
            block_ids: block ids, or None for every block.
        """
        mask = torch.zeros(self.geometry.storage(storage).nbytes, dtype=torch.bool, device=self.device)
        for view in views:
            if view.storage != storage:
                continue
            tensor = byte_view(view, mask)
            if block_ids is None:
                tensor.fill_(True)
            for block in () if block_ids is None else block_ids:
                per_block = view.kernel_blocks_per_block
                tensor.narrow(view.block_dim, block * per_block, per_block).fill_(True)
        return mask


def byte_view(view: LayerView, data: torch.Tensor) -> torch.Tensor:
    """The layer's view over a mask or the bytes of its storage, with a last dimension of `itemsize`."""
    stride = [step * view.itemsize for step in view.stride]
    # Offset through slicing, so that the tensor's own place in its buffer counts too.
    return data[view.byte_offset :].as_strided((*view.shape, view.itemsize), (*stride, 1))


def canary(size_bytes: int, device: str | torch.device = "cpu", phase: int = 0) -> torch.Tensor:
    """A pattern that is never zero and that no shift below 4.29 GB maps onto itself.

    Args:
        size_bytes: length of the pattern.
        device: torch device of the result.
        phase: another value gives another pattern; one per storage.

    Returns:
        uint8 tensor of shape (size_bytes,).

    Example:
        >>> pattern = canary(1_000_000)
        >>> bool((pattern == 0).any()), float((pattern[37_440:] == pattern[:-37_440]).float().mean()) < 0.01
        (False, True)
    """
    random = np.random.default_rng([2026, phase])
    parts = []
    for period in PERIODS_BYTES:
        table = torch.from_numpy(random.integers(0, 256, period, dtype=np.uint8)).to(device)
        parts.append(table.repeat(-(-size_bytes // period))[:size_bytes])
    return parts[0].bitwise_xor_(parts[1]).bitwise_or_(1)


def _layer_tensor(view: LayerView, storage: torch.Tensor) -> torch.Tensor:
    dtype = getattr(torch, view.dtype, None) if view.dtype else None
    if not isinstance(dtype, torch.dtype) or dtype.itemsize != view.itemsize:
        dtype = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}.get(view.itemsize)
    size_bytes = view.end_bytes - view.byte_offset
    if dtype is None or view.byte_offset % view.itemsize or size_bytes % view.itemsize:
        return byte_view(view, storage)
    elements = storage[view.byte_offset : view.end_bytes].view(dtype)
    return elements.as_strided(view.shape, view.stride)


def _check_fits(geometry: CacheGeometry, wanted_bytes: int, device: torch.device) -> None:
    if device.type == "cuda":
        free_bytes, _ = torch.cuda.mem_get_info(device)
        # What torch keeps in its cache is free to us too.
        free_bytes += torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    else:
        free_bytes = _free_host_bytes()
    if wanted_bytes > free_bytes:
        raise errors.ArenaTooLargeError(
            where=geometry.where, wanted_bytes=wanted_bytes, free_bytes=free_bytes, device=str(device)
        )


def _free_host_bytes() -> int:
    try:
        with open("/proc/meminfo", encoding="ascii") as lines:
            fields: Mapping[str, str] = dict(line.split(":", 1) for line in lines)
        return int(fields["MemAvailable"].split()[0]) * 1024
    except (OSError, KeyError):
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
