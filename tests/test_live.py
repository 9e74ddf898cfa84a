"""The live audit: right writers pass, damage of each kind is found where it is, and live bytes stay as they were."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from oracle import needed, owned
from refusals import raises_rule
from strategies import engine_layouts

from kvzero import geometries
from kvzero.audit import live
from kvzero.audit.live import audit_live
from kvzero.history import page_per_segment
from kvzero.layout.geometry import CacheGeometry
from kvzero.plan.planner import plan_segments
from kvzero.zero.zeroer import BlockZeroer


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
    memory = filled(slab)
    sums, calls = live._checksums, []

    def busy(*args):
        calls.append(1)
        if len(calls) == 2:
            memory[0][4 * 149_760 + 5] += 1
        return sums(*args)

    monkeypatch.setattr(live, "_checksums", busy)
    zeroer = BlockZeroer(plan_segments(slab), memory)
    audit = audit_live(slab, memory, [3], write=zeroer.zero)
    assert (audit.ok, audit.unsteady_tiles, audit.stomped_tiles) == (True, 1, 0)
    calls.clear()

    def write(blocks):
        zeroer.zero(blocks)
        memory[0][4 * 149_760 : 4 * 149_760 + 512] = 0  # the tile that was changing, and the next one

    audit = audit_live(slab, memory, [3], write=write)
    assert (audit.ok, audit.unsteady_tiles, audit.stomped_tiles) == (False, 1, 1)
    assert audit.changed[0]["start_bytes"] == 4 * 149_760 + 256
    assert "by something else" in audit.sentence()


def swap_words(words):
    words[0], words[1] = words[1].clone(), words[0].clone()


def keep_the_sum(words):
    words[0] += 1
    words[1] -= 1


def flip_two_highest_bits(words):
    words[:2] ^= -(2**63)


def shift_by_a_word(words):
    words[:] = words.roll(1)


def change_to_the_complement_of_the_mix(words):
    """The one change of a word that a shift with the sign, instead of zeros, would lose."""
    key, word = int(live._keys(len(words), "cpu")[0]), int(words[0])
    mixed = -((word ^ key) * live.MULTIPLIER) - 1
    found = (mixed * pow(live.MULTIPLIER, -1, 2**64) ^ key) % 2**64
    words[0] = found - 2**64 * (found >= 2**63)


@pytest.mark.parametrize(
    "change", [change_to_the_complement_of_the_mix, swap_words, keep_the_sum, flip_two_highest_bits, shift_by_a_word]
)
def test_changes_that_cancel_in_a_plain_sum_are_found(slab, change):
    memory = filled(slab)
    zeroer = BlockZeroer(plan_segments(slab), memory)

    def write(blocks):
        zeroer.zero(blocks)
        change(memory[0][6 * 149_760 : 6 * 149_760 + 256].view(torch.int64))

    audit = audit_live(slab, memory, [5], write=write)
    assert (audit.stomped_tiles, audit.missed_bytes) == (1, 0)
    assert audit.changed[0]["start_bytes"] == 6 * 149_760


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


def refused(error, slab, memory=None, blocks=(3,), **options):
    with raises_rule(error) as caught:
        audit_live(
            slab, filled(slab) if memory is None else memory, blocks,
            write=lambda _: pytest.fail("nothing may be written"), **options,
        )  # fmt: skip
    return caught.value


@pytest.mark.parametrize("blocks", [[16], [-1], [3, 99]])
def test_unknown_blocks_are_refused_before_the_write(slab, blocks):
    refused("unknown-block", slab, blocks=blocks)


@pytest.mark.parametrize("blocks", [[1.7], [True], "3", b"\3", ["3"], None, torch.tensor([1.0])])
def test_ids_that_are_no_integers_are_refused_before_the_write(slab, blocks):
    refused("id-type", slab, blocks=blocks)


@pytest.mark.parametrize("radius", [-1, 1.5, True, "1"])
def test_a_radius_that_watches_nothing_is_refused(slab, radius):
    assert refused("radius-blocks", slab, radius_blocks=radius).radius_blocks == radius


@pytest.mark.parametrize("tile", [4, 12, 0, -8, 64 << 20, 8.0, True, "8", None])
def test_a_tile_that_no_checksum_covers_is_refused(slab, tile):
    error = refused("checksum-bytes", slab, tile_bytes=tile)
    assert (error.tile_bytes, error.word_bytes, error.most_bytes) == (tile, 8, 32 << 20)


def test_a_radius_beyond_the_pool_watches_the_pool(slab):
    memory = filled(slab)
    audit = audit_live(slab, memory, [3], write=BlockZeroer(plan_segments(slab), memory).zero, radius_blocks=10**12)
    assert audit.ok and audit.checked_bytes == 15 * 149_504


def test_an_audit_that_watches_nothing_around_says_so(slab):
    memory = filled(slab)
    audit = audit_live(slab, memory, [3], write=BlockZeroer(plan_segments(slab), memory).zero, radius_blocks=0)
    assert (audit.ok, audit.checked_bytes) == (True, 0) and "no byte around them was watched" in audit.sentence()


def test_other_memory_is_refused_before_the_write(slab):
    refused("storage-missing", slab, memory={})
    error = refused("storage-size", slab, memory={0: torch.zeros(100)})
    assert (error.nbytes, error.given_nbytes) == (2_396_160, 400)
    refused("tensor-kind", slab, memory={0: [0] * 2_396_160})
    # Every second byte of a larger storage has the right count and shape, and is not the storage.
    apart = torch.zeros(2 * 2_396_160, dtype=torch.uint8)[::2]
    assert refused("storage-size", slab, memory={0: apart}).given_nbytes == 2 * 2_396_160


@pytest.mark.gpu
def test_on_a_gpu(slab):
    from kvzero.plan.resize import with_num_blocks

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


@pytest.mark.gpu
def test_a_writer_on_a_stream_of_its_own_is_waited_for(slab):
    memory, stream = filled(slab, "cuda"), torch.cuda.Stream()

    def late(blocks):
        with torch.cuda.stream(stream):
            torch.cuda._sleep(500_000_000)
            write_ranges(memory, plan_segments(slab))(blocks)

    audit = audit_live(slab, memory, [5], write=late)
    assert audit.ok and audit.dirty_before_bytes == audit.needed_bytes
