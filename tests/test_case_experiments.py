"""The experiments behind the case notebooks on packed slabs and mixed pages, held to memory and to plans."""

from __future__ import annotations

import os
import stat

import pytest

from kvzero import Arena, audit_plan, plan_segments
from kvzero.history import PLANNERS, named
from kvzero.workbook import packed_stride, recorded, uniform_pages
from kvzero.workbook.era_tables import UnknownTableError, read_table, table_of
from kvzero.workbook.sanitizer import RETURNED, find_sanitizer, memcheck, read_report
from kvzero.workbook.toy import make_geometry

ORDERS = (packed_stride.first_block_first, packed_stride.last_block_first, packed_stride.lowest_id_first)


@pytest.mark.parametrize("give_back", ORDERS)
def test_a_block_is_never_taken_twice(give_back):
    in_use, taken = set(), 0
    for event in packed_stride.serve(20, requests=30, blocks_each=3, alive=4, give_back=give_back):
        assert (event.block in in_use) != event.taken
        in_use ^= {event.block}
        taken += event.taken
    assert taken == 90 and len(in_use) == 12


@pytest.mark.parametrize("give_back", ORDERS)
@pytest.mark.parametrize("layers, pad_bytes", [(1, 0), (2, 64), (3, 4)])
def test_harm_by_arithmetic_is_harm_in_memory(give_back, layers, pad_bytes):
    pool = make_geometry(
        layers=layers, num_blocks=7, tokens=2, heads=1, content=60, order="BLNHC", pad_bytes=pad_bytes
    )
    events = packed_stride.serve(7, requests=6, blocks_each=2, alive=2, give_back=give_back)
    plan = PLANNERS["page-per-segment"].plan(pool, layers="all")
    computed = [harm.victims for harm in packed_stride.harm_of(plan, pool, events)]
    assert packed_stride.harm_in_memory("page-per-segment", pool, events) == computed
    assert not any(harm.victims for harm in packed_stride.harm_of(plan_segments(pool), pool, events))


def test_the_whole_row_is_refused_where_blocks_have_two_strides():
    pair = make_geometry(layers=2, num_blocks=4, content=[656, 132])
    with pytest.raises(ValueError, match="not one row size"):
        packed_stride.whole_slab(pair)


@pytest.mark.parametrize("planner", PLANNERS)
def test_every_era_s_table_says_what_its_plan_says(planner):
    plan = PLANNERS[planner].plan(named.geometry("packed-slab-51288"))
    rows = [(row.base_bytes, row.block_stride_bytes, row.span_bytes) for row in read_table(table_of(plan))]
    assert rows == [(s.base_bytes, s.block_stride_bytes, s.span_bytes) for s in plan.segments]


def test_a_table_of_no_era_is_refused():
    with pytest.raises(UnknownTableError, match="7 fields"):
        read_table((1, 2, 3, 4, 5, 6, 7))


def test_buckets_clear_exactly_and_cover_every_segment():
    pool = make_geometry(layers=5, num_blocks=6, tokens=64, heads=1, content=[656, 132])
    plan = PLANNERS["page-per-segment"].plan(pool)
    buckets = uniform_pages.buckets(plan)
    assert sorted(s.base_bytes for bucket in buckets for s in bucket.segments) == sorted(
        s.base_bytes for s in plan.segments
    )
    arena = Arena(pool)
    uniform_pages.write_buckets(plan, arena.storages, [1, 5])
    assert arena.audit([1, 5]).ok
    launch = uniform_pages.bucket_launch(plan, 2)
    assert launch.launches == 2 and launch.programs == 2 * (3 * 41 + 2 * 33)


def test_without_the_assertion_memory_and_arithmetic_agree():
    pair = make_geometry(layers=2, num_blocks=6, tokens=64, heads=1, content=[656, 132])
    plan = uniform_pages.without_the_assertion(pair, 8_448)
    arena = Arena(pair)
    PLANNERS["uniform-page"].write(plan, arena.storages, [3])
    seen, computed = arena.audit([3]), audit_plan(plan, pair, [3])
    assert (seen.stomped_bytes, seen.missed_bytes) == (computed.stomped_bytes, computed.missed_bytes) == (8_448, 41_984)


def test_the_recorded_measurement_is_of_the_bytes_it_names():
    record = recorded.load("mixed_pages_h200")
    assert record["conditions"]["bytes_per_block"] == 61 * (41_984 + 8_448)
    assert all(row["page_per_segment_microseconds"] > row["tile_table_microseconds"] for row in record["rows"])


def test_a_report_without_a_summary_is_no_verdict():
    assert not read_report("no verdict within 90 s").finished
    clean = read_report(f"========= COMPUTE-SANITIZER\n{RETURNED}\n========= ERROR SUMMARY: 0 errors")
    assert (clean.finished, clean.errors, clean.invalid_writes, clean.first) == (True, 0, 0, "")


@pytest.mark.parametrize(
    "said",
    [
        "========= Error: Device not supported.\nRuntimeError: CUDA error 999\n========= ERROR SUMMARY: 3 errors",
        "========= Error: process didn't terminate successfully\n========= ERROR SUMMARY: 0 errors",
        f"========= Error: Device not supported.\n{RETURNED}\n========= ERROR SUMMARY: 0 errors",
    ],
)
def test_a_tool_that_cannot_work_here_gives_no_verdict(said):
    report = read_report(said)
    assert not report.finished and report.first.startswith("Error: ")


@pytest.mark.timeout(60)
def test_memcheck_ends_the_target_with_the_tool(tmp_path, monkeypatch):
    fake = tmp_path / "compute-sanitizer"
    fake.write_text("#!/bin/sh\nsleep 300 &\nwait\n")  # the target holds the pipe, and outlives the tool
    fake.chmod(fake.stat().st_mode | stat.S_IEXEC)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    (report,) = memcheck([{}], timeout_s=0.5)
    assert not report.finished and report.first == "no verdict within 0.5 s"


def test_memcheck_runs_one_child_a_case_and_reads_its_report(tmp_path, monkeypatch):
    fake = tmp_path / "compute-sanitizer"
    report = "========= Invalid __global__ write of size 4 bytes\n========= ERROR SUMMARY: 2 errors"
    fake.write_text(f"#!/bin/sh\necho '{report}'\n")
    fake.chmod(fake.stat().st_mode | stat.S_IEXEC)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    assert find_sanitizer() == str(fake)
    assert [report.errors for report in memcheck([{}, {}])] == [2, 2]


def test_memcheck_without_the_tool_says_so(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("CUDA_HOME", str(tmp_path))
    assert find_sanitizer() is None
    with pytest.raises(FileNotFoundError):
        memcheck([{}])
