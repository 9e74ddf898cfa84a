"""Memory maps: what a map shows is what the plan and the audit say, byte for byte, and nothing vanishes from it."""

from __future__ import annotations

import dataclasses
import re

import numpy as np
import oracle
import pytest
from hypothesis import given
from hypothesis import strategies as st
from strategies import engine_layouts

from kvzero import geometries
from kvzero.audit.audit import audit_bytes, audit_plan
from kvzero.history import planner
from kvzero.layout.geometry import CacheGeometry
from kvzero.layout.intervals import as_ranges, total, union
from kvzero.plan.planner import Plan, plan_segments
from kvzero.workbook.figures import history_timeline, map_text, memory_map, memory_map_data, page_runs
from kvzero.workbook.figures.atlas import STATES, Atlas
from kvzero.workbook.figures.memory_map import draw_memory_map
from kvzero.workbook.toy import ORDERS, ToyOptionError, make_geometry


@st.composite
def wrong_plans(draw):
    """A pool, some of its blocks, and a plan whose spans and bases are off, so that all kinds of damage occur."""
    geometry = draw(engine_layouts())
    plan = plan_segments(geometry)
    segments = []
    for segment in plan.segments:
        base = segment.base_bytes + draw(st.sampled_from([0, 0, -3, 5, 40]))
        span = max(1, segment.span_bytes + draw(st.sampled_from([0, 0, -2, 7, 60])))
        segments.append(dataclasses.replace(segment, base_bytes=base, span_bytes=span))
    wrong = dataclasses.replace(plan, planner="wrong", segments=tuple(segments))
    blocks = draw(st.lists(st.integers(0, geometry.num_blocks - 1), min_size=1, unique=True))
    return geometry, wrong, blocks


def counts(cells) -> dict[str, int]:
    """Bytes by kind in some cells."""
    found: dict[str, int] = {}
    for cell in cells:
        found[cell.kind] = found.get(cell.kind, 0) + cell.end_bytes - cell.start_bytes
    return found


@given(wrong_plans())
def test_totals_are_the_audits(case):
    geometry, plan, blocks = case
    audit = audit_plan(plan, geometry, blocks)
    totals = memory_map_data(geometry, plan, audit).totals
    for kind in ("missed", "stomped", "pad", "overrun"):
        assert totals.get(kind, 0) == getattr(audit, f"{kind}_bytes")
    assert totals.get("cleared", 0) == audit.needed_bytes - audit.missed_bytes


@given(wrong_plans())
def test_totals_of_a_plan_are_its_distinct_bytes(case):
    geometry, plan, blocks = case
    planned = sum(total(union(ranges)) for ranges in plan.ranges(blocks).values())
    assert memory_map_data(geometry, plan, blocks=blocks).totals == {"planned": planned}


@given(wrong_plans())
def test_every_byte_of_the_pool_is_in_one_cell_and_the_cells_add_up(case):
    geometry, plan, blocks = case
    audit = audit_plan(plan, geometry, blocks)
    atlas = Atlas(geometry)
    seen = {storage.id: np.zeros(storage.nbytes, int) for storage in geometry.storages}
    reach = 200 // min(band.stride_bytes for band in atlas.bands) + 2
    cells = [
        cell
        for row in range(-reach, geometry.num_blocks + reach)
        for cell in atlas.row_cells(row, (0, atlas.row_bytes), audit.ranges)
    ]
    for cell in cells:
        low, high = cell.offset_bytes, cell.offset_bytes + cell.end_bytes - cell.start_bytes
        if high > 0 and low < len(seen[cell.storage]):
            seen[cell.storage][max(low, 0) : high] += 1
    assert all((times == 1).all() for times in seen.values())
    found = counts(cells)
    totals = memory_map_data(geometry, plan, audit).totals
    assert {kind: found.get(kind, 0) for kind in STATES} == {kind: totals.get(kind, 0) for kind in STATES}


@given(engine_layouts())
def test_owners_are_those_of_naive_indexing(geometry):
    atlas = Atlas(geometry)
    owner = {
        (view.storage, index): np.any(
            [oracle.owned(geometry, view, block).numpy() for block in range(geometry.num_blocks)], axis=0
        )
        for index, view in enumerate(geometry.layers)
    }
    for row in range(geometry.num_blocks):
        for cell in atlas.row_cells(row, (0, atlas.row_bytes), {}):
            inside = slice(cell.offset_bytes, cell.offset_bytes + cell.end_bytes - cell.start_bytes)
            if cell.kind == "redzone":
                assert inside.start >= geometry.storage(cell.storage).nbytes
                continue
            for (storage, index), mine in owner.items():
                if storage == cell.storage:
                    assert (mine[inside] == (index in cell.layers)).all()


