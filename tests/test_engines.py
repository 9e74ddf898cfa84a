"""Other engines' shapes go through `from_tensors` and come out as exactly the bytes of the engine's own indexing."""

from __future__ import annotations

import json

import pytest
import torch
from engines import ENGINES, FOLDER, dump

from kvzero.audit.audit import audit_bytes
from kvzero.layout.geometry import CacheGeometry
from kvzero.layout.tensors import storage_tensors
from kvzero.plan.planner import plan_segments
from kvzero.triage import triage
from kvzero.zero.zeroer import BlockZeroer

# Segments of a plan, counted by hand: ranges of one block after neighbours merge.
SEGMENTS = {
    "sglang_token_pool": 4,  # 2 layers x (K, V)
    "sglang_ascend_pool": 6,  # 3 layers x (K, V) in one allocation
    "flashinfer_nhd": 2,
    "flashinfer_hnd_pair": 2,
    "trtllm_pools": 2,  # a block of each pool is one range: all layers are side by side
    "llama_cpp_cells": 2 + 2 * 24,  # per stream: one row of K; one element for each of V's 24 rows
    "kvcached_interleaved": 1,
    "ascend_unequal_pair": 2,
    "recurrent_state": 1,
}


@pytest.mark.parametrize("name", ENGINES)
def test_zeroing_live_tensors_is_the_engines_own_indexing(name):
    cache = ENGINES[name]()
    storages = storage_tensors(cache.tensors)
    for memory in storages.values():
        memory.fill_(1)
    blocks = [0, cache.num_blocks - 1]
    for block in blocks:
        for part in cache.zero(block):
            part.zero_()
    expected = {key: memory.clone() for key, memory in storages.items()}
    for memory in storages.values():
        memory.fill_(1)
    plan = plan_segments(cache.geometry(name))
    BlockZeroer(plan, storages).zero(blocks)
    for key, memory in storages.items():
        assert torch.equal(memory, expected[key])
    assert len(plan.segments) == SEGMENTS[name]


@pytest.mark.parametrize("name", ENGINES)
def test_the_dump_is_the_live_geometry_and_says_where_it_is_from(name):
    file = FOLDER / f"{name}.json"
    stored = CacheGeometry.from_json(file)
    live = ENGINES[name]().geometry(name)
    assert (stored.layers, stored.storages, stored.num_blocks) == (live.layers, live.storages, live.num_blocks)
    assert json.loads(file.read_text()) == dump(name)
    assert len(stored.extra["origin"]) > 40 and "not run" in stored.extra["made_by"]


@pytest.mark.parametrize("name", [name for name in ENGINES if name != "recurrent_state"])
def test_the_dump_passes_the_byte_audit(name):
    geometry = CacheGeometry.from_json(FOLDER / f"{name}.json")
    audit = audit_bytes(geometry, [geometry.num_blocks - 1])
    assert audit.ok and audit.written_bytes == audit.needed_bytes, audit.sentence()


@pytest.mark.parametrize("name", ENGINES)
def test_triage_of_every_shape(name):
    report = triage(CacheGeometry.from_json(FOLDER / f"{name}.json"))
    assert report.ok and report.engine is None
    assert len(report.eras) == 4


def test_what_the_old_planners_do_to_interleaved_and_unequal_shapes():
    """1Cat-vLLM #280: one layer's stride taken for its page wipes the neighbours, 27 of 28 layers of the next block."""
    report = triage(CacheGeometry.from_json(FOLDER / "kvcached_interleaved.json"))
    fault = report.finding("uniform-page").fault("stomped")
    assert fault.count_bytes == 27 * 65_536
    assert report.finding("stride-and-span").ok
    report = triage(CacheGeometry.from_json(FOLDER / "ascend_unequal_pair.json"))
    error = report.finding("uniform-page").fault("refuses").error
    assert {error["first_page_words"], error["page_words"]} == {16_384, 4_096}


def test_recurrent_state_can_be_zeroed_too():
    cache = ENGINES["recurrent_state"]()
    plan = plan_segments(cache.geometry("hybrid"), layers=["gdn#0", "gdn#1"])
    assert plan.bytes_per_block == 1_073_152
    assert plan_segments(cache.geometry("hybrid"), layers="all").bytes_per_block == 1_081_344


def test_an_ambiguous_shape_is_refused_not_guessed():
    from kvzero.errors import AmbiguousBlockDimError

    pool = torch.empty(2, 2, 16, 2, 32)
    with pytest.raises(AmbiguousBlockDimError) as caught:
        CacheGeometry.from_tensors({"layer.0": pool}, num_blocks=2)
    assert caught.value.num_blocks == 2
