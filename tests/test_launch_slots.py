"""The programs of one block, drawn and counted: against the launches themselves and against programs really run."""

from __future__ import annotations

import pytest

from kvzero import Arena, BlockZeroer, geometries, plan_segments
from kvzero.history import PLANNERS, named
from kvzero.workbook.launch_slots import (
    KERNELS,
    dirty_after,
    dirty_far_out,
    launch_outcome,
    programs_run,
    slot_rows,
    slots_figure,
    slots_text,
)
from kvzero.workbook.toy import make_geometry
from kvzero.zero.tiles import launch_for

POOLS = ("launch-overflow-52058", "glm52_fp8_dsmla_indexer__LBNHC", "dsv4_mixed_ratio__BLHNC", "llama3_8b_bf16__LBNHC")


@pytest.mark.parametrize("name", POOLS)
@pytest.mark.parametrize("era", ["page-per-segment", "stride-and-span", "masked-grid", "kvzero"])
def test_the_rows_add_up_to_the_launch(name, era):
    pool = named.geometry(name)
    if era == "kvzero":
        plan = plan_segments(pool)
        launch = launch_for(plan, 1)
    else:
        plan = PLANNERS[era].plan(pool)
        launch = PLANNERS[era].launch(plan, 1, None)
    rows = slot_rows(plan, launch)
    assert sum(row.segments for row in rows) == len(plan.segments)
    assert sum(row.segments * row.slots for row in rows) == launch.programs
    assert sum(row.segments * (row.slots - row.filled) for row in rows) == launch.empty_programs_per_block
    assert [row.words for row in rows] == sorted((row.words for row in rows), reverse=True)


def test_the_launch_is_what_the_interpreter_runs():
    pool = make_geometry(layers=3, num_blocks=4, tokens=1, heads=1, content=[4_672, 4_672, 1_168], order="LBNHC")
    arena = Arena(pool)
    for era, expected in (("stride-and-span", 876), ("masked-grid", 6)):
        plan, kernel = PLANNERS[era].plan(pool), KERNELS[era]
        assert (
            programs_run(kernel, lambda era=era, plan=plan: PLANNERS[era].write(plan, arena.storages, [2])) == expected
        )
        assert PLANNERS[era].launch(plan, 1).programs == expected
    plan = plan_segments(pool)
    zeroer = BlockZeroer(plan, arena.storages, tile_bytes=4_096, interpret=True)
    assert (
        programs_run(KERNELS["kvzero"], lambda: zeroer.zero([1, 2]))
        == launch_for(plan, 2, tile_bytes=4_096).programs
        == 10
    )


def test_the_figure_says_what_the_table_says():
    pool = geometries.load("glm52_fp8_dsmla_indexer__LBNHC")
    plan = PLANNERS["masked-grid"].plan(pool)
    rows = slot_rows(plan, PLANNERS["masked-grid"].launch(plan, 1))
    words = slots_figure([("masked", rows)], "a sentence").words
    assert "masked: 1,078 programs for one block" in words and "3 of 11 programs have work" in words
    assert "160" in slots_text([("masked", rows)])


def test_what_is_left_dirty_is_counted():
    pool = make_geometry(layers=2, num_blocks=3, order="LBNHC")
    total = sum(storage.nbytes for storage in pool.storages)
    assert dirty_after(pool, "cpu", lambda storages: None) == total
    assert dirty_after(pool, "cpu", lambda storages: BlockZeroer(plan_segments(pool), storages).zero([0, 1, 2])) == 0
    assert (
        dirty_after(pool, "cpu", lambda storages: BlockZeroer(plan_segments(pool), storages).zero([1]))
        == total * 2 // 3
    )


@pytest.mark.parametrize("planner", ["stride-and-span", "masked-grid", "kvzero"])
def test_an_offset_beyond_31_bits_is_reached(planner):
    far = {"stride_bytes": 1_002_240, "page_bytes": 8_448, "block": 2_143}
    assert far["block"] * far["stride_bytes"] > 2**31
    assert dirty_far_out(planner, **far, device="cpu") == 0


@pytest.mark.gpu
def test_a_grid_beyond_31_bits_does_not_run():
    assert launch_outcome((2,), "cuda") == "ran"
    assert launch_outcome((2**31,), "cuda") != "ran"