@given(wrong_plans())
def test_no_kind_vanishes_from_the_folded_pool(case):
    geometry, plan, blocks = case
    audit = audit_plan(plan, geometry, blocks)
    totals = memory_map_data(geometry, plan, audit).totals
    shown = Atlas(geometry).fold(audit.ranges).kinds
    worst = [kind for kind in STATES if totals.get(kind)][-1]
    assert (shown == STATES.index(worst) + 1).any()


def test_a_byte_in_a_hundred_thousand_blocks_is_seen():
    geometry = make_geometry(layers=200, num_blocks=100_000, tokens=16, heads=8, content=256)
    plan = plan_segments(geometry)
    late = dataclasses.replace(plan.segments[150], span_bytes=plan.segments[150].span_bytes - 1)
    wrong = dataclasses.replace(plan, segments=(*plan.segments[:150], late, *plan.segments[151:]))
    data = memory_map_data(geometry, wrong, audit_plan(wrong, geometry, [77_777]))
    assert data.totals["missed"] == 1
    fold = data.fold
    row = 77_777 // fold.rows_per_cell
    assert (fold.kinds == STATES.index("missed") + 1).nonzero()[0].tolist() == [row]
    assert 77_777 in data.rows and any(cell.kind == "missed" for cell in data.cells)
    assert any(cell.kind == "missed" and cell.end_bytes - cell.start_bytes == 1 for cell in data.byte_cells)
    assert "[!]" in map_text(data)
    assert "leaves 1 of 6,553,600 needed bytes dirty" in " ".join(draw_memory_map(data).words)


@given(wrong_plans(), st.data())
def test_the_byte_panel_is_contiguous_and_cut_at_whole_characters(case, data):
    geometry, plan, blocks = case
    storage = data.draw(st.sampled_from(geometry.storages))
    byte = data.draw(st.integers(0, storage.nbytes - 1))
    audit = audit_plan(plan, geometry, blocks)
    shown = memory_map_data(geometry, plan, audit, focus=(storage.id, byte))
    cells = shown.byte_cells
    assert cells[0].start_bytes <= byte < cells[-1].end_bytes
    for left, right in zip(cells, cells[1:], strict=False):
        assert left.end_bytes == right.start_bytes
    assert all((cell.end_bytes - cell.start_bytes) % shown.unit_bytes == 0 for cell in cells)
    window = as_ranges([(cells[0].start_bytes, cells[-1].end_bytes)])
    for kind in STATES:
        mine = as_ranges([(cell.start_bytes, cell.end_bytes) for cell in cells if cell.kind == kind])
        found = audit.ranges.get(kind, {}).get(storage.id, as_ranges([]))
        clipped = np.clip(found, window[0, 0], window[0, 1])
        assert union(mine).tolist() == union(clipped).tolist()


@pytest.mark.parametrize("name", geometries.names())
def test_every_real_dump_is_drawn(name):
    geometry = geometries.load(name)
    plan = plan_segments(geometry)
    blocks = [geometry.num_blocks - 1]
    data = memory_map_data(geometry, plan, audit_plan(plan, geometry, blocks))
    assert data.totals == {"cleared": plan.needed_bytes_per_block}
    assert sum(band.stride_bytes for band in data.bands) == data.row_bytes
    figure = draw_memory_map(data)
    assert figure.width_inches <= 9 and len(figure.svg("", telling=True)) < 150_000 and figure.smallest_points >= 9
    text = map_text(data)
    assert text.startswith(data.sentence) and f"{plan.needed_bytes_per_block:,}" in text


@pytest.mark.parametrize("order", ORDERS)
def test_page_runs_are_the_bytes_of_a_page(order):
    geometry = make_geometry(order=order, layers=3, heads=3, tokens=4, content=[6, 10], pad_bytes=5, dtype="uint8")
    for view in geometry.layers:
        owned = np.flatnonzero(oracle.owned(geometry, view, 0).numpy())
        mine = np.concatenate([np.arange(run.base_bytes, run.base_bytes + run.span_bytes) for run in page_runs(view)])
        assert mine.tolist() == owned.tolist()


def test_a_toy_geometry_refuses_what_it_cannot_be():
    for wrong in (
        {"order": "LBCHN"}, {"tokens": 4, "kernel_blocks": 3}, {"dtype": "int3"}, {"layers": 0}, {"content": []},
        {"dtype": "float32", "pad_bytes": 2}, {"order": "LKBNHC", "content": 3}, {"order": "BLNHC", "kernel_blocks": 2},
        {"order": "LBHNC", "kernel_blocks": 2},
    ):  # fmt: skip
        with pytest.raises(ToyOptionError):
            make_geometry(**wrong)


