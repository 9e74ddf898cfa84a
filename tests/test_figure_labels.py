"""The labels over the bytes of a memory map: each stands by its bytes, is true, and leaves room for the others."""

from __future__ import annotations

import oracle
from hypothesis import given, settings
from strategies import engine_layouts

from kvzero import geometries
from kvzero.audit.audit import audit_plan
from kvzero.history import planner
from kvzero.plan.planner import plan_segments
from kvzero.workbook.figures import memory_map_data
from kvzero.workbook.figures.byte_panel import byte_lines
from kvzero.workbook.figures.panel import LEFT, RIGHT
from kvzero.workbook.figures.style import WIDTH_INCHES, text_width
from kvzero.workbook.toy import make_geometry


def owners(geometry, storage, first, stop) -> set[int]:
    """The blocks that own a byte of some, by naive indexing."""
    return {
        block
        for block in range(geometry.num_blocks)
        for view in geometry.layers
        if view.storage == storage and bool(oracle.owned(geometry, view, block)[max(first, 0) : max(stop, 0)].any())
    }


@given(engine_layouts())
@settings(max_examples=40)
def test_labels_do_not_touch_and_name_the_block_of_their_bytes(geometry):
    data = memory_map_data(geometry, plan_segments(geometry), blocks=[0])
    inches = (RIGHT - LEFT) / (64 * data.unit_bytes)
    for line in byte_lines(data, 2):
        assert line.labels == sorted(line.labels)
        ends = [at + text_width(words) for at, _, words in line.labels]
        begins = [at for at, _, _ in line.labels[1:]]
        assert all(end < begin for end, begin in zip(ends, begins, strict=False))
        assert all(end < WIDTH_INCHES for end in ends)
        for at, x, words in line.labels:
            assert 0 < at - x < 0.2, "a label stands by its bytes"
            byte = line.low + round((x - LEFT) / inches)
            found = owners(geometry, data.focus[0], byte, byte + data.unit_bytes)
            if "block" in words:
                assert int(words.rpartition("block ")[2].replace(",", "")) in found
            elif words == "outside":
                assert not found


def words_of(data, most=2) -> list[list[str]]:
    return [[words for _, _, words in line.labels] for line in byte_lines(data, most)]


def test_pad_is_named_only_where_the_name_fits():
    narrow = make_geometry(layers=3, order="BLNHC", pad_bytes=8)
    said = words_of(memory_map_data(narrow, plan_segments(narrow), blocks=[1]))
    assert said[0] == ["layer 0, block 0", "layer 1, block 0", "layer 2, block 0", "layer 0, block 1"]
    assert "pad" not in sum(said, [])
    wide = make_geometry(layers=3, content=7, tokens=3, order="BLNHC", pad_bytes=5)
    assert words_of(memory_map_data(wide, plan_segments(wide), blocks=[1]))[0][1] == "pad"


def test_what_was_said_already_is_left_out_where_room_is_short():
    cache = geometries.load("dsv4_c4_full__BLHNC")
    audit = audit_plan(planner("stride-and-span").plan(cache), cache, [0])
    said = words_of(memory_map_data(cache, audit=audit), most=1)
    assert said[:2] == [
        ["0 swa_cache g0 +2, block 0"],
        ["1 compressor state_cache g2", "1 swa_cache g0 +2, block 0"],
    ]


def test_where_no_name_fits_some_are_left_out():
    crowded = make_geometry(layers=3, heads=4, content=4, tokens=2, order="BHLNC")
    said = words_of(memory_map_data(crowded, plan_segments(crowded), blocks=[1]))
    assert said[0] == ["layer 0, head 0, block 0", "layer 2, head 0", "layer 1, head 1", "layer 0, head 2"]
