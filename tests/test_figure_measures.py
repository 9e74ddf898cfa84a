"""What a memory map says about sizes and about its own window: numbers of the plan or the layout, with a reason."""

from __future__ import annotations

import re

import numpy as np
import oracle
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from strategies import engine_layouts

from kvzero import geometries
from kvzero.audit.audit import audit_plan
from kvzero.history import planner
from kvzero.plan.planner import plan_segments
from kvzero.workbook.figures import atlas, map_text, memory_map, memory_map_data
from kvzero.workbook.toy import make_geometry


def page_stretches(geometry) -> set[int]:
    """The lengths of the unbroken stretches of all pages, from naive indexing."""
    lengths = set()
    for view in geometry.layers:
        mine = np.flatnonzero(oracle.owned(geometry, view, 0).numpy())
        lengths.update(len(run) for run in np.split(mine, np.flatnonzero(np.diff(mine) > 1) + 1))
    return lengths


def sizes(words, pattern: str) -> set[int]:
    """The byte counts on a figure in words of a pattern."""
    found = [re.fullmatch(pattern + r" ([\d,]+) B(, .*)?", each) for each in words]
    return {int(match.group(1).replace(",", "")) for match in found if match}


@given(engine_layouts(), st.booleans(), st.integers(1, 4), st.data())
@settings(max_examples=60)
def test_every_measured_size_is_one_of_the_plan_or_the_layout(geometry, planned, pieces, data):
    """Whatever a window cuts: narrow ones start in the middle of a page that others overlay."""
    plan = plan_segments(geometry) if planned else None
    column = data.draw(st.integers(0, geometry.storages[0].nbytes - 1))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(atlas, "MAX_PIECES", pieces)
        words = memory_map(geometry, plan, focus=("pool", column)).words
    spans, pages = sizes(words, "span"), sizes(words, ".* of layer.*:")
    assert spans <= {segment.span_bytes for segment in (plan.segments if plan else ())}
    assert pages <= page_stretches(geometry)
    assert sizes(words, "block stride") <= {view.block_stride_bytes for view in geometry.layers}
    assert len(spans | pages) == 1, "something is measured on every map"


def test_a_page_that_the_window_cuts_is_not_measured_by_its_rest():
    cache = geometries.load("dsv4_c4_full__BLHNC")
    shown = memory_map_data(cache)
    assert shown.window_bytes == (139_968, 184_320), "it opens inside layer 3's page, 112,320 to 149,696"
    words = memory_map(cache).words
    assert "page of 0 indexer k_cache g1: 8,448 B" in words
    assert not [line for line in words if "9,728" in line]
    assert sizes(words, "block stride") == {184_320}
    text = map_text(shown)
    assert "page of 0 indexer k_cache g1: 8,448 B, block stride 184,320 B" in text.splitlines()
    assert "bytes 139,968 to 184,320 (around the first pad) of 184,320 bytes a block" in text


def test_a_plan_is_measured_by_its_segments_and_a_layout_by_its_pages():
    pool = make_geometry(layers=2, heads=3, order="BHLNC")
    words = memory_map(pool, plan_segments(pool), blocks=[1]).words
    assert "span 192 B" in words and "block stride 192 B" in words
    words = memory_map(pool).words
    assert "head 0 of layer 0: 32 B" in words and not sizes(words, "span")
    llama = geometries.load("llama3_8b_bf16__BLHNC")
    assert "span 2,097,152 B, cut by this window" in memory_map(llama, plan_segments(llama), blocks=[1]).words
    alone = make_geometry(num_blocks=1)
    assert not sizes(memory_map(alone, plan_segments(alone)).words, "block stride")


def test_a_map_says_why_it_opens_where_it_does():
    cache = geometries.load("dsv4_c4_full__BLHNC")
    (line,) = [line for line in memory_map(cache).words if line.startswith("Blocks, to scale")]
    assert line.endswith("bytes 139,968 to 184,320 of a block's 184,320: around the first pad")
    shown = memory_map_data(cache)
    assert shown.focus_reason == "the first pad, after 1 indexer k_cache g1 in block 1"
    before, after = (next(cell for cell in shown.byte_cells if cell.start_bytes <= byte < cell.end_bytes)
                     for byte in (shown.focus[1] - 1, shown.focus[1]))  # fmt: skip
    assert before.layers and after.kind == "idle_pad"
    damaged = memory_map(cache, audit=audit_plan(planner("stride-and-span").plan(cache), cache, [0])).words
    assert any(line.startswith("Bytes around 37,376 of storage 0, the first missed byte;") for line in damaged)
    assert any("of a block's 184,320: around the first missed byte" in line for line in damaged)
    pool = make_geometry()
    assert memory_map_data(pool, plan_segments(pool), blocks=[1]).focus_reason == "the end of layer 0 in block 1"
    assert memory_map_data(pool, focus=(0, 3)).focus_reason == "the byte asked for"


def test_layers_that_share_bytes_are_written_in_one_way_and_counts_are_explained():
    pool = make_geometry(layers=4, groups=2)
    words = memory_map(pool).words
    assert "layer 0 g0 + layer 1 g1" in words and "layer 0 g0 + layer 1 g1, block 0" in words
    assert not [line for line in words if "+1" in line] and "+n" not in words
    words = memory_map(make_geometry(layers=20, groups=5)).words
    assert any(re.search(r"\s\+\d", line) for line in words)
    assert "+n" in words and "and n more layers on the same bytes" in words


def test_kernel_blocks_have_marks():
    pool = make_geometry(layers=2, tokens=4, kernel_blocks=4)
    shown = memory_map_data(pool, plan_segments(pool), blocks=[1])
    page = pool.layers[0].page_bytes
    edges = {layer * page + part * page // 4 for layer in range(2) for part in range(1, 4)}
    assert set(shown.kernel_edges) == edges
    assert "kernel block: 4 of 16 B in each block" in map_text(shown).splitlines()
    assert "edge of a kernel block: 4 of 16 B in each block" in memory_map(pool).words
    assert not [line for line in memory_map(make_geometry()).words if "kernel block" in line]
