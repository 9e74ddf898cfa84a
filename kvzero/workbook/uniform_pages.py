"""What the notebook about the uniform-page assertion experiments with: the planner without it, and the rival fixes."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import torch

from kvzero.history import masked_grid, page_per_segment, parts, uniform_page
from kvzero.layout.geometry import CacheGeometry
from kvzero.layout.records import Name, Segment
from kvzero.plan.planner import Plan
from kvzero.zero.tiles import Launch
from kvzero.zero.zeroer import BlockZeroer


def without_the_assertion(geometry: CacheGeometry, page_bytes: int) -> Plan:
    """What the uniform-page planner (#35219) would have planned if its assertion were deleted.

    Args:
        geometry: layers apart, views of one page each (no outer dimensions, no kernel blocks).
        page_bytes: the one page size that all layers then share; the era took the first layer's.

    Returns:
        An unproven plan; `uniform_page.write` runs it.

    Example: the indexer of a pair, planned with the page of the other layer.
        >>> from kvzero.workbook.toy import make_geometry
        >>> pair = make_geometry(layers=2, num_blocks=6, tokens=64, heads=1, content=[656, 132])
        >>> without_the_assertion(pair, 41_984).segments[1]
        Segment(storage=0, base_bytes=251904, block_stride_bytes=41984, span_bytes=41984)
    """
    segments = [Segment(view.storage, view.byte_offset, page_bytes, page_bytes) for view in geometry.select()]
    return parts.unproven_plan("no-assertion", geometry, segments, None, None)


def buckets(plan: Plan) -> list[Plan]:
    """The fix of #49746 (our reconstruction): the segments sorted into one uniform-page plan per page size.

    Args:
        plan: a plan of "page-per-segment".
    """
    sizes = sorted({segment.span_bytes for segment in plan.segments}, reverse=True)
    return [
        replace(
            plan, planner="uniform-page", segments=tuple(s for s in plan.segments if s.span_bytes == size)
        )
        for size in sizes
    ]  # fmt: skip


def bucket_launch(plan: Plan, num_ids: int) -> Launch:
    """The launches of all buckets as one record: their number, and the programs of all.

    Args:
        plan: a plan of "page-per-segment".
        num_ids: block ids of the call.
    """
    each = [uniform_page.launch(bucket, num_ids) for bucket in buckets(plan)]
    return Launch(
        tile_bytes=max(launch.tile_bytes for launch in each),
        store_width_bytes=parts.WORD_BYTES,
        programs_per_block=sum(launch.programs_per_block for launch in each),
        empty_programs_per_block=sum(launch.empty_programs_per_block for launch in each),
        num_ids=num_ids,
        programs=sum(launch.programs for launch in each),
        launches=len(each),
        grid=max(launch.grid for launch in each),
    )


def write_buckets(plan: Plan, storages: Mapping[Name, torch.Tensor], block_ids: Sequence[int]) -> None:
    """Run the first era's kernel once for each page size, as #49746 did; arguments as in the specimens."""
    for bucket in buckets(plan):
        uniform_page.write(bucket, storages, block_ids)


def kernel_microseconds(run: Callable[[], None], prepare: Callable[[], None] | None = None, repeats: int = 10) -> float:
    """The time of a call on the GPU, less the time of what it prepares: the best of three rounds.

    Args:
        run: launches on the current stream.
        prepare: the part of `run` that is not to count, run alone; None if nothing is to be taken off.
        repeats: calls in a round.
    """

    def best(call: Callable[[], None]) -> float:
        rounds = []
        for _ in range(3):
            torch.cuda.synchronize()
            start = time.perf_counter()
            for _ in range(repeats):
                call()
            torch.cuda.synchronize()
            rounds.append((time.perf_counter() - start) / repeats * 1e6)
        return min(rounds)

    run()
    return best(run) - (best(prepare) if prepare else 0.0)


def measure_mixed_pages(geometry: CacheGeometry, proven: Plan, block_ids: Sequence[int]) -> dict[str, float]:
    """Microseconds that each kernel takes for these blocks on the GPU, and `Tensor.zero_` for as many bytes.

    Args:
        geometry: layers apart; its storages are allocated on the GPU for the measurement.
        proven: the plan of `plan_segments`.
        block_ids: block ids.

    Returns:
        "zero_", "page-per-segment", "bucketed", "masked-grid" and "kvzero" to microseconds.
    """
    storages = {s.id: torch.empty(s.nbytes, dtype=torch.uint8, device="cuda") for s in geometry.storages}
    old, masked = page_per_segment.plan(geometry), masked_grid.plan(geometry)
    flat = torch.empty(proven.bytes_per_block * len(block_ids), dtype=torch.uint8, device="cuda")
    found = {"zero_": kernel_microseconds(flat.zero_)}
    del flat
    specimens = {
        "page-per-segment": (page_per_segment.write, [old], old),
        "bucketed": (write_buckets, buckets(old), old),
        "masked-grid": (masked_grid.write, [masked], masked),
    }
    for name, (write, tabled, plan) in specimens.items():
        found[name] = kernel_microseconds(
            lambda write=write, plan=plan: write(plan, storages, block_ids),
            lambda tabled=tabled: [parts.tables(part, storages, block_ids) for part in tabled],
        )
    zeroer = BlockZeroer(proven, storages)
    ids = torch.tensor(block_ids, device="cuda")
    found["kvzero"] = kernel_microseconds(lambda: zeroer.zero(ids))
    zeroer.check()
    return found