def test_the_first_offender_is_bracketed_and_counted_in_words():
    slab = geometries.load("dsv4_c4_mla_only__BLHNC")
    audit = audit_plan(planner("uniform-page").plan(slab), slab, [3])
    data = memory_map_data(slab, audit=audit)
    text = map_text(data)
    assert text.splitlines()[0] == audit.sentence()
    first = next(line for line in text.splitlines() if "[X]" in line)
    assert first.split()[:2] == ["block", "4"]
    assert "X  stomped: live bytes of another: 112,128 B" in text
    words = memory_map(slab, audit=audit).words
    assert "▸ block 3" in words and "block 4" in words
    assert "page of layer 0: 37,376 B" in words
    assert "block stride 149,760 B" in words
    assert any(line.startswith("stomped") and "112,128 B" in line for line in words)
    assert " ".join(audit.sentence().split()) in " ".join(" ".join(words).split())


def test_both_witnesses_give_the_same_map():
    pool = make_geometry(layers=3, num_blocks=3, order="BLNHC", pad_bytes=4, dtype="uint8", content=16)
    old = planner("uniform-page").plan(pool)
    maps = [
        memory_map_data(pool, audit=audit)
        for audit in (audit_plan(old, pool, [1]), audit_bytes(pool, [1], planner="uniform-page"))
    ]
    assert maps[0].totals == maps[1].totals and maps[0].cells == maps[1].cells
    assert maps[0].totals["stomped"] > 0


def test_the_focus_chooses_the_columns_and_rows_the_blocks():
    pool = make_geometry(layers=40, num_blocks=50)
    place = pool.layers[30].byte_offset + 7 * pool.layers[30].block_stride_bytes
    data = memory_map_data(pool, plan_segments(pool), blocks=[7], focus=(0, place), rows=[6, 7, 8])
    assert data.rows == (6, 7, 8)
    shown = {layer for cell in data.cells for layer in cell.layers}
    assert 30 in shown and len(shown) == 12
    assert data.totals == {"planned": 40 * 64}, "what is shown does not change what is counted"


def test_storages_stay_apart():
    data = geometries.load("numblocks1__BLNHC").to_dict()
    data["storages"].append({"id": "other", "nbytes": 4096})
    data["layers"].append(
        {"name": "extra", "storage": "other", "byte_offset": 0, "shape": [1, 4096], "stride": [4096, 1], "itemsize": 1}
    )
    pool = CacheGeometry.from_dict(data)
    shown = memory_map_data(pool, plan_segments(pool), blocks=[0])
    assert [band.storage for band in shown.bands] == [0, "other"]
    assert shown.totals["planned"] == plan_segments(pool).needed_bytes_per_block


def test_an_overrun_that_no_row_holds_is_drawn_whole():
    """A small layer behind a large one; a plan that clears the large page for both leaves the memory."""
    latent = 64 * 656
    pair = make_geometry(layers=2, num_blocks=6, tokens=64, heads=1, content=[656, 132], dtype="uint8")
    right = plan_segments(pair)
    segments = [dataclasses.replace(each, span_bytes=latent, block_stride_bytes=latent) for each in right.segments]
    wrong = dataclasses.replace(right, segments=tuple(segments))
    audit = audit_plan(wrong, pair, [2])
    assert audit.overrun_bytes == latent
    shown = memory_map_data(pair, wrong, audit)
    assert shown.rows == tuple(range(6)) and counts(shown.beyond)["overrun"] == latent
    for left, following in zip(shown.beyond, shown.beyond[1:], strict=False):
        assert left.end_bytes == following.start_bytes
    assert shown.beyond[0].start_bytes == 0 and {cell.kind for cell in shown.beyond} == {"redzone", "overrun"}
    words = draw_memory_map(shown).words
    assert "past the end" in words and "overrun 41,984 B, from byte 335,872 of storage 0" in words
    line = next(line for line in map_text(shown).splitlines() if line.lstrip().startswith("past the end"))
    assert line.count(">") > 50 and "[>]" in line
    assert memory_map_data(pair, wrong, audit_plan(wrong, pair, [0])).beyond == ()


def test_plans_of_others_are_drawn_from_their_ranges():
    slab = make_geometry(layers=2, num_blocks=3, order="BLNHC", pad_bytes=4)
    twice = Plan("twice", slab.name, 3, slab.storages, plan_segments(slab).segments * 2, 0)
    assert memory_map_data(slab, twice, blocks=[1]).totals == {"planned": 128}, "distinct bytes, not written bytes"


def test_the_timeline_draws_a_line_from_each_change_and_an_arrow_to_each_failure():
    def strokes(links):
        paths = re.findall(r'<path fill="none"[^>]* d="([^"]*)"', history_timeline(links=links).svg(""))
        return sum(path.count("M") for path in paths)

    links = [("#35219", "#48085"), ("#35219", "#50276"), ("#49903", "#57156")]
    changes = {change for change, _ in links}
    assert strokes(links) - strokes(()) == len(changes) + 2 * len(links)
    with pytest.raises(KeyError):
        history_timeline(links=[("#35219", "#0")])
