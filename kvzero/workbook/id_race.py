"""The id race on a model of a stream: every order in which a host and a stream can interleave, judged.

The streams are `kvzero.history.stream_model.StreamModel`, which says what it leaves out. The id paths of two eras
are specimens; here is what came after: a fresh buffer per call, and the two ways of kvzero.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch

from kvzero.history.stream_model import StreamModel

ID_BYTES = 8
_DEVICE_WORK = ("copy", "kernel")


class PinnedPool:
    """A model of a caching host allocator: buffers are freed as soon as the caller drops them, and used again.

    Args:
        stream: the modelled stream whose copies read the buffers.
        waits_for_copies: True: a freed buffer goes out again only after the copy that reads it has run, as torch's
            allocator sees to with events. False: it goes out again at once.

    Example: two calls behind a held stream need two buffers.
        >>> stream = StreamModel()
        >>> path = FreshIdBuffer(stream, print, PinnedPool(stream, waits_for_copies=True).new_buffer)
        >>> path.zero([1]); path.zero([2]); stream.synchronize()
        tensor([1])
        tensor([2])
    """

    def __init__(self, stream: StreamModel, *, waits_for_copies: bool) -> None:
        self.stream = stream
        self.waits_for_copies = waits_for_copies
        self.buffers: list[torch.Tensor] = []
        self._read_by_copy: list[int] = []  # how many copies must have run before the buffer is free

    def new_buffer(self, capacity_ids: int) -> torch.Tensor:
        """A buffer whose last reader is done, or, if there is none, a new one."""
        copies_run = sum(event.what == "copy" for event in self.stream.log)
        this_copy = sum(event.what == "enqueue copy" for event in self.stream.log) + 1
        for index, buffer in enumerate(self.buffers):
            free = not self.waits_for_copies or self._read_by_copy[index] <= copies_run
            if free and len(buffer) >= capacity_ids:
                self._read_by_copy[index] = this_copy
                return buffer
        self.buffers.append(self.stream.new_buffer(capacity_ids))
        self._read_by_copy.append(this_copy)
        return self.buffers[-1]


class FreshIdBuffer:
    """The id path of #48399: a pinned buffer of its own for every call, and one asynchronous copy.

    Args:
        stream: a `StreamModel` or `CudaStream`.
        zero: the kernel; gets the ids on the device when it runs.
        new_buffer: where buffers come from; the stream's own (on a GPU: torch's pinned memory) unless given.
    """

    def __init__(
        self,
        stream,
        zero: Callable[[torch.Tensor], None],
        new_buffer: Callable[[int], torch.Tensor] | None = None,
    ) -> None:
        self.stream = stream
        self._zero = zero
        self._new_buffer = new_buffer or stream.new_buffer
        self._calls = 0

    def zero(self, block_ids: Sequence[int]) -> None:
        """Enqueue the zeroing of these blocks; returns at once and forgets its buffer."""
        buffer = self._new_buffer(len(block_ids))
        buffer[: len(block_ids)] = torch.tensor(list(block_ids), dtype=torch.int64)
        self.stream.note("fill", self._calls, block_ids)
        ids = self.stream.enqueue_copy(buffer, len(block_ids), buffer=self._calls)
        self.stream.enqueue_kernel(self._zero, ids)
        self._calls += 1


class ByValue:
    """A model of how kvzero sends few ids: in the launch's own arguments, which the driver copies at the launch.

    Args:
        stream: the modelled stream.
        zero: the kernel; gets the ids that the launch was made with.
    """

    def __init__(self, stream: StreamModel, zero: Callable[[torch.Tensor], None]) -> None:
        self.stream = stream
        self._zero = zero

    def zero(self, block_ids: Sequence[int]) -> None:
        """Enqueue the zeroing of these blocks; no buffer is left that anyone could refill."""
        self.stream.enqueue_kernel(self._zero, torch.tensor(list(block_ids), dtype=torch.int64))


class SectionRing:
    """A ring that waits: slots in sections, guarded by events; kvzero used one before it copied from pageable memory.

    Args:
        stream: the modelled stream.
        zero: the kernel; gets the ids on the device when it runs.
        sections: parts of the ring; one is filled again only after all work that uses it has run.
        section_ids: ids in a section; the most that one call may have.

    Attributes:
        waits: how many operations of the stream calls had to wait for.
    """

    def __init__(
        self, stream: StreamModel, zero: Callable[[torch.Tensor], None], sections: int = 4, section_ids: int = 8192
    ) -> None:
        self.stream = stream
        self.waits = 0
        self._zero = zero
        self._section_ids = section_ids
        self._buffer = stream.new_buffer(sections * section_ids)
        self._last_user = [0] * sections  # kernels that must have run before the section may be filled
        self._section, self._next, self._calls = 0, 0, 0

    def zero(self, block_ids: Sequence[int]) -> None:
        """Enqueue the zeroing of these blocks; waits only if the next section may still be in use."""
        if self._next + len(block_ids) > (self._section + 1) * self._section_ids:
            self._section = (self._section + 1) % len(self._last_user)
            self._next = self._section * self._section_ids
            while _kernels_run(self.stream) < self._last_user[self._section]:
                self.waits += 1
                self.stream.run_next()
        slot = self._buffer[self._next : self._next + len(block_ids)]
        self._next += len(block_ids)
        slot[:] = torch.tensor(list(block_ids), dtype=torch.int64)
        self.stream.note("fill", self._section, block_ids)
        ids = self.stream.enqueue_copy(slot, len(block_ids), buffer=self._section)
        self.stream.enqueue_kernel(self._zero, ids)
        self._calls += 1
        self._last_user[self._section] = self._calls


def _kernels_run(stream: StreamModel) -> int:
    return sum(event.what == "kernel" for event in stream.log)


def schedules(calls: int, ops_per_call: int = 2) -> Iterator[tuple[int, ...]]:
    """Every way in which a stream can keep up with a host.

    Args:
        calls: calls that the host makes.
        ops_per_call: operations that each call enqueues: 2 for copy and kernel, 1 for a kernel alone.

    Yields:
        For each call but the first, how many operations the stream has finished when it begins.

    Example: after one call of two operations the stream can have finished none, one or both.
        >>> list(schedules(2))
        [(0,), (1,), (2,)]
        >>> len(list(schedules(3))), len(list(schedules(4)))
        (12, 55)
    """

    def extend(done: tuple[int, ...]) -> Iterator[tuple[int, ...]]:
        if len(done) == calls - 1:
            yield done
            return
        low = done[-1] if done else 0
        for ran in range(low, ops_per_call * (len(done) + 1) + 1):
            yield from extend((*done, ran))

    return extend(())


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
        while sum(event.what in _DEVICE_WORK for event in stream.log) < ran:
            stream.run_next()
        path.zero([block])
    stream.synchronize()
    return Outcome(tuple(schedule), tuple(zeroed), tuple(block for block in asked if block not in zeroed))


def play_all(make_path: Callable, calls: int, ops_per_call: int = 2) -> list[Outcome]:
    """`play` for every schedule of so many calls."""
    return [play(make_path, schedule) for schedule in schedules(calls, ops_per_call)]

