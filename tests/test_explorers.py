"""Explorers: the pure functions against the real planners and models, the flips to the byte, errors that surface."""

from __future__ import annotations

import ast
import dataclasses
import gc
from pathlib import Path

import ipywidgets as widgets
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import kvzero.workbook.explorers as explorers
from kvzero import geometries
from kvzero.audit.audit import audit_plan
from kvzero.errors import GridOverflowError
from kvzero.history import masked_grid, page_per_segment, planner, stride_and_span
from kvzero.history.ring_id_buffer import RingIdBuffer
from kvzero.history.shared_id_buffer import SharedIdBuffer
from kvzero.history.stream_model import StreamModel
from kvzero.plan.planner import plan_segments
from kvzero.workbook.explorers import (
    Explorer,
    View,
    id_race_data,
    id_race_figure,
    id_race_knob,
    launch_size_data,
    launch_size_figure,
    launch_size_knob,
    layout_data,
    layout_explorer,
)
from kvzero.workbook.explorers.base import note_figure
from kvzero.workbook.explorers.launch_size import two_page_geometry
from kvzero.workbook.toy import ToyOptionError, make_geometry
from kvzero.zero.tiles import AMD, CUDA

MAKERS = [layout_explorer, id_race_knob, launch_size_knob]


# ---- id race ----


@pytest.mark.parametrize("buffers", [1, 2, 3])
@pytest.mark.parametrize("calls", [1, 2, 3, 4])
def test_the_race_ends_as_the_specimens_do_when_the_stream_is_held(buffers, calls):
    stream, zeroed = StreamModel(), []
    kernel = lambda ids: zeroed.extend(ids.tolist())  # noqa: E731
    path = SharedIdBuffer(stream, kernel) if buffers == 1 else RingIdBuffer(stream, kernel, buffers=buffers)
    for block in range(1, calls + 1):
        path.zero([block])
    stream.synchronize()
    assert list(id_race_data(held_us=1000, gap_us=20, buffers=buffers, calls=calls).zeroed) == zeroed


def test_the_race_ends_as_the_specimen_does_when_the_stream_is_idle():
    stream, zeroed = StreamModel(), []
    path = SharedIdBuffer(stream, lambda ids: zeroed.extend(ids.tolist()))
    for block in (1, 2):
        path.zero([block])
        stream.synchronize()
    assert list(id_race_data(held_us=0, gap_us=20).zeroed) == zeroed == [1, 2]


@given(st.integers(0, 120), st.integers(2, 60), st.integers(1, 4), st.integers(1, 4))
def test_ids_are_lost_exactly_when_the_inequality_fails(held, gap, buffers, calls):
    race = id_race_data(held_us=held, gap_us=gap, buffers=buffers, calls=calls)
    assert ("No:" in race.inequality) == (race.zeroed != race.asked) == bool(race.dirty)
    assert set(race.dirty) == set(race.asked) - set(race.zeroed)
    assert (race.flip is None) == (buffers >= calls)
    stream = sorted((event.start, event.end) for event in race.events if event.lane == "stream")
    assert all(one[1] <= other[0] for one, other in zip(stream, stream[1:], strict=False)), "a stream does one thing"


def test_the_race_flips_at_the_second_fill():
    assert id_race_data(held_us=16, gap_us=20).dirty == ()
    assert "block 2 is zeroed twice, block 1 stays dirty" in id_race_data(held_us=30, gap_us=20).sentence
    assert "block 4 is zeroed 4 times" in id_race_data(held_us=90, gap_us=20, calls=4).sentence
    assert id_race_data(held_us=17, gap_us=20).dirty == (1,)
    words = id_race_figure(id_race_data(held_us=17, gap_us=20)).words
    assert "fill 2 reuses the buffer of copy 1: 20 µs" in words
    assert any("1 µs too late" in line for line in words)


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


# ---- the widgets ----


@pytest.mark.parametrize("make", MAKERS)
def test_every_preset_draws_and_says_something_of_its_own(make):
    explorer = make()
    said = set()
    for name in explorer.presets:
        explorer.preset.value = name
        assert explorer.view.figure.width_inches <= 9 and explorer.view.figure.smallest_points >= 9
        first_words = explorer.view.sentence.split()[:4]
        assert " ".join(first_words) in " ".join(explorer.view.figure.words)
        said.add((explorer.view.code, explorer.view.sentence, explorer.view.text))
    assert len(said) == len(explorer.presets)
    assert explorer.errors == []


