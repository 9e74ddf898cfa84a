"""Caches as other engines allocate them: the shapes are theirs, by the source given, the sizes are small.

`python tests/engines.py` writes each one's geometry into tests/engines/. Nothing here imports an engine.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from kvzero.layout.geometry import CacheGeometry

FOLDER = Path(__file__).parent / "engines"


@dataclass(frozen=True)
class EngineCache:
    """A live cache of one engine's shape, and how its user describes it."""

    engine: str
    source: str
    num_blocks: int
    tensors: dict[str, Any]
    zero: Callable[[int], list[torch.Tensor]]  # the engine's own indexing: what one block is made of
    options: dict[str, Any] = field(default_factory=dict)

    def geometry(self, name: str) -> CacheGeometry:
        return CacheGeometry.from_tensors(self.tensors, num_blocks=self.num_blocks, name=name, **self.options)


def sglang_token_pool() -> EngineCache:
    """Per layer one K and one V buffer of (size + page_size) token slots; page 0 is the reserved one."""
    pages, page_tokens, heads, dim = 5, 16, 2, 32
    layers = {
        f"layer.{i}": tuple(torch.empty(pages * page_tokens, heads, dim, dtype=torch.bfloat16) for _ in "kv")
        for i in range(2)
    }
    return EngineCache(
        "SGLang",
        "sgl-project/sglang python/sglang/srt/mem_cache/memory_pool.py, MHATokenToKVPool: k_buffer and v_buffer of "
        "shape (size + page_size, head_num, head_dim) per layer; token slots, so a page is page_size rows",
        pages,
        layers,
        lambda b: [t[b * page_tokens : (b + 1) * page_tokens] for pair in layers.values() for t in pair],
        {"block_dim": 0},
    )


def sglang_ascend_pool() -> EngineCache:
    """One buffer for all layers, K/V and layers outermost, as SGLang's Ascend pool allocates it."""
    pages, layers = 5, 3
    pool = torch.empty(2, layers, pages, 16, 2, 32, dtype=torch.bfloat16)
    return EngineCache(
        "SGLang on Ascend",
        "sgl-project/sglang, NPU pool: kv_buffer of shape (2, layer_num, size // page_size + 1, page_size, head_num, "
        "head_dim), one allocation",
        pages,
        {f"layer.{i}": (pool[0, i], pool[1, i]) for i in range(layers)},
        lambda b: [pool[:, :, b]],
        {"block_dim": 0},
    )


def flashinfer_nhd() -> EngineCache:
    """One 5-D tensor per layer, pages outermost, K and V inside the page."""
    caches = {f"layer.{i}": torch.empty(6, 2, 16, 4, 32, dtype=torch.float16) for i in range(2)}
    return EngineCache(
        "FlashInfer, NHD",
        "flashinfer-ai/flashinfer docs/tutorials/kv_layout.rst: (max_num_pages, 2, page_size, num_heads, head_dim)",
        6,
        caches,
        lambda b: [t[b] for t in caches.values()],
    )


def flashinfer_hnd_pair() -> EngineCache:
    """K and V as two 4-D tensors, heads before tokens."""
    caches = {"layer.0": tuple(torch.empty(6, 4, 16, 32, dtype=torch.float16) for _ in "kv")}
    return EngineCache(
        "FlashInfer, HND, K and V apart",
        "flashinfer-ai/flashinfer docs/tutorials/kv_layout.rst: kv_data = (k_data, v_data), each "
        "(max_num_pages, num_heads, page_size, head_dim)",
        6,
        caches,
        lambda b: [t[b] for t in caches["layer.0"]],
    )


def trtllm_pools() -> EngineCache:
    """One primary pool in which a block holds all layers, and one pool for the indexer's keys."""
    blocks, layers, tokens, heads, dim = 5, 3, 8, 2, 32
    pool = torch.empty(blocks, layers, 2, tokens * heads * dim, dtype=torch.bfloat16)
    indexer = torch.empty(blocks, layers, 1, tokens * 132, dtype=torch.uint8)
    views: dict[str, Any] = {f"layer.{i}": pool[:, i] for i in range(layers)}
    views |= {f"layer.{i}.indexer": indexer[:, i] for i in range(layers)}
    return EngineCache(
        "TensorRT-LLM",
        "NVIDIA/TensorRT-LLM, KVCacheManager: get_primary_pool_data gives (numBlocks, kvFactor, blockSize) views of a "
        "pool of shape (numBlocks, numLayers, kvFactor, blockSize); get_indexer_k_cache_pool the same in uint8",
        blocks,
        views,
        lambda b: [pool[b], indexer[b]],
        {"block_dim": 0},
    )


