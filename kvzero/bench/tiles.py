"""The bench's tiles: one pool of mixed pages, zeroed with every size of tile. Needs a GPU."""

from __future__ import annotations

import numpy as np
import torch

from ..launch import launch_for
from ..plan import plan_segments
from ..zeroer import BlockZeroer
from .gpu import device_us, driver_memset, settle
from .sets import BenchSet, Pool, layers_apart

TILES_BYTES = tuple(1 << power for power in range(9, 17))


def measure_tiles() -> dict:
    """Device time of 512 random blocks of the GLM-5.2-like pool, by tile.

    Returns:
        The set's `name`, `num_ids` and `bytes`, the driver's `memset_us` over as many contiguous bytes, and `rows`,
        each with `tile_bytes`, `programs`, `us` and `wrong_bytes`.
    """
    geometry = layers_apart("GLM-5.2-like, 61 x (41,984 + 8,448 B)", [41_984, 8_448] * 61, 1_024)
    each = BenchSet(geometry.name, geometry, 512)
    block_ids, plan = each.block_ids(), plan_segments(geometry)
    contiguous = torch.empty(plan.bytes_per_block * len(block_ids), dtype=torch.uint8, device="cuda")
    pool = Pool(geometry, "cuda")
    settle()
    memset_us = device_us(lambda: driver_memset(contiguous))
    rows = [_measure_tile(plan, pool, block_ids, tile_bytes) for tile_bytes in TILES_BYTES]
    return {
        "name": each.name, "num_ids": len(block_ids), "bytes": len(contiguous), "memset_us": memset_us, "rows": rows
    }


def _measure_tile(plan, pool: Pool, block_ids: np.ndarray, tile_bytes: int) -> dict:
    zeroer = BlockZeroer(plan, pool.storages, tile_bytes=tile_bytes)
    ids = torch.from_numpy(block_ids).cuda()
    pool.refill()
    zeroer.zero(ids)
    wrong = pool.wrong_bytes(block_ids)
    settle()
    return {
        "tile_bytes": tile_bytes,
        "programs": launch_for(plan, len(block_ids), tile_bytes=tile_bytes).programs,
        "us": device_us(lambda: zeroer.zero(ids)),
        "wrong_bytes": wrong,
    }
