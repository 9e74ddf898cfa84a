"""What the speed notebook computes: how often a byte is written, two limits, and the stores of a compiled kernel."""

from __future__ import annotations

import numpy as np
import pytest
import triton.language as tl
from hypothesis import given, settings
from hypothesis import strategies as st

from kvzero import geometries, plan_segments
from kvzero.bench import gpu, timing
from kvzero.errors import KvzeroError
from kvzero.history import engine, masked_grid
from kvzero.workbook import speed
from kvzero.workbook.toy import make_geometry

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
    "tiles": {"rows": [{"programs": 80, "us": 40.0}, {"programs": 40, "us": 4.0}]},
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


def test_the_hint_makes_the_stores_of_a_kernel_wide():
    def clear(starts, HINT: tl.constexpr):
        words = tl.load(starts + tl.program_id(0)).to(tl.pointer_type(tl.int32)) + tl.arange(0, 128)
        if HINT:
            words = tl.multiple_of(words, 16)
        tl.store(words, 0)

    narrow, wide = (speed.ptx_stores(clear, ["*i64"], [hint]) for hint in (False, True))
    assert [len(narrow), len(wide)] == [4, 1]  # 128 words of 4 bytes for 32 threads
    assert all("st.global.b32" in line for line in narrow) and "st.global.v4.b32" in wide[0]
