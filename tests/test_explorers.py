"""Explorers: the pure functions against the real planners and models, the flips to the byte, errors that surface."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvzero import geometries
from kvzero.audit.audit import audit_plan
from kvzero.errors import GridOverflowError
from kvzero.history import masked_grid, page_per_segment, planner, stride_and_span
from kvzero.plan.planner import plan_segments
from kvzero.workbook.explorers import (
    launch_size_data,
    launch_size_figure,
    launch_size_knob,
    layout_data,
    layout_knob,
)
from kvzero.workbook.explorers.launch_size import two_page_geometry
from kvzero.workbook.start import first_picture_knob
from kvzero.workbook.toy import ToyOptionError, make_geometry
from kvzero.zero.tiles import AMD, CUDA

# ---- launch size ----


def test_upstreams_numbers():
    data = launch_size_data(long_segments=91, long_words=9_344, short_segments=90, short_words=292, blocks=6_870)
    flat, grid, ours = data.choices
    assert (flat.programs, grid.programs) == (2_904_745_920, 12_434_700)
    assert flat.refused and not grid.refused and not ours.refused
    assert ours.empty_percent == 0


@settings(max_examples=25)
@given(st.integers(1, 6), st.integers(1, 600), st.integers(0, 4), st.integers(1, 200), st.sampled_from(["CUDA", "AMD"]))
def test_launches_flip_where_the_specimens_raise(long, long_words, short, short_words, device):
    limits = {"CUDA": CUDA, "AMD": AMD}[device]
    sizes = {"long_segments": long, "long_words": long_words, "short_segments": short, "short_words": short_words}
    data = launch_size_data(**sizes, blocks=10, device=device)
    for choice, module, maker in zip(
        data.choices, (page_per_segment, masked_grid), (stride_and_span, masked_grid), strict=False
    ):
        plan = maker.plan(two_page_geometry(long, long_words, short, short_words, 10))
        module.launch(plan, choice.first_refused_blocks - 1, limits)
        with pytest.raises(GridOverflowError):
            module.launch(plan, choice.first_refused_blocks, limits)


def test_a_grid_of_three_dimensions_is_held_to_each():
    """A page of one chunk too many: y and z stop at 65,535, however few the blocks are."""
    taken, refused = (
        launch_size_data(long_segments=1, long_words=1_024 * chunks, blocks=2) for chunks in (65_535, 65_536)
    )
    flat, grid, _ = taken.choices
    assert not flat.refused and not grid.refused and grid.first_refused_blocks == 2**31
    flat, grid, _ = refused.choices
    assert grid.refused and grid.first_refused_blocks == 1 and not flat.refused
    assert "65,536 programs in its third dimension, at most 65,535" in refused.sentence
    assert "every call" in refused.text
    assert "✗ masked grid (#52058)" in launch_size_figure(refused).words
    with pytest.raises(GridOverflowError):
        masked_grid.launch(masked_grid.plan(two_page_geometry(1, 1_024 * 65_536, 0, 1, 2)), 1, CUDA)


def test_its_figure_marks_what_is_refused():
    data = launch_size_data(long_segments=91, long_words=9_344, short_segments=90, short_words=292, blocks=6_870)
    words = launch_size_figure(data).words
    assert "2,904,745,920 programs ✗" in words and "12,434,700 programs" in words
    assert "CUDA: most programs in a launch: 2,147,483,647" in words


def test_a_call_that_is_split_is_drawn_by_its_largest_launch():
    data = launch_size_data(
        long_segments=91, long_words=9_344, short_segments=90, short_words=292, blocks=20_000, device="AMD"
    )
    kvzero = data.choices[-1]
    assert (kvzero.launches, kvzero.programs, kvzero.programs_per_launch) == (2, 20_000_000, 16_777_000)
    words = launch_size_figure(data).words
    assert "16,777,000 programs" in words and "kvzero, a table of tiles, in 2 launches" in words


# ---- layouts ----


def test_a_refusal_is_a_result():
    layout = layout_data(geometries.load("glm52_fp8_dsmla_indexer__LBNHC"), "uniform-page", (1,))
    assert layout.plan is None and layout.refusal.rule == "non-uniform-pages"
    assert "2112" in layout.sentence.replace(",", "") and "10496" in layout.sentence.replace(",", "")


@pytest.mark.parametrize("name", ["dsv4_c4_full__BLHNC", "llama3_8b_bf16__LHBNC", "qwen35_544_fa__LBNHC"])
@pytest.mark.parametrize("who", ["kvzero", "stride-and-span", "engine"])
def test_a_layout_is_judged_as_the_audit_judges_it(name, who):
    geometry = geometries.load(name)
    layout = layout_data(geometry, who, (1,))
    plan = plan_segments(geometry) if who == "kvzero" else planner(who).plan(geometry)
    audit = audit_plan(plan, geometry, [1])
    assert layout.audit.to_dict() == audit.to_dict()
    assert layout.map.totals.get("stomped", 0) == audit.stomped_bytes
    assert f"{len(plan.segments) - 8:,} more segments" in layout.text or len(plan.segments) <= 8
    assert f"missed {audit.missed_bytes:,} B" in layout.text


# ---- the knobs ----


@pytest.mark.parametrize(
    "make",
    [
        layout_knob, launch_size_knob,
        lambda: first_picture_knob(layers=3, num_blocks=4, page_bytes=64, pad_bytes=8, block=1),
    ],
)  # fmt: skip
def test_every_step_draws_and_says_something_of_its_own(make):
    turned = make()
    said = []
    for state in turned.steps.values():
        turned.set(**state)
        said.append(turned.sentence)
        assert turned.state == state and turned.errors == []
    assert len(set(said)) > 1


def test_sizes_that_do_not_go_together_are_explained():
    turned = layout_knob()
    turned.set(kernel_blocks=3)
    assert "kernel_blocks" in turned.sentence and turned.errors == []
    with pytest.raises(ToyOptionError):
        make_geometry(kernel_blocks=3)
