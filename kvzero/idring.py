"""Slots for block ids on their way to the GPU, never overwritten while a copy or a launch may read them.

A slot is pinned host memory and as much GPU memory; the ids are copied from the one to the other on the
stream of the launch. (Read in place over the bus they would cost more than the zeroing: every program reads
its own.) The race that this must not have is that of vLLM #48085: a buffer refilled while an earlier copy still
reads it.

The ring is cut into sections. A section is filled call by call; when it is full an event is recorded on every
stream that used it, and it is filled again only after those events have passed. So a call costs no event,
memory is fixed, and a ring that is full waits.
"""

from __future__ import annotations

import ctypes
import threading

import torch

from .errors import CaptureRoomError

SECTIONS = 4
SECTION_IDS = 8192
CAPTURE_IDS = 4096
ID_BYTES = 8


class _Slots:
    """Pinned ids and their places on the GPU, side by side."""

    def __init__(self, num_ids: int, device: torch.device) -> None:
        self.pinned = torch.empty(num_ids, dtype=torch.int64, pin_memory=True)
        self.array = self.pinned.numpy()
        self.on_gpu = torch.empty(num_ids, dtype=torch.int64, device=device)
        self._from, self._to = self.pinned.data_ptr(), self.on_gpu.data_ptr()

    def slot(self, start: int, stop: int) -> Slot:
        return Slot(self, start, stop)

    def copy(self, start: int, stop: int, stream: int) -> int:
        offset, nbytes = ID_BYTES * start, ID_BYTES * (stop - start)
        if _driver_copy is None or _driver_copy(self._to + offset, self._from + offset, nbytes, stream) != 0:
            self.on_gpu[start:stop].copy_(self.pinned[start:stop], non_blocking=True)
        return self._to + offset


class Slot:
    """Room for the ids of one launch: fill `ids` (int64), then `send`."""

    def __init__(self, slots: _Slots, start: int, stop: int) -> None:
        self._slots, self._start, self._stop = slots, start, stop
        self.ids = slots.array[start:stop]

    def send(self, stream: int) -> int:
        """Enqueues the copy to the GPU on a stream (raw handle) and returns the address there."""
        return self._slots.copy(self._start, self._stop, stream)


class IdRing:
    """The slots of one GPU.

    Args:
        device: the GPU.
        section_ids: most ids that one launch may take; a call with more is split.

    Hold `lock` from `take` until `launched` was called, or until it is clear that nothing will be enqueued.
    """

    def __init__(self, device: torch.device, section_ids: int = SECTION_IDS) -> None:
        self.lock = threading.Lock()
        self.device = device
        self.section_ids = section_ids
        self._slots = _Slots(SECTIONS * section_ids, device)
        self._section, self._next, self._end = 0, 0, section_ids
        # The streams that use the section being filled, and for each closed section the events that free it.
        self._users: set[int] = set()
        self._events: list[list[torch.cuda.Event]] = [[] for _ in range(SECTIONS)]
        self._streams: dict[int, torch.cuda.Stream] = {}
        self._foreign: set[int] = set()
        self._graph_slots: list[_Slots] = []
        self.reserve_for_capture(CAPTURE_IDS)

    @property
    def nbytes(self) -> int:
        """Pinned bytes that the ring holds, room for graphs included; it holds as many on the GPU."""
        return sum(slots.pinned.nbytes for slots in (self._slots, *self._graph_slots))

    def take(self, num_ids: int, stream: int) -> Slot:
        """A free slot for one launch; waits if every slot may still be read.

        Args:
            num_ids: ids of the launch, at most `section_ids`.
            stream: raw handle of the current stream, on which the launch will be.
        """
        if stream not in self._streams:
            self._meet(stream)
        if self._next + num_ids > self._end:
            self._turn()
        start = self._next
        self._next += num_ids
        return self._slots.slot(start, self._next)

    def launched(self, stream: int) -> None:
        """Says that this stream may read the last slot taken: its copy or its launch was enqueued."""
        self._users.add(stream)
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

    # ---- captured launches: a graph copies its slot at every replay, so the slot is never given again ----

    def reserve_for_capture(self, num_ids: int) -> None:
        """Pins room for the ids of launches captured into graphs; it stays for the life of the ring."""
        self._graph_slots.append(_Slots(num_ids, self.device))
        self._graph_next = 0

    def take_for_capture(self, num_ids: int) -> Slot:
        """A slot that no other launch will ever get.

        Raises:
            CaptureRoomError: too little is reserved. Memory cannot be pinned during a capture.
        """
        slots, start = self._graph_slots[-1], self._graph_next
        if start + num_ids > len(slots.array):
            raise CaptureRoomError(num_ids=num_ids, left_ids=len(slots.array) - start)
        self._graph_next += num_ids
        return slots.slot(start, self._graph_next)


def _load_driver_copy():
    """The driver's own asynchronous copy, half the host cost of a tensor's `copy_`; None where there is
    none."""
    try:
        copy = ctypes.CDLL("libcuda.so.1").cuMemcpyHtoDAsync_v2
    except (OSError, AttributeError):
        return None
    copy.argtypes = [ctypes.c_uint64, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p]
    return copy


_driver_copy = _load_driver_copy()
