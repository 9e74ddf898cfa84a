"""The small cases with known answers: exactly the stated ranges become zero, everything else keeps its value."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from kvzero.audit.arena import Arena, mask_ranges
from kvzero.audit.audit import audit_bytes, audit_plan
from kvzero.history import shared_id_buffer
from kvzero.history.stream_model import CudaStream, StreamModel
from kvzero.layout.geometry import CacheGeometry
from kvzero.plan.planner import plan_segments
from kvzero.zero.tiles import AMD, CUDA, launch_for
from kvzero.zero.zeroer import BlockZeroer

DATA = json.loads((Path(__file__).parent / "cases.json").read_text())
CASES = DATA["cases"]
MAX_GRID_YZ = 65_535


def geometry_of(case: dict) -> CacheGeometry:
    return CacheGeometry.from_dict(
        {
            "name": case["id"],
            "num_blocks": case["num_blocks"],
            "storages": [{"id": key, "nbytes": nbytes} for key, nbytes in case["storages"].items()],
            "layers": case["views"],
        }
    )


def check_bytes(case: dict, device: str) -> None:
    """Compare every byte with a copy taken before; no canary, no audit, only the stated ranges."""
    geometry = geometry_of(case)
    arena = Arena(geometry, device=device)
    before = {key: memory.clone() for key, memory in arena.storages.items()}
    BlockZeroer(plan_segments(geometry), arena.storages).zero(case["block_ids"])
    for key, memory in arena.storages.items():
        assert mask_ranges(memory == 0).tolist() == case["zero_ranges"].get(key, [])
        kept = memory != 0
        assert torch.equal(memory[kept], before[key][kept])


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["id"])
def test_exactly_the_stated_ranges_are_zero(case):
    check_bytes(case, "cpu")


@pytest.mark.gpu
@pytest.mark.parametrize("case", CASES, ids=lambda case: case["id"])
def test_exactly_the_stated_ranges_are_zero_on_a_gpu(case):
    check_bytes(case, "cuda")


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["id"])
def test_both_witnesses_say_so_too(case):
    geometry = geometry_of(case)
    for audit in (
        audit_plan(plan_segments(geometry), geometry, case["block_ids"]),
        audit_bytes(geometry, case["block_ids"]),
    ):
        assert audit.ok
        assert audit.needed_bytes == audit.written_bytes == case["zero_bytes"]
        cleared = {key: ranges.tolist() for key, ranges in audit.ranges["cleared"].items()}
        assert cleared == {key: case["zero_ranges"].get(key, []) for key in case["storages"]}


def test_overlaid_views_are_one_segment():
    (case,) = [case for case in CASES if case["id"] == "overlaid"]
    assert len(plan_segments(geometry_of(case)).segments) == 1


@pytest.mark.parametrize("case", DATA["plan_only"], ids=lambda case: case["id"])
def test_a_plan_that_is_too_large_to_run_fits_every_limit(case):
    pages = [words * 4 for count, words in case["segments_words"] for _ in range(count)]
    geometry = CacheGeometry.from_dict(
        {
            "name": case["id"],
            "num_blocks": case["num_ids"],
            "storages": [{"id": index, "nbytes": case["num_ids"] * page} for index, page in enumerate(pages)],
            "layers": [
                {
                    "name": f"layer.{index}", "storage": index, "byte_offset": 0, "itemsize": 1,
                    "shape": [case["num_ids"], page], "stride": [page, 1],
                }
                for index, page in enumerate(pages)
            ],
        }
    )  # fmt: skip
    plan = plan_segments(geometry)
    assert len(plan.segments) == len(pages)
    assert plan.bytes_per_block * case["num_ids"] == case["planned_bytes"]
    for limits in (CUDA, AMD):
        launch = launch_for(plan, case["num_ids"], limits)
        assert launch.grid[0] <= limits.max_programs
        assert max(launch.grid[1:]) <= MAX_GRID_YZ
        assert launch.programs <= launch.launches * limits.max_programs
        assert launch.empty_programs_per_block == 0


def pool_of_four() -> CacheGeometry:
    layer = {"name": "k", "storage": 0, "byte_offset": 0, "shape": [4, 256], "stride": [256, 1], "itemsize": 4}
    return CacheGeometry.from_dict(
        {"name": "four", "num_blocks": 4, "storages": [{"id": 0, "nbytes": 4_096}], "layers": [layer]}
    )


def check_two_calls(case: dict, arena: Arena) -> None:
    zeroed = {block for block in range(4) if not arena.views["k"][block].any()}
    assert zeroed == set(case["zero_blocks"])
    audit = arena.audit(case["zero_blocks"])
    assert audit.ok  # the blocks to keep are whole


@pytest.mark.parametrize("case", DATA["two_calls"], ids=lambda case: case["id"])
def test_two_calls_back_to_back(case):
    """On a CPU a call ends before it returns; ids handed over in one reused tensor are the nearest thing."""
    arena = Arena(pool_of_four())
    zeroer = BlockZeroer(plan_segments(arena.geometry), arena.storages)
    ids = torch.zeros(1, dtype=torch.int64)
    for call in case["calls"]:
        ids[0] = call[0]
        zeroer.zero(ids)
    ids[0] = 3
    check_two_calls(case, arena)


@pytest.mark.parametrize("case", DATA["two_calls"], ids=lambda case: case["id"])
def test_the_old_id_path_fails_the_same_case(case):
    arena, stream = Arena(pool_of_four()), StreamModel()
    rows = arena.storages[0].view(4, 1024)
    path = shared_id_buffer.SharedIdBuffer(stream, lambda ids: rows.index_fill_(0, ids, 0))
    for call in case["calls"]:
        path.zero(call)
    stream.synchronize()
    with pytest.raises(AssertionError):
        check_two_calls(case, arena)


@pytest.mark.gpu
@pytest.mark.parametrize("case", DATA["two_calls"], ids=lambda case: case["id"])
def test_two_calls_behind_a_held_stream(case):
    arena = Arena(pool_of_four(), device="cuda")
    zeroer = BlockZeroer(plan_segments(arena.geometry), arena.storages)
    zeroer.warmup()
    stream = CudaStream()
    torch.cuda.synchronize()
    stream.hold()
    with stream.current():
        for call in case["calls"]:
            zeroer.zero(call)
    held = stream.synchronize()
    assert held, "the stream was not held: the case proved nothing"
    check_two_calls(case, arena)
