"""The planner of #50276 (to #52058): stride and span apart; the span is the extent of the inner dimensions.

The distance between blocks comes from the block dimension, the span from all dimensions that are neither the
block's nor unrolled: last byte minus first, plus one element. Kernel blocks of a block become segments of
their own. Packed slabs come out right.

The span is the full extent of a view, holes included: heads outside the block (LHBNC) give a span over many
blocks, and interleaved layers (BHLNC) are written once by each layer. Nothing is held against the storage's
end. The launch is still the flat grid with one chunk for all, which overflowed once short pages joined
(#52058).

The layers are those before #51749: full attention only, so overlaid groups lose bytes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
import triton.language as tl

from kvzero.errors import GridOverflowError
from kvzero.history import parts
from kvzero.history.contract import MustDo, clean
from kvzero.layout.geometry import CacheGeometry
from kvzero.layout.records import LayerView, Name, Segment
from kvzero.plan.planner import Plan
from kvzero.zero.kernel import NO_FLOATS, jit_both

NAME = "stride-and-span"
ERA = "#50276 to #52058"


def plan(geometry: CacheGeometry, *, layers=None, groups=None) -> Plan:
    """Plan as this version did.

    Args:
        geometry: the pool.
        layers, groups: as in `CacheGeometry.select`; by default the full-attention layers.

    Raises:
        WordAlignmentError: a stride or a span is not a multiple of 4 bytes.

    Example:
        >>> from kvzero.history import named
        >>> plan(named.geometry("packed-slab-51288")).segments[1]
        Segment(storage='slab', base_bytes=37440, block_stride_bytes=149760, span_bytes=37376)
    """
    views = parts.views_of_the_time(geometry, layers, groups, parts.FULL_ATTENTION_KINDS)
    return parts.unproven_plan(NAME, geometry, extent_segments(NAME, geometry, views), layers, groups)


def extent_segments(planner: str, geometry: CacheGeometry, views: Sequence[LayerView]) -> list[Segment]:
    """One segment per view, outer index and kernel block, spanning the whole extent of the inner dimensions."""
    segments = []
    for view in views:
        step_bytes = parts.kernel_block_stride_bytes(view)
        outer = set(parts.outer_dims(view))
        inner = [dim for dim in range(len(view.shape)) if dim != view.block_dim and dim not in outer]
        last = sum((view.shape[dim] - 1) * view.stride[dim] for dim in inner)
        span_bytes = (last + 1) * view.itemsize
        parts.require_words(
            planner, geometry, view,
            address_bytes=view.byte_offset, block_stride_bytes=step_bytes, span_bytes=span_bytes,
        )  # fmt: skip
        for offset_bytes in parts.outer_offsets_bytes(view):
            for kernel_block in range(view.kernel_blocks_per_block):
                base_bytes = view.byte_offset + offset_bytes + kernel_block * step_bytes
                segments.append(Segment(view.storage, base_bytes, view.block_stride_bytes, span_bytes))
    return segments


launch = parts.flat_launch


def _zero_spans(
    addresses,  # *int64 (segments,): where each segment's block 0 starts
    strides,  # *int64 (segments,): words from one block to the next
    spans,  # *int64 (segments,): words to clear in a block
    ids,  # *int64 (ids,): block ids
    num_ids: tl.int64,
    SEGMENTS: tl.constexpr,
    MAX_CHUNKS: tl.constexpr,  # chunks of the longest span
    CHUNK_WORDS: tl.constexpr,  # divides every span
):
    program = tl.program_id(0)
    which = program // (SEGMENTS * MAX_CHUNKS)
    if which < num_ids:
        rest = program % (SEGMENTS * MAX_CHUNKS)
        segment = rest // MAX_CHUNKS
        chunk = rest % MAX_CHUNKS
        if chunk < tl.load(spans + segment) // CHUNK_WORDS:
            words = tl.load(addresses + segment).to(tl.pointer_type(tl.int32))
            start = tl.load(ids + which) * tl.load(strides + segment) + chunk.to(tl.int64) * CHUNK_WORDS
            tl.store(words + start + tl.arange(0, CHUNK_WORDS), 0)


_compiled, _interpreted = jit_both(_zero_spans)


def write(plan: Plan, storages: Mapping[Name, torch.Tensor], block_ids: Sequence[int]) -> None:
    """Run this version's kernel on memory; nothing runs for a plan without segments.

    Args:
        plan: a plan of this module.
        storages: storage id to a uint8 tensor of shape (nbytes,), with room around it for a faulty write.
        block_ids: block ids, not checked.
    """
    if not plan.segments:
        return
    addresses, strides, spans, ids = parts.tables(plan, storages, block_ids)
    chunk_words = parts.common_chunk_words(plan)
    max_chunks = max(parts.spans_words(plan)) // chunk_words
    kernel = _compiled if addresses.is_cuda else _interpreted
    kernel[launch(plan, len(block_ids)).grid](
        addresses, strides, spans, ids, len(block_ids), len(plan.segments), max_chunks, chunk_words, **NO_FLOATS
    )


MUST_DO = (
    MustDo("packed-slab-51288", (99,), audit=clean(149_504), source="#51288"),
    MustDo("packed-slab-51288", (98,), audit=clean(149_504), source="#51288"),
    MustDo("dsv4_c4_mla_only__BLHNC", (15,), audit=clean(149_504), source="#50276"),
    MustDo("glm52_fp8_dsmla_indexer__LBNHC", (2,), audit=clean(3_443_712)),
    MustDo("dsv32_fp8_dsmla_indexer__BLHNC", (5,), audit=clean(3_076_352)),
    MustDo(
        "dsv4_c4_full__BLHNC", (3,), audit={"missed_bytes": 448, "stomped_bytes": 0, "overrun_bytes": 0},
        source="derived: pad of the latent layers that overlaid state caches own",
    ),
    MustDo(
        "llama3_8b_bf16__LHBNC", (0,),
        audit={"missed_bytes": 0, "stomped_bytes": 12_845_056, "overrun_bytes": 0},
    ),
    MustDo("gptoss_18sw_18full__LHBNC", (0,), audit={"stomped_bytes": 3_612_672, "overrun_bytes": 0}),
    MustDo(
        "launch-overflow-52058", num_ids=6_870, raises=GridOverflowError,
        facts={"programs": 2_904_745_920, "chunks": 2_336, "segments": 181}, source="#52058",
    ),
    MustDo("odd-page", raises=parts.WordAlignmentError, facts={"value_bytes": 1_026}),
)  # fmt: skip
