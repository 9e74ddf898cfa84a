"""The experiments behind the case notebook on mixed pages, and the tables of old planners, held to memory."""

from __future__ import annotations

import os
import stat

import pytest

from kvzero import Arena, audit_plan
from kvzero.history import PLANNERS, named
from kvzero.workbook import recorded, uniform_pages
from kvzero.workbook.era_tables import UnknownTableError, read_table, table_of
from kvzero.workbook.sanitizer import RETURNED, find_sanitizer, memcheck, read_report
from kvzero.workbook.toy import make_geometry


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
