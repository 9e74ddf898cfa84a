"""A small worker as vLLM 0.33 holds it, built from stand-in classes or, where vLLM is installed, from its own.

One slab of six blocks, in which a block holds two attention layers, an indexer with strided kernel blocks, and the
recurrent state of a mamba layer overlaid on the attention layers; plus one layer in an allocation of its own whose
blocks hold two kernel blocks each. Only the field names are vLLM's.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from types import SimpleNamespace

import torch

NUM_BLOCKS = 6
PAGE_BYTES = 8192  # 2 heads x 16 tokens x (64 + 64) x 2 bytes
INDEXER_ROWS, ROW_BYTES = 16, 132  # 64 tokens, four to a row
SLAB_BYTES = 18 * 8 * ROW_BYTES  # a multiple of a kernel block of 8 rows, and room for all
STATE_BYTES = 4 * 8 * 2 + 4 * 16 * 4


class KVCacheSpec:
    def __init__(self, block_size: int, page_size_bytes: int) -> None:
        self.block_size, self.page_size_bytes = block_size, page_size_bytes


class AttentionSpec(KVCacheSpec):
    pass


class FullAttentionSpec(AttentionSpec):
    pass


class MLAAttentionSpec(FullAttentionSpec):
    pass


class MambaSpec(KVCacheSpec):
    pass


@dataclass
class AttentionGroup:
    layer_names: list[str]
    kv_cache_spec: KVCacheSpec
    kv_cache_group_id: int
    backend: object = None
    kernel_block_size: int | None = None
    kernel_block_stride: int = 0
    metadata_builders: list = field(default_factory=list)


def stand_in_worker(device: str = "cpu") -> SimpleNamespace:
    """The worker from stand-in classes."""
    slab = torch.zeros(NUM_BLOCKS * SLAB_BYTES, dtype=torch.int8, device=device)
    page = (2, 16, 128)
    caches = {
        f"attn.{index}": slab.view(torch.bfloat16).as_strided(
            (NUM_BLOCKS, *page), (SLAB_BYTES // 2, 2048, 128, 1), index * PAGE_BYTES // 2
        )
        for index in range(2)
    }
    kernel_rows = INDEXER_ROWS // 2
    kernel_stride = SLAB_BYTES // (kernel_rows * ROW_BYTES)
    caches["indexer"] = slab.view(torch.uint8).as_strided(
        ((NUM_BLOCKS - 1) * kernel_stride + 2, 1, kernel_rows, ROW_BYTES),
        (kernel_rows * ROW_BYTES, INDEXER_ROWS * ROW_BYTES, ROW_BYTES, 1),
        2 * PAGE_BYTES,
    )
    caches["mamba"] = mamba_states(slab.as_strided((NUM_BLOCKS, STATE_BYTES), (SLAB_BYTES, 1)))
    caches["alone"] = torch.zeros(NUM_BLOCKS * 2, 2, 8, 128, dtype=torch.bfloat16, device=device)
    full = FullAttentionSpec(16, PAGE_BYTES)
    groups = [
        [AttentionGroup(["attn.0", "attn.1"], full, 0)],
        [
            AttentionGroup(
                ["indexer"], MLAAttentionSpec(64, INDEXER_ROWS * ROW_BYTES), 1,
                kernel_block_size=32, kernel_block_stride=kernel_stride,
            )
        ],
        [AttentionGroup(["mamba"], MambaSpec(16, STATE_BYTES), 2)],
        [AttentionGroup(["alone"], full, 3)],
    ]  # fmt: skip
    return worker(groups, caches)


def real_worker() -> SimpleNamespace:
    """The same worker from vLLM's own classes and its own allocator."""
    from vllm.v1.kv_cache_interface import (
        FullAttentionSpec,
        KVCacheConfig,
        KVCacheGroupSpec,
        KVCacheLayout,
        KVCacheTensor,
        MambaSpec,
        MLAAttentionSpec,
    )
    from vllm.v1.worker.utils import AttentionGroup, allocate_kv_cache

    full = FullAttentionSpec(block_size=16, num_kv_heads=2, head_size=64, dtype=torch.bfloat16)
    indexer = MLAAttentionSpec(
        block_size=64, num_kv_heads=1, head_size=ROW_BYTES, dtype=torch.uint8, tokens_per_state=4
    )
    mamba = MambaSpec(block_size=16, shapes=((4, 8), (4, 16)), dtypes=(torch.bfloat16, torch.float32))
    specs = {"attn.0": full, "attn.1": full, "indexer": indexer, "mamba": mamba}
    size = NUM_BLOCKS * SLAB_BYTES
    config = KVCacheConfig(
        num_blocks=NUM_BLOCKS,
        kv_cache_tensors=[
            KVCacheTensor(size, ["attn.0", "attn.1"], PAGE_BYTES, SLAB_BYTES, 0),
            KVCacheTensor(size, ["indexer"], INDEXER_ROWS * ROW_BYTES, SLAB_BYTES, 2 * PAGE_BYTES),
            KVCacheTensor(size, ["mamba"], STATE_BYTES, SLAB_BYTES, 0),
        ],
        kv_cache_groups=[
            KVCacheGroupSpec(["attn.0", "attn.1"], full),
            KVCacheGroupSpec(["indexer"], indexer),
            KVCacheGroupSpec(["mamba"], mamba),
        ],
    )
    cpu = torch.device("cpu")
    caches = allocate_kv_cache(config, cpu, KVCacheLayout.BLHNC, [16, 64, 16])
    alone = KVCacheConfig(
        num_blocks=NUM_BLOCKS,
        kv_cache_tensors=[KVCacheTensor(NUM_BLOCKS * PAGE_BYTES, ["alone"], PAGE_BYTES, PAGE_BYTES, 0)],
        kv_cache_groups=[KVCacheGroupSpec(["alone"], full)],
    )
    caches |= allocate_kv_cache(alone, cpu, KVCacheLayout.LBNHC, [8])
    groups = [
        [AttentionGroup(None, names, specs.get(names[0], full), group_id)]
        for group_id, names in enumerate((["attn.0", "attn.1"], ["indexer"], ["mamba"], ["alone"]))
    ]
    groups[1][0].kernel_block_size = 32
    caches["indexer"] = groups[1][0].map_kv_cache_to_kernel_blocks(caches["indexer"])
    caches["mamba"] = mamba_states(caches["mamba"].squeeze(dim=(1, 2)))
    return worker(groups, caches)


def mamba_states(pages: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Convolution state in bf16 and recurrent state in fp32, side by side in each page."""
    conv = pages[:, :64].view(torch.bfloat16).view(-1, 4, 8)
    state = pages[:, 64:STATE_BYTES].view(torch.float32).view(-1, 4, 16)
    return conv, state


def worker(groups, caches) -> SimpleNamespace:
    """A worker around groups and caches, with the fields of model runner V2."""
    context = {name: SimpleNamespace(kv_cache=cache) for name, cache in caches.items()}
    runner = SimpleNamespace(
        device=next(iter(caches.values())).device,
        attn_groups=groups,
        kernel_block_sizes=[16, 64, 16, 8],
        compilation_config=SimpleNamespace(static_forward_context=context),
        kv_cache_config=SimpleNamespace(num_blocks=NUM_BLOCKS),
        kv_block_zeroer=None,
    )
    return SimpleNamespace(model_runner=runner, local_rank=0)
