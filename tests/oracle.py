"""The independent oracle: index the layer views naively and see which bytes they own. It never calls the planner."""

from __future__ import annotations

import torch

from kvzero.layout.geometry import CacheGeometry


def owned(geometry: CacheGeometry, view, block: int) -> torch.Tensor:
    """Which bytes of its storage a view owns in a block: a bool tensor of shape (storage bytes,)."""
    marks = torch.zeros(geometry.storage(view.storage).nbytes, dtype=torch.uint8)
    # The view byte by byte: one more, innermost dimension of `itemsize` bytes.
    shape = (*view.shape, view.itemsize)
    stride = (*(step * view.itemsize for step in view.stride), 1)
    cells = marks.as_strided(shape, stride, view.byte_offset)
    per_block = view.kernel_blocks_per_block
    cells.narrow(view.block_dim, block * per_block, per_block).fill_(1)
    return marks.bool()


def needed(geometry: CacheGeometry, block_ids, layers=None, groups=None) -> dict:
    """The bytes that zeroing these blocks must clear, as storage id to bool tensor."""
    result = {storage.id: torch.zeros(storage.nbytes, dtype=torch.bool) for storage in geometry.storages}
    for view in geometry.select(layers, groups):
        for block in block_ids:
            result[view.storage] |= owned(geometry, view, block)
    return result


def shared_across_blocks(geometry: CacheGeometry) -> bool:
    """Whether any byte belongs to two different blocks of the pool."""
    for storage in geometry.storages:
        owner = torch.full((storage.nbytes,), -1)
        for block in range(geometry.num_blocks):
            for view in geometry.layers:
                if view.storage == storage.id:
                    mine = owned(geometry, view, block)
                    if ((owner[mine] != -1) & (owner[mine] != block)).any():
                        return True
                    owner[mine] = block
    return False


def times_written(plan, block_ids) -> dict:
    """How often a plan writes each byte of each storage, by a plain loop over segments and ids."""
    result = {storage.id: torch.zeros(storage.nbytes, dtype=torch.int32) for storage in plan.storages}
    for segment in plan.segments:
        for block in block_ids:
            start = segment.base_bytes + block * segment.block_stride_bytes
            assert 0 <= start and start + segment.span_bytes <= len(result[segment.storage])
            result[segment.storage][start : start + segment.span_bytes] += 1
    return result
