"""The bench's tiles: one pool of mixed pages, zeroed with every size of tile. Needs a GPU."""

from __future__ import annotations

import torch

from kvzero.plan.planner import plan_segments

from .gpu import device_us, driver_memset, measure_tile, settle
from .sets import BenchSet, Pool, mixed_pages

TILES_BYTES = tuple(1 << power for power in range(9, 17))


def measure_tiles() -> dict:
    """Device time of 512 random blocks of the GLM-5.2-like pool, by tile.

    Returns:
        The set's `name`, `num_ids` and `bytes`, the driver's `memset_us` over as many contiguous bytes, and `rows`,
        each with `tile_bytes`, `programs`, `us` and `wrong_bytes`.
    """
    geometry = mixed_pages()
    each = BenchSet(geometry.name, geometry, 512)
    block_ids, plan = each.block_ids(), plan_segments(geometry)
    contiguous = torch.empty(plan.bytes_per_block * len(block_ids), dtype=torch.uint8, device="cuda")
    pool = Pool(geometry, "cuda")
    settle()
    memset_us = device_us(lambda: driver_memset(contiguous))
    rows = [measure_tile(plan, pool, block_ids, tile_bytes) for tile_bytes in TILES_BYTES]
    return {
        "name": each.name, "num_ids": len(block_ids), "bytes": len(contiguous), "memset_us": memset_us, "rows": rows
    }
