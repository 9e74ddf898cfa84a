"""What a run of the bench is held to, and its report as a page of text."""

from __future__ import annotations

import statistics

OF_MEMSET, OF_ZERO = 0.95, 1.2
OF_ENGINE, MEDIAN_OF_ENGINE = 0.98, 1.05
SMALL_OF_MEMSET, SMALL_MEMSET_BYTES = 0.9, 8_000_000
OF_FRESH = 1 / 3
WARM_SECONDS, COLD_SECONDS = 0.5, 1.5


def targets(report: dict) -> list[dict]:
    """What the run was held to: name, value, bound, and whether it held."""
    sets, small, host, warmup = (report[key] for key in ("sets", "small", "host", "warmup"))
    full = [each for each in sets if each["full_speed"]]
    slowest = min(full, key=lambda each: each["of_memset"])
    least = min(full, key=lambda each: each["of_zero_"])
    rows = [
        (f"device time, of the driver's memset: {slowest['name']}", slowest["of_memset"], "at least", OF_MEMSET),
        (f"device time, of zero_: {least['name']}", least["of_zero_"], "at least", OF_ZERO),
    ]
    for num_ids in sorted({row["num_ids"] for row in small}):
        ours = [row for row in small if row["num_ids"] == num_ids]
        of_engine = [row["of_engine"]["median"] for row in ours]
        slowest = min(ours, key=lambda row: row["of_engine"]["median"])
        rows += [
            (f"calls of {num_ids}, of the engine's kernel: {slowest['name']}", min(of_engine), "at least", OF_ENGINE),
            (f"calls of {num_ids}, of the engine's kernel: median", statistics.median(of_engine), "at least",
             MEDIAN_OF_ENGINE),
        ]  # fmt: skip
    large = [row for row in small if row["bytes"] >= SMALL_MEMSET_BYTES]
    slowest = min(large, key=lambda row: row["of_memset"]["median"])
    what = f"small calls from 8 MB on, of the driver's memset: {slowest['num_ids']} ids, {slowest['name']}"
    rows.append((what, slowest["of_memset"]["median"], "at least", SMALL_OF_MEMSET))
    dearest = max(host, key=lambda row: row["list_of_fresh"])
    what = f"host time, of the fresh pinned way: {dearest['num_ids']:,} ids, {dearest['pool']}"
    rows.append((what, dearest["list_of_fresh"], "at most", OF_FRESH))
    checked = [*host, *small, *report["tiles"]["rows"], *sets]
    checked += [each["one_id_a_program"] for each in sets if "one_id_a_program" in each]
    wrong = sum(each["wrong_bytes"] for each in checked) + sum(each["warmup_wrote_bytes"] for each in sets)
    rows += [
        ("warm-up of a new process, seconds: cache filled", warmup["warm_cache_seconds"], "at most", WARM_SECONDS),
        ("warm-up of a new process, seconds: cache empty", warmup["cold_cache_seconds"], "at most", COLD_SECONDS),
        ("bytes not as they should be, over every configuration", wrong + warmup["wrote_bytes"], "at most", 0),
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
    lines += ["", "calls of few ids: device time, microseconds; ours (list) against the engine's kernel and the memset"]
    lines.append(f"  {'':15} {'list':>7} {'on GPU':>7} {'engine':>7} {'memset':>7}  of engine            of memset")
    lines += [_small_line(row) for row in report["small"]]
    tiles = report["tiles"]
    lines += ["", f"device time by tile, of the driver's memset: {tiles['name']}, {tiles['num_ids']} blocks"]
    for row in tiles["rows"]:
        times = f"{row['us']:9.1f} us {tiles['memset_us'] / row['us']:9.3f}"
        lines.append(f"  {row['tile_bytes']:6,} B {times}  {row['programs']:,} programs")
    lines += ["", "host time of a call (time to completion), microseconds"]
    for row in report["host"]:
        times = "; ".join(f"{name} {us:.1f} ({row['completion_us'][name]:.1f})" for name, us in row["host_us"].items())
        lines.append(f"  {row['num_ids']} ids, {row['pool']}: {times}; list of fresh {row['list_of_fresh']:.3f}")
    warmup = report["warmup"]
    cold, warm = warmup["cold_cache_seconds"], warmup["warm_cache_seconds"]
    lines += ["", f"warm-up of a new process: {cold:.2f} s with an empty cache, then {warm:.2f} s", "", "held to"]
    for target in report["targets"]:
        held = "held  " if target["held"] else "MISSED"
        lines.append(f"  {held} {target['value']:.3f} ({target['bound']}) {target['name']}")
    return lines


def _small_line(row: dict) -> str:
    def spread(of: dict[str, float]) -> str:
        return f"{of['median']:.3f} ({of['least']:.2f} to {of['greatest']:.2f})"

    us = row["us"]
    return (
        f"  {row['num_ids']:3} ids {row['bytes'] / 1e6:6.1f} MB {us['kvzero, list']:7.2f} "
        f"{us['kvzero, ids on the GPU']:7.2f} {us['engine']:7.2f} {us['driver memset']:7.2f}  "
        f"{spread(row['of_engine'])}  {spread(row['of_memset'])}  {row['name']}"
    )
