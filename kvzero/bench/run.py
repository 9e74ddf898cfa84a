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

from .sets import layers_apart

OF_MEMSET, OF_ZERO, OF_FRESH = 0.95, 1.2, 1 / 3
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
        Plain data: `conditions`, `planning`, `launches`, `groups`, and from a GPU `sets`, `tiles`, `host`, `warmup`
        and `targets`; `not_measured` says what is missing. Times are in seconds or microseconds, as their names say.

    Raises:
        DeviceNotAvailableError: the device asked for is not one of these, or not there.
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
        from . import gpu, tiles, warmup

        report["conditions"] |= gpu.conditions()
        report["warmup"] = warmup.measure_warmup()
        report["sets"] = gpu.measure_sets()
        report["tiles"] = tiles.measure_tiles()
        report["host"] = gpu.measure_host()
        report["targets"] = _targets(report)
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


def _targets(report: dict) -> list[dict]:
    """What the run was held to: name, value, bound, and whether it held."""
    full = [each for each in report["sets"] if each["full_speed"]]
    host = [row for row in report["host"] if row["launch"] == "fast"]
    slowest = min(full, key=lambda each: each["of_memset"])
    least = min(full, key=lambda each: each["of_zero_"])
    dearest = max(host, key=lambda row: row["list_of_fresh"] if row["pool"] == "1 storage" else 0)
    wrong = sum(each["wrong_bytes"] + each["warmup_wrote_bytes"] for each in report["sets"])
    single = [each["one_id_a_program"] for each in report["sets"] if "one_id_a_program" in each]
    wrong += sum(row["wrong_bytes"] for row in (*report["host"], *report["tiles"]["rows"], *single))
    wrong += report["warmup"]["wrote_bytes"]
    rows = [
        (f"device time, of the driver's memset: {slowest['name']}", slowest["of_memset"], "at least", OF_MEMSET),
        (f"device time, of zero_: {least['name']}", least["of_zero_"], "at least", OF_ZERO),
        (
            f"host time, of the fresh pinned way: {dearest['num_ids']} ids",
            dearest["list_of_fresh"],
            "at most",
            OF_FRESH,
        ),
        ("warm-up of a new process with a warm cache, seconds", report["warmup"]["warm_cache_seconds"], "at most", 1.0),
        ("bytes not as they should be, over every configuration", wrong, "at most", 0),
    ]
    return [
        {
            "name": name, "value": value, "bound": f"{way} {bound:.3g}",
            "held": value >= bound if way == "at least" else value <= bound,
        }
        for name, value, way, bound in rows
    ]  # fmt: skip


def text(report: dict) -> str:
    """The report as a page of text."""
    lines = ["  ".join(f"{key} {value}" for key, value in report["conditions"].items()), "", "planning"]
    for row in report["planning"]:
        lines.append(
            f"  {row['seconds'] * 1e3:9.2f} ms  {row['geometry']}, {row['num_blocks']:,} blocks, {row['views']:,} views"
        )
    lines += ["", "programs of one call (empty ones)"]
    for row in report["launches"]:
        lines.append(f"  {row['geometry']}, {row['num_ids']:,} ids")
        for name, era in {"kvzero": row["kvzero"]["CUDA"], **row["eras"]}.items():
            said = era.get("refused") or f"{era['programs']:,} ({era['empty_programs_per_block'] * row['num_ids']:,})"
            lines.append(f"      {name} {said}")
    lines += ["", "bytes per block, each group against the union"]
    for row in report["groups"]:
        needed = ", ".join(f"{group}: {nbytes:,}" for group, nbytes in row["needed_bytes_per_block"].items())
        lines.append(f"  {row['geometry']}: union {row['union_bytes_per_block']:,}; {needed}")
    if "sets" in report:
        lines += _gpu_text(report)
    lines += [""] + [f"not measured (no GPU): {what}" for what in report["not_measured"]]
    return "\n".join(lines).rstrip()


def _gpu_text(report: dict) -> list[str]:
    lines = [
        "",
        "device time, microseconds",
        f"  {'MB':>6} {'kvzero':>9} {'memset':>9} {'of memset':>9} {'of zero_':>8}",
    ]
    for each in report["sets"]:
        us = each["us"]
        lines.append(
            f"  {each['bytes'] / 1e6:6.0f} {us['kvzero']:9.1f} {us['driver memset']:9.1f} {each['of_memset']:9.3f} "
            f"{each['of_zero_']:8.2f}  {each['name']}"
        )
        eras = {name: era for name, era in each["eras"].items() if "us" in era} | {
            name: {"us": us[name]} for name in ("kvzero, ids shuffled", "index_fill_ per layer") if us[name]
        }
        if single := each.get("one_id_a_program"):
            eras["kvzero, one id a program"] = single
        lines.append("         " + "; ".join(f"{name} {era['us'] / us['kvzero']:.2f}x" for name, era in eras.items()))
    tiles = report["tiles"]
    lines += ["", f"device time by tile, of the driver's memset: {tiles['name']}, {tiles['num_ids']} blocks"]
    for row in tiles["rows"]:
        times = f"{row['us']:9.1f} us {tiles['memset_us'] / row['us']:9.3f}"
        lines.append(f"  {row['tile_bytes']:6,} B {times}  {row['programs']:,} programs")
    lines += ["", "host time of a call (time to completion), microseconds"]
    for row in report["host"]:
        times = "; ".join(f"{name} {us:.1f} ({row['completion_us'][name]:.1f})" for name, us in row["host_us"].items())
        lines.append(f"  {row['num_ids']} ids, {row['pool']}, {row['launch']} launch: {times}")
    warmup = report["warmup"]
    cold, warm = warmup["cold_cache_seconds"], warmup["warm_cache_seconds"]
    lines += ["", f"warm-up of a new process: {cold:.2f} s with an empty cache, then {warm:.2f} s", "", "held to"]
    for target in report["targets"]:
        held = "held  " if target["held"] else "MISSED"
        lines.append(f"  {held} {target['value']:.3f} ({target['bound']}) {target['name']}")
    return lines
