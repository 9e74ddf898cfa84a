"""Launch arithmetic: tiles cover each segment once, none is empty, launches stay inside the device's limits."""

from __future__ import annotations

import json
from math import prod

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from refusals import raises_rule

from kvzero import geometries
from kvzero.errors import LaunchTooLargeError
from kvzero.layout.geometry import CacheGeometry
from kvzero.plan.planner import plan_segments
from kvzero.zero.tiles import (
    AMD,
    CUDA,
    HEAD,
    MOST_TILE_BYTES,
    TAIL,
    DeviceLimits,
    Tiling,
    grid_for,
    launch_for,
    step_for,
    strips,
    tile_rows,
    tiling_for,
)


def apart(num_blocks: int, pages: list[int]):
    """The plan of one array of blocks for each page size, one storage each."""
    layers = [
        {"name": f"layer.{i}", "storage": i, "byte_offset": 0, "shape": [num_blocks, page], "stride": [page, 1],
         "itemsize": 1, "block_dim": 0}
        for i, page in enumerate(pages)
    ]  # fmt: skip
    storages = [{"id": i, "nbytes": num_blocks * page} for i, page in enumerate(pages)]
    data = {"name": "apart", "num_blocks": num_blocks, "storages": storages, "layers": layers}
    return plan_segments(CacheGeometry.from_dict(data))


@given(
    st.lists(st.integers(1, 70_000), min_size=1, max_size=5),
    st.sampled_from([16, 64, 3968, 4096, 8192, 1 << 18]),
)
def test_tiles_cover_every_segment_once_and_none_is_empty(pages, tile_bytes):
    plan = apart(3, pages)
    seen = [[] for _ in plan.segments]
    for segment, offset, nbytes, ends in tile_rows(plan, tile_bytes).tolist():
        assert 0 < nbytes <= tile_bytes
        assert bool(ends & HEAD) == (offset == 0)
        assert bool(ends & TAIL) == (offset + nbytes == plan.segments[segment].span_bytes)
        seen[segment] += range(offset, offset + nbytes)
    assert seen == [list(range(segment.span_bytes)) for segment in plan.segments]


def test_the_launch_that_overflowed_is_inside_every_limit():
    # 91 pages of 9,344 words and 90 of 292, 6,870 ids: 2,904,745,920 programs in a flat grid of the longest page
    # and the shortest page's chunk (vLLM #52058), 12,434,700 in the masked grid that followed, 45 % of them empty.
    plan = apart(6_870, [9_344 * 4] * 91 + [292 * 4] * 90)
    assert plan.bytes_per_block * plan.num_blocks == 24_088_528_320
    for limits in CUDA, AMD:
        launch = launch_for(plan, limits=limits)
        assert (launch.programs_per_block, launch.empty_programs_per_block) == (1_000, 0)
        assert (launch.programs, launch.launches, launch.grid) == (6_870_000, 1, (6_870_000, 1, 1))
        assert launch.programs <= limits.max_programs


def test_a_launch_is_counted_for_the_largest_pages():
    plan = apart(4, [2**46])
    wide = DeviceLimits("wide", max_grid_x=2**60, threads_per_warp=32)
    assert launch_for(plan, 1, wide).programs == 2**34
    assert launch_for(plan, 1, wide, tile_bytes=MOST_TILE_BYTES).programs == 2**28


def test_a_call_that_exceeds_a_launch_is_split():
    plan = apart(1_000, [8192, 3968])
    launch = launch_for(plan, 1_000, DeviceLimits("small", max_grid_x=301, threads_per_warp=32))
    assert launch.programs_per_block == 3
    assert (launch.launches, launch.grid, launch.programs) == (10, (3, 100, 1), 3_000)


def test_a_block_that_exceeds_a_launch_is_refused_with_both_numbers():
    plan = apart(2, [4096 * 11])
    with pytest.raises(LaunchTooLargeError) as caught:
        launch_for(plan, limits=DeviceLimits("tiny", max_grid_x=10, threads_per_warp=32))
    assert (caught.value.programs_per_block, caught.value.limit_programs) == (11, 10)


def test_amd_counts_threads_over_the_whole_launch():
    assert CUDA.max_programs == 2**31 - 1
    assert AMD.max_programs == (2**32 - 1) // 256
    launch = launch_for(apart(10**9, [4096]), limits=AMD)
    assert prod(launch.grid) * 4 * 64 < 2**32 and launch.launches == 60


