"""Canary-filled memory with redzones, for checking every byte after a write."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch

from kvzero import errors
from kvzero.audit.blocks import BlockIds, views_to_blocks
from kvzero.audit.result import KINDS, Audit, make_audit
from kvzero.layout.geometry import CacheGeometry
from kvzero.layout.intervals import as_ranges, total, union
from kvzero.layout.records import LayerView, Name

ALIGNMENT_BYTES = 256
REDZONE_BYTES = 4096
# Two primes just under 2**16: the pattern repeats only after their product, 4.29 GB.
PERIODS_BYTES = (65_521, 65_519)
# Bytes needed per byte of storage: buffer, canary, and the masks of one audit.
MEMORY_FACTOR = 6
PIECE_BYTES = 1 << 30  # torch lists at most 2**31 elements at once


class Arena:
    """One buffer per storage, filled with a canary, with redzones on both sides.

    The canary is never zero and depends on the position, so a shifted copy of live bytes is seen as a change.

    Args:
        geometry: the storages and views to allocate.
        device: torch device that holds the memory.
        redzone_bytes: minimum size of each redzone; rounded up to a multiple of 256 bytes.

    Attributes:
        storages: storage id to a uint8 tensor of exactly the storage's bytes, aligned to 256 bytes.
        views: layer name to the layer's tensor, of the layer's dtype if torch has it, else of an integer type of the
            same size; if the offset is no multiple of `itemsize`, a uint8 tensor with a last dimension of `itemsize`.

    Raises:
        AuditError: the arena and one audit do not fit in the device's free memory.

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
        block_ids: BlockIds,
        *,
        layers: str | Sequence[str] | None = None,
        groups: Sequence[int | str] | None = None,
        planner: str = "",
        written_bytes: int | None = None,
        pad_allowed: bool = False,
    ) -> Audit:
        """Check every byte after blocks were zeroed.

        Args:
            block_ids: the blocks that were to be zeroed, or a mapping of group to blocks, as `BlockZeroer.zero`
                takes it: then only the views of that group count as needed in them.
            layers, groups: the views that were to be zeroed, as in `CacheGeometry.select`.
            planner: who wrote, for the report.
            written_bytes: bytes that the writer issued, counting each write; None counts the distinct bytes that
                changed.
            pad_allowed: whether bytes that belong to no view may be written (`absorb_pad`).

        Returns:
            An `Audit` whose `witness` is "bytes".

        Raises:
            ZeroingError, AuditError: ids that are no integers, or lie outside the pool.
            GeometryError, NothingSelectedError: see `CacheGeometry.select`.
            AuditError: the first damaged byte lies in more blocks than can be listed.

        Example: one byte of the next block was wiped as well.
            >>> from kvzero.history import named
            >>> arena = Arena(named.geometry("packed-slab-51288"))
            >>> for view in arena.views.values():
            ...     _ = view[98].zero_()
            >>> arena.storages["slab"][99 * 149_760] = 0
            >>> audit = arena.audit([98])
            >>> audit.stomped_bytes, audit.first["layer"], audit.first["block"]
            (1, 'layer.0', 99)
        """
        geometry = self.geometry
        blocks, wanted = views_to_blocks(geometry, block_ids, layers, groups)
        found: dict[str, dict[Name, np.ndarray]] = {kind: {} for kind in ("cleared", *KINDS)}
        by_layer = {view.name: {"missed_bytes": 0, "stomped_bytes": 0} for view in geometry.layers}
        needed_bytes = 0
        for storage in geometry.storages:
            before, changed, after = self._changed(storage.id)
            needed = torch.zeros_like(changed)
            for views, ids in wanted:
                needed |= self._mark(views, storage.id, sorted(set(ids)))
            missed = needed & (self.storages[storage.id] != 0)
            astray = changed & ~needed
            stomped = torch.zeros_like(astray)
            if bool(astray.any()):
                stomped = astray & self._mark(geometry.layers, storage.id, None)
            needed_bytes += int(torch.count_nonzero(needed))
            found["cleared"][storage.id] = mask_ranges(needed & changed)
            found["stomped"][storage.id] = mask_ranges(stomped)
            found["missed"][storage.id] = mask_ranges(missed)
            found["pad"][storage.id] = mask_ranges(astray & ~stomped)
            front = mask_ranges(before) - self.redzone_bytes
            found["overrun"][storage.id] = union(np.concatenate((front, mask_ranges(after) + storage.nbytes)))
            if bool(missed.any()):
                for views, ids in wanted:
                    for view in views:
                        if view.storage == storage.id:
                            own = self._mark([view], storage.id, sorted(set(ids)))
                            by_layer[view.name]["missed_bytes"] = int(torch.count_nonzero(own & missed))
            if bool(stomped.any()):
                for view in geometry.layers:
                    if view.storage == storage.id:
                        own = self._mark([view], storage.id, None)
                        by_layer[view.name]["stomped_bytes"] = int(torch.count_nonzero(own & stomped))
        if written_bytes is None:
            distinct = (kind for kind in found if kind != "missed")
            written_bytes = sum(total(ranges) for kind in distinct for ranges in found[kind].values())
        return make_audit(
            geometry, found, by_layer, blocks, wanted, planner=planner, witness="bytes", device=str(self.device),
            needed_bytes=needed_bytes, written_bytes=written_bytes, pad_allowed=pad_allowed,
        )  # fmt: skip

    def _changed(self, storage: int | str) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Mask the bytes that no longer hold their canary: (redzone before, storage, redzone after)."""
        mask = self._buffers[storage] != self._canaries[storage]
        end = len(mask) - self.redzone_bytes
        return mask[: self.redzone_bytes], mask[self.redzone_bytes : end], mask[end:]

    def _mark(self, views: Sequence[LayerView], storage: Name, block_ids: Sequence[int] | None) -> torch.Tensor:
        """Mask the bytes that the views own in the blocks, by indexing the views and nothing else.

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
    """The bytes of a view, over a mask or the bytes of its storage; the last dimension has size `itemsize`."""
    stride = [step * view.itemsize for step in _steps(view)]
    # Slice first: `as_strided` counts its offset from the buffer and not from the tensor.
    return data[view.byte_offset :].as_strided((*view.shape, view.itemsize), (*stride, 1))


