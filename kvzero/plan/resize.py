"""`with_num_blocks`: the same cache layout with another number of blocks."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

from kvzero import errors
from kvzero.layout.geometry import CacheGeometry
from kvzero.layout.records import LayerView, Name, Storage, is_integer
from kvzero.plan.planner import block_ranges


def with_num_blocks(geometry: CacheGeometry, num_blocks: int) -> CacheGeometry:
    """Return the geometry that the same engine would allocate with more or fewer blocks.

    Args:
        geometry: a pool of at least 2 blocks, so that block strides are known.
        num_blocks: blocks in the new pool, at least 1.

    Returns:
        A geometry in which each block keeps its inner layout. A region (one array of blocks: a layer, a head of
        a layer, or a slab of all layers) grows or shrinks; the distances between regions follow.

    Raises:
        GeometryError: `num_blocks` is not an integer, or is below 1.
        ResizeError: the regions cannot be told apart, or a view's strides do not follow them.

    Example: real dumps have few blocks; a benchmark wants gigabytes.
        >>> from kvzero import geometries
        >>> big = with_num_blocks(geometries.load("dsv4_c4_mla_only__BLHNC"), 100)
        >>> big.storages[0].nbytes, big.layers[1].byte_offset
        (14976000, 37440)
    """
    if not is_integer(num_blocks):
        raise errors.GeometryError(
            "wrong-type", where=geometry.where, key="num_blocks", value=num_blocks, expected="an integer"
        )
    if num_blocks < 1:
        raise errors.GeometryError("no-blocks", where=geometry.where, num_blocks=num_blocks)
    if geometry.num_blocks == 1:
        raise errors.ResizeError("one-block", where=geometry.where, num_blocks=1)
    regions = {storage.id: _regions(geometry, storage.id) for storage in geometry.storages}
    grow = num_blocks - geometry.num_blocks

    def moved(storage: Name, offset: int) -> int:
        """Return where the byte at `offset` lies in the new pool; it must be one of block 0."""
        return offset + grow * sum(stride for start, stride in regions[storage] if _end(start, stride) <= offset)

    def _end(start: int, stride: int) -> int:
        return start + geometry.num_blocks * stride

    layers = tuple(_resize_view(view, geometry, num_blocks, moved) for view in geometry.layers)
    storages = tuple(
        Storage(storage.id, storage.nbytes + grow * sum(stride for _, stride in regions[storage.id]))
        for storage in geometry.storages
    )
    # The engine's segments are those of block 0 and move with their regions.
    segments = tuple(
        replace(segment, base_bytes=moved(segment.storage, segment.base_bytes)) for segment in geometry.engine_segments
    )
    resized = replace(geometry, num_blocks=num_blocks, storages=storages, layers=layers, engine_segments=segments)
    return CacheGeometry.from_dict(resized.to_dict(), source=geometry.source)


def _regions(geometry: CacheGeometry, storage: Name) -> list[tuple[int, int]]:
    """Return the arrays of blocks in a storage, as sorted pairs (start, block stride)."""
    starts = sorted(
        (int(start), view.block_stride_bytes)
        for view in geometry.layers
        if view.storage == storage
        for start in block_ranges(view, geometry)[:, 0]
    )
    regions: list[tuple[int, int]] = []
    for start, stride in starts:
        inside = regions and start < regions[-1][0] + regions[-1][1] * geometry.num_blocks
        if not inside:
            regions.append((start, stride))
        elif stride != regions[-1][1] or start >= regions[-1][0] + stride:
            raise errors.ResizeError(
                "interleaved-arrays", where=geometry.where, storage=storage, start_bytes=start,
                block_stride_bytes=stride,
                outer_stride_bytes=regions[-1][1],
            )  # fmt: skip
    return regions


def _resize_view(view: LayerView, geometry: CacheGeometry, num_blocks: int, moved) -> LayerView:
    origin = moved(view.storage, view.byte_offset)
    shape, stride = list(view.shape), list(view.stride)
    shape[view.block_dim] = num_blocks * view.kernel_blocks_per_block
    for dim, (size, step) in enumerate(zip(view.shape, view.stride, strict=True)):
        reach = (size - 1) * step * view.itemsize
        if dim == view.block_dim or moved(view.storage, view.byte_offset + reach) == origin + reach:
            continue  # this dimension stays inside one region
        offsets = [view.byte_offset + index * step * view.itemsize for index in range(size)]
        steps = [moved(view.storage, offset) - origin for offset in offsets]
        stride[dim] = steps[1] // view.itemsize
        if steps != [index * stride[dim] * view.itemsize for index in range(size)]:
            distances = sorted({after - before for before, after in pairwise(steps)})
            raise errors.ResizeError(
                "uneven-distances",
                where=geometry.where,
                layer=view.name,
                dim=dim,
                distances_bytes=distances,
                num_blocks=num_blocks,
            )
    return replace(view, byte_offset=origin, shape=tuple(shape), stride=tuple(stride))
