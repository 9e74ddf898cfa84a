"""What the bench measures on a GPU: large calls, small calls, tiles, and what a call costs the host."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from unittest import mock

import numpy as np
import torch

from kvzero.audit.arena import byte_view
from kvzero.audit.audit import audit_plan
from kvzero.errors import KvzeroError
from kvzero.history import PLANNERS, engine, parts
from kvzero.layout import geometries
from kvzero.layout.geometry import CacheGeometry
from kvzero.plan.planner import plan_segments
from kvzero.plan.resize import with_num_blocks
from kvzero.zero.kernel import NO_FLOATS, VALUES, zero_tiles_compiled
from kvzero.zero.tiles import grid_for, launch_for, tile_table, tiling_for
from kvzero.zero.zeroer import BlockZeroer

from .sets import TILES_BYTES, BenchSet, Pool, all_sets, layers_apart, mixed_pages, slabs
from .timing import completion_us, device_us, driver_memset, host_us, ratio, rounds_us, settle

HOST_IDS = (1, 8, 64, 1_024)
SMALL_IDS = (1, 8, 64)
SMALL_BLOCKS = 128
SMALL_LAUNCHES = 20
FRESH = "fresh pinned copy and public launch"
ELEMENTS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def measure_sets(sets: Sequence[BenchSet] | None = None) -> list[dict]:
    """Every set, or those given: ours, the contiguous limits, `index_fill_`, and the eras that can plan it."""
    results = []
    for each in all_sets() if sets is None else sets:
        results.append(_measure_set(each))
    return results


def _measure_set(each: BenchSet) -> dict:
    block_ids = each.block_ids()
    plan = plan_segments(each.geometry)
    nbytes = plan.bytes_per_block * len(block_ids)
    contiguous = torch.empty(nbytes, dtype=torch.uint8, device="cuda")
    pool = Pool(each.geometry, "cuda")
    zeroer = BlockZeroer(plan, pool.storages)
    ids = torch.from_numpy(block_ids).cuda()
    shuffled = ids[torch.randperm(len(ids), device="cuda", generator=torch.Generator("cuda").manual_seed(1))]
    zeroer.warmup()
    warmup_wrote = pool.wrong_bytes(block_ids[:0])
    zeroer.zero(block_ids)
    wrong = pool.wrong_bytes(block_ids)
    settle()
    times = rounds_us({"driver memset": lambda: driver_memset(contiguous), "kvzero": lambda: zeroer.zero(ids)})
    of_memset = ratio(times["driver memset"], times["kvzero"])
    us = {name: statistics.median(each) for name, each in times.items()}
    us["kvzero, ids shuffled"] = device_us(lambda: zeroer.zero(shuffled))
    us["torch zero_"] = device_us(contiguous.zero_)
    us["driver memset again"] = device_us(lambda: driver_memset(contiguous))
    wrong += pool.wrong_bytes(block_ids)
    pool.refill()
    zeroer.zero(shuffled)
    zeroer.check()
    wrong += pool.wrong_bytes(block_ids)
    settle()
    launch = launch_for(plan, len(block_ids))
    single = {}
    if launch.ids_per_program > 1:  # what short pages gain by sharing a program
        single["one_id_a_program"] = measure_tile(plan, pool, block_ids, launch.tile_bytes)
    return single | {
        "name": each.name, "num_blocks": each.geometry.num_blocks, "num_ids": len(block_ids), "bytes": nbytes,
        "segments": len(plan.segments), "full_speed": each.full_speed,
        "tile_bytes": launch.tile_bytes, "store_width_bytes": launch.store_width_bytes,
        "ids_per_program": launch.ids_per_program, "programs": launch.programs,
        "wrong_bytes": wrong, "warmup_wrote_bytes": warmup_wrote,
        "us": us | {"index_fill_ per layer": _index_fill_us(pool, ids)},
        "of_memset": of_memset["median"], "of_memset_spread": of_memset, "of_zero_": us["torch zero_"] / us["kvzero"],
        "eras": {name: _era(module, pool, block_ids) for name, module in {**PLANNERS, engine.NAME: engine}.items()},
    }  # fmt: skip


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
    }  # fmt: skip


def measure_tile(plan, pool: Pool, block_ids: np.ndarray, tile_bytes: int) -> dict:
    """Device time with tiles of this size, each program serving one block, and how many bytes it got wrong."""
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


def _index_fill_us(pool: Pool, ids: torch.Tensor) -> float | None:
    """One `index_fill_` for each layer, on elements of the layer's size; None where blocks are not one index."""
    views = pool.geometry.select()
    if any(view.kernel_blocks_per_block != 1 for view in views):
        return None
    tensors = []
    for view in views:
        data = pool.storages[view.storage]
        if view.itemsize in ELEMENTS and view.byte_offset % view.itemsize == len(data) % view.itemsize == 0:
            elements = data.view(ELEMENTS[view.itemsize])[view.byte_offset // view.itemsize :]
            tensors.append(elements.as_strided(view.shape, view.stride))
        else:
            tensors.append(byte_view(view, data))
    pairs = list(zip(tensors, views, strict=True))
    return device_us(lambda: [tensor.index_fill_(view.block_dim, ids, 0) for tensor, view in pairs], launches=2)


def _era(module, pool: Pool, block_ids: np.ndarray) -> dict:
    """An old kernel's device time, where its planner takes the layout and stays inside the memory."""
    geometry, ids = pool.geometry, block_ids.tolist()
    try:
        plan = module.plan(geometry)
        ends = [geometry.num_blocks - 1, 0, geometry.num_blocks // 2]
        audit = audit_plan(plan, geometry, sorted(set(ends)))
        launch = module.launch(plan, len(ids))
    except KvzeroError as error:
        return {"refused": error.rule}
    result = {
        "programs": launch.programs,
        "empty_programs": launch.empty_programs_per_block * len(ids),
        "written_per_needed": plan.bytes_per_block / plan.needed_bytes_per_block,
        "missed": audit.missed_bytes > 0,
        "stomped": audit.stomped_bytes > 0,
        "overrun": audit.overrun_bytes > 0,
    }
    if audit.overrun_bytes == 0:
        result["us"] = device_us(_era_call(module, plan, pool, ids), launches=2)
    return result


def _era_call(module, plan, pool: Pool, ids: list[int]) -> Callable[[], None]:
    """An old kernel's launch; its tables are made once, so that a graph holds the kernel alone."""
    tables = parts.tables(plan, pool.storages, ids)

    def call() -> None:
        with mock.patch.object(parts, "tables", lambda *_: tables):
            module.write(plan, pool.storages, ids)

    return call


def measure_small() -> list[dict]:
    """Calls of few ids on every real dump whose engine stated its segments: ours, the engine's kernel, the memset.

    Dumps that are zeroed alike, by both, are measured once, in a pool of `SMALL_BLOCKS` blocks. The engine's kernel is
    that of vLLM 0.33, with the segments in the dump.
    """
    rows, seen = [], set()
    for name in geometries.names():
        dump = geometries.load(name)
        if not dump.engine_segments or dump.num_blocks == 1:
            continue
        geometry = with_num_blocks(dump, SMALL_BLOCKS)
        plan, stated = plan_segments(geometry), engine.plan(geometry)
        if (key := (plan.digest(), stated.digest())) not in seen:
            seen.add(key)
            rows += _measure_small(geometry, plan, stated)
    return rows


def _measure_small(geometry: CacheGeometry, plan, stated) -> list[dict]:
    pool = Pool(geometry, "cuda")
    zeroer = BlockZeroer(plan, pool.storages)
    zeroer.warmup()
    rows = []
    for num_ids in SMALL_IDS:
        block_ids = np.sort(np.random.default_rng(num_ids).permutation(SMALL_BLOCKS)[:num_ids])
        ids, on_gpu = block_ids.tolist(), torch.from_numpy(block_ids).cuda()
        contiguous = torch.empty(plan.bytes_per_block * num_ids, dtype=torch.uint8, device="cuda")
        pool.refill()
        zeroer.zero(ids)
        wrong = pool.wrong_bytes(block_ids)
        calls = {
            "kvzero, list": lambda ids=ids: zeroer.zero(ids),
            "kvzero, ids on the GPU": lambda ids=on_gpu: zeroer.zero(ids),
            "engine": _era_call(engine, stated, pool, ids),
            "driver memset": lambda memory=contiguous: driver_memset(memory),
        }
        times = rounds_us(calls, SMALL_LAUNCHES)
        rows.append({
            "name": geometry.name, "num_ids": num_ids, "bytes": len(contiguous), "wrong_bytes": wrong,
            "us": {name: statistics.median(each) for name, each in times.items()},
            "of_engine": ratio(times["engine"], times["kvzero, list"]),
            "of_memset": ratio(times["driver memset"], times["kvzero, list"]),
        })  # fmt: skip
    return rows


def measure_host() -> list[dict]:
    """What a call costs the host: ours, and a fresh pinned tensor, an asynchronous copy and an ordinary launch."""
    one_storage = slabs("1 storage", 1_024, 1_024, 4_096, 4, 1)
    many_storages = layers_apart("122 storages", [4_096] * 122, 1_024)
    return [_measure_calls(pool, num_ids) for pool in (one_storage, many_storages) for num_ids in HOST_IDS]


def _ordinary_launch(plan, pool: Pool) -> Callable[[torch.Tensor], object]:
    """Our kernel for ids on the GPU, launched by `kernel[grid](...)`, which looks for the specialization each time."""
    addresses = np.array([pool.storages[each.storage].data_ptr() for each in plan.segments], dtype=np.uint64)
    tiling = tiling_for(plan, addresses=int(np.bitwise_or.reduce(addresses)))
    table = torch.from_numpy(tile_table(plan, addresses, tiling.step_bytes)).cuda()
    skipped = torch.zeros(1, dtype=torch.int64, device="cuda")
    constants = tiling.tile_bytes, tiling.step_bytes, plan.alignment_bytes, tiling.ids_per_program, False

    def launch(ids: torch.Tensor) -> None:
        num_ids = len(ids)
        grid, by_strips = grid_for(len(table), num_ids, tiling.ids_per_program, num_ids * plan.bytes_per_block)
        zero_tiles_compiled[grid](
            table, ids.view(torch.int32), skipped, num_ids, plan.num_blocks, 2, 0, by_strips,
            *[0] * VALUES, *constants, num_warps=1, **NO_FLOATS,
        )  # fmt: skip

    return launch


def _measure_calls(geometry: CacheGeometry, num_ids: int) -> dict:
    pool = Pool(geometry, "cuda")
    plan = plan_segments(geometry)
    zeroer = BlockZeroer(plan, pool.storages)
    zeroer.warmup()
    launch = _ordinary_launch(plan, pool)
    as_list = np.random.default_rng(num_ids).permutation(geometry.num_blocks)[:num_ids].tolist()
    as_array, on_gpu = np.array(as_list), torch.tensor(as_list, device="cuda")

    def fresh() -> None:
        launch(torch.tensor(as_list, dtype=torch.int64, pin_memory=True).to("cuda", non_blocking=True))

    calls = {
        FRESH: fresh,
        "kvzero, list": lambda: zeroer.zero(as_list),
        "kvzero, array": lambda: zeroer.zero(as_array),
        "kvzero, ids on the GPU": lambda: zeroer.zero(on_gpu),
    }
    wrong = 0
    for call in calls.values():
        pool.refill()
        call()
        wrong += pool.wrong_bytes(as_array)
    host = host_us(calls)

    of_fresh = {name: ratio(host[f"kvzero, {name}"], host[FRESH]) for name in ("list", "array")}
    return {
        "pool": geometry.name, "num_ids": num_ids, "launch": "compiled kernel", "wrong_bytes": wrong,
        "host_us": {name: statistics.median(rounds) for name, rounds in host.items()},
        "completion_us": {name: completion_us(call) for name, call in calls.items()},
        "list_of_fresh": of_fresh["list"]["median"], "array_of_fresh": of_fresh["array"]["median"],
        "of_fresh_spread": of_fresh,
    }  # fmt: skip
