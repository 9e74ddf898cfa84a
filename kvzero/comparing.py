"""What every audit needs: block ids as plain integers, and masks as byte ranges."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
import torch

from . import errors
from .geometry import CacheGeometry
from .intervals import as_ranges
from .views import is_integer

PIECE_BYTES = 1 << 30


def checked_blocks(geometry: CacheGeometry, block_ids: Sequence[int]) -> list[int]:
    """The ids as plain integers, from a list, an array or a tensor; raises IdTypeError or UnknownBlockError."""
    given = block_ids.tolist() if hasattr(block_ids, "tolist") else block_ids
    if not isinstance(given, Iterable) or isinstance(given, (str, bytes)):
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
