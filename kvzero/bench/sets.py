"""What the bench measures on: block pools of real sizes, and a check of what a call did to one of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from kvzero.audit.arena import byte_view
from kvzero.layout import geometries
from kvzero.layout.geometry import CacheGeometry
from kvzero.plan.resize import with_num_blocks

CANARY = 0xA5
TILES_BYTES = tuple(1 << power for power in range(9, 17))


@dataclass(frozen=True, slots=True)
class BenchSet:
    """A pool and a number of random blocks to zero in it.

    Args:
        name: what it is.
        geometry: the pool.
        num_ids: distinct block ids of a call.
        full_speed: whether it is held to the memory's write limit (whole 16-byte pages of 4 KiB and more).
    """

    name: str
    geometry: CacheGeometry
    num_ids: int
    full_speed: bool = True

    def block_ids(self) -> np.ndarray:
        """The ids, the same in every run, ascending: as a call with host ids sorts them from 1 GiB on.

        Below, order makes no difference; the bench times them shuffled as well.
        """
        shuffled = np.random.default_rng(2026).permutation(self.geometry.num_blocks)
        return np.sort(shuffled[: self.num_ids])


def layers_apart(name: str, pages_bytes: Sequence[int], num_blocks: int) -> CacheGeometry:
    """Every layer an array of blocks in a storage of its own, one page a block."""
    storages = [{"id": i, "nbytes": num_blocks * page} for i, page in enumerate(pages_bytes)]
    layers = [_pages(f"layer.{i}", i, 0, num_blocks, page, page) for i, page in enumerate(pages_bytes)]
    return CacheGeometry.from_dict({"name": name, "num_blocks": num_blocks, "storages": storages, "layers": layers})


def slabs(
    name: str, page_bytes: int, pitch_bytes: int, num_blocks: int, layers_per_slab: int, num_slabs: int
) -> CacheGeometry:
    """Slabs whose blocks hold the pages of several layers, `pitch_bytes` apart."""
    stride_bytes = pitch_bytes * layers_per_slab
    storages = [{"id": i, "nbytes": num_blocks * stride_bytes} for i in range(num_slabs)]
    layers = [
        _pages(f"slab.{i}.layer.{k}", i, k * pitch_bytes, num_blocks, page_bytes, stride_bytes)
        for i in range(num_slabs)
        for k in range(layers_per_slab)
    ]
    return CacheGeometry.from_dict({"name": name, "num_blocks": num_blocks, "storages": storages, "layers": layers})


def _pages(name: str, storage: int, offset_bytes: int, num_blocks: int, page_bytes: int, stride_bytes: int) -> dict:
    return {
        "name": name, "storage": storage, "byte_offset": offset_bytes, "shape": [num_blocks, page_bytes],
        "stride": [stride_bytes, 1], "itemsize": 1, "block_dim": 0, "dtype": "uint8",
    }  # fmt: skip


def mixed_pages() -> CacheGeometry:
    """The pool of two page sizes whose common divisor made #49704 slow."""
    return layers_apart("GLM-5.2-like, 61 x (41,984 + 8,448 B)", [41_984, 8_448] * 61, 1_024)


def all_sets() -> list[BenchSet]:
    """The sets of the bench: SPEED's shapes, real dumps with pools of gigabytes, and pages that are hard to write."""

    def dump(name: str, num_blocks: int, num_ids: int, full_speed: bool = True) -> BenchSet:
        return BenchSet(name, with_num_blocks(geometries.load(name), num_blocks), num_ids, full_speed)

    def odd(page: int, width: int) -> BenchSet:
        name = f"odd pages of {page:,} B ({width}-byte alignment)"
        return BenchSet(name, layers_apart(name, [page] * 32, 6_000), 1_024, full_speed=False)

    glm = mixed_pages()
    slab = slabs("DeepSeek-V4-like slabs, 8 x 4 layers, 37,376 of 37,440 B", 37_376, 37_440, 6_000, 4, 8)
    kv = layers_apart("K and V apart, 160 x 32,768 B", [32_768] * 160, 1_024)
    hybrid = layers_apart("hybrid, 12 x 1,114,112 B", [1_114_112] * 12, 600)
    return [
        BenchSet(f"{glm.name}, 64 blocks", glm, 64),
        BenchSet(f"{glm.name}, 512 blocks", glm, 512),
        BenchSet(slab.name, slab, 512),
        BenchSet(kv.name, kv, 512),
        BenchSet(hybrid.name, hybrid, 512),
        dump("fp8_target_bf16_drafter_same_page__BHLNC", 6_000, 3_000),
        dump("dsv4_c4_full__BLHNC", 40_000, 20_000),
        dump("qwen3next_528_fi16__LBNHC", 600, 300),
        dump("gptoss_18sw_18full__BHLNC", 12_000, 6_000),
        dump("gptoss_18sw_18full__LBNHC", 12_000, 6_000),
        dump("int8_per_token_head__LHBNC", 12_000, 4_000, full_speed=False),  # pages of 4,224 B
        dump("nvfp4__LHBNC", 20_000, 8_000, full_speed=False),  # pages of 1,152 B
        *(odd(page, width) for page, width in ((37_384, 8), (37_380, 4), (37_378, 2), (37_377, 1))),
    ]


class Pool:
    """A geometry's storages on a device, every byte a canary."""

    def __init__(self, geometry: CacheGeometry, device: str) -> None:
        self.geometry = geometry
        self.storages = {
            storage.id: torch.empty(storage.nbytes, dtype=torch.uint8, device=device) for storage in geometry.storages
        }
        self.refill()

    def refill(self) -> None:
        for storage in self.storages.values():
            storage.fill_(CANARY)

    def wrong_bytes(self, block_ids: np.ndarray) -> int:
        """How many bytes are not as zeroing these blocks should have left them, by indexing the views naively."""
        wrong = 0
        for name, storage in self.storages.items():
            ids = torch.from_numpy(block_ids).to(storage.device)
            must = torch.zeros(len(storage), dtype=torch.bool, device=storage.device)
            for view in self.geometry.select():
                if view.storage == name:
                    per_block = view.kernel_blocks_per_block
                    rows = (ids[:, None] * per_block + torch.arange(per_block, device=ids.device)).flatten()
                    byte_view(view, must).index_fill_(view.block_dim, rows, True)
            wrong += int(torch.where(must, storage != 0, storage != CANARY).sum())
        return wrong
