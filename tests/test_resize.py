"""A resized pool is the pool the engine would have allocated."""

from __future__ import annotations

import pytest
import torch
from refusals import raises_rule

from kvzero import geometries
from kvzero.layout.geometry import CacheGeometry
from kvzero.plan.planner import plan_segments
from kvzero.plan.resize import with_num_blocks

MANY = [name for name in geometries.names() if geometries.load(name).num_blocks > 1]


@pytest.mark.parametrize("name", MANY)
def test_a_resized_dump_plans_alike_and_comes_back(name):
    geometry = geometries.load(name)
    large = with_num_blocks(geometry, 1000)
    again = with_num_blocks(large, geometry.num_blocks)
    assert again.layers == geometry.layers or plan_segments(again) == plan_segments(geometry)
    assert again.storages == geometry.storages
    assert again.engine_segments == geometry.engine_segments
    assert plan_segments(large).bytes_per_block == plan_segments(geometry).bytes_per_block


@pytest.mark.parametrize("order", ["blocks", "kv", "layers"])
@pytest.mark.parametrize("num_blocks", [2, 3, 17])
def test_a_resized_pool_equals_one_allocated_that_large(order, num_blocks):
    def allocate(blocks: int) -> CacheGeometry:
        if order == "kv":
            tensors = {"l0": torch.zeros(2, blocks, 5, 3)}
        elif order == "layers":
            whole = torch.zeros(3, blocks, 5, 3)
            tensors = {f"l{i}": whole[i] for i in range(3)}
        else:
            whole = torch.zeros(blocks, 3, 5, 3)
            tensors = {f"l{i}": whole[:, i] for i in range(3)}
        dim = 1 if order == "kv" else 0
        return CacheGeometry.from_tensors(tensors, num_blocks=blocks, block_dim=dim)

    assert with_num_blocks(allocate(7), num_blocks).to_dict() == allocate(num_blocks).to_dict()


def test_one_block_shows_no_stride():
    with raises_rule("one-block"):
        with_num_blocks(geometries.load("numblocks1__BHLNC"), 4)
    for name in ("numblocks1__BLHNC", MANY[0]):
        with raises_rule("no-blocks") as caught:
            with_num_blocks(geometries.load(name), 0)
        assert caught.value.num_blocks == 0
    with raises_rule("wrong-type"):
        with_num_blocks(geometries.load(MANY[0]), 2.5)


def arrays(*layers: tuple[int, list[int], list[int]]) -> CacheGeometry:
    """Layers of single bytes in one storage, as (offset, shape, stride), 4 blocks at dimension 0."""
    records = [
        {"name": f"l{i}", "storage": 0, "byte_offset": offset, "shape": shape, "stride": stride, "itemsize": 1,
         "block_dim": 0}
        for i, (offset, shape, stride) in enumerate(layers)
    ]  # fmt: skip
    return CacheGeometry.from_dict(
        {"name": "arrays", "num_blocks": 4, "storages": [{"id": 0, "nbytes": 1_000}], "layers": records}
    )


def test_arrays_inside_one_another_are_refused():
    with raises_rule("interleaved-arrays") as caught:
        with_num_blocks(arrays((0, [4, 10], [100, 1]), (20, [4, 10], [30, 1])), 5)
    facts = caught.value
    assert (facts.start_bytes, facts.block_stride_bytes, facts.outer_stride_bytes) == (20, 30, 100)


def test_a_view_over_arrays_at_unequal_distances_is_refused():
    heads, between = (0, [4, 3, 10], [10, 200, 1]), (50, [4, 10], [10, 1])
    with raises_rule("uneven-distances") as caught:
        with_num_blocks(arrays(heads, between), 5)
    assert (caught.value.layer, caught.value.dim, caught.value.distances_bytes) == ("l0", 1, [210, 220])
    assert with_num_blocks(arrays(heads), 5).layers[0].stride == (10, 210, 1)