@pytest.mark.parametrize("make", MAKERS)
def test_every_control_is_native_described_and_does_something(make):
    explorer = make()
    for name, control in explorer.controls.items():
        explorer.reset.click()
        assert isinstance(control, (widgets.IntSlider, widgets.Dropdown, widgets.ToggleButtons)), (
            f"{name} can be used with the keyboard"
        )
        assert control.description.strip(), f"{name} says what it is"
        before, draws = explorer.view.code, explorer.draws
        if hasattr(control, "options"):
            values = [option[1] if isinstance(option, tuple) else option for option in control.options]
            if len(values) == 1:
                continue
            control.value = next(value for value in values if value != control.value)
        else:
            control.value = control.max if control.value != control.max else control.min
        assert explorer.draws == draws + 1, f"{name} redraws once"
        assert explorer.view.code != before, f"{name} is part of the state shown as code"
    explorer.reset.click()
    assert explorer.preset.value == explorer.preset.options[0]
    assert explorer.errors == []


@pytest.mark.parametrize("make", [id_race_knob, launch_size_knob])
def test_the_state_as_code_gives_the_same_data(make):
    explorer = make()
    explorer.preset.value = explorer.preset.options[2]
    data = eval(explorer.view.code, vars(explorers))
    assert explorer.view.text == data.text


def test_the_layouts_code_gives_the_same_layout():
    explorer = layout_explorer()
    for index in (1, 3, 10):
        explorer.preset.value = explorer.preset.options[index]
        shown = []
        names = {"make_geometry": make_geometry, "geometries": geometries, "layout_data": layout_data}
        exec(explorer.view.code, {**names, "show_layout": shown.append})
        assert shown[0].sentence == explorer.view.sentence
        assert shown[0].segments_text == explorer.view.table


def test_a_preset_can_be_chosen_again_after_a_change_of_ones_own():
    explorer = id_race_knob()
    second = list(explorer.presets)[1]
    explorer.preset.value = second
    wanted = explorer.view.text
    explorer.controls["gap_us"].value = 7
    assert explorer.preset.value not in explorer.presets and explorer.view.text != wanted
    explorer.preset.value = second
    assert explorer.view.text == wanted


def test_the_picture_the_words_and_the_alternative_move_together():
    explorer = id_race_knob()
    before = explorer._picture.value
    explorer.controls["gap_us"].value = 7
    now = explorer._picture.value
    assert now != before
    assert f'alt="{explorer.view.sentence}"' in now and f">{explorer.view.sentence}</div>" in now


def test_sizes_that_do_not_go_together_are_explained():
    explorer = layout_explorer()
    explorer.set(kernel_blocks=3)
    assert "kernel_blocks" in explorer.view.sentence and explorer.errors == []
    with pytest.raises(ToyOptionError):
        make_geometry(kernel_blocks=3)


def failing_explorer() -> Explorer:
    def draw(state) -> View:
        if state["knob"] == 3:
            raise ValueError("three <is> refused")
        return View(note_figure(f"at {state['knob']}"), f"at {state['knob']}", "text", "code")

    return Explorer("test", {"knob": widgets.IntSlider(0, 0, 9, description="knob")}, draw, {"start": {"knob": 0}})


def test_a_drawing_makes_the_garbage_collector_wait_and_leaves_it_as_it_was():
    running = []

    def draw(state):
        running.append(gc.isenabled())
        if state["knob"] == 3:
            raise ValueError("no picture")
        return View(note_figure("a"), "a", "a", "a")

    explorer = Explorer("test", {"knob": widgets.IntSlider(0, 0, 9)}, draw, {"start": {"knob": 0}})
    with pytest.raises(ValueError, match="no picture"):
        explorer.set(knob=3)
    assert running == [False, False] and gc.isenabled()


def test_an_error_in_a_callback_is_recorded_shown_and_raised():
    explorer = failing_explorer()
    with pytest.raises(ValueError, match="three"):
        explorer.controls["knob"].value = 3
    assert [type(error) for error in explorer.errors] == [ValueError]
    assert 'role="alert"' in explorer._error.value and "three &lt;is&gt; refused" in explorer._error.value
    explorer.controls["knob"].value = 4
    assert explorer._error.value == "" and explorer.view.sentence == "at 4"
    with pytest.raises(KeyError):
        explorer.set(nothing=1)
    assert len(explorer.errors) == 2


def test_no_error_sink_is_used():
    folder = Path(explorers.__file__).parent
    for file in folder.glob("*.py"):
        used = {node.attr for node in ast.walk(ast.parse(file.read_text())) if isinstance(node, ast.Attribute)}
        assert not used & {"interact", "interactive", "interactive_output", "Output", "capture"}, file.name


def test_a_page_without_a_kernel_gets_picture_and_words():
    explorer = id_race_knob()
    data = explorer._repr_mimebundle_()
    assert "application/vnd.jupyter.widget-view+json" in data
    assert data["text/html"].startswith("<details>") and "<img alt=" in data["text/html"]
    assert explorer.view.sentence in data["text/plain"]


def test_data_is_plain_and_frozen():
    race = id_race_data(held_us=1, gap_us=20)
    with pytest.raises(dataclasses.FrozenInstanceError):
        race.held_us = 2
