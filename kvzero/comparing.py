"""Comparing memory with what it should hold: from masks of changed bytes to an `Audit`.

`kvzero.arena` holds the memory, `kvzero.audit` chooses the witness; both build on this and it knows neither.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
import torch

from . import errors
from .geometry import CacheGeometry
from .intervals import as_ranges, total
from .report import KINDS, Audit, Name, make_audit

PIECE_BYTES = 1 << 30


def judge_arena(
    arena,
    block_ids: Sequence[int],
    *,
    layers: str | Sequence[str] | None,
    groups: Sequence[Name] | None,
    planner: str,
    written_bytes: int | None,
    pad_allowed: bool,
) -> Audit:
    """Judge what was written into an arena (`kvzero.arena.Arena`); see `Arena.audit` for the arguments."""
    geometry = arena.geometry
    block_ids = checked_blocks(geometry, block_ids)
    views = geometry.select(layers, groups)
    selected = {view.name for view in views}
    ids = sorted(set(block_ids))
    found: dict[str, dict[Name, np.ndarray]] = {kind: {} for kind in ("cleared", *KINDS)}
    by_layer = {view.name: {"missed_bytes": 0, "stomped_bytes": 0} for view in geometry.layers}
    needed_bytes = 0
    for storage in geometry.storages:
        before, changed, after = arena.changed(storage.id)
        needed = arena.mark(views, storage.id, ids)
        missed = needed & (arena.storages[storage.id] != 0)
        astray = changed & ~needed
        stomped = torch.zeros_like(astray)
        if bool(astray.any()):
            stomped = astray & arena.mark(geometry.layers, storage.id, None)
        needed_bytes += int(torch.count_nonzero(needed))
        found["cleared"][storage.id] = mask_ranges(needed & changed)
        found["stomped"][storage.id] = mask_ranges(stomped)
        found["missed"][storage.id] = mask_ranges(missed)
        found["pad"][storage.id] = mask_ranges(astray & ~stomped)
        front = mask_ranges(before) - arena.redzone_bytes
        found["overrun"][storage.id] = np.concatenate((front, mask_ranges(after) + storage.nbytes))
        here = [view for view in geometry.layers if view.storage == storage.id]
        if bool(missed.any()):
            for view in here:
                if view.name in selected:
                    own = arena.mark([view], storage.id, ids)
                    by_layer[view.name]["missed_bytes"] = int(torch.count_nonzero(own & missed))
        if bool(stomped.any()):
            for view in here:
                own = arena.mark([view], storage.id, None)
                by_layer[view.name]["stomped_bytes"] = int(torch.count_nonzero(own & stomped))
    if written_bytes is None:
        distinct = (kind for kind in found if kind != "missed")
        written_bytes = sum(total(ranges) for kind in distinct for ranges in found[kind].values())
    return make_audit(
        geometry, found, by_layer, block_ids, planner=planner, witness="bytes", device=str(arena.device),
        needed_bytes=needed_bytes, written_bytes=written_bytes, pad_allowed=pad_allowed,
    )  # fmt: skip


def checked_blocks(geometry: CacheGeometry, block_ids: Sequence[int]) -> list[int]:
    """The ids as plain integers, from a list, an array or a tensor; raises IdTypeError or UnknownBlockError."""
    given = block_ids.tolist() if hasattr(block_ids, "tolist") else block_ids
    if not isinstance(given, Iterable) or isinstance(given, (str, bytes)):
        raise errors.IdTypeError(given=f"a {type(block_ids).__name__}")
    given = list(given)
    for block in given:
        if isinstance(block, bool) or not isinstance(block, (int, np.integer)):
            raise errors.IdTypeError(given=f"a {type(block_ids).__name__} that holds a {type(block).__name__}")
    blocks = [int(block) for block in given]
    for block in blocks:
        if not 0 <= block < geometry.num_blocks:
            raise errors.UnknownBlockError(where=geometry.where, block_id=block, last_block_id=geometry.num_blocks - 1)
    return blocks


def mask_ranges(mask: torch.Tensor) -> np.ndarray:
    """The runs of True in a one-dimensional mask, as (start, stop) ranges."""
    if not bool(mask.any()):
        return as_ranges([])
    edges = [[0]] if bool(mask[0]) else []
    # In pieces: torch lists at most 2**31 elements at once, and only the edges leave a GPU.
    for start in range(0, len(mask) - 1, PIECE_BYTES):
        stop = min(start + PIECE_BYTES, len(mask) - 1)
        changes = mask[start + 1 : stop + 1] != mask[start:stop]
        found = torch.nonzero(changes).ravel().cpu().numpy() if mask.is_cuda else np.flatnonzero(changes.numpy())
        edges.append(found + start + 1)
    if bool(mask[-1]):
        edges.append([len(mask)])
    return as_ranges(np.concatenate(edges))
