"""Describe the caches of a running engine in a geometry file, without copies and without work on the device.

Paste one of these into a worker process, after its caches are allocated:

    from kvzero import capture_vllm
    capture_vllm(self, "cache-{rank}.json")                # self: a vLLM worker or model runner

    from kvzero import capture
    capture({"layer.0": k_and_v, ...}, num_blocks=1024, path="cache.json")     # any engine

The file holds names of layers, shapes, strides, offsets and sizes: no cache contents, no weights, no paths and no
host names. Then: `python -m kvzero triage cache.json`.
"""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from kvzero import errors
from kvzero.layout.geometry import CacheGeometry
from kvzero.layout.reading import check_strided_kernel_blocks
from kvzero.layout.tensors import named_views, same_device, storage_tensors


def capture(
    tensors: Mapping[str, Any],
    *,
    num_blocks: int,
    path: str | Path | None = None,
    name: str = "live",
    engine: str = "",
    **options: Any,
) -> CacheGeometry:
    """Describe an engine's cache tensors, and write the geometry file.

    Args:
        tensors: layer name to tensor, or to a sequence of tensors (K and V apart, recurrent state).
        num_blocks: blocks in the pool.
        path: file to write, or None to write none; "{rank}" in it becomes the rank of this process.
        name: name of the geometry.
        engine: name and version of the engine, for the report.
        options: `block_dim`, `kernel_blocks_per_block`, `groups`, `not_zeroed`, `device` and `layer_facts`, as in
            `CacheGeometry.from_tensors`.

    Raises:
        KvzeroError: a rule of `CacheGeometry.from_tensors` is broken; then no file is written.

    Example:
        >>> import torch
        >>> pool = torch.zeros(2, 8, 16, 4, 64, dtype=torch.bfloat16)
        >>> capture({"layer.0": pool}, num_blocks=8).layer("layer.0").block_dim
        1
    """
    geometry = CacheGeometry.from_tensors(tensors, num_blocks=num_blocks, name=name, **options)
    data = geometry.to_dict()
    data["engine"] = engine
    return _finish(data, path)


def capture_vllm(worker: Any, path: str | Path | None = None, *, read_engine_plan: bool = False) -> CacheGeometry:
    """Describe the cache of a vLLM worker or model runner, and write the geometry file.

    The fields are read by name (`attn_groups`, `kernel_block_sizes`, `compilation_config.static_forward_context`,
    `kv_cache_config.num_blocks`), so vLLM is not imported and both of its runners work.

    Args:
        worker: the worker, or its model runner, after the caches were allocated.
        path: file to write, or None to write none; "{rank}" in it becomes the rank of this process.
        read_engine_plan: also read the table of the engine's own zeroer, so that triage can judge it. On a GPU
            that copies a few KB to the host and waits for the current stream; on the CPU it is always done.

    Raises:
        CommandError: the object does not hold a field that is needed.
        KvzeroError: a rule of `CacheGeometry.from_tensors` is broken; then no file is written.
    """
    runner = getattr(worker, "model_runner", worker)
    caches = read_vllm_groups(**vllm_fields(runner))
    module = sys.modules.get("vllm")  # not imported: read only if the process runs it
    version = getattr(module, "__version__", "")
    data = caches.geometry(engine=f"vLLM {version}".strip()).to_dict()
    zeroer = getattr(runner, "kv_block_zeroer", None) or getattr(runner, "_kv_block_zeroer", None)
    if zeroer is not None:
        data.update(_engine_plan(zeroer, caches, read_engine_plan))
    return _finish(data, path)


def vllm_fields(worker: Any) -> dict[str, Any]:
    """Return what a vLLM worker or model runner passes to its own zeroer, read by name.

    Returns:
        The arguments of `read_vllm_groups` and of `kvzero.vllm.KVBlockZeroer`.

    Raises:
        CommandError: the object does not hold a field that is needed.
    """
    runner = getattr(worker, "model_runner", worker)
    compilation = getattr(runner, "compilation_config", None)
    if compilation is None:
        compilation = _field(_field(runner, "vllm_config"), "compilation_config")
    sizes = getattr(runner, "kernel_block_sizes", None)  # model runner V2; V1 keeps them private
    return {
        "device": getattr(runner, "device", None),
        "attn_groups_iter": [group for entry in _field(runner, "attn_groups") for group in _as_list(entry)],
        "kernel_block_sizes": sizes if sizes is not None else _field(runner, "_kernel_block_sizes"),
        "static_forward_context": _field(compilation, "static_forward_context"),
        "num_blocks": int(_field(_field(runner, "kv_cache_config"), "num_blocks")),
        "runner_only_attn_layers": getattr(runner, "runner_only_attn_layers", None),
    }


