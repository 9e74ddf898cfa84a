"""Pinned room for block ids on their way to a GPU, refilled only after the GPU has read it.

Refilling it too early is the race of vLLM #48085. Allocating pinned memory for each call is safe but slow, and torch
asks the driver for events then, which ends the graph capture of another thread. Here the kernel itself reports: a
launch starts after the copy of its ids has ended, and its first program adds 1 to a counter that the host only reads.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import numpy as np
import torch

SECTIONS = 4
SECTION_IDS = 8192


class IdRing:
    """Room for ids in four sections; a section is refilled once all launches from it have started.

    Args:
        ids: pinned int64, shape (SECTIONS * section_ids,).
        started: pinned int64, shape (SECTIONS,): the kernel's counters, which the host never writes.
    """

    def __init__(self, ids: torch.Tensor, started: torch.Tensor) -> None:
        self._ids, self._started = ids, started
        self._array, self._counts = ids.numpy(), started.numpy()
        self._launched = [0] * SECTIONS
        self.section_ids = len(ids) // SECTIONS
        self._section, self._next = 0, 0
        self._lock = threading.Lock()

    @classmethod
    def pinned(cls) -> IdRing:
        """A ring in pinned memory."""
        return cls(
            torch.zeros(SECTIONS * SECTION_IDS, dtype=torch.int64, pin_memory=True, device="cpu"),
            torch.zeros(SECTIONS, dtype=torch.int64, pin_memory=True, device="cpu"),
        )

    def send(self, block_ids: np.ndarray, sort: bool, launch: Callable[[torch.Tensor, int], None]) -> None:
        """Copy ids into free room and launch; waits while all room may still be read.

        Args:
            block_ids: int64, shape (ids,), at most `section_ids`.
            sort: whether to put them into ascending order.
            launch: enqueues the copy and the launch; it gets the pinned ids, and the address of the counter to which
                the launch must add 1.
        """
        num_ids = len(block_ids)
        with self._lock:
            if self._next + num_ids > self.section_ids:
                self._section, self._next = (self._section + 1) % SECTIONS, 0
                while self._counts[self._section] != self._launched[self._section]:
                    time.sleep(0)
            start = self._section * self.section_ids + self._next
            self._next += num_ids
            room = self._array[start : start + num_ids]
            room[:] = block_ids
            if sort:
                room.sort()
            launch(self._ids[start : start + num_ids], self._started.data_ptr() + 8 * self._section)
            self._launched[self._section] += 1
