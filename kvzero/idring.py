"""Block ids in pinned host memory, read in place by the kernel, never overwritten while a launch may read
them.

The race this must not have is that of vLLM #48085: a buffer refilled while an earlier launch still reads it.
The ring is cut into sections. A section is filled call by call; when it is full an event is recorded on every
stream that used it, and it is filled again only after those events have passed. So a call costs no event,
memory is fixed, and a ring that is full waits.
"""

from __future__ import annotations

import threading

import numpy as np
import torch

from .errors import CaptureRoomError

SECTIONS = 4
SECTION_IDS = 8192
CAPTURE_IDS = 4096
ID_BYTES = 8


class IdRing:
    """Pinned id slots of one GPU.

    Args:
        device: the GPU whose launches read the ids.
        section_ids: most ids that one launch may take; a call with more is split.

    Hold `lock` from `take` until the launch that reads the slot is enqueued and `launched` was called.
    """

    def __init__(self, device: torch.device, section_ids: int = SECTION_IDS) -> None:
        self.lock = threading.Lock()
        self.device = device
        self.section_ids = section_ids
        self._buffer = torch.empty(SECTIONS * section_ids, dtype=torch.int64, pin_memory=True)
        self._array = self._buffer.numpy()
        self._bytes = memoryview(self._array).cast("B")
        self._address = self._buffer.data_ptr()
        self._section, self._next, self._end = 0, 0, section_ids
        # The streams that read the section being filled, and for each closed section the events that free it.
        self._users: set[int] = set()
        self._events: list[list[torch.cuda.Event]] = [[] for _ in range(SECTIONS)]
        self._streams: dict[int, torch.cuda.Stream] = {}
        self._foreign: set[int] = set()
        self._graph_buffers: list[torch.Tensor] = []
        self.reserve_for_capture(CAPTURE_IDS)

    @property
    def nbytes(self) -> int:
        """Pinned bytes that the ring holds, room for graphs included."""
        return self._buffer.nbytes + sum(buffer.nbytes for buffer in self._graph_buffers)

    def take(self, num_ids: int, stream: int) -> tuple[int, np.ndarray, memoryview]:
        """A free slot for one launch.

        Args:
            num_ids: ids of the launch, at most `section_ids`.
            stream: raw handle of the current stream, on which the launch will be.

        Returns:
            (address, int64 array, the same memory as bytes). Waits if every slot may still be read.
        """
        if stream not in self._streams:
            self._meet(stream)
        start = self._next
        if start + num_ids > self._end:
            self._turn()
            start = self._next
        self._next = stop = start + num_ids
        self._users.add(stream)
        return self._address + ID_BYTES * start, self._array[start:stop], self._bytes[ID_BYTES * start :]

    def launched(self, stream: int) -> None:
        """Says that the launch which reads the last slot taken is enqueued on this stream."""
        # A stream that torch does not own may be destroyed at any time, and its handle may come back as
        # that of another stream: its event cannot wait for the end of the section.
        if stream in self._foreign:
            self._close()

    def _meet(self, stream: int) -> None:
        current = torch.cuda.current_stream(self.device)
        self._streams[stream] = current
        if stream != 0 and current.stream_id == stream:
            self._foreign.add(stream)

    def _close(self) -> None:
        for stream in self._users:
            event = torch.cuda.Event()
            event.record(self._streams[stream])
            self._events[self._section].append(event)
        self._users.clear()

    def _turn(self) -> None:
        self._close()
        self._section = (self._section + 1) % SECTIONS
        self._next = self._section * self.section_ids
        self._end = self._next + self.section_ids
        for event in self._events[self._section]:
            event.synchronize()
        self._events[self._section].clear()

    # ---- captured launches: a graph reads its slot at every replay, so the slot is never given again ----

    def reserve_for_capture(self, num_ids: int) -> None:
        """Pins room for the ids of launches captured into graphs; it stays for the life of the ring."""
        self._graph_buffers.append(torch.empty(num_ids, dtype=torch.int64, pin_memory=True))
        self._graph_next = 0

    def take_for_capture(self, num_ids: int) -> tuple[int, np.ndarray]:
        """A slot that no other launch will ever get: its address and int64 array.

        Raises:
            CaptureRoomError: too little is reserved. Memory cannot be pinned during a capture.
        """
        buffer = self._graph_buffers[-1]
        start = self._graph_next
        if start + num_ids > len(buffer):
            raise CaptureRoomError(num_ids=num_ids, left_ids=len(buffer) - start)
        self._graph_next = start + num_ids
        return buffer.data_ptr() + ID_BYTES * start, buffer.numpy()[start : start + num_ids]
