"""Capture from a dict of tensors: what it writes, what it never writes, and what it refuses."""

from __future__ import annotations

import json
import os

import pytest
import torch
from refusals import raises_rule
from vllm_worker import stand_in_worker

from kvzero.layout.capture import EngineCaches, capture, capture_vllm
from kvzero.layout.geometry import CacheGeometry
from kvzero.plan.planner import plan_segments
from kvzero.vllm import from_runner


def slab(layers: int = 4):
    """Packed latent layers over one allocation: views with offsets and a large stride."""
    raw = torch.zeros(10, 149_760, dtype=torch.uint8)
    return {f"layer.{i}": raw[:, 37_440 * i : 37_440 * i + 37_376].view(10, 64, 584) for i in range(layers)}


def test_a_written_file_is_the_live_geometry(tmp_path):
    live = capture(slab(), num_blocks=10, path=tmp_path / "slab.json", name="slab", engine="mine 1.0", block_dim=0)
    stored = CacheGeometry.from_json(tmp_path / "slab.json")
    assert (stored.layers, stored.storages, stored.engine) == (live.layers, live.storages, "mine 1.0")
    assert [view.byte_offset for view in stored.layers] == [0, 37_440, 74_880, 112_320]
    assert plan_segments(stored).bytes_per_block == 4 * 37_376


def test_the_file_is_small_and_names_no_person_host_or_path(tmp_path):
    capture(slab(), num_blocks=10, path=tmp_path / "slab.json", block_dim=0)
    text = (tmp_path / "slab.json").read_text()
    assert len(text) < 2_000
    private = {os.path.expanduser("~"), str(tmp_path), os.uname().nodename, os.environ.get("USER")}
    assert not [word for word in private if word and word in text]


def test_nothing_is_copied_or_changed(monkeypatch):
    tensors = slab()
    pointers = [tensor.data_ptr() for tensor in tensors.values()]
    versions = [tensor._version for tensor in tensors.values()]
    for name in ("clone", "contiguous", "to", "cpu", "numpy", "item", "tolist"):
        monkeypatch.setattr(torch.Tensor, name, lambda *_, **__: pytest.fail("capture must only look at metadata"))
    capture(tensors, num_blocks=10, block_dim=0)
    assert pointers == [tensor.data_ptr() for tensor in tensors.values()]
    assert versions == [tensor._version for tensor in tensors.values()]


def test_tensors_without_memory_will_do(tmp_path):
    """Meta tensors have shapes and no bytes: no work on any device can be needed."""
    pool = torch.empty(1000, 2, 16, 8, 128, dtype=torch.bfloat16, device="meta")
    geometry = capture({"layer.0": pool}, num_blocks=1000, path=tmp_path / "meta.json")
    assert plan_segments(geometry).bytes_per_block == 65_536


def test_a_layer_of_several_strided_tensors_is_captured_whole():
    worker = stand_in_worker()
    context = worker.model_runner.compilation_config.static_forward_context
    bound = context["indexer"].kv_cache
    context["indexer"].kv_cache = (bound, torch.zeros_like(bound).as_strided(bound.shape, bound.stride()))
    pages = {view.name: view.page_bytes for view in capture_vllm(worker).layers}
    assert pages["indexer#0"] == pages["indexer#1"] == 16 * 132


def test_a_layer_may_have_any_name():
    tensors = {"a#b": torch.zeros(6, 4), "a#b#c": [torch.zeros(6, 4), torch.zeros(6, 4)]}
    caches = EngineCaches(6, tensors, facts={"a#b": {"spec_kind": "one"}, "a#b#c": {"spec_kind": "two"}})
    kinds = {view.name: view.spec_kind for view in caches.geometry().layers}
    assert kinds == {"a#b": "one", "a#b#c#0": "two", "a#b#c#1": "two"}


def test_views_on_another_device_are_named_in_the_file(tmp_path):
    tensors = {**slab(), "host": torch.zeros(10, 4, device="meta")}
    live = capture(tensors, num_blocks=10, path=tmp_path / "two.json", block_dim=0, device="cpu")
    stored = CacheGeometry.from_json(tmp_path / "two.json")
    named = {"device": "cpu", "views_on_other_devices": {"host": "meta"}}
    assert live.extra == stored.extra == named
    with raises_rule("storage-device"):
        capture(tensors, num_blocks=10, path=tmp_path / "mixed.json", block_dim=0)
    assert not (tmp_path / "mixed.json").exists()


@pytest.mark.parametrize("via", [capture_vllm, from_runner])
def test_a_cache_of_another_pool_does_not_pass_for_kernel_blocks(via):
    """The indexer has 12 blocks of its own, ids included; the specs state 1 kernel block per block."""
    worker = stand_in_worker()
    context = worker.model_runner.compilation_config.static_forward_context
    worker.model_runner.kernel_block_sizes[3] = 16
    assert context["alone"].kv_cache.shape[0] == 12
    with raises_rule("kernel-blocks", match="another block pool") as caught:
        via(worker)
    assert (caught.value.kernel_blocks_per_block, caught.value.stated_kernel_blocks_per_block) == (2, 1)


def test_strided_kernel_blocks_of_another_pool_are_refused():
    worker = stand_in_worker()
    worker.model_runner.kv_cache_config.num_blocks = 3
    with raises_rule("kernel-blocks", match="layer indexer"):
        capture_vllm(worker)


def test_rank_goes_into_the_name(tmp_path, monkeypatch):
    monkeypatch.setenv("RANK", "7")
    capture(slab(), num_blocks=10, path=str(tmp_path / "cache-{rank}.json"), block_dim=0)
    assert [file.name for file in tmp_path.iterdir()] == ["cache-7.json"]


@pytest.mark.parametrize("num_blocks, error", [(8, "ambiguous-block-dim"), (7, "block-dim-not-found")])
def test_a_refusal_writes_nothing(tmp_path, num_blocks, error):
    with raises_rule(error) as caught:
        capture({"layer.0": torch.zeros(8, 8, 4)}, num_blocks=num_blocks, path=tmp_path / "no.json")
    assert caught.value.num_blocks == num_blocks
    assert list(tmp_path.iterdir()) == []


def test_the_file_is_plain_json_in_lines(tmp_path):
    capture(slab(), num_blocks=10, path=tmp_path / "slab.json", block_dim=0)
    text = (tmp_path / "slab.json").read_text()
    assert len(json.loads(text)["layers"]) == 4 == sum("layer." in line for line in text.splitlines())
