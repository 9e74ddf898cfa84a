"""Block ids on the host: any integer sequence, checked before anything is written."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from .errors import IdOutOfRangeError, IdTypeError

NOTHING_WRITTEN = "Nothing was written."
_largest = np.maximum.reduce


def host_ids(block_ids: Sequence[int] | np.ndarray | torch.Tensor) -> np.ndarray:
    """The ids as a one-dimensional integer array.

    Args:
        block_ids: a list or other sequence of integers, a NumPy array, or a CPU tensor; any integer type.

    Returns:
        An integer array of shape (ids,); it may share memory with an array or tensor that was given.

    Raises:
        IdTypeError: not one-dimensional, or holds anything but integers; bools and floats are refused.

    Example:
        >>> host_ids([3, 1]).tolist()
        [3, 1]
    """
    if isinstance(block_ids, np.ndarray):
        array = block_ids
    elif isinstance(block_ids, torch.Tensor):
        array = block_ids.detach().numpy()
    elif isinstance(block_ids, (str, bytes)) or not isinstance(block_ids, Sequence):
        raise IdTypeError(given=type(block_ids).__name__)
    else:
        wrong = next((kind for kind in map(type, block_ids) if not issubclass(kind, (int, np.integer))), None)
        if wrong is not None or bool in map(type, block_ids):
            raise IdTypeError(given=f"a {type(block_ids).__name__} that holds {(wrong or bool).__name__}")
        try:
            array = np.array(block_ids, dtype=np.int64)
        except OverflowError:
            array = np.array(block_ids, dtype=object)
    if array.ndim != 1:
        raise IdTypeError(given=f"an array of shape {array.shape}")
    if array.dtype.kind not in "iuO" and array.size:
        raise IdTypeError(given=f"an array of {array.dtype}")
    return array


def refuse_outside(ids: np.ndarray, plan, outcome: str = NOTHING_WRITTEN) -> None:
    """Raises `IdOutOfRangeError` for the first id that is not a block of the plan's pool."""
    for block_id in ids.tolist():
        if not 0 <= block_id < plan.num_blocks:
            raise out_of_range(block_id, plan, outcome)


def out_of_range(block_id: int, plan, outcome: str) -> IdOutOfRangeError:
    """The error for one id, naming the segment that it would miss."""
    segment = plan.segments[0]
    return IdOutOfRangeError(
        block_id=block_id,
        capacity_blocks=plan.num_blocks,
        last_block=plan.num_blocks - 1,
        segment=0,
        storage=segment.storage,
        base_bytes=segment.base_bytes,
        outcome=outcome,
    )


def all_inside(ids: np.ndarray, num_blocks: int) -> bool:
    """Whether every id of a non-empty int64 array is a block; a negative one reads as a huge unsigned one."""
    return int(_largest(ids.view(np.uint64))) < num_blocks
