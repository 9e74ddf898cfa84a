"""Every order of host and stream, for the id paths that are kept: which are safe, and by what rule."""

from __future__ import annotations

from functools import partial

import pytest

from kvzero.history import ring_id_buffer, shared_id_buffer
from kvzero.history.ring_id_buffer import RingIdBuffer
from kvzero.history.shared_id_buffer import SharedIdBuffer
from kvzero.workbook.id_race import FreshIdBuffer, play, play_all, schedules


@pytest.mark.parametrize("calls", [2, 3, 4])
def test_a_fresh_buffer_is_right_in_every_order_and_one_buffer_is_not(calls):
    assert all(outcome.zeroed == tuple(range(1, calls + 1)) for outcome in play_all(FreshIdBuffer, calls))
    assert sum(not outcome.ok for outcome in play_all(SharedIdBuffer, calls)) == {2: 1, 3: 8, 4: 47}[calls]


def test_the_specimens_do_what_they_must():
    assert set(play(SharedIdBuffer, (0,)).zeroed) == shared_id_buffer.MUST_DO["zeroed"]
    for must in ring_id_buffer.MUST_DO:
        held = (0,) * (len(must["calls"]) - 1)
        assert set(play(partial(RingIdBuffer, buffers=must["buffers"]), held).zeroed) == must["zeroed"]


def test_schedules_are_all_and_different():
    found = schedules(4)
    assert len(found) == len(set(found)) == 55
    assert all(0 <= a <= b <= c and a <= 2 and b <= 4 and c <= 6 for a, b, c in found)