@dataclass
class EngineCaches:
    """The caches of an engine: tensors by layer, and the facts that go with each layer.

    Tensors on another device than `device` stay out of `tensors`; `elsewhere` names them, with their devices.
    """

    num_blocks: int
    tensors: dict[str, Any] = field(default_factory=dict)
    facts: dict[str, dict[str, Any]] = field(default_factory=dict)
    groups: dict[str, int] = field(default_factory=dict)
    not_zeroed: list[str] = field(default_factory=list)
    elsewhere: dict[str, str] = field(default_factory=dict)
    block_dim: int | None = None

    def geometry(self, engine: str = "") -> CacheGeometry:
        """The caches as a geometry; raises what `CacheGeometry.from_tensors` raises."""
        geometry = CacheGeometry.from_tensors(
            self.tensors,
            num_blocks=self.num_blocks,
            block_dim=self.block_dim,
            groups=self.groups,
            not_zeroed=self.not_zeroed,
            layer_facts=self.facts,
            name="live",
        )
        extra = {**geometry.extra}
        if self.elsewhere:
            device = next(str(tensor.device) for _, _, tensor in named_views(self.tensors))
            extra |= {"device": device, "views_on_other_devices": self.elsewhere}
        return replace(geometry, engine=engine, source="", extra=extra)

    def storages(self) -> dict[int, Any]:
        """Return the whole storages of the tensors, by the ids of `geometry()`."""
        return storage_tensors(self.tensors)


def read_vllm_groups(
    device: Any,
    attn_groups_iter: Iterable[Any],
    kernel_block_sizes: list[int],
    static_forward_context: Mapping[str, Any],
    num_blocks: int,
    runner_only_attn_layers: Iterable[str] | None = None,
) -> EngineCaches:
    """Collect the cache tensors of vLLM's attention groups; only the names of fields are relied on.

    Args:
        device: device of the pool; layers on another device are left out and named in the geometry. None takes all.
        attn_groups_iter: objects with `kv_cache_group_id`, `layer_names`, `kv_cache_spec`, and since September 2026
            `kernel_block_size` and `kernel_block_stride`.
        kernel_block_sizes: tokens of a kernel block, by group id; groups beyond it have no cache.
        static_forward_context: layer name to an object with `kv_cache`.
        num_blocks: blocks in the pool.
        runner_only_attn_layers: layers that the pool does not own.

    A spec counts as attention if a class named `AttentionSpec` is among its bases. Since #51718 views have blocks at
    dimension 0; for older engines the dimension is found, or refused as ambiguous.
    """
    caches = EngineCaches(num_blocks)
    skipped = set(runner_only_attn_layers or ())
    for group in attn_groups_iter:
        spec, group_id = _field(group, "kv_cache_spec"), _field(group, "kv_cache_group_id")
        if hasattr(group, "kernel_block_stride"):
            caches.block_dim = 0
        if group_id >= len(kernel_block_sizes):
            continue
        is_attention = any(base.__name__ == "AttentionSpec" for base in type(spec).__mro__)
        for layer in _field(group, "layer_names"):
            if layer in skipped or layer not in static_forward_context:
                continue
            cache = _tensors_of(_field(static_forward_context[layer], "kv_cache"))
            if not cache:
                continue
            if device is not None and not all(same_device(tensor.device, device) for tensor in cache):
                caches.elsewhere[layer] = ", ".join(sorted({str(tensor.device) for tensor in cache}))
                continue
            kernel_tokens = kernel_block_sizes[group_id]
            if getattr(group, "kernel_block_stride", 0):
                kernel_tokens = group.kernel_block_size
            facts = _spec_facts(spec, kernel_tokens)
            if getattr(group, "kernel_block_stride", 0):
                facts["bound_view"] = {
                    "shape": list(cache[0].shape),
                    "stride": list(cache[0].stride()),
                    "kernel_block_stride": group.kernel_block_stride,
                }
                cache = [_by_manager_block(tensor, group, num_blocks, f"layer {layer}") for tensor in cache]
            caches.tensors[layer] = cache[0] if len(cache) == 1 else tuple(cache)
            caches.facts[layer], caches.groups[layer] = facts, group_id
            if not is_attention:
                caches.not_zeroed.append(layer)
    return caches


