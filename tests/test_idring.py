"""The ring of block ids against a model of a stream that copies and starts launches late."""

from __future__ import annotations

import threading

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kvzero.zero.idring import SECTIONS, IdRing


class LateStream:
    """Runs what was enqueued only when told to: first the copy of the ids, then the start of the launch."""

    def __init__(self, started: torch.Tensor) -> None:
        self._started = started
        self._queue: list[tuple[torch.Tensor, int, list[int]]] = []
        self.copied: list[tuple[list[int], list[int]]] = []

    def launch(self, ids: list[int]):
        def enqueue(pinned: torch.Tensor, counter: int) -> None:
            self._queue.append((pinned, (counter - self._started.data_ptr()) // 8, ids))

        return enqueue

    def run(self, launches: int) -> None:
        for pinned, section, ids in self._queue[:launches]:
            self.copied.append((pinned.tolist(), ids))
            self._started[section] += 1
        del self._queue[:launches]

    def __len__(self) -> int:
        return len(self._queue)


@settings(deadline=None)
@given(st.lists(st.tuples(st.integers(1, 8), st.integers(0, 3)), max_size=40))
def test_no_copy_finds_ids_of_another_call(calls):
    started = torch.zeros(SECTIONS, dtype=torch.int64)
    stream = LateStream(started)
    ring = IdRing(torch.zeros(SECTIONS * 8, dtype=torch.int64), started)
    number = 0
    for num_ids, runs in calls:
        ids = list(range(number, number + num_ids))
        number += num_ids
        done = threading.Event()

        def call(ids=ids, done=done):
            ring.send(np.array(ids), False, stream.launch(ids))
            done.set()

        thread = threading.Thread(target=call)
        thread.start()
        while not done.wait(0.005):  # the ring waits for launches, so some must start
            stream.run(1)
        thread.join()
        stream.run(runs)
    stream.run(len(stream))
    assert len(stream.copied) == len(calls) and all(copied == sent for copied, sent in stream.copied)


def test_a_section_is_refilled_only_when_all_its_launches_have_started():
    started = torch.zeros(SECTIONS, dtype=torch.int64)
    stream = LateStream(started)
    ring = IdRing(torch.zeros(SECTIONS * 4, dtype=torch.int64), started)
    for call in range(2 * SECTIONS):  # two calls fill a section
        ring.send(np.array([call, call]), False, stream.launch([call, call]))
    waiting = threading.Thread(target=lambda: ring.send(np.array([99]), False, stream.launch([99])))
    waiting.start()
    stream.run(1)
    waiting.join(0.05)
    assert waiting.is_alive()  # one of the two launches from the first section has not started
    stream.run(1)
    waiting.join(5)
    assert not waiting.is_alive()
    stream.run(len(stream))
    assert all(copied == sent for copied, sent in stream.copied)


def test_ids_are_sorted_in_the_ring_and_not_in_the_callers_array():
    started = torch.zeros(SECTIONS, dtype=torch.int64)
    stream = LateStream(started)
    ids = np.array([3, 1, 2])
    IdRing(torch.zeros(SECTIONS * 4, dtype=torch.int64), started).send(ids, True, stream.launch([1, 2, 3]))
    stream.run(1)
    assert stream.copied == [([1, 2, 3], [1, 2, 3])] and ids.tolist() == [3, 1, 2]
