"""The id race on a model of a stream: every order in which a host and a stream can interleave, judged."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import product

import torch

from kvzero.history.stream_model import StreamModel


class FreshIdBuffer:
    """The id path of #48399: a pinned buffer of its own for every call, and one asynchronous copy.

    Args:
        stream: a `StreamModel` or `CudaStream`.
        zero: the kernel; gets the ids on the device when it runs.
    """

    def __init__(self, stream, zero: Callable[[torch.Tensor], object]) -> None:
        self.stream = stream
        self._zero = zero

    def zero(self, block_ids: Sequence[int]) -> None:
        """Enqueue the zeroing of these blocks; returns at once and forgets its buffer."""
        buffer = self.stream.new_buffer(len(block_ids))
        buffer[:] = torch.tensor(list(block_ids), dtype=torch.int64)
        self.stream.enqueue_kernel(self._zero, self.stream.enqueue_copy(buffer, len(block_ids)))


def schedules(calls: int) -> list[tuple[int, ...]]:
    """Every order: for each call but the first, how many operations the stream has run when it begins.

    >>> [len(schedules(calls)) for calls in (2, 3, 4)]
    [3, 12, 55]
    """
    counts = (range(2 * call + 1) for call in range(1, calls))
    return [ran for ran in product(*counts) if list(ran) == sorted(ran)]


@dataclass(frozen=True)
class Outcome:
    """What one schedule did.

    Args:
        schedule: see `schedules`.
        zeroed: the ids that the kernels were given, in order.
        dirty: blocks that were asked for and never zeroed.
    """

    schedule: tuple[int, ...]
    zeroed: tuple[int, ...]
    dirty: tuple[int, ...]

    @property
    def ok(self) -> bool:
        """Each block that was asked for was zeroed, and no other."""
        return not self.dirty


def play(make_path: Callable, schedule: Sequence[int]) -> Outcome:
    """Run one schedule of calls that ask for block 1, block 2, and so on.

    Args:
        make_path: takes a stream and a kernel, returns an object with `zero(block_ids)`.
        schedule: see `schedules`.

    Example: the first copy is still waiting when the second call fills the buffer.
        >>> from kvzero.history.shared_id_buffer import SharedIdBuffer
        >>> play(SharedIdBuffer, (0,)).zeroed
        (2, 2)
    """
    stream, zeroed = StreamModel(), []
    path = make_path(stream, lambda ids: zeroed.extend(ids.tolist()))
    asked = range(1, len(schedule) + 2)
    for block, ran in zip(asked, (0, *schedule), strict=True):
        while len(stream.ran) < ran:
            stream.run_next()
        path.zero([block])
    stream.synchronize()
    return Outcome(tuple(schedule), tuple(zeroed), tuple(block for block in asked if block not in zeroed))


def play_all(make_path: Callable, calls: int) -> list[Outcome]:
    """`play` for every schedule of so many calls."""
    return [play(make_path, schedule) for schedule in schedules(calls)]