def _by_manager_block(cache: Any, group: Any, num_blocks: int, where: str) -> Any:
    """Return a view with one entry per block over the memory of a view with strided kernel blocks."""
    tokens, kernel_tokens = group.kv_cache_spec.block_size, group.kernel_block_size
    ratio = tokens // kernel_tokens
    shape, stride = cache.shape, cache.stride()
    stated = {f"block_size {tokens} / kernel_block_size {kernel_tokens}": ratio}
    check_strided_kernel_blocks(shape, group.kernel_block_stride, num_blocks, stated, where)
    return cache.as_strided(
        (num_blocks, *shape[1:-2], shape[-2] * ratio, shape[-1]),
        (stride[0] * group.kernel_block_stride, *stride[1:]),
    )


def _spec_facts(spec: Any, kernel_block_size: int) -> dict[str, Any]:
    kind = type(spec).__name__.removesuffix("Spec")
    facts = {
        "spec_kind": re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "_", kind).lower(),
        "manager_block_size": getattr(spec, "block_size", None),
        "kernel_block_size": kernel_block_size,
        "page_size_bytes": getattr(spec, "page_size_bytes", None),
    }
    return {key: value for key, value in facts.items() if isinstance(value, (int, str))}


def _engine_plan(zeroer: Any, caches: EngineCaches, read: bool) -> dict[str, Any]:
    """Read the segments of the engine's own zeroer from its table of addresses, strides and spans in words."""
    table = getattr(zeroer, "_meta", None)
    if not isinstance(table, tuple) or len(table) != 6:
        # The tables of four and five fields (before #50276) hold no stride; the old planners reproduce them.
        return {"engine_plan_note": "the engine's zeroer holds no table of six fields; its plan was not read"}
    addresses, strides, spans = table[:3]
    if addresses.device.type != "cpu" and not read:
        return {"engine_plan_note": "the engine's plan lies on the device; read_engine_plan=True reads it"}
    starts = {key: (whole.data_ptr(), whole.numel()) for key, whole in caches.storages().items()}
    segments = []
    for address, stride, span in zip(addresses.tolist(), strides.tolist(), spans.tolist(), strict=True):
        homes = [key for key, (start, size) in starts.items() if start <= address < start + size]
        if not homes:
            return {"engine_plan_note": "the engine's plan names an address outside every cache; it was not read"}
        segments.append(
            {
                "storage": homes[0],
                "byte_offset": address - starts[homes[0]][0],
                "block_stride_bytes": stride * 4,
                "span_bytes": span * 4,
            }
        )
    return {"engine_segments": segments}


def _finish(data: dict[str, Any], path: str | Path | None) -> CacheGeometry:
    geometry = CacheGeometry.from_dict(data)
    if path is not None:
        target = Path(str(path).replace("{rank}", _rank()))
        lines = json.dumps(geometry.to_dict(), separators=(",", ":"))
        target.write_text(lines.replace('{"name":', '\n{"name":') + "\n", encoding="utf-8")
    return geometry


def _rank() -> str:
    distributed = sys.modules.get("torch.distributed")
    if distributed is not None and distributed.is_available() and distributed.is_initialized():
        return str(distributed.get_rank())
    return os.environ.get("RANK", "0")


def _tensors_of(cache: Any) -> list[Any]:
    """Return the tensors bound to a layer: one, or several (recurrent state), at any depth of nesting."""
    if isinstance(cache, (list, tuple)):
        return [tensor for item in cache for tensor in _tensors_of(item)]
    return [cache] if hasattr(cache, "untyped_storage") and cache.numel() else []


def _as_list(entry: Any) -> list[Any]:
    return list(entry) if isinstance(entry, (list, tuple)) else [entry]


def _field(owner: Any, name: str) -> Any:
    value = getattr(owner, name, None)
    if value is None:
        raise errors.CommandError("engine-field", owner=type(owner).__name__, field=name)
    return value
