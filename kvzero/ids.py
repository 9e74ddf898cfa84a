"""Block ids on the host: any integer sequence, checked before anything is written."""

from __future__ import annotations

import marshal
import struct
from collections.abc import Sequence

import numpy as np
import torch

from .errors import IdOutOfRangeError, IdTypeError
from .kernel import MOST_BY_VALUE, VALUES

HostIds = Sequence[int] | np.ndarray | torch.Tensor

_largest = np.maximum.reduce
_MARSHALLED = np.dtype([("kind", "u1"), ("value", "<i4")])
_HEADER_BYTES = 5


def checked_ids(block_ids: HostIds, plan) -> np.ndarray:
    """The ids as an int64 array, all inside the plan's pool.

    Args:
        block_ids: a list or other sequence of integers, a NumPy array, or a CPU tensor; any integer type.
        plan: gives the pool's number of blocks, and the segment that an error names.

    Returns:
        An int64 array of shape (ids,); it may share memory with what was given.

    Raises:
        IdTypeError: not one-dimensional, or holds anything but integers; bools and floats are refused.
        IdOutOfRangeError: an id below 0 or not below `plan.num_blocks`.

    Example:
        >>> checked_ids([3, 1], plan).tolist()        # doctest: +SKIP
        [3, 1]
    """
    array = _integers(block_ids)
    if array.size:
        outside = (array < 0) | (array >= plan.num_blocks)
        if outside.any():
            raise out_of_range(int(array[outside.argmax()]), plan, "Nothing was written.")
    return np.ascontiguousarray(array, dtype=np.int64)


def _integers(block_ids: HostIds) -> np.ndarray:
    if isinstance(block_ids, torch.Tensor):
        try:
            block_ids = block_ids.detach().numpy()
        except (TypeError, RuntimeError) as error:  # a type that NumPy lacks, or no dense memory on the CPU
            given = f"a tensor of {block_ids.dtype} on {block_ids.device}"
            raise IdTypeError(given=given) from error
    if isinstance(block_ids, np.ma.MaskedArray):
        raise IdTypeError(given="a masked array, whose hidden ids would be zeroed too")
    if isinstance(block_ids, np.ndarray) and block_ids.dtype == object and block_ids.ndim == 1:
        block_ids = block_ids.tolist()  # its items are looked at one by one, as those of a list
    if not isinstance(block_ids, np.ndarray):
        if isinstance(block_ids, (str, bytes)) or not isinstance(block_ids, Sequence):
            raise IdTypeError(given=f"a {type(block_ids).__name__}")
        for kind in set(map(type, block_ids)):
            if kind is bool or not issubclass(kind, (int, np.integer)):
                raise IdTypeError(given=f"a {type(block_ids).__name__} that holds a {kind.__name__}")
        # Python integers of any size, so that one beyond 64 bits is refused as any other outside the pool.
        wide = any(not -(2**63) <= block_id < 2**63 for block_id in block_ids)
        block_ids = np.array(block_ids, dtype=object if wide else np.int64)
    if block_ids.ndim != 1:
        raise IdTypeError(given=f"an array of shape {block_ids.shape}")
    if block_ids.size and block_ids.dtype.kind not in "iuO":
        raise IdTypeError(given=f"an array of {block_ids.dtype}")
    return block_ids


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


def fill_fast(slot: np.ndarray, block_ids: HostIds, num_blocks: int) -> bool:
    """Copies ids into a slot and checks them there, without a pass of Python over them.

    Args:
        slot: int64, shape (ids,).
        block_ids: as many ids as the slot holds.
        num_blocks: blocks of the pool.

    Returns:
        False where this cannot vouch for the ids; `checked_ids` then says what is wrong, or takes them.
    """
    if type(block_ids) is list:
        try:
            # One pass in C that keeps the types, at half the cost of looking at each type and packing: version 2
            # of this format is a header and, for an integer below 2**31, an "i" and 4 bytes.
            marshalled = marshal.dumps(block_ids, 2)
        except ValueError:
            return False
        if len(marshalled) != _HEADER_BYTES + _MARSHALLED.itemsize * len(block_ids):
            return False
        if marshalled[_HEADER_BYTES :: _MARSHALLED.itemsize].count(b"i") != len(block_ids):
            return False
        slot[:] = np.frombuffer(marshalled, _MARSHALLED, offset=_HEADER_BYTES)["value"]
    elif type(block_ids) is np.ndarray and block_ids.dtype == np.int64 and block_ids.ndim == 1:
        slot[:] = block_ids
    else:
        return False
    # A negative id reads as a huge unsigned one.
    return _largest(slot.view(np.uint64)) < num_blocks


class ArgumentIds:
    """Up to `MOST_BY_VALUE` ids as kernel arguments: the driver copies them, so nothing can overwrite them.

    Not safe for two threads at once: hold a lock from `pack` to the end of its use.
    """

    def __init__(self) -> None:
        self._bytes = memoryview(bytearray(4 * MOST_BY_VALUE))
        self._packers = [struct.Struct(f"{num_ids}I").pack_into for num_ids in range(MOST_BY_VALUE + 1)]
        self._pairs = struct.Struct(f"{VALUES}q").unpack_from

    def pack(self, block_ids: list[int] | np.ndarray, num_blocks: int) -> tuple[int, ...] | None:
        """The ids, two to a number.

        Args:
            block_ids: 1 to `MOST_BY_VALUE` ids.
            num_blocks: blocks of the pool, at most 2**31.

        Returns:
            `VALUES` numbers, or None where this cannot vouch for the ids; `checked_ids` then says what is
            wrong, or takes them.

        Example:
            >>> [f"{pair:x}" for pair in ArgumentIds().pack([1, 2, 3], num_blocks=8)[:3]]
            ['200000001', '3', '0']
        """
        num_ids = len(block_ids)
        if type(block_ids) is list:
            if list(map(type, block_ids)).count(int) != num_ids:
                return None
        elif block_ids.dtype == np.int64 and block_ids.ndim == 1:
            block_ids = block_ids.tolist()
        else:
            return None
        if max(block_ids) >= num_blocks:
            return None
        try:
            self._packers[num_ids](self._bytes, 0, *block_ids)
        except struct.error:  # one is negative
            return None
        return self._pairs(self._bytes)
