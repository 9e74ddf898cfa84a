"""The bench: one run that puts every ratio side by side, with its conditions. `kvzero bench` prints it.

Where there is no GPU it measures what a CPU can, and says what it did not measure.
"""

from __future__ import annotations

import datetime
import platform
import statistics
import time

import numpy as np
import torch
import triton

from kvzero.device import pick_device
from kvzero.errors import KvzeroError
from kvzero.layout import geometries
from kvzero.layout.geometry import CacheGeometry
from kvzero.plan.planner import plan_segments
from kvzero.plan.resize import with_num_blocks
from kvzero.zero.tiles import AMD, CUDA, launch_for

from .report import targets
from .sets import layers_apart

PLAN_REPEATS = 5
NEEDS_GPU = (
    "device time of the kernel, of the driver's memset, of zero_, of index_fill_ and of the eras' kernels",
    "host time of a call and time to completion",
    "warm-up time",
)


def run_bench(device: str = "auto") -> dict:
    """Runs the bench.

    Args:
        device: "auto" (a GPU if there is one), "cpu" or "cuda".

    Returns:
        Plain data: `conditions`, `planning`, `launches`, `groups`, and from a GPU `sets`, `small`, `tiles`, `host`,
        `warmup` and `targets`; `not_measured` says what is missing. Times are in seconds or microseconds, as their
        names say; those of `sets`, `small` and `host` are medians over rounds.

    Raises:
        CommandError: the device asked for is not one of these, or not there.
    """
    on_gpu = pick_device(device) == "cuda"
    report = {
        "conditions": {
            "date": datetime.date.today().isoformat(),
            "python": platform.python_version(),
            "torch": torch.__version__,
            "triton": triton.__version__,
            "numpy": np.__version__,
            "device": "cuda" if on_gpu else "cpu",
        },
        "planning": _planning(),
        "launches": _launches(),
        "groups": [_groups(name) for name in ("dsv4_c4_full__BLHNC", "qwen3next_528_fi16__LBNHC")],
        "not_measured": [] if on_gpu else list(NEEDS_GPU),
    }
    if on_gpu:
        from . import gpu, timing, warmup

        report["conditions"] |= timing.conditions()
        report["warmup"] = warmup.measure_warmup()
        report["small"] = gpu.measure_small()
        report["sets"] = gpu.measure_sets()
        report["tiles"] = gpu.measure_tiles()
        report["host"] = gpu.measure_host()
        report["targets"] = targets(report)
    return report


def _planning() -> list[dict]:
    """Seconds to plan the slowest real dump, with as many blocks as it has, 10 and 1,000,000, and 10,000 views."""
    slowest = max(geometries.names(), key=lambda name: _plan_seconds(geometries.load(name), repeats=1))
    dump = geometries.load(slowest)
    pools = [
        dump,
        with_num_blocks(dump, 10),
        with_num_blocks(dump, 1_000_000),
        layers_apart("views", [4_096] * 10_000, 8),
    ]
    return [
        {
            "geometry": pool.name,
            "num_blocks": pool.num_blocks,
            "views": len(pool.layers),
            "seconds": _plan_seconds(pool),
        }
        for pool in pools
    ]


def _plan_seconds(geometry: CacheGeometry, repeats: int = PLAN_REPEATS) -> float:
    seconds = []
    for _ in range(repeats):
        start = time.perf_counter()
        plan_segments(geometry)
        seconds.append(time.perf_counter() - start)
    return statistics.median(seconds)


def _launches() -> list[dict]:
    """Programs of a call, ours and the eras', on the launch that overflowed (#52058) and on real dumps."""
    from kvzero.history import PLANNERS

    pages = [9_344 * 4] * 91 + [292 * 4] * 90
    rows = []
    for geometry in (
        layers_apart("181 segments, #52058", pages, 6_870),
        *map(geometries.load, ("dsv4_c4_full__BLHNC", "glm52_fp8_dsmla_indexer__LBNHC")),
    ):
        plan = plan_segments(geometry)
        ours = {limits.name: launch_for(plan, limits=limits).to_dict() for limits in (CUDA, AMD)}
        eras = {}
        for name, module in PLANNERS.items():
            try:
                eras[name] = module.launch(module.plan(geometry), geometry.num_blocks).to_dict()
            except KvzeroError as error:
                eras[name] = {"refused": error.rule}
        rows.append({"geometry": geometry.name, "num_ids": geometry.num_blocks, "kvzero": ours, "eras": eras})
    return rows


def _groups(name: str) -> dict:
    """Bytes that one block of each group needs, against the union that one list for all groups writes (#52187)."""
    geometry = geometries.load(name)
    union_bytes = plan_segments(geometry).bytes_per_block
    groups = sorted({view.group for view in geometry.layers if view.zeroed}, key=str)
    needed = {str(group): plan_segments(geometry, groups=[group]).bytes_per_block for group in groups}
    return {"geometry": name, "union_bytes_per_block": union_bytes, "needed_bytes_per_block": needed}
