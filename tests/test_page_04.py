"""The cells of page 04, taken from the notebook and held to an oracle that knows no memory."""

from __future__ import annotations

import json
from collections import Counter, deque
from itertools import product
from pathlib import Path

import numpy as np
import pytest

from kvzero import Segment, geometries, with_num_blocks

PAGE = Path(__file__).parents[1] / "notebooks" / "04_packed_stride_overflow.ipynb"


@pytest.fixture(scope="module")
def page():
    """The names that the page's cells define: its planners, its pool, its orders of the free queue."""
    cells = {cell["id"]: "".join(cell["source"]) for cell in json.loads(PAGE.read_text())["cells"]}
    slab = with_num_blocks(geometries.load("dsv4_c4_mla_only__BLHNC"), 100)
    names = {"Segment": Segment, "deque": deque, "np": np, "product": product, "views": slab.layers}
    for cell in ("code-planner", "fix-planner", "who-pool", "who-count"):
        exec(cells[cell], names)
    exec(cells["proof-orders-run"].split("orders = {}")[0], names)
    return names


def expected_harm(chunk, together, ids, order):
    """Own blocks, blocks of others and writes outside, from ids and steps alone: block b reaches into b + 1."""
    free, requests, filled, harm = list(ids), [], {}, Counter()
    for first in range(0, 12, together):
        while len(requests) + together > 3:
            blocks = requests.pop(0)
            filled = {block: owner for block, owner in filled.items() if block not in blocks}
            free = {"last": free + blocks[::-1], "first": free + blocks, "lowest": sorted(free + blocks)}[order]
        batch = [[] for _ in range(together)]
        for _ in range(20 // chunk):
            new = {}
            for number, blocks in enumerate(batch):
                taken, free = free[:chunk], free[chunk:]
                blocks += taken
                new |= dict.fromkeys(taken, first + number)
            for block, request in new.items():
                if block == 99:
                    harm["outside"] += 1
                elif block + 1 in filled:
                    harm["own" if filled[block + 1] == request else "others"] += 1
            filled |= new
        requests += batch
    return [harm["own"], harm["others"], harm["outside"]]


@pytest.mark.parametrize("order", ["last", "first", "lowest"])
@pytest.mark.parametrize("blocks", [99, 100])
@pytest.mark.parametrize("chunk, together", [(20, 1), (4, 1), (1, 1), (1, 2), (5, 3)])
def test_the_pool_hurts_whom_arithmetic_says(page, order, blocks, chunk, together):
    give_back = page[{"last": "last_one_first", "first": "first_one_first", "lowest": "lowest_id_first"}[order]]
    hurt = page["serve"](page["plan"](page["views"]), chunk, together, range(blocks), give_back)
    assert page["count"](hurt) == expected_harm(chunk, together, range(blocks), order)


def test_the_fixed_planner_hurts_nobody(page):
    for chunk, together in ((20, 1), (4, 1), (1, 2)):
        assert page["serve"](page["plan_fixed"](page["views"]), chunk, together) == []


def test_where_blocks_of_one_layer_are_neighbours_both_planners_agree(page):
    pool = geometries.load("llama3_8b_bf16__LBNHC")
    assert page["plan"](pool.layers) == page["plan_fixed"](pool.layers)
