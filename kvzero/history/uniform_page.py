"""The first planner (#35219 to #49704): one page size for all layers, the block stride taken for the page.

What it did, as far as the threads tell: it reads "bytes per block" from the stride of the block dimension,
multiplies by the kernel blocks of a block, asserts that this page is the same for every layer, and zeroes
`page` bytes at `base + block * page`. Outer dimensions are unrolled only where they stand before the block
dimension and their stride exceeds the block's. The launch is one flat grid; the chunk is the largest power of
two, up to 1,024 words, that divides the page.

Right for blocks outermost and for K/V outermost. It refuses mixed pages (#49696). In a packed slab the stride
covers all layers, so it wipes the start of the next block and runs past the last one (#50276), and the
assertion passes, since all strides are equal. Heads outside the block (LHBNC) are missed but for the first.

The layers are those of July: specs of full attention, latent kind included (#37530 tells that the first
version took plain full attention only).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
import triton.language as tl

from kvzero.errors import NonUniformPagesError
from kvzero.history import parts
from kvzero.history.contract import MustDo, clean
from kvzero.layout.geometry import CacheGeometry
from kvzero.layout.records import Name, Segment
from kvzero.plan.planner import Plan
from kvzero.zero.kernel import NO_FLOATS, jit_both

NAME = "uniform-page"
ERA = "#35219 to #49704"


def plan(geometry: CacheGeometry, *, layers=None, groups=None) -> Plan:
    """Plan as this version did.

    Args:
        geometry: the pool.
        layers, groups: as in `CacheGeometry.select`; by default the full-attention layers.

    Raises:
        NonUniformPagesError: two layers have different block strides.
        WordAlignmentError: a stride is not a multiple of 4 bytes.

    Example: in a slab of four layers each span is the stride of the slab, four pages wide.
        >>> from kvzero.history import named
        >>> plan(named.geometry("packed-slab-51288")).segments[1]
        Segment(storage='slab', base_bytes=37440, block_stride_bytes=149760, span_bytes=149760)
    """
    views = parts.views_of_the_time(geometry, layers, groups, parts.FULL_ATTENTION_KINDS)
    segments, first, first_page_bytes = [], None, 0
    for view in views:
        parts.require_words(
            NAME, geometry, view, address_bytes=view.byte_offset,
            block_stride_bytes=parts.kernel_block_stride_bytes(view),
        )  # fmt: skip
        page_bytes = view.block_stride_bytes
        if first is None:
            first, first_page_bytes = view, page_bytes
        if page_bytes != first_page_bytes:
            raise NonUniformPagesError(
                where=geometry.where, first_layer=first.name, first_page_words=first_page_bytes // 4,
                layer=view.name, page_words=page_bytes // 4,
            )  # fmt: skip
        for offset_bytes in parts.outer_offsets_bytes(view):
            segments.append(Segment(view.storage, view.byte_offset + offset_bytes, page_bytes, page_bytes))
    return parts.unproven_plan(NAME, geometry, segments, layers, groups)


launch = parts.flat_launch


def zero_uniform(
    addresses,  # *int64 (segments,): where each segment's block 0 starts
    ids,  # *int64 (ids,): block ids
    num_ids,  # int: without an annotation, as upstream: Triton may specialise it
    SEGMENTS: tl.constexpr,
    PAGE_WORDS: tl.constexpr,  # words of every page, and words from one block to the next
    CHUNK_WORDS: tl.constexpr,  # divides the page
):
    program = tl.program_id(0)
    chunks = PAGE_WORDS // CHUNK_WORDS
    which = program // (SEGMENTS * chunks)
    if which < num_ids:
        rest = program % (SEGMENTS * chunks)
        block = tl.load(ids + which)
        words = tl.load(addresses + rest // chunks).to(tl.pointer_type(tl.int32))
        start = block * PAGE_WORDS + (rest % chunks).to(tl.int64) * CHUNK_WORDS
        tl.store(words + start + tl.arange(0, CHUNK_WORDS), 0)


_compiled, _interpreted = jit_both(zero_uniform)


def write(plan: Plan, storages: Mapping[Name, torch.Tensor], block_ids: Sequence[int]) -> None:
    """Run this version's kernel on memory; nothing runs for a plan without segments.

    Args:
        plan: a plan of this module.
        storages: storage id to a uint8 tensor of shape (nbytes,), with room around it for a faulty write.
        block_ids: block ids, not checked.
    """
    if not plan.segments:
        return
    addresses, _, _, ids = parts.tables(plan, storages, block_ids)
    page_words = plan.segments[0].span_bytes // parts.WORD_BYTES
    kernel = _compiled if addresses.is_cuda else _interpreted
    kernel[launch(plan, len(block_ids)).grid](
        addresses, ids, len(block_ids), len(plan.segments), page_words, parts.common_chunk_words(plan), **NO_FLOATS
    )


MUST_DO = (
    MustDo("blocks-outermost", (1, 3), audit=clean(262_144), source="#35219, what it was made for"),
    MustDo("kv-outermost", (7,), audit=clean(65_536), source="#35219"),
    MustDo(
        "kv-outermost-one-block", (0,),
        audit={"missed_bytes": 32_768, "needed_bytes": 65_536, "stomped_bytes": 0},
        source="derived: V is never found where its stride equals the block stride",
    ),
    MustDo("odd-page", raises=parts.WordAlignmentError, facts={"value_bytes": 1_026}, source="derived"),
    MustDo("odd-kernel-blocks", raises=parts.WordAlignmentError, facts={"value_bytes": 1_026}),
    MustDo("qwen3next_528_fi16__LBNHC", (4,), audit=clean(12_976_128)),
    MustDo(
        "glm52_fp8_dsmla_indexer__LBNHC", raises=NonUniformPagesError,
        facts={"first_page_words": 10_496, "page_words": 2_112}, source="#49696",
    ),
    MustDo(
        "dsv32_bf16_mla_indexer__LBNHC", raises=NonUniformPagesError,
        facts={"first_page_words": 18_432, "page_words": 2_112}, source="#49746",
    ),
    MustDo(
        "packed-slab-51288", (99,),
        audit={"missed_bytes": 0, "stomped_bytes": 0, "pad_bytes": 256, "overrun_bytes": 112_320},
        source="#50276",
    ),
    MustDo(
        "packed-slab-51288", (98,),
        audit={"missed_bytes": 0, "stomped_bytes": 112_128, "pad_bytes": 448, "overrun_bytes": 0},
        source="#52709",
    ),
    MustDo(
        "dsv4_c4_mla_only__BLHNC", (3,),
        audit={"missed_bytes": 0, "stomped_bytes": 112_128, "pad_bytes": 448, "overrun_bytes": 0},
        source="#50276",
    ),
    MustDo(
        "dsv4_c4_mla_only__BLHNC", (15,),
        audit={"stomped_bytes": 0, "overrun_bytes": 112_320},
        source="#50276",
    ),
    MustDo("dsv4_c4_full__BLHNC", (3,), audit={"missed_bytes": 0, "stomped_bytes": 175_296}),
    MustDo("dsv4_c4_full__BLHNC", (15,), audit={"missed_bytes": 0, "overrun_bytes": 175_680}),
    MustDo("dsv32_fp8_dsmla_indexer__BLHNC", (2,), audit={"missed_bytes": 0, "stomped_bytes": 3_067_904}),
    MustDo("dsv32_fp8_dsmla_indexer__BLHNC", (5,), audit={"missed_bytes": 0, "overrun_bytes": 3_067_904}),
    MustDo(
        "llama3_8b_bf16__LHBNC", (2,),
        audit={"missed_bytes": 1_835_008, "needed_bytes": 2_097_152, "stomped_bytes": 0, "overrun_bytes": 0},
    ),
)  # fmt: skip