def canary(size_bytes: int, device: str | torch.device = "cpu", phase: int = 0) -> torch.Tensor:
    """Make a pattern that is never zero and that no shift below 4.29 GB maps onto itself.

    Args:
        size_bytes: length of the pattern.
        device: torch device of the result.
        phase: each value gives another pattern; the arena gives each storage its own.

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


def mask_ranges(mask: torch.Tensor) -> np.ndarray:
    """Find the runs of True in a mask.

    Args:
        mask: bool tensor of shape (bytes,).

    Returns:
        (start, stop) ranges, int64 of shape (ranges, 2).

    Example:
        >>> mask_ranges(torch.tensor([True, False, True, True])).tolist()
        [[0, 1], [2, 4]]
    """
    if not bool(mask.any()):
        return as_ranges([])
    edges: list[Any] = [[0]] if bool(mask[0]) else []
    # Only the edges leave a GPU.
    for start in range(0, len(mask) - 1, PIECE_BYTES):
        stop = min(start + PIECE_BYTES, len(mask) - 1)
        changes = mask[start + 1 : stop + 1] != mask[start:stop]
        found = torch.nonzero(changes).ravel().cpu().numpy() if mask.is_cuda else np.flatnonzero(changes.numpy())
        edges.append(found + start + 1)
    if bool(mask[-1]):
        edges.append([len(mask)])
    return as_ranges(np.concatenate(edges))


def _layer_tensor(view: LayerView, storage: torch.Tensor) -> torch.Tensor:
    dtype = getattr(torch, view.dtype, None) if view.dtype else None
    if not isinstance(dtype, torch.dtype) or dtype.itemsize != view.itemsize:
        dtype = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}.get(view.itemsize)
    size_bytes = view.end_bytes - view.byte_offset
    if dtype is None or view.byte_offset % view.itemsize or size_bytes % view.itemsize:
        return byte_view(view, storage)
    elements = storage[view.byte_offset : view.end_bytes].view(dtype)
    return elements.as_strided(view.shape, _steps(view))


def _steps(view: LayerView) -> list[int]:
    """The strides in elements, 0 for dimensions of size 1, whose strides have no meaning."""
    return [step if size > 1 else 0 for size, step in zip(view.shape, view.stride, strict=True)]


def _check_fits(geometry: CacheGeometry, wanted_bytes: int, device: torch.device) -> None:
    if device.type == "cuda":
        free_bytes, _ = torch.cuda.mem_get_info(device)
        # Memory that torch's allocator caches is free for use, too.
        free_bytes += torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    else:
        free_bytes = _free_host_bytes()
    if wanted_bytes > free_bytes:
        raise errors.AuditError(
            "arena-too-large",
            where=geometry.where,
            wanted_bytes=wanted_bytes,
            free_bytes=free_bytes,
            device=str(device),
        )


def _free_host_bytes() -> int:
    try:
        with open("/proc/meminfo", encoding="ascii") as lines:
            fields: Mapping[str, str] = dict(line.split(":", 1) for line in lines)
        return int(fields["MemAvailable"].split()[0]) * 1024
    except (OSError, KeyError):
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
