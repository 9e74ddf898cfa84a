"""The speed of zeroing: where its numbers come from, two limits that explain them, and what compilers make of a kernel.

A GPU measures itself with the bench's own functions; elsewhere the report that ``kvzero bench --json`` wrote on an H200
stands in, in the same form and marked as recorded.
"""

from __future__ import annotations

import datetime
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from kvzero.bench.sets import all_sets
from kvzero.errors import KvzeroError
from kvzero.plan.planner import Plan
from kvzero.zero.kernel import NO_FLOATS

from . import recorded
from .kernels import kernel_on

RECORD = "bench_h200"
MIXED, SAME_PAGE = "GLM-5.2-like", "fp8_target_bf16_drafter_same_page__BHLNC"
UNIFORM, SHORT = "hybrid", "nvfp4"
SHOWN = (MIXED, UNIFORM, SAME_PAGE, SHORT)


@dataclass(frozen=True)
class Rates:
    """Two limits of one GPU, taken from one run.

    Args:
        bytes_per_us: what the driver's memset writes, contiguous.
        programs_per_us: how many programs start, taken from a launch of very short ones.
    """

    bytes_per_us: float
    programs_per_us: float

    @property
    def break_even_bytes(self) -> float:
        """Bytes that a program must write so that starting programs is not what the call waits for."""
        return self.bytes_per_us / self.programs_per_us

    def floor_us(self, programs: int, nbytes: int) -> float:
        """The least time of a call: the slower of starting its programs and writing its bytes.

        >>> Rates(bytes_per_us=4_000_000, programs_per_us=1_600).floor_us(programs=3_200_000, nbytes=4_000_000_000)
        2000.0
        """
        return max(programs / self.programs_per_us, nbytes / self.bytes_per_us)


def measurements(device: str) -> tuple[dict[str, Any], str]:
    """The numbers of this notebook and where they come from.

    Args:
        device: "cpu", or a CUDA device, which is then measured (half a minute, 25 GB of its memory).

    Returns:
        A report as `kvzero.bench.run_bench` makes it (a GPU measures `sets`, only those of `SHOWN`, `tiles` and
        `host`), and one sentence that says when, on what and with which versions it was measured.
    """
    if device == "cpu":
        report = recorded.load(RECORD)
        return report, f"recorded, not measured here: {_conditions(report)}"
    from kvzero.bench import gpu, timing

    chosen = [each for each in all_sets() if each.name.startswith(SHOWN) and each.num_ids >= 512]
    versions = {"torch": torch.__version__, "triton": triton.__version__}
    report = {
        "conditions": {"date": datetime.date.today().isoformat(), **versions, **timing.conditions()},
        "sets": gpu.measure_sets(chosen),
        "tiles": gpu.measure_tiles(),
        "host": gpu.measure_host(),
    }
    return report, f"measured now: {_conditions(report)}"


def _conditions(report: Mapping[str, Any]) -> str:
    facts = report["conditions"]
    return (
        f"one {facts['gpu']}, torch {facts['torch']}, Triton {facts['triton']}, CUDA {facts['cuda']}, "
        f"{facts['date']}, clocks {facts['clocks']}; device times are medians of CUDA-graph replays"
    )


def find_set(report: Mapping[str, Any], name: str) -> dict[str, Any]:
    """The largest set whose name starts with `name`.

    Raises:
        KvzeroError: the report has none.
    """
    found = [each for each in report["sets"] if each["name"].startswith(name)]
    if not found:
        raise KvzeroError(detail=f"the report of {report['conditions']['date']} has no set {name!r}")
    return max(found, key=lambda each: each["bytes"])


def memset_us(each: Mapping[str, Any]) -> float:
    """The yardstick of a set: the driver's memset of as many contiguous bytes, before and after, averaged."""
    return statistics.mean((each["us"]["driver memset"], each["us"]["driver memset again"]))


def in_memsets(each: Mapping[str, Any]) -> dict[str, float]:
    """How many times as long as the driver's memset each writer of a set took; writers without a time are left out."""
    us = {name: value for name, value in each["us"].items() if value and not name.startswith("driver")}
    us |= {name: era["us"] for name, era in each["eras"].items() if "us" in era}
    return {name: value / memset_us(each) for name, value in us.items()}


def rates(report: Mapping[str, Any]) -> Rates:
    """The two limits: the memset's bytes on the mixed pages, and the programs of kvzero's kernel with short tiles."""
    each, shortest = find_set(report, MIXED), report["tiles"]["rows"][0]
    return Rates(each["bytes"] / memset_us(each), shortest["programs"] / shortest["us"])


def times_written(plan: Plan) -> list[tuple[int, int, int]]:
    """How often a plan writes each byte of block 0 of its first storage: rows of (first byte, end, times).

    Example: a plan that is a proof writes each byte once.
        >>> from kvzero.workbook.toy import make_geometry
        >>> from kvzero import plan_segments
        >>> times_written(plan_segments(make_geometry(layers=2, heads=2, order="BHLNC")))
        [(0, 128, 1)]
    """
    ranges = plan.ranges([0])[plan.storages[0].id]
    edges = np.unique(ranges)
    rises = np.zeros(len(edges), dtype=np.int64)
    for column, sign in enumerate((1, -1)):
        np.add.at(rises, np.searchsorted(edges, ranges[:, column]), sign)
    times = np.cumsum(rises)
    return [
        (int(start), int(end), int(count))
        for start, end, count in zip(edges[:-1], edges[1:], times[:-1], strict=True)
        if count
    ]


def corners(rows: list[tuple[int, int, int]]) -> list[tuple[int, int]]:
    """`times_written` as the corners of a line."""
    return [corner for start, end, times in rows for corner in ((start, times), (end, times))]


def ptx_stores(function: Callable, types: Sequence[str], constants: Sequence[object]) -> list[str]:
    """Compile a kernel for an H200, which need not be here, and return its stores to memory as the PTX has them.

    Args:
        function: the plain function of a kernel, as `kernel_on` decorates it; its last parameters are constants.
        types: Triton's names of the types of its first parameters, such as "*i64"; pointers are aligned to 16 bytes.
        constants: values of its last parameters.

    Returns:
        The lines of the PTX that store to global memory, in order.
    """
    kernel = kernel_on("cuda")(function).jit
    names = kernel.arg_names
    signature = dict(zip(names, [*types, *["constexpr"] * len(constants)], strict=True))
    values = dict(zip(names[len(types) :], constants, strict=True))
    # Tensors start at multiples of 16 bytes, and Triton tells the compiler so at a launch.
    aligned = {(index,): [["tt.divisibility", 16]] for index, kind in enumerate(types) if kind.startswith("*")}
    source = ASTSource(kernel, signature, values, aligned)
    compiled = triton.compile(source, target=GPUTarget("cuda", 90, 32), options={"num_warps": 1, **NO_FLOATS})
    return [line.strip() for line in compiled.asm["ptx"].splitlines() if "st.global" in line]
