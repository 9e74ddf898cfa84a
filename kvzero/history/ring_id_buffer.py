"""The id path of #48085 (to #48399): as many pinned buffers in turn as batches can be in flight.

Each call fills the next buffer, so a copy that still waits keeps its ids, as long as no more calls are in
flight than there are buffers: the number is a promise of the scheduler, not something this path checks. When a
call has more ids than a buffer holds, all buffers are replaced, and the stream is waited for first. #48399
dropped the ring for a fresh pinned copy per call, which the allocator keeps alive until the copy has run.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

NAME = "ring_id_buffer"
ERA = "#48085 to #48399"
CAPACITY_IDS = 8192


class RingIdBuffer:
    """Zeroes blocks through a rotation of host buffers.

    Args:
        stream: a `stream_model.StreamModel` or `CudaStream`.
        zero: the kernel; gets the ids on the device when it runs.
        buffers: how many calls may be in flight; one more overwrites ids that are still to be read.
        capacity_ids: ids that a buffer holds; a larger call waits for the stream and replaces all buffers.

    Example:
        >>> from kvzero.history.stream_model import StreamModel
        >>> stream, zeroed = StreamModel(), []
        >>> path = RingIdBuffer(stream, lambda ids: zeroed.append(ids.tolist()), buffers=2)
        >>> path.zero([1]); path.zero([2]); stream.synchronize(); zeroed
        [[1], [2]]
    """

    def __init__(
        self, stream, zero: Callable[[torch.Tensor], None], buffers: int = 2, capacity_ids: int = CAPACITY_IDS
    ) -> None:
        self.stream = stream
        self._zero = zero
        self._buffers = [stream.new_buffer(capacity_ids) for _ in range(buffers)]
        self._next = 0

    @property
    def nbytes(self) -> int:
        """Host bytes that the ring holds."""
        return sum(buffer.nbytes for buffer in self._buffers)

    def zero(self, block_ids: Sequence[int]) -> None:
        """Enqueue the zeroing of these blocks; returns at once, unless the buffers must grow."""
        if len(block_ids) > len(self._buffers[0]):
            self.stream.synchronize()
            self._buffers = [self.stream.new_buffer(len(block_ids)) for _ in self._buffers]
        turn = self._next
        self._next = (turn + 1) % len(self._buffers)
        self._buffers[turn][: len(block_ids)] = torch.tensor(list(block_ids), dtype=torch.int64)
        ids = self.stream.enqueue_copy(self._buffers[turn], len(block_ids))
        self.stream.enqueue_kernel(self._zero, ids)


# What it must do: the same two calls; and three calls on two buffers, one more than it promises.
MUST_DO = (
    {"buffers": 2, "calls": ([1], [2]), "zeroed": {1, 2}},
    {"buffers": 2, "calls": ([1], [2], [3]), "zeroed": {2, 3}},
)
