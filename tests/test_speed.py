"""What the speed notebook computes: how often a byte is written, two limits, store widths, and how a cache is cut."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvzero import geometries, plan_segments
from kvzero.bench import gpu, timing
from kvzero.errors import KvzeroError
from kvzero.history import engine, masked_grid, page_per_segment
from kvzero.workbook import speed
from kvzero.workbook.tile_knob import tile_data, tile_figure, tile_knob
from kvzero.workbook.toy import make_geometry

RATES = speed.Rates(bytes_per_us=4.5e6, programs_per_us=1_650)
REPORT = {
    "conditions": {"date": "a day"},
    "sets": [
        {
            "name": "GLM-5.2-like, small", "bytes": 1_000, "us": {"driver memset": 1.0, "driver memset again": 1.0},
            "eras": {},
        },
        {
            "name": "GLM-5.2-like, large", "bytes": 8_000,
            "us": {"driver memset": 3.0, "driver memset again": 5.0, "kvzero": 6.0, "index_fill_ per layer": None},
            "eras": {"page-per-segment": {"us": 40.0, "programs": 80}, "uniform-page": {"refused": "a-rule"}},
        },
    ],
}  # fmt: skip


@settings(max_examples=40, deadline=None)
@given(layers=st.integers(1, 5), heads=st.integers(1, 4), tokens=st.integers(1, 3), old=st.booleans())
def test_times_written_is_what_counting_byte_by_byte_gives(layers, heads, tokens, old):
    geometry = make_geometry(layers=layers, heads=heads, tokens=tokens, content=8, num_blocks=2, order="BHLNC")
    plan = masked_grid.plan(geometry) if old else plan_segments(geometry)
    counted = np.zeros(geometry.storages[0].nbytes, dtype=int)
    for segment in plan.segments:
        counted[segment.base_bytes : segment.base_bytes + segment.span_bytes] += 1
    drawn = np.zeros_like(counted)
    for start, end, times in speed.times_written(plan):
        drawn[start:end] = times
    assert drawn.tolist() == counted.tolist()


def test_a_plan_with_holes_has_no_row_for_the_holes():
    slab = make_geometry(layers=2, num_blocks=2, tokens=1, heads=1, content=100, order="BLNHC", pad_bytes=28)
    assert speed.times_written(plan_segments(slab)) == [(0, 100, 1), (128, 228, 1)]


def test_the_engine_writes_most_bytes_of_the_same_page_layout_32_times():
    geometry = geometries.load(speed.SAME_PAGE)
    rows = speed.times_written(engine.plan(geometry))
    assert max(times for _, _, times in rows) == 32
    assert sum((end - start) * times for start, end, times in rows) == engine.plan(geometry).bytes_per_block
    assert speed.times_written(plan_segments(geometry)) == [(0, 1_114_112, 1)]
    assert speed.corners(rows)[:3] == [(0, 1), (4_096, 1), (4_096, 2)]


def test_ratios_and_rates_come_from_the_largest_set_of_that_name():
    each = speed.find_set(REPORT, speed.MIXED)
    assert each["bytes"] == 8_000 and speed.memset_us(each) == 4.0
    assert speed.in_memsets(each) == {"kvzero": 1.5, "page-per-segment": 10.0}
    rates = speed.rates(REPORT)
    assert (rates.bytes_per_us, rates.programs_per_us, rates.break_even_bytes) == (2_000, 2, 1_000)
    assert (rates.floor_us(10, 8_000), rates.floor_us(80, 8_000)) == (5.0, 40.0)
    with pytest.raises(KvzeroError, match="has no set 'hybrid'"):
        speed.find_set(REPORT, speed.UNIFORM)


def test_the_recorded_run_has_what_the_notebook_reads():
    report, origin = speed.measurements("cpu")
    assert origin.startswith("recorded, not measured here: one NVIDIA")
    for name in speed.SHOWN:
        each = speed.find_set(report, name)
        assert each["wrong_bytes"] == 0 and {"kvzero", "torch zero_"} <= each["us"].keys()
    assert {row["num_ids"] for row in report["host"]} >= {1, 8, 64, 1_024}


def test_a_live_run_measures_only_what_is_shown(monkeypatch):
    asked = []
    monkeypatch.setattr(timing, "conditions", lambda: {"gpu": "GPU", "cuda": "13", "clocks": "as found"})
    monkeypatch.setattr(gpu, "measure_sets", lambda sets: asked.extend(sets) or ["sets"])
    monkeypatch.setattr(gpu, "measure_host", lambda: ["host"])
    monkeypatch.setattr(gpu, "measure_tiles", lambda: {"rows": []})
    report, origin = speed.measurements("cuda")
    assert [each.name[: len(name)] for each, name in zip(asked, speed.SHOWN, strict=True)] == list(speed.SHOWN)
    assert origin.startswith("measured now: one GPU, torch ")
    assert (report["sets"], report["host"], report["tiles"]) == (["sets"], ["host"], {"rows": []})


@pytest.mark.parametrize(("planner", "widths"), [("page-per-segment", {4}), ("masked-grid", {4}), ("kvzero", {16})])
def test_store_widths_are_read_from_what_the_compiler_made(planner, widths):
    plan = page_per_segment.plan(geometries.load("glm52_fp8_dsmla_indexer__LBNHC"))
    assert set(speed.store_widths(planner, plan)) == widths


@pytest.mark.parametrize(("short_bytes", "chunk_bytes"), [(8_448, 256), (8_192, 1_024), (8_452, 4)])
def test_one_page_sets_the_chunk_of_all(short_bytes, chunk_bytes):
    tiles = tile_data(long_bytes=41_984, short_bytes=short_bytes, layers=2, blocks=3, rates=RATES)
    assert tiles.chunk_bytes == chunk_bytes == tiles.rows[0][0]
    assert tiles.rows[0][1] == 3 * 4 * (41_984 // chunk_bytes)


def test_a_tile_waits_for_starts_exactly_below_the_quotient_of_the_two_limits():
    # Pages of one tile: bytes of a program are the tile, so it flips where the tile passes 2,048.
    page = 65_536
    for break_even, waiting in ((2_048, (512, 1_024)), (2_049, (512, 1_024, 2_048))):
        rates = speed.Rates(bytes_per_us=1_000 * break_even, programs_per_us=1_000)
        tiles = tile_data(long_bytes=page, short_bytes=page, layers=1, blocks=4, rates=rates)
        assert tiles.waits_for_starts == waiting


def test_the_knob_draws_what_the_data_say():
    knob = tile_knob(RATES)
    assert "256 bytes, makes the call wait" in knob.view.sentence
    knob.set(long_bytes=32_768, short_bytes=16_384)
    assert knob.view.sentence == "A common divisor of 4,096 bytes keeps up with the memory."
    tiles = tile_data(long_bytes=32_768, short_bytes=16_384, layers=61, blocks=512, rates=RATES)
    assert "Bars: to start the programs." in " ".join(tile_figure(tiles).words)
    assert not knob.errors
