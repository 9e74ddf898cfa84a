"""How the bench measures on a GPU: device time by graph replay, host time, time to completion, and the conditions."""

from __future__ import annotations

import ctypes
import statistics
import time
from collections.abc import Callable, Mapping, Sequence

import torch

from kvzero.errors import KvzeroError

LAUNCHES_PER_GRAPH = 10
REPLAYS = 9
SETTLE_SECONDS = 0.5
CALLS = 300
HOST_ROUNDS = 15
ROUNDS = 5


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
    for _ in range(HOST_ROUNDS + 1):
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


def rounds_us(calls: Mapping[str, Callable[[], object]], launches: int = LAUNCHES_PER_GRAPH) -> dict[str, list[float]]:
    """`device_us` of several calls in turns: name to its time in each of `ROUNDS` rounds."""
    times: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(ROUNDS):
        for name, call in calls.items():
            times[name].append(device_us(call, launches))
    return times


def ratio(times: Sequence[float], others: Sequence[float]) -> dict[str, float]:
    """Of `times` to `others`, round by round: the median, and the least and greatest."""
    ratios = [one / other for one, other in zip(times, others, strict=True)]
    return {"median": statistics.median(ratios), "least": min(ratios), "greatest": max(ratios)}


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
