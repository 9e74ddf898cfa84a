"""The measurements of the bench that need a GPU: device time by graph replay, host time, time to completion."""

from __future__ import annotations

import ctypes
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from unittest import mock

import numpy as np
import torch

from kvzero.audit.arena import byte_view
from kvzero.audit.audit import audit_plan
from kvzero.errors import KvzeroError
from kvzero.history import PLANNERS, engine, parts
from kvzero.layout.geometry import CacheGeometry
from kvzero.plan.planner import plan_segments
from kvzero.zero.kernel import NO_FLOATS, VALUES, zero_tiles_compiled
from kvzero.zero.tiles import grid_for, launch_for, tile_table, tiling_for
from kvzero.zero.zeroer import BlockZeroer

from .sets import BenchSet, Pool, all_sets, layers_apart, slabs

LAUNCHES_PER_GRAPH = 10
REPLAYS = 9
SETTLE_SECONDS = 0.5
CALLS = 300
ROUNDS = 15
ID_COUNTS = (1, 8, 64, 1_024)
FRESH = "fresh pinned copy and public launch"
ELEMENTS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def device_us(call: Callable[[], object], launches: int = LAUNCHES_PER_GRAPH) -> float:
    """Device time of one call, microseconds: median of graph replays, each of `launches` calls."""
    call()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(launches):
            call()
    graph.replay()
    times = []
    for _ in range(REPLAYS):
        start, stop = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        graph.replay()
        stop.record()
        stop.synchronize()
        times.append(start.elapsed_time(stop) * 1e3 / launches)
    return statistics.median(times)


def settle() -> None:
    """Gives memory back and waits: the driver clears what is freed, which takes up to a tenth of the bandwidth."""
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    time.sleep(SETTLE_SECONDS)


def host_us(calls: Mapping[str, Callable[[], object]]) -> dict[str, list[float]]:
    """Time until a call returns, microseconds: name to its mean over many calls in a row, for each round.

    The calls take turns in every round, so that a host that slows down slows all of them.
    """
    times = {name: [] for name in calls}
    for _ in range(ROUNDS + 1):
        for name, call in calls.items():
            torch.cuda.synchronize()
            start = time.perf_counter()
            for _ in range(CALLS):
                call()
            times[name].append((time.perf_counter() - start) * 1e6 / CALLS)
    torch.cuda.synchronize()
    return {name: rounds[1:] for name, rounds in times.items()}


def completion_us(call: Callable[[], object]) -> float:
    """Time until what a call started is done, microseconds: median."""
    times = []
    for _ in range(CALLS):
        torch.cuda.synchronize()
        start = time.perf_counter()
        call()
        torch.cuda.synchronize()
        times.append((time.perf_counter() - start) * 1e6)
    return statistics.median(times)


def driver_memset(memory: torch.Tensor) -> None:
    """`cudaMemsetAsync` on the current stream, from the driver."""
    memset = ctypes.CDLL("libcuda.so.1").cuMemsetD8Async
    memset.argtypes = [ctypes.c_uint64, ctypes.c_ubyte, ctypes.c_size_t, ctypes.c_void_p]
    code = memset(memory.data_ptr(), 0, len(memory), torch.cuda.current_stream().cuda_stream)
    if code != 0:
        raise KvzeroError(detail=f"the driver's memset failed with code {code}")


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
    memset_us = device_us(lambda: driver_memset(contiguous))
    ours_us = device_us(lambda: zeroer.zero(ids))
    shuffled_us = device_us(lambda: zeroer.zero(shuffled))
    zero_us = device_us(contiguous.zero_)
    memset_again_us = device_us(lambda: driver_memset(contiguous))
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
        "us": {
            "kvzero": ours_us, "kvzero, ids shuffled": shuffled_us, "driver memset": memset_us,
            "driver memset again": memset_again_us, "torch zero_": zero_us,
            "index_fill_ per layer": _index_fill_us(pool, ids),
        },
        "of_memset": statistics.mean((memset_us, memset_again_us)) / ours_us, "of_zero_": zero_us / ours_us,
        "eras": {name: _era(module, pool, block_ids) for name, module in {**PLANNERS, engine.NAME: engine}.items()},
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
        # Its tables are made once, so that the graph holds its kernel alone.
        tables = parts.tables(plan, pool.storages, ids)
        with mock.patch.object(parts, "tables", lambda *_: tables):
            result["us"] = device_us(lambda: module.write(plan, pool.storages, ids), launches=2)
    return result


def measure_host() -> list[dict]:
    """What a call costs the host: ours, and a fresh pinned tensor, an asynchronous copy and an ordinary launch."""
    one_storage = slabs("1 storage", 1_024, 1_024, 4_096, 4, 1)
    many_storages = layers_apart("122 storages", [4_096] * 122, 1_024)
    return [_measure_calls(pool, num_ids) for pool in (one_storage, many_storages) for num_ids in ID_COUNTS]


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
            table, ids.view(torch.int32), skipped, num_ids, plan.num_blocks, 2, 0, int(by_strips),
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

    def of_fresh(name: str) -> float:
        return statistics.median(ours / theirs for ours, theirs in zip(host[name], host[FRESH], strict=True))

    return {
        "pool": geometry.name, "num_ids": num_ids, "wrong_bytes": wrong,
        "host_us": {name: statistics.median(rounds) for name, rounds in host.items()},
        "completion_us": {name: completion_us(call) for name, call in calls.items()},
        "list_of_fresh": of_fresh("kvzero, list"), "array_of_fresh": of_fresh("kvzero, array"),
    }  # fmt: skip


def conditions() -> dict:
    """The GPU and its driver; the bench sets no clock and no power limit."""
    properties = torch.cuda.get_device_properties(0)
    version = ctypes.c_int()
    ctypes.CDLL("libcuda.so.1").cuDriverGetVersion(ctypes.byref(version))
    return {
        "gpu": properties.name,
        "multiprocessors": properties.multi_processor_count,
        "memory_bytes": properties.total_memory,
        "cuda": torch.version.cuda,
        "driver_cuda_version": version.value,
        "clocks": "as found, not set",
    }
