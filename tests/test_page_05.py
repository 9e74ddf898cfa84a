"""The cells of page 05, taken from the notebook and held to an oracle that knows no stream."""

from __future__ import annotations

import json
from collections import deque
from functools import partial
from itertools import product
from pathlib import Path

import pytest
import torch

from kvzero.workbook import Event, timeline, timeline_text

PAGE = Path(__file__).parents[1] / "notebooks" / "05_block_id_race.ipynb"
CELLS = (
    "map-stream", "figure-events", "figure-race", "figure-told", "code-path", "fix-ring", "fix-fresh", "fix-play",
    "fix-others",
)  # fmt: skip


@pytest.fixture(scope="module")
def page():
    """The names that the page's cells define: its stream, its id paths, its orders, its clock."""
    cells = {cell["id"]: "".join(cell["source"]) for cell in json.loads(PAGE.read_text())["cells"]}
    names = {"deque": deque, "product": product, "torch": torch, "Event": Event}
    names |= {"timeline": timeline, "timeline_text": timeline_text}
    for cell in CELLS:
        exec(cells[cell], names)
    return names


def dirty_by_hand(order, buffers):
    """Copy k is operation 2k of the stream; it reads the last call that filled its buffer before it ran."""
    calls = len(order) + 1
    read = set()
    for k in range(calls):
        late = [later for later in range(k + buffers, calls, buffers) if order[later - 1] <= 2 * k]
        read.add(max(late, default=k) + 1)
    return set(range(1, calls + 1)) - read


@pytest.mark.parametrize("calls", [2, 3, 4])
def test_each_path_loses_exactly_the_blocks_that_no_copy_read(page, calls):
    paths = {"IdPath": 1, "FreshButHasty": 1, "Fresh": calls, "HostWaits": calls, "OrdinaryMemory": calls}
    made = {page[name]: buffers for name, buffers in paths.items()}
    made |= {partial(page["Ring"], buffers=buffers): buffers for buffers in (1, 2, 3)}
    orders = page["orders"](calls)
    assert len(orders) == {2: 3, 3: 12, 4: 55}[calls]
    for path, buffers in made.items():
        for order in orders:
            lost = set(range(1, calls + 1)) - set(page["play"](path, order))
            assert lost == dirty_by_hand(order, buffers), (path, order)


def test_a_pool_that_waits_grows_with_what_is_in_flight_and_no_further(page):
    sizes = []
    for order in ((0, 0, 0), (2, 4, 6)):
        made = []
        page["play"](lambda stream, kernel, made=made: made.append(page["Fresh"](stream, kernel)) or made[-1], order)
        sizes.append(len(made[0].buffers))
    assert sizes == [4, 1]


def test_the_clock_agrees_with_the_order_it_stands_for(page):
    for held_us in range(60):
        given, events, arrows, ends = page["race"](page["IdPath"], held_us, 20)
        assert given == page["play"](page["IdPath"], (int(ends[0] <= 20),))
        stream = sorted((event.start, event.end) for event in events if event.lane == "stream")
        assert all(one[1] <= other[0] for one, other in zip(stream, stream[1:], strict=False))
        assert len(arrows) == 2
