"""Which blocks an audit asks about, and which views are to be zeroed in them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from kvzero import errors
from kvzero.layout.geometry import CacheGeometry
from kvzero.layout.records import LayerView, Name
from kvzero.zero.ids import integer_ids

BlockIds = Sequence[int] | Mapping[Name, Sequence[int]]
Wanted = list[tuple[tuple[LayerView, ...], list[int]]]


def views_to_blocks(geometry: CacheGeometry, block_ids: BlockIds, layers=None, groups=None) -> tuple[list[int], Wanted]:
    """Which views are to be zeroed in which blocks.

    Args:
        geometry: the pool.
        block_ids: block ids, or a mapping of group to block ids, as `BlockZeroer.zero` takes it.
        layers, groups: as in `CacheGeometry.select`; a mapping names its groups itself.

    Returns:
        All blocks in the order given, and pairs of views and the blocks in which they are to be zeroed.

    Raises:
        ZeroingError, AuditError: ids that are no integers, or lie outside the pool.
        GeometryError, NothingSelectedError: see `CacheGeometry.select`.
    """
    if not isinstance(block_ids, Mapping):
        blocks = checked_blocks(geometry, block_ids)
        return blocks, [(geometry.select(layers, groups), blocks)]
    if groups is not None:
        raise errors.ZeroingError("id-type", given="a mapping of group to ids beside `groups`")
    wanted = [(geometry.select(layers, [group]), checked_blocks(geometry, ids)) for group, ids in block_ids.items()]
    return [block for _, ids in wanted for block in ids], wanted


def checked_blocks(geometry: CacheGeometry, block_ids: Sequence[int]) -> list[int]:
    """Check block ids against a pool.

    Args:
        geometry: the pool.
        block_ids: integers of shape (ids,): a sequence, an array, or a tensor on any device.

    Raises:
        ZeroingError: they are no integers, or not one-dimensional.
        AuditError: one lies outside the pool.

    Example:
        >>> from kvzero.history import named
        >>> checked_blocks(named.geometry("packed-slab-51288"), range(97, 100))
        [97, 98, 99]
    """
    blocks = integer_ids(block_ids.cpu() if hasattr(block_ids, "cpu") else block_ids).tolist()
    for block in blocks:
        if not 0 <= block < geometry.num_blocks:
            raise errors.AuditError(
                "unknown-block", where=geometry.where, block_id=block, last_block_id=geometry.num_blocks - 1
            )
    return blocks
