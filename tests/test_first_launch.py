"""The rules by which a kernel falls into forms, held to the compiler; the ranks; and what a warm-up writes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvzero.audit.arena import Arena
from kvzero.history import masked_grid, named, uniform_page
from kvzero.plan.planner import plan_segments
from kvzero.workbook import first_launch
from kvzero.workbook.first_launch import KERNELS, Work, class_of, compile_for_hopper, step, variant
from kvzero.workbook.stall_knob import stall_data, stall_knob
from kvzero.workbook.toy import make_geometry
from kvzero.zero.kernel import zero_tiles_compiled
from kvzero.zero.zeroer import BlockZeroer

OLD, FIXED = KERNELS["as of #35219"], KERNELS["as of #49903"]


def test_the_three_classes_are_three_keys_and_two_machine_codes():
    plan = uniform_page.plan(make_geometry(layers=2, num_blocks=4, tokens=16, content=64))
    found = [compile_for_hopper(OLD, plan, each) for each in ("1", "multiple of 16", "other")]
    assert len({form.key for form in found}) == 3
    assert len({form.machine_code for form in found}) == 2


def test_only_the_number_of_ids_changed_its_rule():
    old, fixed = (first_launch.argument_rules(kernel) for kernel in (OLD, FIXED))
    assert [name for name in old if old[name] != fixed[name]] == ["num_ids"]
    assert "type and class" not in first_launch.argument_rules(zero_tiles_compiled).values()


def test_calls_of_1_to_64_ids_need_three_forms_or_one():
    assert [len({variant(kernel, n) for n in range(1, 65)}) for kernel in (OLD, FIXED)] == [3, 1]
    assert len({variant(FIXED, n, aligned) for n in range(1, 65) for aligned in (True, False)}) == 2


@pytest.mark.gpu
@pytest.mark.parametrize("kernel", [OLD, FIXED])
def test_the_compiler_runs_where_the_rules_say(kernel):
    pool = make_geometry(layers=3, num_blocks=70, tokens=16, heads=2, content=128)
    memory, needed = Arena(pool, "cuda"), set()
    with first_launch.compilations() as found:
        for shift in 0, 1:
            for num_ids in (1, 2, 3, 15, 16, 17, 32, 48, 64):
                first_launch.launch(kernel, uniform_page.plan(pool), memory.storages, range(num_ids), first=shift)
                needed.add(variant(kernel, num_ids, ids_aligned=shift == 0))
                assert len(found) == len(needed), (num_ids, shift)
    assert memory.audit(list(range(64))).ok


def test_an_old_warmup_wipes_block_0_and_ours_changes_nothing():
    slab = named.geometry("packed-slab-51288")
    arena = Arena(slab)
    BlockZeroer(plan_segments(slab), arena.storages, interpret=True).warmup()
    assert arena.audit([]).ok
    masked_grid.write(masked_grid.plan(slab), arena.storages, [0])
    assert arena.audit([]).stomped_bytes == 149_504


times = st.lists(st.integers(1, 5_000), min_size=1, max_size=4)


@given(st.lists(times, min_size=2, max_size=5), st.integers(1, 5_000))
def test_each_rank_waits_for_the_last_one(works, limit_ms):
    found = step({str(i): [Work("w", ms) for ms in each] for i, each in enumerate(works)}, limit_ms=limit_ms)
    last = max(sum(each) for each in works)
    assert found.waits_ms == {str(i): last - sum(each) for i, each in enumerate(works)}
    assert set(found.timed_out) == {rank for rank, wait in found.waits_ms.items() if wait > limit_ms}
    assert found.ends_ms > last


def test_the_knob_flips_at_the_limit_and_its_widget_draws():
    assert stall_data(compile_ms=1_150, cached_ms=150, limit_ms=1_000).step.timed_out == ()
    assert stall_data(compile_ms=1_151, cached_ms=150, limit_ms=1_000).step.timed_out == ("rank 1",)
    assert stall_data(compile_ms=150, cached_ms=1_151, limit_ms=1_000).step.timed_out == ("rank 0",)
    knob = stall_knob()
    knob.set(compile_ms=10, cached_ms=10)
    assert knob.errors == [] and "nobody waits" in knob.view.sentence


@pytest.mark.parametrize(("number", "expected"), [(1, "1"), (2, "other"), (16, "multiple of 16"), (24, "other")])
def test_classes(number, expected):
    assert class_of(number) == expected
