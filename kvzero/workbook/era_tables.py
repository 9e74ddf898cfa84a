"""The segment table that each era's planner handed to others: a bare tuple whose length is its only type.

Four fields until #49704, five until #50276, six since. Whoever unpacked it broke when it grew; whoever read it by
position could take one number for another. Our reconstruction of the shapes, from the threads of #49704, #50276
and #51288; addresses are offsets in the storage here.
"""

from __future__ import annotations

from dataclasses import dataclass

from kvzero.history import parts
from kvzero.plan.planner import Plan

Table = tuple[object, ...]


@dataclass(frozen=True)
class Row:
    """One segment as a table states it: where block 0 starts, how far blocks are apart, how much is cleared."""

    base_bytes: int
    block_stride_bytes: int
    span_bytes: int


class UnknownTableError(ValueError):
    """A table has a number of fields that no era had."""


def table_of(plan: Plan) -> Table:
    """The table that the planner of this plan's era handed out; sizes in words of 4 bytes.

    Args:
        plan: a plan of "uniform-page" (addresses, page, chunk, count), "page-per-segment" (addresses, pages,
            most chunks, chunk, count), or of any other planner (addresses, strides, spans, most chunks, chunk,
            count).

    Example:
        >>> from kvzero.history import named, uniform_page
        >>> table_of(uniform_page.plan(named.geometry("packed-slab-51288")))
        ([0, 37440, 74880, 112320], 37440, 64, 4)
    """
    addresses = [segment.base_bytes for segment in plan.segments]
    spans = parts.spans_words(plan)
    strides = [segment.block_stride_bytes // parts.WORD_BYTES for segment in plan.segments]
    chunk = parts.common_chunk_words(plan)
    if plan.planner == "uniform-page":
        return addresses, spans[0], chunk, len(addresses)
    if plan.planner == "page-per-segment":
        return addresses, spans, max(spans) // chunk, chunk, len(addresses)
    return addresses, strides, spans, max(spans) // chunk, chunk, len(addresses)


def read_table(table: Table) -> list[Row]:
    """What any era's table says, in one form; an old table has no stride of its own, so its page is both.

    Raises:
        UnknownTableError: neither four, five nor six fields.

    Example:
        >>> read_table(([0, 37440], [37440, 37440], [9344, 9344], 292, 32, 2))[1]
        Row(base_bytes=37440, block_stride_bytes=149760, span_bytes=37376)
        >>> read_table(([0, 37440], 37440, 64, 2))[1]
        Row(base_bytes=37440, block_stride_bytes=149760, span_bytes=149760)
    """
    if len(table) == 4:
        addresses, page, _, count = table
        strides = spans = [page] * count
    elif len(table) == 5:
        addresses, spans, _, _, _ = table
        strides = spans
    elif len(table) == 6:
        addresses, strides, spans, _, _, _ = table
    else:
        raise UnknownTableError(f"a table of {len(table)} fields is of no known era")
    word = parts.WORD_BYTES
    return [Row(base, stride * word, span * word) for base, stride, span in zip(addresses, strides, spans, strict=True)]
