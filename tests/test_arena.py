"""The arena: canaries that cannot be mistaken, redzones, alignment, and views over the same memory."""

from __future__ import annotations

import pytest
import torch
from refusals import raises_rule

from kvzero.audit.arena import Arena, canary, mask_ranges
from kvzero.history import named
from kvzero.layout.geometry import CacheGeometry
from kvzero.plan.resize import with_num_blocks

STRIDES_BYTES = (1, 4, 584, 8_448, 37_440, 65_519, 65_521, 65_536, 149_760, 184_320, 917_568, 1_002_240)


def test_the_canary_is_never_zero_and_no_shift_maps_it_onto_itself():
    pattern = canary(4_000_000)
    assert int((pattern == 0).sum()) == 0
    for shift_bytes in STRIDES_BYTES:
        same = (pattern[shift_bytes:] == pattern[:-shift_bytes]).float().mean().item()
        assert same < 0.02, f"a copy shifted by {shift_bytes} bytes looks intact in {same:.0%} of its bytes"


def test_storages_have_different_canaries():
    same = (canary(100_000, phase=0) == canary(100_000, phase=1)).float().mean().item()
    assert same < 0.02


def test_one_storage_copied_over_another_is_found():
    geometry = named.geometry("blocks-outermost")
    arena = Arena(geometry)
    first, second = (arena.storages[storage.id] for storage in geometry.storages)
    second.copy_(first)
    audit = arena.audit([])
    assert audit.stomped_bytes + audit.pad_bytes > 0.98 * len(second)


def test_storages_are_exact_aligned_and_apart():
    geometry = named.geometry("blocks-outermost")
    arena = Arena(geometry, redzone_bytes=1000)
    assert arena.redzone_bytes == 1024  # rounded up to the alignment
    for storage in geometry.storages:
        memory = arena.storages[storage.id]
        assert (memory.dtype, memory.numel()) == (torch.uint8, storage.nbytes)
        assert memory.data_ptr() % 256 == 0
    first, second = (arena.storages[storage.id] for storage in geometry.storages)
    assert abs(first.data_ptr() - second.data_ptr()) >= first.numel() + arena.redzone_bytes


def test_views_are_the_layers_own_tensors():
    geometry = named.geometry("kv-outermost")
    arena = Arena(geometry)
    view = arena.views["layer.0"]
    assert (view.dtype, tuple(view.shape)) == (torch.bfloat16, (2, 8, 16, 8, 128))
    view[:, 7] = 0
    assert arena.audit([7]).ok


def test_a_view_at_an_odd_offset_is_given_in_bytes():
    layer = {"name": "k", "storage": 0, "byte_offset": 3, "shape": [4, 5], "stride": [7, 1], "itemsize": 2}
    geometry = CacheGeometry.from_dict(
        {"name": "odd", "num_blocks": 4, "storages": [{"id": 0, "nbytes": 60}], "layers": [layer]}
    )
    arena = Arena(geometry)
    assert (arena.views["k"].dtype, tuple(arena.views["k"].shape)) == (torch.uint8, (4, 5, 2))
    arena.views["k"][2] = 0
    assert arena.audit([2]).ok


def test_refill_heals_every_byte():
    arena = Arena(named.geometry("packed-slab-51288"))
    arena.storages["slab"].zero_()
    assert not arena.audit([0]).ok
    arena.refill()
    audit = arena.audit([0])
    assert (audit.missed_bytes, audit.stomped_bytes, audit.pad_bytes) == (149_504, 0, 0)


def test_an_arena_beyond_the_memory_is_refused_before_it_is_allocated():
    huge = with_num_blocks(named.geometry("packed-slab-51288"), 100_000_000)
    with raises_rule("arena-too-large") as caught:
        Arena(huge)
    assert caught.value.wanted_bytes > huge.storages[0].nbytes == 149_760 * 100_000_000


@pytest.mark.parametrize(
    ("bits", "ranges"),
    [("0000", []), ("1111", [[0, 4]]), ("1001", [[0, 1], [3, 4]]), ("0110", [[1, 3]]), ("0001", [[3, 4]])],
)
def test_mask_ranges(bits, ranges):
    assert mask_ranges(torch.tensor([bit == "1" for bit in bits])).tolist() == ranges


@pytest.mark.gpu
def test_the_canary_is_the_same_on_a_gpu():
    assert torch.equal(canary(1_000_000, "cuda", phase=3).cpu(), canary(1_000_000, phase=3))
