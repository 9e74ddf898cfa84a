"""The planner of #49704 (to #50276): a page size per segment, the block stride still taken for the page.

#49696 was a crash: pages of 2,112 and 10,496 words. #49704 gave each segment its own page, and the launch one
chunk size for all: the smallest of the pages' power-of-two divisors, up to 1,024 words. That keeps every
store unmasked and drags the chunk of a mixed model down to the worst page's, 64 words for GLM-5.2 and 4 for
pages of 292 words; every segment gets as many chunk slots as the longest page, so short pages get empty
programs.

Stride and span are one number here too: packed slabs are wiped as by the uniform-page planner, and since that
one often refused them first, mixed slabs are wiped from here on.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
import triton.language as tl

from kvzero.history import parts
from kvzero.history.contract import MustDo, clean
from kvzero.layout.geometry import CacheGeometry
from kvzero.layout.records import Name, Segment
from kvzero.plan.planner import Plan
from kvzero.zero.kernel import NO_FLOATS, jit_both

NAME = "page-per-segment"
ERA = "#49704 to #50276"


def plan(geometry: CacheGeometry, *, layers=None, groups=None) -> Plan:
    """Plan as this version did.

    Args:
        geometry: the pool.
        layers, groups: as in `CacheGeometry.select`; by default the full-attention layers.

    Raises:
        WordAlignmentError: a stride is not a multiple of 4 bytes.

    Example:
        >>> from kvzero.history import named
        >>> glm = plan(named.geometry("glm52_fp8_dsmla_indexer__LBNHC"))
        >>> sorted({segment.span_bytes // 4 for segment in glm.segments}), launch(glm, 1).tile_bytes // 4
        ([2112, 10496], 64)
    """
    segments = []
    for view in parts.views_of_the_time(geometry, layers, groups, parts.FULL_ATTENTION_KINDS):
        parts.require_words(
            NAME, geometry, view, address_bytes=view.byte_offset,
            block_stride_bytes=parts.kernel_block_stride_bytes(view),
        )  # fmt: skip
        page_bytes = view.block_stride_bytes
        for offset_bytes in parts.outer_offsets_bytes(view):
            segments.append(Segment(view.storage, view.byte_offset + offset_bytes, page_bytes, page_bytes))
    return parts.unproven_plan(NAME, geometry, segments, layers, groups)


launch = parts.flat_launch


def _zero_pages(
    addresses,  # *int64 (segments,): where each segment's block 0 starts
    pages,  # *int64 (segments,): words of the segment's page, and words from one block to the next
    ids,  # *int64 (ids,): block ids
    num_ids: tl.int64,
    SEGMENTS: tl.constexpr,
    MAX_CHUNKS: tl.constexpr,  # chunks of the longest page
    CHUNK_WORDS: tl.constexpr,  # divides every page
):
    program = tl.program_id(0)
    which = program // (SEGMENTS * MAX_CHUNKS)
    if which < num_ids:
        rest = program % (SEGMENTS * MAX_CHUNKS)
        segment = rest // MAX_CHUNKS
        chunk = rest % MAX_CHUNKS
        page_words = tl.load(pages + segment)
        if chunk < page_words // CHUNK_WORDS:
            words = tl.load(addresses + segment).to(tl.pointer_type(tl.int32))
            start = tl.load(ids + which) * page_words + chunk.to(tl.int64) * CHUNK_WORDS
            tl.store(words + start + tl.arange(0, CHUNK_WORDS), 0)


_compiled, _interpreted = jit_both(_zero_pages)


def write(plan: Plan, storages: Mapping[Name, torch.Tensor], block_ids: Sequence[int]) -> None:
    """Run this version's kernel on memory; nothing runs for a plan without segments.

    Args:
        plan: a plan of this module.
        storages: storage id to a uint8 tensor of shape (nbytes,), with room around it for a faulty write.
        block_ids: block ids, not checked.
    """
    if not plan.segments:
        return
    addresses, pages, _, ids = parts.tables(plan, storages, block_ids)
    chunk_words = parts.common_chunk_words(plan)
    max_chunks = max(parts.spans_words(plan)) // chunk_words
    kernel = _compiled if addresses.is_cuda else _interpreted
    kernel[launch(plan, len(block_ids)).grid](
        addresses, pages, ids, len(block_ids), len(plan.segments), max_chunks, chunk_words, **NO_FLOATS
    )


MUST_DO = (
    MustDo("blocks-outermost", (1, 3), audit=clean(262_144)),
    MustDo("glm52_fp8_dsmla_indexer__LBNHC", (2,), audit=clean(3_443_712), source="#49704"),
    MustDo("dsv32_bf16_mla_indexer__LBNHC", (2,), audit=clean(5_012_736), source="#49704"),
    MustDo(
        "glm52_fp8_dsmla_indexer__LBNHC", num_ids=1,
        launch={"tile_bytes": 256, "programs": 16_072, "empty_programs_per_block": 2_620},
        source="derived: 98 segments x 164 chunks of 64 words, where 11 and 3 masked ones would do",
    ),
    MustDo("packed-slab-51288", (99,), audit={"missed_bytes": 0, "overrun_bytes": 112_320}, source="#50276"),
    MustDo("packed-slab-51288", (98,), audit={"missed_bytes": 0, "stomped_bytes": 112_128}, source="#52709"),
    MustDo("dsv4_c4_full__BLHNC", (3,), audit={"missed_bytes": 0, "stomped_bytes": 175_296}),
    MustDo("dsv4_c4_full__BLHNC", (15,), audit={"missed_bytes": 0, "overrun_bytes": 175_680}),
    MustDo("dsv32_fp8_dsmla_indexer__BLHNC", (2,), audit={"missed_bytes": 0, "stomped_bytes": 3_067_904}),
    MustDo("llama3_8b_bf16__LHBNC", (2,), audit={"missed_bytes": 1_835_008, "stomped_bytes": 0}),
    MustDo("odd-page", raises=parts.WordAlignmentError, facts={"value_bytes": 1_026}),
    MustDo("odd-kernel-blocks", raises=parts.WordAlignmentError, facts={"value_bytes": 1_026}),
    MustDo("qwen3next_528_fi16__LBNHC", (4,), audit=clean(12_976_128)),
)  # fmt: skip
