"""A model of one GPU stream for machines without a GPU, and a real stream that can be held, with the same methods.

The model has the one property that the id race needs: an asynchronous copy reads its source when the stream reaches
it and not when it is enqueued. It models neither time nor other streams.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

import torch
import triton.language as tl

from kvzero.zero.kernel import NO_FLOATS, jit_both


class StreamModel:
    """One stream on the CPU: a queue whose operations run in `run_next` or `synchronize`.

    Attributes:
        queue: what waits, as (name, operation); the name is "copy" or "kernel".
        ran: names of the operations that have run.

    Example: the copy reads its source late.
        >>> stream, source = StreamModel(), torch.tensor([1])
        >>> target = stream.enqueue_copy(source, 1)
        >>> source[0] = 2
        >>> stream.synchronize(); target.tolist()
        [2]
    """

    device = torch.device("cpu")

    def __init__(self) -> None:
        self.queue: deque[tuple[str, Callable[[], object]]] = deque()
        self.ran: list[str] = []

    def new_buffer(self, capacity_ids: int) -> torch.Tensor:
        """A host buffer for ids, int64, as it would be pinned on a machine with a GPU."""
        return torch.zeros(capacity_ids, dtype=torch.int64)

    def enqueue_copy(self, source: torch.Tensor, num_ids: int) -> torch.Tensor:
        """Enqueue a copy of the first ids of a host buffer; returns the device tensor that will hold them."""
        target = torch.zeros(num_ids, dtype=torch.int64)
        self.queue.append(("copy", lambda: target.copy_(source[:num_ids])))
        return target

    def enqueue_kernel(self, kernel: Callable[[torch.Tensor], object], ids: torch.Tensor) -> None:
        """Enqueue a kernel that reads the device ids when it runs."""
        self.queue.append(("kernel", lambda: kernel(ids)))

    def run_next(self) -> bool:
        """Run the oldest operation; False if the queue is empty."""
        if not self.queue:
            return False
        name, operation = self.queue.popleft()
        operation()
        self.ran.append(name)
        return True

    def synchronize(self) -> None:
        """Run everything that is enqueued."""
        while self.run_next():
            pass


def _wait_for_gate(gate, gave_up, TRIES: tl.constexpr):
    tries = 0
    is_open = tl.load(gate, volatile=True)
    while (is_open == 0) & (tries < TRIES):
        is_open = tl.load(gate, volatile=True)
        tries += 1
    if is_open == 0:
        tl.store(gave_up, 1)


_wait_compiled, _ = jit_both(_wait_for_gate)
# Each try reads the host's memory, which takes about a microsecond: seconds in all. A host that is stuck behind the
# gate would otherwise wait for ever.
GATE_TRIES = 1 << 23


class CudaStream:
    """A real stream that waits at a gate until the host opens it, behind the methods of `StreamModel`.

    Args:
        device: the GPU.

    What runs behind the gate must have run before: loading a kernel or asking the driver for memory may wait for the
    device, and with it for the gate.
    """

    def __init__(self, device: str | torch.device = "cuda") -> None:
        self.device = torch.device(device)
        self._stream = torch.cuda.Stream(self.device)
        self._gate, self._gave_up = (torch.full((1,), n, dtype=torch.int32, pin_memory=True) for n in (1, 0))
        with self.current():
            torch.empty(1, device=self.device)  # the first memory of a stream comes from the driver
        self._wait()
        self._stream.synchronize()

    def _wait(self) -> None:
        with self.current():
            _wait_compiled[(1,)](self._gate, self._gave_up, GATE_TRIES, **NO_FLOATS)

    def hold(self) -> None:
        """Close the gate: what follows waits in the stream until `synchronize`."""
        self._gate[0] = 0
        self._wait()

    def new_buffer(self, capacity_ids: int) -> torch.Tensor:
        """A pinned host buffer for ids, int64."""
        return torch.zeros(capacity_ids, dtype=torch.int64, pin_memory=True)

    def enqueue_copy(self, source: torch.Tensor, num_ids: int) -> torch.Tensor:
        """Enqueue an asynchronous copy of the first ids of a pinned buffer; returns the device tensor."""
        with self.current():
            return source[:num_ids].to(self.device, non_blocking=True)

    def enqueue_kernel(self, kernel: Callable[[torch.Tensor], object], ids: torch.Tensor) -> None:
        """Launch a kernel on this stream."""
        with self.current():
            kernel(ids)

    def current(self):
        """A context in which this is torch's current stream."""
        return torch.cuda.stream(self._stream)

    def synchronize(self) -> bool:
        """Open the gate and wait for the stream; returns whether it had been held until then."""
        waited = not self._stream.query()
        self._gate[0] = 1
        self._stream.synchronize()
        return waited and not self._gave_up.item()
