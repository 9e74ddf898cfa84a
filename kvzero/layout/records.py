"""The records that describe a cache: a storage, a layer's view of it, and a segment."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import prod
from numbers import Integral
from typing import Any

INT64_MAX = 2**63 - 1
MAX_STORAGE_BYTES = 1 << 48  # 256 TiB: with larger storages refused, no sum of offsets leaves a 64-bit integer
Name = int | str


def is_integer(value: object) -> bool:
    """Return True for Python and NumPy integers; bools do not count.

    >>> is_integer(3), is_integer(3.0), is_integer(True)
    (True, False, False)
    """
    return isinstance(value, Integral) and not isinstance(value, bool)


@dataclass(frozen=True, slots=True)
class Storage:
    """One allocation: its id and its size in bytes."""

    id: Name
    nbytes: int


@dataclass(frozen=True, slots=True)
class Segment:
    """A family of byte ranges, one per block: block b is [base + b * block_stride, + span) in the storage.

    >>> Segment("slab", base_bytes=37_440, block_stride_bytes=149_760, span_bytes=37_376).start_bytes(2)
    336960
    """

    storage: Name
    base_bytes: int
    block_stride_bytes: int
    span_bytes: int

    def start_bytes(self, block: int) -> int:
        """The offset in the storage at which this block's range starts."""
        return self.base_bytes + block * self.block_stride_bytes


@dataclass(frozen=True, slots=True)
class LayerView:
    """One layer's tensor over a storage.

    Args:
        name: the layer's name, unique within its geometry.
        storage: id of the storage it lies in.
        byte_offset: offset of its first element in the storage, in bytes.
        shape: sizes; dimension `block_dim` counts num_blocks * kernel_blocks_per_block.
        stride: strides of the same dimensions, in elements.
        itemsize: bytes of an element.
        block_dim: the dimension that counts blocks.
        kernel_blocks_per_block: neighbouring indices of `block_dim` that make up one block.
        group: cache group that owns the layer. All groups share the pool of block ids.
        dtype: name of the element type.
        zeroed: whether a fresh block's bytes of this layer are to be zeroed (attention: yes; recurrent state: no).
        spec_kind: kind of cache, as the engine calls it.
        extra: keys of the source that kvzero keeps and does not use.
    """

    name: str
    storage: Name
    byte_offset: int
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    itemsize: int
    block_dim: int
    kernel_blocks_per_block: int = 1
    group: Name = 0
    dtype: str = ""
    zeroed: bool = True
    spec_kind: str = ""
    extra: Mapping[str, Any] = field(default_factory=dict, hash=False)

    @property
    def block_stride_bytes(self) -> int:
        """Distance from one block to the next, in bytes."""
        return self.stride[self.block_dim] * self.kernel_blocks_per_block * self.itemsize

    @property
    def page_bytes(self) -> int:
        """Bytes that this layer keeps in one block (its elements; holes between them do not count)."""
        inner = prod(size for dim, size in enumerate(self.shape) if dim != self.block_dim)
        return inner * self.kernel_blocks_per_block * self.itemsize

    @property
    def end_bytes(self) -> int:
        """Offset in the storage just past the last byte of the view."""
        last = sum((size - 1) * step for size, step in zip(self.shape, self.stride, strict=True))
        return self.byte_offset + (last + 1) * self.itemsize
