"""The rules by which a kernel is compiled again, held to the compiler; and what a warm-up writes."""

from __future__ import annotations

import pytest
import torch

from kvzero.audit.arena import Arena
from kvzero.history import masked_grid, named, uniform_page
from kvzero.plan.planner import plan_segments
from kvzero.workbook import first_launch
from kvzero.workbook.first_launch import KERNELS, compile_for_hopper, key_of
from kvzero.workbook.toy import make_geometry
from kvzero.zero.kernel import NO_FLOATS, jit_both, zero_tiles_compiled
from kvzero.zero.zeroer import BlockZeroer

OLD, FIXED = KERNELS["as of #35219"], KERNELS["as of #49903"]


def arguments(num_ids, shift=0):
    """Of a launch: segments, ids that start at an odd place if shifted, their number, and constants."""
    ids = torch.zeros(shift + num_ids, dtype=torch.int64)
    return [torch.zeros(2, dtype=torch.int64), ids[shift:], num_ids, 2, 1_024, 512]


def test_the_three_classes_are_three_keys_and_two_machine_codes():
    found = [compile_for_hopper(OLD, key_of(OLD, arguments(num_ids))) for num_ids in (1, 16, 3)]
    assert len({name for name, _ in found}) == 3
    assert len({code for _, code in found}) == 2


def test_only_the_number_of_ids_changed_its_rule():
    old, fixed = (first_launch.argument_rules(kernel) for kernel in (OLD, FIXED))
    assert [name for name in old if old[name] != fixed[name]] == ["num_ids"]
    assert "type and class" not in first_launch.argument_rules(zero_tiles_compiled).values()


@pytest.mark.parametrize(("kernel", "kinds"), [(OLD, 3), (FIXED, 1)])
def test_numbers_and_addresses_have_kinds_and_a_key_for_each(kernel, kinds):
    def kind(num_ids, shift):
        number = 0 if kernel is FIXED else 1 if num_ids == 1 else 2 if num_ids % 16 else 3
        return number, shift

    calls = [(num_ids, shift) for num_ids in range(1, 65) for shift in (0, 1)]
    pairs = {(str(key_of(kernel, arguments(*call))), kind(*call)) for call in calls}
    assert len(pairs) == len({key for key, _ in pairs}) == len({kind for _, kind in pairs}) == 2 * kinds


@pytest.mark.gpu
@pytest.mark.parametrize("options", [{}, {"do_not_specialize": ["num_ids"]}])
def test_the_compiler_runs_where_the_keys_say(options):
    pool = make_geometry(layers=3, num_blocks=70, tokens=16, heads=2, content=128)
    memory, needed, plan = Arena(pool, "cuda"), set(), uniform_page.plan(pool)
    kernel, _ = jit_both(uniform_page.zero_uniform, **options)
    starts = [memory.storages[s.storage].data_ptr() + s.base_bytes for s in plan.segments]
    table, words = torch.tensor(starts, device="cuda"), plan.segments[0].span_bytes // 4
    with first_launch.compilations() as found:
        for shift in 0, 1:
            for num_ids in (1, 2, 3, 15, 16, 17, 32, 48, 64):
                ids = torch.tensor([0] * shift + list(range(num_ids)), device="cuda")[shift:]
                launch = (table, ids, num_ids, len(starts), words, 64)
                kernel[(num_ids * len(starts) * (words // 64),)](*launch, **NO_FLOATS)
                needed.add(str(key_of(kernel, launch)))
                assert len(found) == len(needed), (num_ids, shift)
    assert memory.audit(list(range(64))).ok


def test_an_old_warmup_wipes_block_0_and_ours_changes_nothing():
    slab = named.geometry("packed-slab-51288")
    arena = Arena(slab)
    BlockZeroer(plan_segments(slab), arena.storages, interpret=True).warmup()
    assert arena.audit([]).ok
    masked_grid.write(masked_grid.plan(slab), arena.storages, [0])
    assert arena.audit([]).stomped_bytes == 149_504
