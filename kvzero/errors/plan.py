"""Rules that a plan proves before anything is launched."""

from __future__ import annotations

from .base import KvzeroError


class SpanExceedsStrideError(KvzeroError):
    """The bytes to clear in a block are at most the distance to the next block."""

    rule = "span-exceeds-stride"
    template = (
        "{where}: one block spans {span_bytes} bytes in a row, but the next block starts {block_stride_bytes} "
        "bytes later. Block 0 would overlap block 1; check the stride of dimension {block_dim}."
    )


class BlocksOverlapError(KvzeroError):
    """No two blocks of a pool share a byte."""

    rule = "blocks-overlap"
    template = (
        "{where}: block {block_a} of layer {layer_a} and block {block_b} of layer {layer_b} share byte "
        "{byte_offset} of storage {storage!r} (block strides {stride_a_bytes} and {stride_b_bytes} bytes). "
        "Zeroing one would wipe the other; check byte_offset and stride of both layers."
    )


class UnequalStrideOverlapError(KvzeroError):
    """Views that share bytes of one block have the same block stride."""

    rule = "unequal-stride-overlap"
    template = (
        "{where}: layers {layer_a} and {layer_b} share byte {byte_offset} of storage {storage!r} in block "
        "{block}, with unequal block strides {stride_a_bytes} and {stride_b_bytes} bytes. No family of ranges "
        "writes each byte once; plan the two layers apart."
    )


class TooManySegmentsError(KvzeroError):
    """A view falls into a bounded number of separate ranges per block."""

    rule = "too-many-segments"
    template = (
        "{where}: one block falls into {num_ranges} separate ranges, more than {limit}. "
        "Check the strides; the innermost dimension should be contiguous."
    )
