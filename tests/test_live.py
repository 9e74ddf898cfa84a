"""The live audit: right writers pass, damage of each kind is found where it is, and live bytes stay as they were."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from oracle import needed, owned
from strategies import engine_layouts

from kvzero import geometries
from kvzero.errors import StorageMissingError, StorageSizeError, UnknownBlockError
from kvzero.geometry import CacheGeometry
from kvzero.live import audit_live
from kvzero.plan import plan_segments
from kvzero.specimens import page_per_segment
from kvzero.zeroer import BlockZeroer


def filled(geometry: CacheGeometry, device="cpu"):
    """A cache in use: every byte non-zero, as uint8 tensors over the storages."""
    options = {"dtype": torch.uint8, "device": device, "generator": torch.Generator(device).manual_seed(5)}
    return {storage.id: torch.randint(1, 256, (storage.nbytes,), **options) for storage in geometry.storages}


def write_ranges(memory, plan):
    """A writer that does what a plan says, right or wrong, as far as the storage goes."""

    def write(blocks):
        for storage, ranges in plan.ranges(blocks).items():
            for start, stop in ranges.tolist():
                memory[storage][start:stop] = 0

    return write


@pytest.fixture
def slab():
    return geometries.load("dsv4_c4_mla_only__BLHNC")


def test_a_right_writer_passes_and_live_bytes_stay(slab):
    memory = filled(slab)
    before = {key: value.clone() for key, value in memory.items()}
    audit = audit_live(slab, memory, [3, 9], write=BlockZeroer(plan_segments(slab), memory).zero)
    assert audit.ok and audit.needed_bytes == audit.dirty_before_bytes == 2 * 149_504
    assert audit.checked_bytes == 4 * 149_504  # a block on each side of both
    mine = needed(slab, [3, 9])
    for key, value in memory.items():
        assert torch.equal(value[~mine[key]], before[key][~mine[key]])
        assert not value[mine[key]].any()
    assert "none of 598,016 bytes around" in audit.sentence()


def test_the_stride_taken_for_the_span_is_found(slab):
    memory = filled(slab)
    audit = audit_live(slab, memory, [5], write=write_ranges(memory, page_per_segment.plan(slab)))
    assert not audit.ok and audit.missed_bytes == 0
    assert audit.stomped_tiles == 112_128 // 256
    assert audit.changed[0] == {
        "storage": 0, "start_bytes": 6 * 149_760, "stop_bytes": 6 * 149_760 + 256,
        "owners": [["model.layers.0.attn.mla_attn", 6]],
    }  # fmt: skip
    assert "model.layers.0.attn.mla_attn, block 6" in audit.sentence()


def test_a_miss_is_counted_to_the_byte(slab):
    memory = filled(slab)

    def write(blocks):
        BlockZeroer(plan_segments(slab), memory).zero(blocks)
        memory[0][blocks[0] * 149_760 + 37_440 + 10] = 1

    audit = audit_live(slab, memory, [5], write=write)
    assert (audit.ok, audit.missed_bytes, audit.stomped_tiles) == (False, 1, 0)


def test_pad_belongs_to_nobody_and_accuses_nobody(slab):
    memory = filled(slab)

    def write(blocks):
        BlockZeroer(plan_segments(slab), memory).zero(blocks)
        memory[0][149_760 - 32 : 149_760 - 16] = 0  # inside the 64 bytes of pad of another block

    for radius in (2, None):
        assert audit_live(slab, memory, [5], write=write, radius_blocks=radius, tile_bytes=16).ok


def test_another_writer_is_not_blamed_on_this_one(slab, monkeypatch):
    """Bytes that change before the write are left out: a running process that was not stopped."""
    from kvzero import live

    memory = filled(slab)
    sums, calls = live._checksums, []

    def busy(*args):
        calls.append(1)
        if len(calls) == 2:
            memory[0][4 * 149_760 + 5] += 1
        return sums(*args)

    monkeypatch.setattr(live, "_checksums", busy)
    audit = audit_live(slab, memory, [3], write=BlockZeroer(plan_segments(slab), memory).zero)
    assert (audit.ok, audit.unsteady_tiles, audit.stomped_tiles) == (True, 1, 0)
    assert "by something else" in audit.sentence()


@settings(max_examples=40)
@given(geometry=engine_layouts(), data=st.data())
def test_one_wiped_live_byte_is_always_found(geometry, data):
    """Wherever a live byte of the watched blocks is wiped, exactly its tile is reported."""
    memory = filled(geometry)
    block = data.draw(st.integers(0, geometry.num_blocks - 1))
    live = torch.zeros(len(memory["pool"]), dtype=torch.bool)
    for view in geometry.layers:
        for other in range(geometry.num_blocks):
            live |= owned(geometry, view, other)
    live &= ~needed(geometry, [block])["pool"]
    zeroer = BlockZeroer(plan_segments(geometry), memory)
    audit = audit_live(geometry, memory, [block], write=zeroer.zero, radius_blocks=None, tile_bytes=8)
    assert audit.ok and audit.checked_bytes == len(memory["pool"]) - int(needed(geometry, [block])["pool"].sum())
    audit = audit_live(geometry, memory, [block], write=zeroer.zero, radius_blocks=geometry.num_blocks)
    assert audit.ok and audit.checked_bytes == int(live.sum())
    if live.any():
        places = live.nonzero().flatten().tolist()
        victim = data.draw(st.sampled_from(places))

        def write(blocks):
            zeroer.zero(blocks)
            memory["pool"][victim] = 0

        audit = audit_live(geometry, memory, [block], write=write, radius_blocks=None, tile_bytes=8)
        assert audit.stomped_tiles == 1
        assert audit.changed[0]["start_bytes"] <= victim < audit.changed[0]["stop_bytes"]


@pytest.mark.parametrize("blocks", [[16], [-1], [3, 99]])
def test_unknown_blocks_are_refused_before_the_write(slab, blocks):
    with pytest.raises(UnknownBlockError):
        audit_live(slab, filled(slab), blocks, write=lambda _: pytest.fail("nothing may be written"))


def test_other_memory_is_refused_before_the_write(slab):
    with pytest.raises(StorageMissingError):
        audit_live(slab, {}, [1], write=lambda _: pytest.fail("nothing may be written"))
    with pytest.raises(StorageSizeError) as caught:
        audit_live(slab, {0: torch.zeros(100)}, [1], write=lambda _: pytest.fail("nothing may be written"))
    assert (caught.value.nbytes, caught.value.given_nbytes) == (2_396_160, 400)


@pytest.mark.gpu
def test_on_a_gpu(slab):
    from kvzero.resize import with_num_blocks

    slab = with_num_blocks(slab, 20_000)  # 3 GB
    memory = filled(slab, "cuda")
    zeroer = BlockZeroer(plan_segments(slab), memory)
    zeroer.warmup()
    audit = audit_live(slab, memory, [7, 5_000, 19_999], write=zeroer.zero)
    assert audit.ok and audit.dirty_before_bytes == audit.needed_bytes == 3 * 149_504
    audit = audit_live(slab, memory, [100], write=write_ranges(memory, page_per_segment.plan(slab)))
    assert audit.stomped_tiles == 112_128 // 256
    whole = audit_live(slab, memory, [200], write=zeroer.zero, radius_blocks=None)
    assert whole.ok and whole.checked_bytes == 20_000 * 149_760 - 149_504
    print(f"3 blocks: {audit.pause_seconds:.3f} s; whole pool: {whole.pause_seconds:.3f} s")
