"""Every order of host and stream, for every id path: which are safe, and by what rule."""

from __future__ import annotations

from functools import partial

import pytest

from kvzero.history import ring_id_buffer, shared_id_buffer
from kvzero.history.ring_id_buffer import RingIdBuffer
from kvzero.history.shared_id_buffer import SharedIdBuffer
from kvzero.workbook.explorers import id_race_data
from kvzero.workbook.id_race import ByValue, FreshIdBuffer, PinnedPool, SectionRing, play, play_all, schedules


def pooled(stream, zero, waits_for_copies):
    return FreshIdBuffer(stream, zero, PinnedPool(stream, waits_for_copies=waits_for_copies).new_buffer)


def dirty_by_hand(schedule, buffers):
    """The oracle: copy k is operation 2k of the stream; it reads the last call that filled its buffer before it ran."""
    calls = len(schedule) + 1
    read = set()
    for k in range(calls):
        late = [later for later in range(k + buffers, calls, buffers) if schedule[later - 1] <= 2 * k]
        read.add(max(late, default=k) + 1)
    return set(range(1, calls + 1)) - read


@pytest.mark.parametrize("calls", [2, 3, 4])
@pytest.mark.parametrize("buffers", [1, 2, 3])
def test_a_ring_loses_exactly_the_blocks_that_no_copy_read(buffers, calls):
    for outcome in play_all(partial(RingIdBuffer, buffers=buffers), calls):
        assert set(outcome.dirty) == dirty_by_hand(outcome.schedule, buffers), outcome


@pytest.mark.parametrize("calls", [2, 3, 4])
def test_one_shared_buffer_and_a_pool_that_does_not_wait_are_the_same(calls):
    careless = play_all(partial(pooled, waits_for_copies=False), calls)
    assert careless == play_all(SharedIdBuffer, calls)
    assert any(not outcome.ok for outcome in careless)


@pytest.mark.parametrize("calls", [2, 3, 4])
@pytest.mark.parametrize(
    ("path", "ops_per_call"),
    [
        (FreshIdBuffer, 2),
        (partial(pooled, waits_for_copies=True), 2),
        (ByValue, 1),
        (partial(SectionRing, sections=2, section_ids=1), 2),
        (partial(SectionRing, sections=2, section_ids=2), 2),
    ],
)
def test_the_safe_paths_zero_each_block_in_every_order(path, ops_per_call, calls):
    outcomes = play_all(path, calls, ops_per_call)
    assert [outcome.zeroed for outcome in outcomes] == [tuple(range(1, calls + 1))] * len(outcomes)


def test_the_specimens_do_what_they_must():
    assert set(play(SharedIdBuffer, (0,)).zeroed) == shared_id_buffer.MUST_DO["zeroed"]
    for must in ring_id_buffer.MUST_DO:
        held = (0,) * (len(must["calls"]) - 1)
        assert set(play(partial(RingIdBuffer, buffers=must["buffers"]), held).zeroed) == must["zeroed"]


def test_a_pool_that_waits_grows_with_what_is_in_flight_and_no_further():
    pools = []

    def path(stream, zero):
        pools.append(PinnedPool(stream, waits_for_copies=True))
        return FreshIdBuffer(stream, zero, pools[-1].new_buffer)

    play(path, (0, 0, 0))
    play(path, (2, 4, 6))
    assert [len(pool.buffers) for pool in pools] == [4, 1]


def test_the_timed_model_of_the_explorer_agrees_with_the_specimen():
    for held_us in range(40):
        timed = id_race_data(held_us=held_us, gap_us=20)
        assert timed.zeroed == play(SharedIdBuffer, (int(held_us <= 16),)).zeroed


def test_schedules_are_all_and_different():
    found = list(schedules(4))
    assert len(found) == len(set(found)) == 55
    assert all(0 <= a <= b <= c and a <= 2 and b <= 4 and c <= 6 for a, b, c in found)
