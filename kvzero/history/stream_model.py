"""A model of one GPU stream for machines without a GPU: a queue whose operations run only when it is drained.

It is a model: it has the one property that the id race needs, that an asynchronous copy reads its source when
the stream reaches it and not when it is enqueued. It models neither time nor other streams.
`CudaStream` has the same methods on a real GPU.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class Event:
    """One entry of a stream's log, for timelines.

    Args:
        step: position in the log, from 0.
        what: "fill" (the host writes a buffer), "enqueue copy", "enqueue kernel", "copy", "kernel", "wait".
        buffer: number of the host buffer, or None.
        ids: the block ids in play.
    """

    step: int
    what: str
    buffer: int | None
    ids: tuple[int, ...]


class _Logged:
    """The log that both streams keep."""

    def __init__(self) -> None:
        self.log: list[Event] = []

    def note(self, what: str, buffer: int | None, ids) -> None:
        """Append an event to the log."""
        self.log.append(Event(len(self.log), what, buffer, tuple(int(block) for block in ids)))


class StreamModel(_Logged):
    """One stream on the CPU, held until `run_next` or `synchronize`.

    Attributes:
        log: the events so far.

    Example: the copy reads its source late.
        >>> stream, source = StreamModel(), torch.tensor([1])
        >>> target = stream.enqueue_copy(source, 1, buffer=0)
        >>> source[0] = 2
        >>> stream.synchronize(); target.tolist()
        [2]
    """

    device = torch.device("cpu")

    def __init__(self) -> None:
        super().__init__()
        self._queue: deque[Callable[[], None]] = deque()

    def new_buffer(self, capacity_ids: int) -> torch.Tensor:
        """A host buffer for ids, int64, as it would be pinned on a machine with a GPU."""
        return torch.zeros(capacity_ids, dtype=torch.int64)

    def enqueue_copy(self, source: torch.Tensor, num_ids: int, buffer: int) -> torch.Tensor:
        """Enqueue a copy of the first ids of a host buffer; returns the device tensor that will hold them."""
        target = torch.zeros(num_ids, dtype=torch.int64)
        self.note("enqueue copy", buffer, source[:num_ids])

        def copy() -> None:
            target.copy_(source[:num_ids])
            self.note("copy", buffer, target)

        self._queue.append(copy)
        return target

    def enqueue_kernel(self, kernel: Callable[[torch.Tensor], None], ids: torch.Tensor) -> None:
        """Enqueue a kernel that reads the device ids when it runs."""
        self.note("enqueue kernel", None, ())

        def run() -> None:
            kernel(ids)
            self.note("kernel", None, ids)

        self._queue.append(run)

    def run_next(self) -> bool:
        """Run the oldest operation; False if the queue is empty."""
        if not self._queue:
            return False
        self._queue.popleft()()
        return True

    def synchronize(self) -> None:
        """Run everything that is enqueued."""
        self.note("wait", None, ())
        while self.run_next():
            pass


class CudaStream(_Logged):
    """A real stream, and the kernel that keeps it busy, behind the methods of `StreamModel`.

    Args:
        hold_cycles: GPU clock cycles for which `hold` keeps the stream busy.
        device: the GPU.

    The log holds what the host did; what the device did is not observed, only its result.
    """

    def __init__(self, hold_cycles: int = 500_000_000, device: str | torch.device = "cuda") -> None:
        super().__init__()
        self.device = torch.device(device)
        self.hold_cycles = hold_cycles
        self._stream = torch.cuda.Stream(self.device)

    def hold(self) -> None:
        """Keep the stream busy, so that what follows waits in its queue."""
        with torch.cuda.stream(self._stream):
            torch.cuda._sleep(self.hold_cycles)

    def new_buffer(self, capacity_ids: int) -> torch.Tensor:
        """A pinned host buffer for ids, int64."""
        return torch.zeros(capacity_ids, dtype=torch.int64, pin_memory=True)

    def enqueue_copy(self, source: torch.Tensor, num_ids: int, buffer: int) -> torch.Tensor:
        """Enqueue an asynchronous copy of the first ids of a pinned buffer; returns the device tensor."""
        self.note("enqueue copy", buffer, source[:num_ids])
        with torch.cuda.stream(self._stream):
            return source[:num_ids].to(self.device, non_blocking=True)

    def enqueue_kernel(self, kernel: Callable[[torch.Tensor], None], ids: torch.Tensor) -> None:
        """Launch a kernel on this stream."""
        self.note("enqueue kernel", None, ())
        with torch.cuda.stream(self._stream):
            kernel(ids)

    def current(self):
        """A context in which this is torch's current stream."""
        return torch.cuda.stream(self._stream)

    def done(self) -> bool:
        """Whether everything enqueued so far has run."""
        return self._stream.query()

    def synchronize(self) -> None:
        """Wait for the stream."""
        self.note("wait", None, ())
        self._stream.synchronize()
