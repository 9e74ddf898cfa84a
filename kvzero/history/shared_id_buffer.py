"""The id path of #35219 (to #48085): one pinned buffer, filled anew for every call.

The copy of the ids to the GPU is asynchronous. With a second call while the first copy still waits in the
stream, the host overwrites the buffer and the first copy reads the second call's ids: one block is zeroed twice
and the other stays dirty, which nobody reports. #48085 found it under asynchronous scheduling; 1Cat #406 and,
as far as can be read, an Ascend fork had the same buffer again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

NAME = "shared_id_buffer"
ERA = "#35219 to #48085"
CAPACITY_IDS = 8192


class SharedIdBuffer:
    """Zeroes blocks through one reused host buffer.

    Args:
        stream: a `stream_model.StreamModel` or `CudaStream`.
        zero: the kernel; gets the ids on the device when it runs.
        capacity_ids: ids that the buffer holds; a larger call replaces it.

    Example:
        >>> from kvzero.history.stream_model import StreamModel
        >>> stream, zeroed = StreamModel(), []
        >>> path = SharedIdBuffer(stream, lambda ids: zeroed.append(ids.tolist()))
        >>> path.zero([1]); path.zero([2]); stream.synchronize(); zeroed
        [[2], [2]]
    """

    def __init__(self, stream, zero: Callable[[torch.Tensor], None], capacity_ids: int = CAPACITY_IDS) -> None:
        self.stream = stream
        self._zero = zero
        self._buffer = stream.new_buffer(capacity_ids)

    def zero(self, block_ids: Sequence[int]) -> None:
        """Enqueue the zeroing of these blocks; returns at once."""
        if len(block_ids) > len(self._buffer):
            self._buffer = self.stream.new_buffer(len(block_ids))
        self._buffer[: len(block_ids)] = torch.tensor(list(block_ids), dtype=torch.int64)
        ids = self.stream.enqueue_copy(self._buffer, len(block_ids))
        self.stream.enqueue_kernel(self._zero, ids)


# What it must do: two calls behind a held stream on a pool of blocks 0 to 3, blocks zeroed, blocks left dirty.
MUST_DO = {"calls": ([1], [2]), "zeroed": {2}, "dirty": {0, 1, 3}}