@pytest.mark.parametrize(
    ("pages", "tiling"),
    [
        ([1], (32, 16, 32)),
        ([100], (256, 128, 32)),
        ([1000], (2048, 1920, 4)),
        ([1152], (2048, 2048, 4)),
        ([2304], (4096, 4096, 2)),
        ([4096], (4096, 4096, 1)),
        ([4097], (8192, 8064, 1)),
        ([4224], (8192, 8192, 1)),
        ([41_984, 8_448], (4096, 4096, 1)),
        ([41_984] + [1152] * 99, (4096, 4096, 2)),
    ],
)
def test_the_tiling_fits_the_pages(pages, tiling):
    assert tiling_for(apart(4, pages)) == Tiling(*tiling)


@given(st.lists(st.integers(1, 9_000), min_size=1, max_size=4))
def test_no_page_is_cut_that_a_tile_could_hold(pages):
    plan = apart(4, pages)
    tiling = tiling_for(plan)
    if max(pages) <= 3968:
        assert len(tile_rows(plan, tiling.step_bytes)) == len(pages)
    assert tiling.ids_per_program * tiling.tile_bytes <= 8192


def test_a_tile_that_was_asked_for_serves_one_id():
    assert tiling_for(apart(4, [1152]), tile_bytes=512) == Tiling(512, 512, 1)


@pytest.mark.parametrize("tile_bytes", [0, 16, 100, -4096, 4096.0, True, 1 << 19])
def test_a_tile_that_is_no_power_of_two_is_refused(tile_bytes):
    with raises_rule("tile-bytes") as caught:
        launch_for(apart(4, [1152]), tile_bytes=tile_bytes)
    assert caught.value.tile_bytes == tile_bytes and (caught.value.least, caught.value.most) == (32, 1 << 18)


@pytest.mark.parametrize("name", geometries.names())
def test_no_real_dump_has_an_empty_program(name):
    plan = plan_segments(geometries.load(name))
    launch = launch_for(plan)
    batches = -(-plan.num_blocks // launch.ids_per_program)
    assert launch.empty_programs_per_block == 0 and launch.programs == launch.programs_per_block * batches
    assert launch.programs_per_block * launch.tile_bytes >= plan.bytes_per_block
    assert prod(launch.to_dict()["grid"]) == launch.programs


@pytest.mark.parametrize("num_ids", [-1, 1.5, float("nan"), True, "1", [1]])
def test_a_number_of_ids_that_is_none_is_refused(num_ids):
    with raises_rule("num-ids"):
        launch_for(apart(4, [64]), num_ids)


def test_a_numpy_number_of_ids_becomes_plain_data():
    assert json.dumps(launch_for(apart(4, [64]), np.int64(3)).to_dict())


def test_order_follows_the_layout():
    assert strips(plan_segments(geometries.load("gptoss_18sw_18full__LBNHC"))).tolist() == list(range(18))
    assert strips(plan_segments(geometries.load("dsv4_c4_mla_only__BLHNC"))).tolist() == [0, 0, 0, 0]
    assert strips(apart(4, [64, 64])).tolist() == [0, 1]


def test_whole_batches_fill_a_launch():
    plan = apart(1_000, [1152])
    launch = launch_for(plan, 1_000, DeviceLimits("small", max_grid_x=100, threads_per_warp=32))
    assert (launch.ids_per_program, launch.launches, launch.grid, launch.programs) == (4, 3, (1, 100, 1), 250)


def test_cuts_lie_on_lines_only_if_every_page_does():
    on_lines, off_lines = apart(4, [8_192]), apart(4, [8_208])
    assert (step_for(on_lines, 4096), step_for(off_lines, 4096)) == (4096, 3968)
    assert step_for(on_lines, 4096, addresses=64) == 3968 and step_for(on_lines, 4096, addresses=256) == 4096
    assert step_for(off_lines, 32) == 32 and step_for(apart(4, [8_200]), 32) == 16
    assert step_for(apart(1, [128]), 4096) == 4096


def test_a_grid_has_no_more_rows_than_a_device_takes():
    assert grid_for(3, 65_535, 1, nbytes=0) == ((3, 65_535, 1), 0)
    assert grid_for(3, 65_536, 1, nbytes=0) == ((196_608, 1, 1), 1)
    assert grid_for(3, 65_535 * 4 + 1, 4, nbytes=0) == ((196_608, 1, 1), 1)
