"""What every audit needs: block ids as plain integers, which views they are for, and masks as byte ranges."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import numpy as np
import torch

from kvzero import errors
from kvzero.layout.geometry import CacheGeometry
from kvzero.layout.intervals import as_ranges
from kvzero.layout.records import LayerView, is_integer

PIECE_BYTES = 1 << 30


def views_to_blocks(
    geometry: CacheGeometry, block_ids, layers=None, groups=None
) -> tuple[list[int], list[tuple[tuple[LayerView, ...], list[int]]]]:
    """Which views are to be zeroed in which blocks.

    Args:
        geometry: the pool.
        block_ids: block ids, or a mapping of group to block ids, as `BlockZeroer.zero` takes it.
        layers, groups: as in `CacheGeometry.select`; a mapping names its groups itself.

    Returns:
        All blocks in the order given, and pairs of views and the blocks in which they are to be zeroed.

    Raises:
        IdTypeError, UnknownBlockError: ids that are no integers, or lie outside the pool.
        UnknownSelectionError, NothingSelectedError: see `CacheGeometry.select`.
    """
    if not isinstance(block_ids, Mapping):
        blocks = checked_blocks(geometry, block_ids)
        return blocks, [(geometry.select(layers, groups), blocks)]
    if groups is not None:
        raise errors.IdTypeError(given="a mapping of group to ids beside `groups`")
    wanted = [(geometry.select(layers, [group]), checked_blocks(geometry, ids)) for group, ids in block_ids.items()]
    return [block for _, ids in wanted for block in ids], wanted


def checked_blocks(geometry: CacheGeometry, block_ids: Sequence[int]) -> list[int]:
    """The ids as plain integers, from a list, an array or a tensor; raises IdTypeError or UnknownBlockError."""
    given = block_ids.tolist() if hasattr(block_ids, "tolist") else block_ids
    if not isinstance(given, Iterable) or isinstance(given, (str, bytes, Mapping)):
        raise errors.IdTypeError(given=f"a {type(block_ids).__name__}")
    given = list(given)
    for block in given:
        if not is_integer(block):
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
