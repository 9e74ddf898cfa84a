"""The vLLM capture and zeroer, on stand-ins that carry vLLM's field names, and on vLLM's own classes if installed."""

from __future__ import annotations

import importlib.util
import inspect
import json
import os
from types import SimpleNamespace

import pytest
import torch
from refusals import raises_rule
from vllm_worker import NUM_BLOCKS, real_worker, stand_in_worker

from kvzero import history as specimens
from kvzero.audit.arena import Arena
from kvzero.audit.audit import audit_plan
from kvzero.errors import IdOutOfRangeError
from kvzero.layout import capture
from kvzero.layout.geometry import CacheGeometry
from kvzero.triage import triage
from kvzero.vllm import KVBlockZeroer, from_runner

HAS_VLLM = importlib.util.find_spec("vllm") is not None
needs_vllm = pytest.mark.skipif(not HAS_VLLM, reason="vLLM is not installed here")
BUILDERS = [stand_in_worker, pytest.param(real_worker, marks=needs_vllm)]


@pytest.fixture(params=BUILDERS, ids=["stand-ins", "vllm"])
def worker(request):
    return request.param()


def needed_by_hand(block: int) -> dict[str, set[int]]:
    """The bytes of one block by the worker's own description, storage by storage."""
    slab = 18 * 8 * 132 * block
    return {"slab": set(range(slab, slab + 2 * 8192 + 16 * 132)), "alone": set(range(8192 * block, 8192 * (block + 1)))}


def written_by(zeroer, worker, blocks) -> dict[str, set[int]]:
    """Fill both storages with ones, zero the blocks, and collect the zero bytes."""
    context = worker.model_runner.compilation_config.static_forward_context
    found = {}
    whole = {}
    for name, layer in (("slab", "attn.0"), ("alone", "alone")):
        storage = context[layer].kv_cache.untyped_storage()
        whole[name] = torch.empty(0, dtype=torch.uint8, device=storage.device).set_(storage).fill_(1)
    zeroer.zero_block_ids(blocks)
    for name, memory in whole.items():
        found[name] = set((memory == 0).nonzero().flatten().tolist())
    return found


def test_capture_describes_every_view(worker):
    geometry = capture.capture_vllm(worker)
    facts = {view.name: (view.kernel_blocks_per_block, view.page_bytes, view.zeroed) for view in geometry.layers}
    assert facts == {
        "attn.0": (1, 8192, True),
        "attn.1": (1, 8192, True),
        "indexer": (1, 16 * 132, True),
        "mamba#0": (1, 64, False),
        "mamba#1": (1, 256, False),
        "alone": (2, 8192, True),
    }
    assert geometry.layer("indexer").block_stride_bytes == 18 * 8 * 132
    assert geometry.layer("indexer").extra["kernel_block_size"] == 32
    assert geometry.layer("attn.0").spec_kind == "full_attention"
    assert geometry.layer("indexer").spec_kind == "mla_attention"
    assert len(geometry.storages) == 2


def test_zeroer_writes_exactly_the_attention_bytes(worker):
    zeroer = from_runner(worker)
    written = written_by(zeroer, worker, [1, 4])
    for name in ("slab", "alone"):
        assert written[name] == needed_by_hand(1)[name] | needed_by_hand(4)[name]
    assert zeroer.plan.bytes_per_block == zeroer.plan.needed_bytes_per_block == 3 * 8192 + 16 * 132


def test_zeroer_refuses_before_it_writes(worker):
    zeroer = from_runner(worker)
    with pytest.raises(IdOutOfRangeError) as caught:
        written_by(zeroer, worker, [1, NUM_BLOCKS])
    assert caught.value.block_id == NUM_BLOCKS
    context = worker.model_runner.compilation_config.static_forward_context
    assert bool((context["alone"].kv_cache.view(torch.uint8) == 1).all())


def test_warmup_and_empty_ids_leave_every_byte(worker):
    zeroer = from_runner(worker)
    zeroer.warmup(NUM_BLOCKS)
    written = written_by(zeroer, worker, [])
    assert written == {"slab": set(), "alone": set()}


def test_recurrent_layers_alone_need_no_zeroer(worker):
    runner = worker.model_runner
    zeroer = KVBlockZeroer(
        runner.device, runner.attn_groups[2], runner.kernel_block_sizes,
        runner.compilation_config.static_forward_context, NUM_BLOCKS,
    )  # fmt: skip
    zeroer.zero_block_ids([0])
    zeroer.warmup(NUM_BLOCKS)
    assert zeroer.plan is None


def test_layers_of_other_devices_and_of_the_runner_are_left_out(worker):
    fields = capture.vllm_fields(worker)
    fields["runner_only_attn_layers"] = {"alone"}
    assert "alone" not in capture.read_vllm_groups(**fields).tensors
    fields["device"] = torch.device("cuda")
    caches = capture.read_vllm_groups(**fields)
    assert caches.tensors == {}
    assert caches.elsewhere == dict.fromkeys(["attn.0", "attn.1", "indexer", "mamba"], "cpu")
    fields = {**capture.vllm_fields(worker), "kernel_block_sizes": [16, 64, 16]}
    assert "alone" not in capture.read_vllm_groups(**fields).tensors


def test_a_layer_on_another_device_is_named_in_the_answer_and_in_the_file(worker, tmp_path):
    context = worker.model_runner.compilation_config.static_forward_context
    context["attn.1"].kv_cache = context["attn.1"].kv_cache.to("meta")
    geometry = capture.capture_vllm(worker, tmp_path / "cache.json")
    assert geometry.extra == {"device": "cpu", "views_on_other_devices": {"attn.1": "meta"}}
    assert CacheGeometry.from_json(tmp_path / "cache.json").extra == geometry.extra
    assert from_runner(worker).geometry.extra == geometry.extra