def llama_cpp_cells() -> EngineCache:
    """Per layer one K and one V tensor of cells; two streams; V transposed, as without flash attention."""
    cells, streams, width = 12, 2, 24
    k = torch.empty(streams, cells, width, dtype=torch.float16)
    v = torch.empty(streams, width, cells, dtype=torch.float16)
    return EngineCache(
        "llama.cpp",
        "ggml-org/llama.cpp src/llama-kv-cache.cpp: cache_k_l%d and cache_v_l%d of n_embd_gqa x kv_size x n_stream "
        "per layer; with v_trans the cell is the innermost dimension of V",
        cells,
        {"layer.0": (k, v)},
        lambda b: [k[:, b], v[:, :, b]],
        {"block_dim": {"layer.0#0": 1, "layer.0#1": 2}},
    )


def kvcached_interleaved() -> EngineCache:
    """One buffer in which a block holds the K and V of every layer: Qwen3-0.6B's page and stride."""
    layers = 28
    buffer = torch.empty(3, layers, 2, 16, 8, 128, dtype=torch.bfloat16)
    return EngineCache(
        "kvcached, contiguous layout",
        "ovg-project/kvcached, KVCACHED_CONTIGUOUS_LAYOUT: (num_blocks, layers, k/v, tokens, heads, dim), 65,536 bytes "
        "per layer and a stride of 1,835,008 bytes; 1Cat-vLLM #280 read one layer's stride as the page",
        3,
        {f"layer.{i}": buffer[:, i] for i in range(layers)},
        lambda b: [buffer[b]],
        {"block_dim": 0},
    )


def ascend_unequal_pair() -> EngineCache:
    """K and V in allocations of their own and of unequal size: 16,384 and 4,096 elements of a block."""
    k, v = torch.empty(4, 128, 1, 128), torch.empty(4, 128, 1, 32)
    return EngineCache(
        "vLLM Ascend",
        "vllm-project/vllm-ascend #16966: components of 16,384 and 4,096 elements (65,536 and 16,384 bytes), separate "
        "tensors; the shapes here are chosen to give these counts",
        4,
        {"layer.0": (k, v)},
        lambda b: [k[b], v[b]],
        {"block_dim": 0},
    )


def recurrent_state() -> EngineCache:
    """Attention and recurrent state of a hybrid in one pool: the state is a tuple of views into a padded page."""
    page = 1_081_344
    raw = torch.empty(2, page, dtype=torch.uint8)
    conv = raw[:, :24_576].view(torch.bfloat16).view(2, 3, 4096)
    state = raw[:, 24_576 : 24_576 + 1_048_576].view(torch.float32).view(2, 16, 128, 128)
    attention = raw.view(torch.bfloat16).view(2, 2, 528, 512)
    return EngineCache(
        "vLLM, Qwen3.5 at TP2",
        "vllm-project/vllm, MambaSpec: kv_cache is a tuple (convolution, recurrent state) of views into one page; "
        "block 528, page 1,081,344 bytes, of which the state fills 1,073,152",
        2,
        {"attn": attention, "gdn": (conv, state)},
        lambda b: [attention[b]],
        {"block_dim": 0, "not_zeroed": ["gdn"], "groups": {"gdn": 1}},
    )


ENGINES = {
    function.__name__: function
    for function in (
        sglang_token_pool, sglang_ascend_pool, flashinfer_nhd, flashinfer_hnd_pair, trtllm_pools, llama_cpp_cells,
        kvcached_interleaved, ascend_unequal_pair, recurrent_state,
    )
}  # fmt: skip


def dump(name: str) -> dict[str, Any]:
    """One engine's geometry as plain data, with its origin."""
    cache = ENGINES[name]()
    data = cache.geometry(name).to_dict()
    del data["engine_segments"]
    made_by = "from_tensors on tensors of this shape, allocated by torch on a CPU; the engine itself was not run"
    return {**data, "engine": cache.engine, "origin": cache.source, "made_by": made_by}


if __name__ == "__main__":
    FOLDER.mkdir(exist_ok=True)
    for name in ENGINES:
        (FOLDER / f"{name}.json").write_text(json.dumps(dump(name)).replace('{"name":', '\n{"name":').strip() + "\n")
