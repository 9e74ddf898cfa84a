"""Small layouts rebuilt from public reports: each is read, or refused, as it should be."""

from __future__ import annotations

from pathlib import Path

import pytest
from oracle import needed, times_written
from refusals import raises_rule

from kvzero import errors
from kvzero.layout.geometry import CacheGeometry
from kvzero.plan.planner import plan_segments

FIELD = Path(__file__).parent / "field"


def test_a_pool_that_contradicts_the_stated_sizes_is_refused():
    """vLLM #53781, #56008: the file states 64 tokens per block and per kernel block, the shape has two per block."""
    with raises_rule("kernel-blocks", match="belongs to another block pool") as caught:
        CacheGeometry.from_json(FIELD / "two_pools_contradicting_sizes.json")
    assert (caught.value.kernel_blocks_per_block, caught.value.stated_kernel_blocks_per_block) == (2, 1)
    assert "manager_block_size 64 / kernel_block_size 64 states 1" in str(caught.value)
    assert "layer indexer.0" in caught.value.where


def test_a_pool_of_twice_the_blocks_is_refused():
    with raises_rule("unstated-kernel-blocks", match="may belong to another block pool") as caught:
        CacheGeometry.from_json(FIELD / "two_pools_multiple.json")
    assert (caught.value.size, caught.value.num_blocks, caught.value.other_size) == (16, 8, 8)


def test_a_head_size_equal_to_the_number_of_blocks_is_ambiguous():
    with pytest.raises(errors.AmbiguousBlockDimError, match="State block_dim") as caught:
        CacheGeometry.from_json(FIELD / "head_size_equals_num_blocks.json")
    assert (caught.value.candidates, caught.value.sizes) == ([1, 4], [256, 64])


def test_the_stride_of_a_dimension_of_size_1_says_nothing():
    """vLLM #40737."""
    geometry = CacheGeometry.from_json(FIELD / "size_one_dimension.json")
    view = geometry.layer("attn.0")
    assert (view.block_dim, view.kernel_blocks_per_block) == (1, 33)
    want = needed(geometry, [3])[0]
    assert (times_written(plan_segments(geometry), [3])[0] == want).all() and want.sum() == 33 * 16 * 512 * 2


@pytest.mark.parametrize("name", ["empty_storage", "kv_axis_or_heads", "transfer_table_wrong_axis", "state_only"])
def test_the_other_files_are_read_and_planned(name):
    geometry = CacheGeometry.from_json(FIELD / f"{name}.json")
    plan = plan_segments(geometry, layers="all")
    assert plan.bytes_per_block == sum(view.page_bytes for view in geometry.layers)