def test_dump_is_small_holds_no_contents_and_reads_back(worker, tmp_path, monkeypatch):
    monkeypatch.setenv("RANK", "3")
    geometry = capture.capture_vllm(worker, tmp_path / "cache-{rank}.json")
    file = tmp_path / "cache-3.json"
    assert CacheGeometry.from_json(file).layers == geometry.layers
    text = file.read_text()
    assert len(text) < 3_000
    private = {os.path.expanduser("~"), str(tmp_path), os.uname().nodename, os.environ.get("USER", "/home")}
    assert not [word for word in private if word and word in text]
    assert set(json.loads(text)) == {"name", "engine", "layout", "num_blocks", "storages", "layers", "engine_segments"}


def test_version_one_runner_keeps_its_fields_elsewhere(worker):
    runner = worker.model_runner
    runner._kernel_block_sizes = runner.kernel_block_sizes
    runner.vllm_config = SimpleNamespace(compilation_config=runner.compilation_config)
    del runner.kernel_block_sizes, runner.compilation_config
    assert len(capture.capture_vllm(runner).layers) == 6


@pytest.mark.parametrize("field", ["attn_groups", "kv_cache_config", "kernel_block_sizes"])
def test_a_missing_field_is_named_and_nothing_is_written(worker, tmp_path, field):
    delattr(worker.model_runner, field)
    with raises_rule("engine-field") as caught:
        capture.capture_vllm(worker, tmp_path / "cache.json")
    assert caught.value.field.endswith(field)
    assert list(tmp_path.iterdir()) == []


def test_the_engines_table_is_read_and_judged(worker):
    """A right table is found right; one with the block stride taken for attn.1's span is found wrong, by how much."""
    runner = worker.model_runner
    context = runner.compilation_config.static_forward_context
    slab, alone = (context[layer].kv_cache.untyped_storage().data_ptr() for layer in ("attn.0", "alone"))
    stride, page, rows_bytes = 18 * 8 * 132, 8192, 16 * 132
    rows = [(slab, stride, page), (slab + page, stride, page), (slab + 2 * page, stride, rows_bytes)]
    rows.append((alone, page, page))

    def judged(rows):
        columns = [torch.tensor(column) for column in zip(*rows, strict=True)]
        runner.kv_block_zeroer = SimpleNamespace(
            _meta=(columns[0].to(torch.uint64), columns[1] // 4, columns[2] // 4, 2, 1024, len(rows))
        )
        return triage(capture.capture_vllm(worker))

    report = judged(rows)
    assert report.ok and report.engine.faults == ()
    rows[1] = (slab + page, stride, stride)
    report = judged(rows)
    assert not report.ok
    fault = report.engine.fault("stomped")
    assert (fault.count_bytes, fault.layers[0], fault.smallest_block, fault.hit_blocks) == (page, "attn.0", 0, (1, 1))
    fault = report.engine.fault("overrun")
    assert (fault.count_bytes, fault.block, fault.smallest_block) == (page, NUM_BLOCKS - 1, NUM_BLOCKS - 1)
    runner.kv_block_zeroer._meta = (rows, 1, 1024, 3)
    assert "six fields" in capture.capture_vllm(worker).extra["engine_plan_note"]


@needs_vllm
def test_against_vllms_own_zeroer():
    """vLLM's own table and ours cover the same bytes of every block, and the two constructors take the same."""
    from vllm.v1.worker.utils import KVBlockZeroer as Theirs

    worker = real_worker()
    fields = capture.vllm_fields(worker)
    worker.model_runner.kv_block_zeroer = Theirs(**fields)
    geometry = capture.capture_vllm(worker)
    assert geometry.engine_segments
    for block in range(NUM_BLOCKS):
        audit = audit_plan(specimens.planner("engine").plan(geometry), geometry, [block])
        assert audit.ok, audit.sentence()
    assert triage(geometry).ok
    assert list(inspect.signature(Theirs.__init__).parameters) == list(
        inspect.signature(KVBlockZeroer.__init__).parameters
    )
    for method in ("zero_block_ids", "warmup"):
        theirs, ours = (inspect.signature(getattr(cls, method)) for cls in (Theirs, KVBlockZeroer))
        assert list(theirs.parameters) == list(ours.parameters)


def test_captured_geometry_passes_the_byte_audit(worker):
    from kvzero.plan.planner import plan_segments
    from kvzero.zero.zeroer import BlockZeroer

    geometry = capture.capture_vllm(worker)
    arena = Arena(geometry)
    BlockZeroer(plan_segments(geometry), arena.storages).zero([0, 5])
    audit = arena.audit([0, 5])
    assert audit.ok, audit.sentence()


@pytest.mark.gpu
def test_on_a_gpu():
    """Capture starts no kernel, makes no copy and waits for nothing; the zeroer writes exactly the needed bytes."""
    worker = stand_in_worker("cuda")
    allocated = torch.cuda.memory_allocated()
    torch.cuda.set_sync_debug_mode("error")
    try:
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
            geometry = capture.capture_vllm(worker)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert torch.cuda.memory_allocated() == allocated
    assert [event.name for event in profile.events() if event.device_type == torch.autograd.DeviceType.CUDA] == []
    assert geometry.layers == capture.capture_vllm(stand_in_worker()).layers
    zeroer = from_runner(worker)
    zeroer.warmup(NUM_BLOCKS)
    written = written_by(zeroer, worker, [1, 4])
    for name in ("slab", "alone"):
        assert written[name] == needed_by_hand(1)[name] | needed_by_hand(4)[name]
