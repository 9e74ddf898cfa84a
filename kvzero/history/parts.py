"""Arithmetic that several old planners share: which layers, which outer dimensions, words, chunks, tables."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import product

import torch

from kvzero.errors import GridOverflowError, WordAlignmentError
from kvzero.layout.geometry import CacheGeometry
from kvzero.layout.intervals import total
from kvzero.layout.ownership import needed_ranges
from kvzero.layout.records import LayerView, Name, Segment
from kvzero.plan.planner import Plan
from kvzero.zero.tiles import CUDA, DeviceLimits, Launch

WORD_BYTES = 4
MAX_CHUNK_WORDS = 1024
# Until #51749 only specs of full attention (the latent, MLA, kind among them) were zeroed; a file that names
# no kind is taken as full attention.
FULL_ATTENTION_KINDS = ("full_attention", "mla_attention", "")


def views_of_the_time(geometry: CacheGeometry, layers, groups, kinds: Sequence[str] | None) -> tuple[LayerView, ...]:
    """Return the views that an old planner zeroed: those asked for by name, else the zeroed ones of its spec kinds.

    A view that starts where an earlier one starts is dropped: every version kept a set of seen addresses. Keeping
    the first, not the widest, lost bytes of overlaid groups until #51718.
    """
    selected = geometry.select(layers, groups)
    if layers is None and kinds is not None:
        selected = tuple(view for view in selected if view.spec_kind in kinds)
    seen: dict[tuple[Name, int], LayerView] = {}
    for view in selected:
        seen.setdefault((view.storage, view.byte_offset), view)
    return tuple(seen.values())


def kernel_block_stride_bytes(view: LayerView) -> int:
    """Bytes between neighbours in the block dimension, whatever part of a block they are."""
    return view.stride[view.block_dim] * view.itemsize


def outer_dims(view: LayerView) -> list[int]:
    """The dimensions that the old planners unrolled: those before the block dimension, with a larger stride.

    Heads outside the block but after the block dimension (LHBNC) are not found, and with a single block a K/V
    dimension has a stride equal to the block's and is not found either.
    """
    limit = view.stride[view.block_dim]
    return [dim for dim in range(view.block_dim) if view.stride[dim] > limit]


def outer_offsets_bytes(view: LayerView) -> list[int]:
    """Where each combination of the outer dimensions starts, in bytes from the view's start."""
    dims = outer_dims(view)
    return [
        sum(index * view.stride[dim] * view.itemsize for index, dim in zip(indices, dims, strict=True))
        for indices in product(*(range(view.shape[dim]) for dim in dims))
    ]


def require_words(planner: str, geometry: CacheGeometry, view: LayerView, **sizes_bytes: int) -> None:
    """Raise WordAlignmentError for the first size that is not a multiple of 4 bytes."""
    for what, value_bytes in sizes_bytes.items():
        if value_bytes % WORD_BYTES:
            raise WordAlignmentError(
                where=geometry.where, planner=planner, layer=view.name,
                what=what.removesuffix("_bytes").replace("_", " "), value_bytes=value_bytes,
            )  # fmt: skip


def unproven_plan(planner: str, geometry: CacheGeometry, segments: Iterable[Segment], layers, groups) -> Plan:
    """A plan as an old planner left it, unchecked; what it needs is today's selection, not that of its time."""
    needed = needed_ranges(geometry.select(layers, groups), [0])
    return Plan(
        planner=planner,
        name=geometry.name,
        num_blocks=geometry.num_blocks,
        storages=geometry.storages,
        segments=tuple(segments),
        needed_bytes_per_block=sum(total(ranges) for ranges in needed.values()),
    )


def spans_words(plan: Plan) -> list[int]:
    """The span of each segment, in 4-byte words."""
    return [segment.span_bytes // WORD_BYTES for segment in plan.segments]


def common_chunk_words(plan: Plan) -> int:
    """The largest power of two, up to 1,024 words, that divides every page: the chunk before #52058."""
    bits = MAX_CHUNK_WORDS
    for words in spans_words(plan):
        bits |= words
    return bits & -bits


def flat_launch(plan: Plan, num_ids: int | None = None, limits: DeviceLimits | None = CUDA) -> Launch:
    """The flat grid of the first three versions: one program per (id, segment, chunk).

    Each segment gets as many chunks as the longest one has.

    Args:
        plan: an old planner's plan; one that zeroes no layer of the cache needs no program.
        num_ids: block ids of the call; None means every block.
        limits: limits to hold it against; None only counts.

    Raises:
        GridOverflowError: more programs than one flat grid may hold.
    """
    num_ids = plan.num_blocks if num_ids is None else num_ids
    chunk_words = common_chunk_words(plan)
    chunks = [words // chunk_words for words in spans_words(plan)]
    most_chunks = max(chunks, default=0)
    per_block = len(chunks) * most_chunks
    programs = num_ids * per_block
    if limits is not None and programs > limits.max_programs:
        raise GridOverflowError(
            where=plan.name, planner=plan.planner, programs=programs, axis="grid", axis_programs=programs,
            limit_programs=limits.max_programs, device=limits.name, num_ids=num_ids,
            segments=len(chunks), chunks=most_chunks,
        )  # fmt: skip
    return Launch(
        tile_bytes=chunk_words * WORD_BYTES,
        store_width_bytes=WORD_BYTES,
        programs_per_block=per_block,
        empty_programs_per_block=per_block - sum(chunks),
        num_ids=num_ids,
        programs=programs,
        launches=min(programs, 1),
        grid=(programs, 1, 1),
    )


def tables(plan: Plan, storages: Mapping[Name, torch.Tensor], block_ids: Sequence[int]):
    """What the old kernels read: int64 tensors of addresses, strides (words), spans (words) and ids."""
    for index, segment in enumerate(plan.segments):  # the engine's own segments come unchecked
        sizes = {"base": segment.base_bytes, "block stride": segment.block_stride_bytes, "span": segment.span_bytes}
        for what, value_bytes in sizes.items():
            if value_bytes % WORD_BYTES:
                raise WordAlignmentError(
                    where=plan.name, planner=plan.planner, layer=f"(segment {index})", what=what,
                    value_bytes=value_bytes,
                )  # fmt: skip
    device = next(iter(storages.values())).device
    columns = (
        [storages[segment.storage].data_ptr() + segment.base_bytes for segment in plan.segments],
        [segment.block_stride_bytes // WORD_BYTES for segment in plan.segments],
        spans_words(plan),
        list(block_ids),
    )
    return tuple(torch.tensor(column, dtype=torch.int64, device=device) for column in columns)
