"""The probe: every byte of small pools against an index tensor laid over the same memory."""

from __future__ import annotations

import numpy as np
import oracle
import pytest
from hypothesis import given
from hypothesis import strategies as st
from strategies import engine_layouts

from kvzero import geometries
from kvzero.history import planner
from kvzero.plan.planner import plan_segments
from kvzero.workbook.probe import ByteOutsideStorageError, draw_byte, probe, writers
from kvzero.workbook.toy import ORDERS, make_geometry

CASES = [{"order": order} for order in ORDERS] + [
    {"order": "BLNHC", "pad_bytes": 6},
    {"order": "LHBNC", "pad_bytes": 2, "dtype": "bfloat16"},
    {"order": "LBNHC", "kernel_blocks": 2, "dtype": "float32"},
    {"order": "LBHNC", "groups": 2},
    {"order": "BHLNC", "content": [4, 6]},
]


@pytest.mark.parametrize("options", CASES, ids=str)
def test_every_byte_is_named_as_indexing_names_it(options):
    geometry = make_geometry(**{"layers": 3, "num_blocks": 3, "tokens": 4, "heads": 2, "content": 4, **options})
    expected: dict[int, set] = {}
    for view in geometry.layers:
        letters = view.extra["dims"]
        tokens = view.shape[letters.index("N")]
        for index in np.ndindex(*view.shape):
            named = dict(zip(letters, index, strict=True))
            block, kernel_block = divmod(named["B"], view.kernel_blocks_per_block)
            start = view.byte_offset + sum(map(int.__mul__, index, view.stride)) * view.itemsize
            half = "KV"[named["K"]] if "K" in named else ""
            for byte in range(view.itemsize):
                owner = (
                    view.name, block, kernel_block * tokens + named["N"], named["H"], half, named["C"], byte, index,
                )  # fmt: skip
                expected.setdefault(start + byte, set()).add(owner)
    for byte in range(geometry.storages[0].nbytes):
        found = probe(geometry, None, 0, byte)
        owners = {
            (o.layer, o.block, o.token, o.head, o.half, o.element, o.byte_in_element, o.index) for o in found.owners
        }
        assert owners == expected.get(byte, set()), byte
        assert ("pad" in found.sentence()) == (not owners)


@given(engine_layouts(), st.data())
def test_the_offset_in_a_page_counts_the_layers_own_bytes(geometry, data):
    storage = data.draw(st.sampled_from(geometry.storages))
    byte = data.draw(st.integers(0, storage.nbytes - 1))
    for owner in probe(geometry, None, storage.id, byte).owners:
        mine = oracle.owned(geometry, geometry.layer(owner.layer), owner.block).numpy()
        assert mine[byte]
        assert owner.page_offset_bytes == mine[:byte].sum()
        assert owner.page_bytes == mine.sum()


@given(engine_layouts(), st.data())
def test_writers_are_the_segments_whose_ranges_hold_the_byte(geometry, data):
    plan = plan_segments(geometry)
    storage = data.draw(st.sampled_from(geometry.storages))
    byte = data.draw(st.integers(0, storage.nbytes - 1))
    expected = {
        (index, block)
        for index, segment in enumerate(plan.segments)
        for block in range(plan.num_blocks)
        if segment.storage == storage.id and 0 <= byte - segment.start_bytes(block) < segment.span_bytes
    }
    assert set(writers(plan, storage.id, byte)) == expected
    assert set(probe(geometry, plan, storage.id, byte).written_by) == expected


def test_a_faulty_plan_shows_its_second_writer():
    slab = geometries.load("dsv4_c4_mla_only__BLHNC")
    found = probe(slab, planner("uniform-page").plan(slab), 0, 4 * 149_760)
    assert found.owners[0].block == 4 and found.owners[0].token == 0
    assert {block for _, block in found.written_by} == {3, 4}, "zeroing block 3 writes a byte of block 4"


def test_a_dump_names_token_and_head():
    geometry = geometries.load("llama3_8b_bf16__LHBNC")
    view = geometry.layers[5]
    byte = view.byte_offset + (2 * view.stride[0] + 3 * view.stride[1] + 7 * view.stride[2] + 9) * view.itemsize + 1
    owner = probe(geometry, None, 0, byte).owners[0]
    assert (owner.layer, owner.block, owner.head, owner.token, owner.element) == (view.name, 2, 3, 7, 9)
    assert owner.byte_in_element == 1


def test_a_byte_outside_is_refused_with_the_numbers():
    slab = make_geometry()
    for byte in (-1, slab.storages[0].nbytes):
        with pytest.raises(ByteOutsideStorageError) as caught:
            probe(slab, None, 0, byte)
        assert (caught.value.byte, caught.value.last_byte) == (byte, slab.storages[0].nbytes - 1)


def test_a_byte_is_drawn_with_its_surroundings_and_said():
    pool = make_geometry(layers=2, num_blocks=9, order="BLNHC", pad_bytes=4)
    plan = plan_segments(pool)
    for byte in (0, 66, pool.storages[0].nbytes - 1):
        figure, sentence, text = draw_byte(pool, plan, 0, byte)
        assert sentence == probe(pool, plan, 0, byte).sentence() and text.startswith(sentence)
        assert f"Bytes around {byte:,} of storage 0, the byte asked for; each character 4 bytes" in figure.words
    with pytest.raises(ByteOutsideStorageError):
        draw_byte(pool, plan, 0, pool.storages[0].nbytes)
