"""The bench: what it reports without a GPU, what it checks on one, and that the recorded run is what it says."""

from __future__ import annotations

import json
from importlib.resources import files

import numpy as np
import pytest
import torch
from refusals import raises_rule

from kvzero.__main__ import main
from kvzero.bench import run as bench
from kvzero.bench import sets
from kvzero.bench.report import targets, text
from kvzero.bench.sets import CANARY, BenchSet, Pool, all_sets, slabs
from kvzero.plan.planner import plan_segments
from kvzero.zero.zeroer import BlockZeroer


@pytest.fixture(scope="module")
def on_cpu() -> dict:
    return bench.run_bench("cpu")


@pytest.fixture(scope="module")
def recorded() -> dict:
    return json.loads((files("kvzero.workbook.recorded") / "bench_h200.json").read_text())


def test_without_a_gpu_it_says_what_it_did_not_measure(on_cpu):
    assert on_cpu["conditions"]["device"] == "cpu" and len(on_cpu["not_measured"]) == 3
    assert "sets" not in on_cpu and "targets" not in on_cpu
    page = text(on_cpu)
    assert all(f"not measured (no GPU): {what}" in page for what in on_cpu["not_measured"])
    assert json.loads(json.dumps(on_cpu)) == on_cpu


def test_launch_arithmetic_matches_what_was_reported_upstream(on_cpu):
    overflow = on_cpu["launches"][0]
    assert overflow["kvzero"]["CUDA"]["programs"] == overflow["kvzero"]["AMD"]["programs"] == 6_870_000
    assert overflow["kvzero"]["CUDA"]["empty_programs_per_block"] == 0
    # #52058: 12,434,700 programs, of which 810 of 1,810 in each block have nothing to do.
    masked = overflow["eras"]["masked-grid"]
    assert (masked["programs"], masked["empty_programs_per_block"]) == (12_434_700, 810)
    assert overflow["eras"]["page-per-segment"] == {"refused": "grid-overflow"}


def test_groups_need_less_than_the_union(on_cpu):
    dsv4 = on_cpu["groups"][0]
    assert dsv4["union_bytes_per_block"] == 183_744
    assert dsv4["needed_bytes_per_block"] == {"0": 149_504, "1": 183_296, "2": 163_840}


def test_planning_cost_does_not_follow_the_number_of_blocks(on_cpu):
    few, million = on_cpu["planning"][1:3]
    assert (few["num_blocks"], million["num_blocks"]) == (10, 1_000_000)
    # Stated bounds are 10 ms and 1 s on a quiet core; these leave room for a busy one.
    assert max(few["seconds"], million["seconds"]) < 0.1 and on_cpu["planning"][3]["seconds"] < 5


