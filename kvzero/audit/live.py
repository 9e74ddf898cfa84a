"""Audit a write in a running process, on the process's own tensors, by checksums and without changing live bytes.

An arena fills its own memory with canaries. A serving engine's cache holds live data, so the bytes around the chosen
blocks are summed in small tiles before and after the write instead; only the chosen blocks change.

    caches = capture.read_vllm_groups(**capture.vllm_fields(runner))
    verdict = audit_live(caches.geometry(), caches.storages(), free_ids, write=runner.kv_block_zeroer.zero_block_ids)

Call it between two steps, with ids that no request holds. It reads every watched byte three times (twice before the
write, once after) and needs about 8 bytes of scratch memory per tile and up to 128 MiB for the sums. It cannot see a
wipe of live bytes that were zero already, or a write outside every storage. If whole storages are watched, a change in
pad inside a tile that also holds live bytes counts as live.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from kvzero import errors
from kvzero.audit.blocks import checked_blocks
from kvzero.layout.geometry import CacheGeometry
from kvzero.layout.intervals import as_ranges, subtract, total, union
from kvzero.layout.ownership import needed_ranges, owned_within, owners_of_byte
from kvzero.layout.records import Name, is_integer
from kvzero.zero.memory import whole_storages

WORD_BYTES = 8
CHUNK_BYTES = 32 << 20  # the sums need up to four temporaries of this size
MAX_REPORTED = 16
MULTIPLIER = -7046029254386353131  # odd, so that multiplying by it modulo 2**64 can be undone


@dataclass(frozen=True)
class LiveAudit:
    """What a write did to a running cache, as far as checksums tell.

    Args:
        blocks: the blocks that were zeroed.
        needed_bytes: bytes that those blocks own in the views that are to be zeroed.
        dirty_before_bytes: of these, bytes that were not zero before the write; if 0, misses were not tested.
        missed_bytes: of these, bytes that are not zero after it.
        stomped_tiles: tiles of live bytes that the write changed.
        unsteady_tiles: tiles that something else changed before the write; excluded from the verdict.
        changed: the first stomped tiles: `storage`, `start_bytes`, `stop_bytes`, `owners` (layer, block) pairs.
        checked_bytes: bytes under checksums: the live bytes around the blocks, or all other bytes of the storages.
        tile_bytes: bytes under one checksum, to which a change is located.
        pause_seconds: seconds that the call took, from the first checksum to the verdict.
    """

    blocks: tuple[int, ...]
    needed_bytes: int
    dirty_before_bytes: int
    missed_bytes: int
    stomped_tiles: int
    unsteady_tiles: int
    changed: tuple[dict[str, Any], ...]
    checked_bytes: int
    tile_bytes: int
    pause_seconds: float

    @property
    def ok(self) -> bool:
        """Whether no needed byte is dirty and no steady live tile changed."""
        return not self.missed_bytes and not self.stomped_tiles

    def sentence(self) -> str:
        """The result in one sentence."""
        text = f"blocks {', '.join(map(str, self.blocks))}: "
        if self.ok:
            text += f"all {self.needed_bytes:,} needed bytes are zero ({self.dirty_before_bytes:,} were not), and "
            around = f"none of {self.checked_bytes:,} bytes around them changed"
            text += around if self.checked_bytes else "no byte around them was watched"
        else:
            text += (
                f"{self.missed_bytes:,} of {self.needed_bytes:,} needed bytes are still dirty, "
                f"and {self.stomped_tiles:,} live tiles of {self.tile_bytes} bytes changed"
            )
            if self.changed:
                first = self.changed[0]
                owners = ", ".join(f"{layer}, block {block}" for layer, block in first["owners"]) or "no view"
                text += f"; first: bytes {first['start_bytes']:,} to {first['stop_bytes']:,} ({owners})"
        if self.unsteady_tiles:
            text += f"; {self.unsteady_tiles:,} tiles changed before the write, by something else, and were left out"
        return text + "."

    def to_dict(self) -> dict[str, Any]:
        """Plain data."""
        data = {name: getattr(self, name) for name in self.__dataclass_fields__}
        return {**data, "blocks": list(self.blocks), "changed": list(self.changed), "ok": self.ok}


def audit_live(
    geometry: CacheGeometry,
    storages: Mapping[Name, torch.Tensor],
    block_ids: Sequence[int],
    *,
    write: Callable[[list[int]], Any],
    radius_blocks: int | None = 1,
    tile_bytes: int = 256,
) -> LiveAudit:
    """Zero free blocks of a running cache with the given writer, and check which other bytes changed.

    Args:
        geometry: the layout of the cache, as `kvzero.capture` describes it.
        storages: storage id to its memory, as `kvzero.layout.geometry.storage_tensors` gives it.
        block_ids: blocks that are not in use; their contents are lost.
        write: called with the list of blocks to zero them: the engine's own method, or `BlockZeroer.zero`. It may
            use any stream; the devices are synchronized before and after it.
        radius_blocks: number of blocks watched on each side, in every view, 0 or more; None watches all bytes of all
            storages.
        tile_bytes: bytes under one checksum, a multiple of 8, at most 32 MiB.

    Raises:
        ZeroingError, AuditError: ids that are no integers, or lie outside the pool.
        AuditError: `radius_blocks` or `tile_bytes` is not such a number.
        ZeroingError, GeometryError: the storages do not match the geometry.

    If it raises, nothing was written.

    Example:
        >>> import torch
        >>> from kvzero import BlockZeroer, CacheGeometry, plan_segments
        >>> from kvzero.layout.tensors import storage_tensors
        >>> cache = {"layer.0": torch.ones(8, 16, 64)}
        >>> geometry = CacheGeometry.from_tensors(cache, num_blocks=8, block_dim=0)
        >>> zeroer = BlockZeroer(plan_segments(geometry), storage_tensors(cache))
        >>> verdict = audit_live(geometry, storage_tensors(cache), [3], write=zeroer.zero)
        >>> verdict.ok, verdict.dirty_before_bytes, verdict.missed_bytes, verdict.checked_bytes
        (True, 2048, 0, 8192)
    """
    blocks = sorted(set(checked_blocks(geometry, block_ids)))
    if radius_blocks is not None and not (is_integer(radius_blocks) and radius_blocks >= 0):
        raise errors.AuditError("radius-blocks", radius_blocks=radius_blocks)
    if not (is_integer(tile_bytes) and WORD_BYTES <= tile_bytes <= CHUNK_BYTES and tile_bytes % WORD_BYTES == 0):
        raise errors.AuditError("checksum-bytes", tile_bytes=tile_bytes, word_bytes=WORD_BYTES, most_bytes=CHUNK_BYTES)
    memory = whole_storages(geometry.storages, storages)
    own = needed_ranges(geometry.select(), blocks)
    windows = _neighbourhood(geometry, blocks, own, radius_blocks)
    start = time.perf_counter()
    dirty_before = _nonzero(memory, own)
    control = _checksums(memory, windows, tile_bytes)
    before = _checksums(memory, windows, tile_bytes)
    _synchronize(memory)
    write(blocks)
    _synchronize(memory)
    after = _checksums(memory, windows, tile_bytes)
    missed = _nonzero(memory, own)
    stomped, unsteady, changed = _compare(geometry, windows, control, before, after, tile_bytes)
    return LiveAudit(
        blocks=tuple(blocks),
        needed_bytes=sum(total(ranges) for ranges in own.values()),
        dirty_before_bytes=dirty_before,
        missed_bytes=missed,
        stomped_tiles=stomped,
        unsteady_tiles=unsteady,
        changed=tuple(changed),
        checked_bytes=sum(total(ranges) for ranges in windows.values()),
        tile_bytes=tile_bytes,
        pause_seconds=time.perf_counter() - start,
    )


def _synchronize(memory: Mapping[Name, torch.Tensor]) -> None:
    """Wait for every stream: the writer may use another one than the checksums."""
    for device in {tensor.device for tensor in memory.values() if tensor.is_cuda}:
        torch.cuda.synchronize(device)


def _neighbourhood(geometry: CacheGeometry, blocks, own, radius_blocks: int | None) -> dict[Name, np.ndarray]:
    """The live bytes to watch: pages of neighbouring blocks, and pages of these blocks that are not to be zeroed."""
    if radius_blocks is None:
        # Whole storages, pad included, so that the number of ranges does not grow with the pool.
        pages = {storage.id: as_ranges([(0, storage.nbytes)]) for storage in geometry.storages}
    else:
        around = (range(max(b - radius_blocks, 0), min(b + radius_blocks + 1, geometry.num_blocks)) for b in blocks)
        pages = needed_ranges(geometry.layers, sorted(set().union(*around)))
    return {storage: subtract(ranges, own[storage]) if storage in own else ranges for storage, ranges in pages.items()}


def _tiles(windows: Mapping[Name, np.ndarray], tile_bytes: int):
    """Yield (storage, start, stop) chunks, each of which is summed in tiles from its start."""
    chunk_bytes = CHUNK_BYTES // tile_bytes * tile_bytes
    for storage, ranges in windows.items():
        for start, stop in ranges.tolist():
            for low in range(start, stop, chunk_bytes):
                yield storage, low, min(low + chunk_bytes, stop)


def _checksums(memory, windows, tile_bytes: int) -> list[torch.Tensor]:
    keys: dict[torch.device, torch.Tensor] = {}
    sums = []
    for storage, start, stop in _tiles(windows, tile_bytes):
        flat = memory[storage][start:stop]
        if flat.device not in keys:
            keys[flat.device] = _keys(tile_bytes // WORD_BYTES, flat.device)
        sums.append(_tile_sums(flat, keys[flat.device]))
    return sums


def _tile_sums(flat: torch.Tensor, keys: torch.Tensor) -> torch.Tensor:
    """One 64-bit sum per tile. A change of one word always shows; of several, all but once in 2**64."""
    short = -flat.numel() % (len(keys) * WORD_BYTES)
    if short or flat.data_ptr() % WORD_BYTES:
        flat = torch.nn.functional.pad(flat, (0, short)) if short else flat.clone()
    words = flat.view(torch.int64).view(-1, len(keys))
    # The key depends on the place in the tile, so moved words show; the multiplier is odd and the shift logical,
    # so each word's mix can be undone: no single change is lost, and equal words do not cancel.
    mixed = (words ^ keys) * MULTIPLIER
    return (mixed ^ ((mixed >> 32) & 0xFFFFFFFF)).sum(dim=1)


def _keys(words: int, device: torch.device) -> torch.Tensor:
    noise = np.random.default_rng(0x6B76).integers(-(2**63), 2**63 - 1, size=words, dtype=np.int64)
    return torch.from_numpy(noise).to(device)


def _nonzero(memory, ranges: Mapping[Name, np.ndarray]) -> int:
    counts = [
        torch.count_nonzero(memory[storage][start:stop])
        for storage, rows in ranges.items()
        for start, stop in rows.tolist()
    ]
    return sum(_values(counts))


def _values(scalars: list[torch.Tensor]) -> list[int]:
    """Fetch numbers in order, waiting once per device instead of once per number."""
    places: dict[torch.device, list[int]] = {}
    for place, scalar in enumerate(scalars):
        places.setdefault(scalar.device, []).append(place)
    values = [0] * len(scalars)
    for here in places.values():
        for place, value in zip(here, torch.stack([scalars[place] for place in here]).tolist(), strict=True):
            values[place] = value
    return values


def _compare(geometry, windows, control, before, after, tile_bytes: int):
    """Count the stomped and the unsteady tiles, and describe the first stomped ones."""
    chunks = list(_tiles(windows, tile_bytes))
    unsteady_masks = [c != b for c, b in zip(control, before, strict=True)]
    changed_masks = [(b != a) & ~u for b, a, u in zip(before, after, unsteady_masks, strict=True)]
    unsteady = sum(_values([mask.sum() for mask in unsteady_masks]))
    any_changed = _values([mask.any() for mask in changed_masks])
    stomped = 0
    found: list[Any] = []
    for (storage, start, stop), mask, changed in zip(chunks, changed_masks, any_changed, strict=True):
        if not changed:
            continue
        lows = start + mask.nonzero().flatten().cpu().numpy() * tile_bytes
        tiles = np.stack((lows, np.minimum(lows + tile_bytes, stop)), axis=1)
        tiles = tiles[_hold_live_bytes(geometry, storage, tiles)]
        stomped += len(tiles)
        found += [_described(geometry, storage, *tile) for tile in tiles[: MAX_REPORTED - len(found)].tolist()]
    return stomped, unsteady, found


def _hold_live_bytes(geometry: CacheGeometry, storage: Name, tiles: np.ndarray) -> np.ndarray:
    """Mask the tiles that hold a byte of any view; the others are pad."""
    live = [owned_within(v, geometry.num_blocks, tiles) for v in geometry.layers if v.storage == storage]
    ranges = union(np.concatenate(live)) if live else as_ranges([])
    first = np.searchsorted(ranges[:, 1], tiles[:, 0], side="right")
    return np.searchsorted(ranges[:, 0], tiles[:, 1], side="left") > first


def _described(geometry: CacheGeometry, storage: Name, start: int, stop: int) -> dict[str, Any]:
    owners = {*owners_of_byte(geometry, storage, start), *owners_of_byte(geometry, storage, stop - 1)}
    return {"storage": storage, "start_bytes": start, "stop_bytes": stop, "owners": sorted(map(list, owners))}
