"""The planner and launch of #52058 (to #51718): a 3-D grid of masked 1,024-word chunks, all attention layers.

#51749 zeroed every attention spec, #52058 a day later repaired the launch that this overflowed: ids, segments
and chunks each get a grid dimension, every chunk is 1,024 words, and the last one is masked. 2.9 billion
programs become 12.4 million. The planning is still that of #50276, so heads outside the block still wipe
other blocks; short pages still get as many chunk slots as the longest, so on mixed pages nearly half of the
programs are empty.

Of views that start at one address the first still wins, so a wider one that is overlaid on it loses its end;
#51718 keeps the widest.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
import triton.language as tl

from kvzero.errors import GridOverflowError
from kvzero.history import parts
from kvzero.history.contract import MustDo, clean
from kvzero.history.stride_and_span import extent_segments
from kvzero.layout.geometry import CacheGeometry
from kvzero.layout.records import Name
from kvzero.plan.planner import Plan
from kvzero.zero.kernel import NO_FLOATS, jit_both
from kvzero.zero.tiles import CUDA, DeviceLimits, Launch

NAME = "masked-grid"
ERA = "#52058 to #51718"
CHUNK_WORDS = 1024
# CUDA C++ Programming Guide, "Technical Specifications per Compute Capability": y and z.
MAX_GRID_YZ = 65_535


def plan(geometry: CacheGeometry, *, layers=None, groups=None) -> Plan:
    """Plan as this version did.

    Args:
        geometry: the pool.
        layers, groups: as in `CacheGeometry.select`; by default every attention layer.

    Raises:
        WordAlignmentError: a stride or a span is not a multiple of 4 bytes.

    Example:
        >>> from kvzero.history import named
        >>> launch(plan(named.geometry("launch-overflow-52058"))).grid
        (6870, 181, 10)
    """
    views = parts.views_of_the_time(geometry, layers, groups, kinds=None)
    return parts.unproven_plan(NAME, geometry, extent_segments(NAME, geometry, views), layers, groups)


def launch(plan: Plan, num_ids: int | None = None, limits: DeviceLimits | None = CUDA) -> Launch:
    """The 3-D grid of this version: (ids, segments, chunks of the longest span).

    Args:
        plan: a plan of this module.
        num_ids: block ids of the call; None means every block.
        limits: limits to hold it against; None only counts.

    Raises:
        GridOverflowError: a grid dimension, or the product on a device that counts it, is beyond the limit.
    """
    num_ids = plan.num_blocks if num_ids is None else num_ids
    chunks = [-(-words // CHUNK_WORDS) for words in parts.spans_words(plan)]
    grid = (num_ids, len(chunks), max(chunks))
    programs = grid[0] * grid[1] * grid[2]
    if limits is not None:
        # A device that counts work items counts the product; one with a grid limit counts each dimension.
        whole = limits.max_work_items is not None
        axes = (
            ("grid" if whole else "first dimension", programs if whole else num_ids, limits.max_programs),
            ("second dimension", grid[1], MAX_GRID_YZ),
            ("third dimension", grid[2], MAX_GRID_YZ),
        )
        for axis, axis_programs, limit_programs in axes:
            if axis_programs > limit_programs:
                raise GridOverflowError(
                    where=plan.name, planner=plan.planner, programs=programs, limit_programs=limit_programs,
                    axis=axis, axis_programs=axis_programs, device=limits.name, num_ids=num_ids, segments=grid[1],
                    chunks=grid[2],
                )  # fmt: skip
    return Launch(
        tile_bytes=CHUNK_WORDS * parts.WORD_BYTES,
        store_width_bytes=parts.WORD_BYTES,
        programs_per_block=grid[1] * grid[2],
        empty_programs_per_block=grid[1] * grid[2] - sum(chunks),
        num_ids=num_ids,
        programs=programs,
        launches=1,
        grid=grid,
    )


def _zero_masked(
    addresses,  # *int64 (segments,): where each segment's block 0 starts
    strides,  # *int64 (segments,): words from one block to the next
    spans,  # *int64 (segments,): words to clear in a block
    ids,  # *int64 (ids,): block ids
    CHUNK: tl.constexpr,
):
    segment = tl.program_id(1)
    first = tl.program_id(2).to(tl.int64) * CHUNK
    span_words = tl.load(spans + segment)
    if first < span_words:
        words = tl.load(addresses + segment).to(tl.pointer_type(tl.int32))
        start = tl.load(ids + tl.program_id(0)) * tl.load(strides + segment)
        lane = first + tl.arange(0, CHUNK)
        tl.store(words + start + lane, 0, mask=lane < span_words)


_compiled, _interpreted = jit_both(_zero_masked)


def write(plan: Plan, storages: Mapping[Name, torch.Tensor], block_ids: Sequence[int]) -> None:
    """Run this version's kernel on memory.

    Args:
        plan: a plan of this module, or of `engine`.
        storages: storage id to a uint8 tensor of shape (nbytes,), with room around it for a faulty write.
        block_ids: block ids, not checked.
    """
    addresses, strides, spans, ids = parts.tables(plan, storages, block_ids)
    kernel = _compiled if addresses.is_cuda else _interpreted
    kernel[launch(plan, len(block_ids)).grid](addresses, strides, spans, ids, CHUNK_WORDS, **NO_FLOATS)


MUST_DO = (
    MustDo("packed-slab-51288", (99,), audit=clean(149_504)),
    MustDo(
        "launch-overflow-52058", num_ids=6_870,
        launch={"grid": (6_870, 181, 10), "programs": 12_434_700, "empty_programs_per_block": 810},
        source="#52058",
    ),
    MustDo("dsv4_c4_full__BLHNC", (3,), audit={"missed_bytes": 0, "stomped_bytes": 0, "overrun_bytes": 0}),
    MustDo(
        "overlaid", (2,), audit={"missed_bytes": 32_768, "stomped_bytes": 0, "needed_bytes": 65_536},
        source="derived: the first view of an address is not the widest",
    ),
    MustDo("llama3_8b_bf16__LHBNC", (0,), audit={"missed_bytes": 0, "stomped_bytes": 12_845_056}),
)  # fmt: skip