def test_a_gpu_that_is_not_there_is_asked_for_in_vain(capsys, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with raises_rule("device-not-available"):
        bench.run_bench("cuda")
    assert main(["bench", "--device", "cuda", "--json"]) == 2
    assert json.loads(capsys.readouterr().out)["error"]["rule"] == "device-not-available"


def test_the_check_of_a_configuration_sees_every_kind_of_damage():
    geometry = slabs("small", 100, 112, 6, 2, 1)
    pool = Pool(geometry, "cpu")
    blocks = np.array([1, 4])
    assert pool.wrong_bytes(blocks) == 2 * 200 and pool.wrong_bytes(blocks[:0]) == 0
    BlockZeroer(plan_segments(geometry), pool.storages).zero(blocks)
    assert pool.wrong_bytes(blocks) == 0
    memory = pool.storages[0]
    for place, value in ((1 * 224 + 99, CANARY), (1 * 224 + 100, 0), (2 * 224, 0), (5 * 224 + 223, 0), (0, 1)):
        before = int(memory[place])
        memory[place] = value
        assert pool.wrong_bytes(blocks) == 1, place
        memory[place] = before


def test_sets_are_what_they_are_called():
    sets = all_sets()
    assert len({each.name for each in sets}) == len(sets)
    for each in sets:
        plan = plan_segments(each.geometry)
        ids = each.block_ids()
        assert len(set(ids.tolist())) == each.num_ids and ids.max() < plan.num_blocks
        assert plan.bytes_per_block * each.num_ids >= 190e6
        assert not each.full_speed or plan.alignment_bytes == 16
        if "-byte alignment" in each.name:
            assert f"({plan.alignment_bytes}-byte alignment)" in each.name


def a_run() -> dict:
    """A run in which everything holds, as plain numbers."""
    fast = {
        "name": "a", "full_speed": True, "of_memset": 0.96, "of_zero_": 1.3, "wrong_bytes": 0, "warmup_wrote_bytes": 0,
    }  # fmt: skip
    small = {
        "name": "a", "num_ids": 8, "bytes": 9_000_000, "of_engine": {"median": 1.06}, "of_memset": {"median": 0.91},
        "wrong_bytes": 0,
    }  # fmt: skip
    return {
        "sets": [fast],
        "small": [small],
        "tiles": {"rows": [{"wrong_bytes": 0}]},
        "host": [
            {"pool": "1 storage", "num_ids": num_ids, "list_of_fresh": of_fresh, "wrong_bytes": 0}
            for num_ids, of_fresh in ((1_024, 0.32), (8, 0.3))
        ],
        "warmup": {"warm_cache_seconds": 0.4, "cold_cache_seconds": 1.4, "wrote_bytes": 0},
    }


def missed(report: dict) -> list[str]:
    return [target["name"] for target in targets(report) if not target["held"]]


def test_a_run_in_which_everything_holds():
    assert missed(a_run()) == [] and len(targets(a_run())) == 9


@pytest.mark.parametrize(
    ("part", "changes", "name"),
    [
        ("sets", {"of_memset": 0.94}, "device time, of the driver's memset: a"),
        ("sets", {"of_zero_": 1.1}, "device time, of zero_: a"),
        ("sets", {"wrong_bytes": 1}, "bytes not as they should be, over every configuration"),
        ("sets", {"warmup_wrote_bytes": 1}, "bytes not as they should be, over every configuration"),
        ("small", {"wrong_bytes": 1}, "bytes not as they should be, over every configuration"),
        ("small", {"of_memset": {"median": 0.8}}, "small calls from 8 MB on, of the driver's memset: 8 ids, a"),
        ("host", {"wrong_bytes": 1}, "bytes not as they should be, over every configuration"),
        ("host", {"list_of_fresh": 0.34}, "host time, of the fresh pinned way: 1,024 ids, 1 storage"),
        ("host", {"list_of_fresh": 0.34, "num_ids": 64}, "host time, of the fresh pinned way: 64 ids, 1 storage"),
        ("warmup", {"warm_cache_seconds": 1.1}, "warm-up of a new process, seconds: cache filled"),
        ("warmup", {"cold_cache_seconds": 2.1}, "warm-up of a new process, seconds: cache empty"),
    ],
)
def test_each_bound_is_judged_by_its_own_number(part, changes, name):
    report = a_run()
    if part == "warmup":
        report[part] |= changes
    else:
        report[part].append(report[part][0] | changes)
    assert missed(report) == [name]


def test_one_slow_dump_and_a_slow_median_are_told_apart():
    report = a_run()
    report["small"] *= 3
    report["small"].append(report["small"][0] | {"of_engine": {"median": 0.9}, "name": "b"})
    assert missed(report) == ["calls of 8, of the engine's kernel: b"]
    report["small"] = [report["small"][0] | {"of_engine": {"median": 1.0}}]
    assert missed(report) == ["calls of 8, of the engine's kernel: median"]


def test_the_recorded_run_is_whole_and_says_its_conditions(recorded):
    conditions = recorded["conditions"]
    assert "H200" in conditions["gpu"] and conditions["clocks"] == "as found, not set"
    assert {"date", "torch", "triton", "cuda", "driver_cuda_version"} <= set(conditions)
    assert recorded["not_measured"] == []
    assert {each["name"] for each in recorded["sets"]} == {each.name for each in all_sets()}
    assert recorded["targets"] == json.loads(json.dumps(targets(recorded)))
    assert {(row["pool"], row["num_ids"]) for row in recorded["host"]} == {
        (pool, num_ids) for pool in ("1 storage", "122 storages") for num_ids in (1, 8, 64, 1_024)
    }
    assert {row["num_ids"] for row in recorded["small"]} == {1, 8, 64} and len(recorded["small"]) >= 3 * 40
    page = text(recorded)
    assert all(row["name"] in page for row in (*recorded["small"], *recorded["sets"]))


def test_every_recorded_configuration_was_checked_byte_by_byte(recorded):
    for each in recorded["sets"]:
        assert each["wrong_bytes"] == each["warmup_wrote_bytes"] == 0
        geometry = next(known for known in all_sets() if known.name == each["name"])
        assert each["bytes"] == plan_segments(geometry.geometry).bytes_per_block * geometry.num_ids
    assert all(row["wrong_bytes"] == 0 for row in (*recorded["host"], *recorded["small"]))
    assert recorded["warmup"]["wrote_bytes"] == 0


@pytest.mark.gpu
def test_a_set_is_measured_and_checked_on_a_gpu(monkeypatch):
    from kvzero.bench import gpu, timing

    monkeypatch.setattr(timing, "SETTLE_SECONDS", 0)
    result = gpu._measure_set(BenchSet("small", sets.layers_apart("small", [4_096, 512], 64), 16))
    assert result["wrong_bytes"] == result["warmup_wrote_bytes"] == 0
    assert result["bytes"] == 16 * 4_608 and all(us > 0 for us in result["us"].values())
    assert "us" in result["eras"]["masked-grid"] and result["eras"]["uniform-page"] == {"refused": "non-uniform-pages"}


@pytest.mark.gpu
def test_few_ids_are_measured_and_checked_on_a_gpu(monkeypatch):
    from kvzero.bench import gpu

    monkeypatch.setattr(gpu.geometries, "names", lambda: ["dsv4_c4_mla_only__BLHNC"])
    rows = gpu.measure_small()
    assert [row["num_ids"] for row in rows] == [1, 8, 64] and all(row["wrong_bytes"] == 0 for row in rows)
    for row in rows:
        assert row["of_engine"]["least"] <= row["of_engine"]["median"] <= row["of_engine"]["greatest"]


@pytest.mark.gpu
def test_warm_up_is_measured_in_new_processes():
    from kvzero.bench.warmup import measure_warmup

    result = measure_warmup()
    assert result["wrote_bytes"] == 0 and 0 < result["warm_cache_seconds"] < result["cold_cache_seconds"]
