"""Block ids: one check for every kind of host ids, and ids that change between replays of a graph."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from kvzero.errors import IdOutOfRangeError, ZeroingError
from kvzero.layout.records import is_integer
from kvzero.zero.kernel import MOST_BY_VALUE, VALUES

HostIds = Sequence[int] | np.ndarray | torch.Tensor

# A free place in `ReplayableIds`; no block has this id.
NO_BLOCK = -1
# For each number of ids: that many 32-bit integers, padded to the kernel's arguments.
_packers = [struct.Struct(f"{num_ids}I{4 * (MOST_BY_VALUE - num_ids)}x") for num_ids in range(MOST_BY_VALUE + 1)]
_arguments = struct.Struct(f"{VALUES}q")


def checked_ids(block_ids: HostIds, plan) -> list[int] | np.ndarray:
    """Check block ids against the plan's pool.

    Args:
        block_ids: a list or other sequence of integers, a NumPy array, or a CPU tensor, of shape (ids,) and any
            integer type.
        plan: gives the pool's number of blocks, at most 2**31 - 1, and the segment that an error names.

    Returns:
        The ids, sharing no memory with what was given: a list if that was a short one, else an int32 array of shape
        (ids,).

    Raises:
        ZeroingError: not one-dimensional, or holds anything but integers; bools and floats are refused.
        IdOutOfRangeError: an id below 0 or not below `plan.num_blocks`.

    Example:
        >>> from types import SimpleNamespace
        >>> checked_ids((3, 1), SimpleNamespace(num_blocks=4)).tolist()
        [3, 1]
    """
    # Lists, the common call of an engine, are checked in a few passes of C; what does not pass is looked at below.
    if type(block_ids) is list:
        ids = _checked_list(block_ids, plan.num_blocks)
        if ids is not None:
            return ids
    ids = integer_ids(block_ids)
    if ids.size and (ids.min() < 0 or ids.max() >= plan.num_blocks):
        outside = (ids < 0) | (ids >= plan.num_blocks)
        raise _out_of_range(int(ids[outside.argmax()]), plan)
    return ids.astype(np.int32)


def _checked_list(block_ids: list, num_blocks: int) -> list[int] | np.ndarray | None:
    if len(block_ids) <= MOST_BY_VALUE:  # for which NumPy would take longer than the launch
        ids = block_ids.copy()
        if set(map(type, ids)) == {int} and min(ids) >= 0 and max(ids) < num_blocks:
            return ids
        return None
    packed = np.empty(len(block_ids), dtype=np.uint32)
    try:
        struct.pack_into(f"{len(block_ids)}I", packed, 0, *block_ids)
    except struct.error:  # an item that is no integer, or lies outside 32 bits
        return None
    # Bools are packed, too, as 0 and 1.
    for place in np.flatnonzero(packed < 2).tolist():
        if type(block_ids[place]) is not int:
            return None
    return packed.view(np.int32) if packed.max() < num_blocks else None


def integer_ids(block_ids: HostIds) -> np.ndarray:
    """The ids as a one-dimensional array of integers; raises ZeroingError for anything else."""
    if isinstance(block_ids, torch.Tensor):
        try:
            block_ids = block_ids.detach().numpy()
        except (TypeError, RuntimeError) as error:  # a type that NumPy lacks, or no dense memory on the CPU
            raise ZeroingError("id-type", given=f"a tensor of {block_ids.dtype} on {block_ids.device}") from error
    if isinstance(block_ids, np.ma.MaskedArray):
        raise ZeroingError("id-type", given="a masked array, whose hidden ids would be zeroed too")
    if isinstance(block_ids, np.ndarray) and block_ids.dtype == object and block_ids.ndim == 1:
        block_ids = block_ids.tolist()  # each item is checked, as in a list
    if not isinstance(block_ids, np.ndarray):
        block_ids = _array(block_ids)
    if block_ids.ndim != 1:
        raise ZeroingError("id-type", given=f"an array of shape {block_ids.shape}")
    if block_ids.size and block_ids.dtype.kind not in "iuO":
        raise ZeroingError("id-type", given=f"an array of {block_ids.dtype}")
    return block_ids


def _array(block_ids: Any) -> np.ndarray:
    name = type(block_ids).__name__
    if isinstance(block_ids, (str, bytes)) or not isinstance(block_ids, Sequence):
        raise ZeroingError("id-type", given=f"a {name}")
    for kind in set(map(type, block_ids)):
        if kind is bool or not issubclass(kind, (int, np.integer)):
            raise ZeroingError("id-type", given=f"a {name} that holds a {kind.__name__}")
    try:
        return np.array(block_ids, dtype=np.int64)
    except OverflowError:  # an id beyond 64 bits, refused by the caller as any other outside the pool
        return np.array(block_ids, dtype=object)


def _out_of_range(block_id: int, plan) -> IdOutOfRangeError:
    segment = plan.segments[0]
    return IdOutOfRangeError(
        block_id=block_id,
        capacity_blocks=plan.num_blocks,
        last_block=plan.num_blocks - 1,
        segment=0,
        storage=segment.storage,
        base_bytes=segment.base_bytes,
    )


def argument_values(ids: Sequence[int]) -> tuple[int, ...]:
    """Pack checked ids into the kernel's arguments, two to a number.

    Args:
        ids: up to `MOST_BY_VALUE` of them.

    Returns:
        `VALUES` integers.

    Example:
        >>> [f"{pair:x}" for pair in argument_values([1, 2, 3])[:3]]
        ['200000001', '3', '0']
    """
    return _arguments.unpack(_packers[len(ids)].pack(*ids))


class ReplayableIds:
    """Block ids in GPU memory that change, in value and number, between replays of a graph.

    Made by `BlockZeroer.replayable_ids`.

    Args:
        device: the GPU.
        plan: the plan whose pool the ids are of.
        max_ids: most ids it holds; a captured call has programs for that many.

    Raises:
        ZeroingError: `max_ids` is not a whole number, 0 or more.

    Example (needs a GPU):
        ids = zeroer.replayable_ids(64)
        with torch.cuda.graph(graph):
            zeroer.zero(ids)
        ids.set([5, 9])
        graph.replay()
    """

    def __init__(self, device: torch.device, plan, max_ids: int) -> None:
        if not is_integer(max_ids) or max_ids < 0:
            raise ZeroingError("num-ids", num_ids=max_ids)
        self.max_ids = int(max_ids)
        self.buffer = torch.full((self.max_ids,), NO_BLOCK, dtype=torch.int32, device=device)
        self._plan = plan

    def set(self, block_ids: HostIds) -> None:
        """Replace the ids and their number, in the order of the current stream, outside any capture.

        Args:
            block_ids: ids on the host, as for `BlockZeroer.zero`; at most `max_ids`.

        Raises:
            IdOutOfRangeError, ZeroingError: as `BlockZeroer.zero`.
            ZeroingError: more than `max_ids`.
        """
        ids = checked_ids(block_ids, self._plan)
        if len(ids) > self.max_ids:
            raise ZeroingError("replay-room", num_ids=len(ids), max_ids=self.max_ids)
        padded = np.full(self.max_ids, NO_BLOCK, dtype=np.int32)
        padded[: len(ids)] = ids
        # Pageable memory: the driver has read it when this returns.
        self.buffer.copy_(torch.from_numpy(padded), non_blocking=True)
