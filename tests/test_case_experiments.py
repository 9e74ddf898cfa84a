"""What case notebooks quote and ask from outside: recorded measurements, and reports of compute-sanitizer."""

from __future__ import annotations

import os
import stat

import pytest

from kvzero.workbook import recorded
from kvzero.workbook.sanitizer import RETURNED, find_sanitizer, memcheck, read_report


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
