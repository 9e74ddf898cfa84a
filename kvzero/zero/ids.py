"""Block ids on the host: any integer sequence, checked before anything is written."""

from __future__ import annotations

import struct
from collections.abc import Sequence

import numpy as np
import torch

from kvzero.errors import IdOutOfRangeError, IdTypeError
from kvzero.zero.kernel import MOST_BY_VALUE, VALUES

HostIds = Sequence[int] | np.ndarray | torch.Tensor

# For each number of ids: that many 32-bit integers, padded to the kernel's arguments.
_PACKERS = [struct.Struct(f"{num_ids}I{4 * (MOST_BY_VALUE - num_ids)}x") for num_ids in range(MOST_BY_VALUE + 1)]
_ARGUMENTS = struct.Struct(f"{VALUES}q")


def checked_ids(block_ids: HostIds, plan) -> list[int] | np.ndarray:
    """Check block ids against the plan's pool.

    Args:
        block_ids: a list or other sequence of integers, a NumPy array, or a CPU tensor, of shape (ids,) and any
            integer type.
        plan: gives the pool's number of blocks, and the segment that an error names.

    Returns:
        The ids: a short list of Python integers as it was given, anything else as an int64 array of shape (ids,) that
        may share memory with what was given.

    Raises:
        IdTypeError: not one-dimensional, or holds anything but integers; bools and floats are refused.
        IdOutOfRangeError: an id below 0 or not below `plan.num_blocks`.

    Example:
        >>> from types import SimpleNamespace
        >>> checked_ids((3, 1), SimpleNamespace(num_blocks=4)).tolist()
        [3, 1]
    """
    if type(block_ids) is list and len(block_ids) <= MOST_BY_VALUE and set(map(type, block_ids)) == {int}:
        # The common call of an engine, for which NumPy would take longer than the launch.
        if min(block_ids) >= 0 and max(block_ids) < plan.num_blocks:
            return block_ids
    array = _integers(block_ids)
    if array.size and (array.min() < 0 or array.max() >= plan.num_blocks):
        outside = (array < 0) | (array >= plan.num_blocks)
        raise out_of_range(int(array[outside.argmax()]), plan)
    return np.ascontiguousarray(array, dtype=np.int64)


def _integers(block_ids: HostIds) -> np.ndarray:
    if isinstance(block_ids, torch.Tensor):
        try:
            block_ids = block_ids.detach().numpy()
        except (TypeError, RuntimeError) as error:  # a type that NumPy lacks, or no dense memory on the CPU
            raise IdTypeError(given=f"a tensor of {block_ids.dtype} on {block_ids.device}") from error
    if isinstance(block_ids, np.ma.MaskedArray):
        raise IdTypeError(given="a masked array, whose hidden ids would be zeroed too")
    if isinstance(block_ids, np.ndarray) and block_ids.dtype == object and block_ids.ndim == 1:
        block_ids = block_ids.tolist()  # each item is checked, as in a list
    if not isinstance(block_ids, np.ndarray):
        block_ids = _array(block_ids)
    if block_ids.ndim != 1:
        raise IdTypeError(given=f"an array of shape {block_ids.shape}")
    if block_ids.size and block_ids.dtype.kind not in "iuO":
        raise IdTypeError(given=f"an array of {block_ids.dtype}")
    return block_ids


def _array(block_ids: Sequence[int]) -> np.ndarray:
    name = type(block_ids).__name__
    if isinstance(block_ids, (str, bytes)) or not isinstance(block_ids, Sequence):
        raise IdTypeError(given=f"a {name}")
    for kind in set(map(type, block_ids)):
        if kind is bool or not issubclass(kind, (int, np.integer)):
            raise IdTypeError(given=f"a {name} that holds a {kind.__name__}")
    try:
        return np.array(block_ids, dtype=np.int64)
    except OverflowError:  # an id beyond 64 bits, refused later as any other outside the pool
        return np.array(block_ids, dtype=object)


def out_of_range(block_id: int, plan) -> IdOutOfRangeError:
    """The error for one id, naming the segment that it would miss."""
    segment = plan.segments[0]
    return IdOutOfRangeError(
        block_id=block_id,
        capacity_blocks=plan.num_blocks,
        last_block=plan.num_blocks - 1,
        segment=0,
        storage=segment.storage,
        base_bytes=segment.base_bytes,
    )


def argument_values(block_ids: Sequence[int]) -> tuple[int, ...]:
    """Pack up to `MOST_BY_VALUE` checked ids into the kernel's arguments, two to a number.

    Args:
        block_ids: ids from 0 to 2**32 - 1.

    Returns:
        `VALUES` integers.

    Example:
        >>> [f"{pair:x}" for pair in argument_values([1, 2, 3])[:3]]
        ['200000001', '3', '0']
    """
    return _ARGUMENTS.unpack(_PACKERS[len(block_ids)].pack(*block_ids))
