"""Who owns which byte, by naive indexing of the layer views: the audit's arithmetic side.

Nothing here looks at segments or plans, so that a wrong planner cannot excuse itself. The cost follows the
blocks and the byte windows asked about, never the size of the pool.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from . import errors
from .geometry import CacheGeometry
from .intervals import as_ranges, union
from .views import LayerView

Dims = list[tuple[int, int]]  # (size, stride_bytes), strides growing
MAX_RUNS = 1 << 25  # listed at once: about 3 GB


def page_dims(view: LayerView) -> Dims:
    """The dimensions of one block's page, as (size, stride in bytes), without those that do not move."""
    dims = [
        (size, step * view.itemsize)
        for dim, (size, step) in enumerate(zip(view.shape, view.stride, strict=True))
        if dim != view.block_dim
    ]
    dims.append((view.kernel_blocks_per_block, view.stride[view.block_dim] * view.itemsize))
    return _moving(dims)


def needed_ranges(views: Iterable[LayerView], block_ids: Sequence[int]) -> dict[int | str, np.ndarray]:
    """The bytes that the views keep in the given blocks.

    Args:
        views: the views to be zeroed.
        block_ids: block ids; duplicates count once.

    Returns:
        Storage id to sorted, disjoint (start, stop) byte ranges, int64 of shape (ranges, 2).

    Raises:
        TooManyRunsError: a view is scattered into too many ranges.

    Example:
        >>> view = LayerView("k", "a", 12, (5, 4), (12, 1), itemsize=4, block_dim=0)
        >>> needed_ranges([view], [3])["a"].tolist()
        [[156, 172]]
    """
    ids = np.unique(np.asarray(list(block_ids), dtype=np.int64))
    found: dict[int | str, list[np.ndarray]] = {}
    for view in views:
        dims, run_bytes = _contiguous_run(page_dims(view), view.itemsize)
        # Where block 0 is all that is asked for, the stride may be any number: a lone block has no next one.
        starts = view.byte_offset + ids * (view.block_stride_bytes if ids.any() else 0)
        for size, stride_bytes in dims:
            _check_runs(view, len(starts) * size)
            starts = (starts[:, None] + np.arange(size, dtype=np.int64) * stride_bytes).ravel()
        found.setdefault(view.storage, []).append(np.stack((starts, starts + run_bytes), axis=1))
    return {storage: union(np.concatenate(parts)) for storage, parts in found.items()}


def owned_within(view: LayerView, num_blocks: int, windows: np.ndarray) -> np.ndarray:
    """The bytes of the view, in any block, that lie inside the windows.

    Args:
        view: the view; its block dimension is one dimension like the others here.
        num_blocks: blocks in the pool.
        windows: byte ranges of the view's storage, int64 of shape (windows, 2).

    Returns:
        Sorted, disjoint ranges.

    Raises:
        TooManyRunsError: the windows meet too many separate runs of the view.

    Example:
        >>> view = LayerView("k", "a", 12, (5, 4), (12, 1), itemsize=4, block_dim=0)
        >>> owned_within(view, 5, as_ranges([(0, 70)])).tolist()
        [[12, 28], [60, 70]]
    """
    dims = _moving([*page_dims(view), (num_blocks, view.block_stride_bytes)])
    dims, run_bytes = _contiguous_run(dims, view.itemsize)
    starts, low, high, _ = _walk(view, dims, run_bytes, union(windows), None)
    return union(np.stack((np.maximum(starts, low), np.minimum(starts + run_bytes, high)), axis=1))


def owners_of_byte(geometry: CacheGeometry, storage: int | str, byte_offset: int) -> list[tuple[str, int]]:
    """The (layer name, block id) pairs whose pages hold this byte, in the order of the geometry's layers.

    Args:
        geometry: the layers.
        storage: storage id.
        byte_offset: offset of the byte in the storage.

    Raises:
        TooManyRunsError: the byte lies within reach of too many blocks, which lie on one another.

    Example:
        >>> layer = {"name": "k", "storage": 0, "byte_offset": 12, "shape": [5, 4], "stride": [12, 1],
        ...          "itemsize": 4}
        >>> geometry = CacheGeometry.from_dict(
        ...     {"name": "g", "num_blocks": 5, "storages": [{"id": 0, "nbytes": 240}], "layers": [layer]})
        >>> owners_of_byte(geometry, 0, 61), owners_of_byte(geometry, 0, 29)
        ([('k', 1)], [])
    """
    window = as_ranges([(byte_offset, byte_offset + 1)])
    owners = []
    for view in geometry.layers:
        if view.storage != storage:
            continue
        block_dim = (geometry.num_blocks, view.block_stride_bytes if geometry.num_blocks > 1 else 0)
        # The run must not swallow the block dimension: its index is the answer.
        inner, run_bytes = _contiguous_run(page_dims(view), view.itemsize)
        dims = sorted([*inner, block_dim], key=lambda dim: dim[1])
        *_, blocks = _walk(view, dims, run_bytes, window, block_dim)
        owners += [(view.name, int(block)) for block in np.unique(blocks)]
    return owners


def _moving(dims: Dims) -> Dims:
    """Dimensions that reach other bytes, inner first."""
    return sorted(((size, step) for size, step in dims if size > 1 and step > 0), key=lambda dim: dim[1])


def _contiguous_run(dims: Dims, itemsize: int) -> tuple[Dims, int]:
    """Fold the dimensions that continue an element without a gap, or over itself, into one run of bytes."""
    run_bytes, rest = itemsize, []
    for size, step in dims:
        if step <= run_bytes:
            run_bytes += (size - 1) * step
        else:
            rest.append((size, step))
    return rest, run_bytes


def _check_runs(view: LayerView, num_runs: float) -> None:
    if num_runs > MAX_RUNS:
        raise errors.TooManyRunsError(where=f"layer {view.name}", num_runs=int(num_runs), limit=MAX_RUNS)


def _walk(view: LayerView, dims: Dims, run_bytes: int, windows: np.ndarray, block_dim: tuple[int, int] | None):
    """Every run that meets a window: (run starts, window starts, window stops, indices along `block_dim`).

    One dimension at a time, outermost first; an index is kept only if what lies below it can reach the
    window.
    """
    starts = np.full(len(windows), view.byte_offset, dtype=np.int64)
    low, high = windows[:, 0], windows[:, 1]
    blocks = np.zeros(len(windows), dtype=np.int64)
    reach = run_bytes + sum((size - 1) * step for size, step in dims)
    for size, step in reversed(dims):
        reach -= (size - 1) * step
        if step == 0 and (size, step) != block_dim:
            continue
        first, last = np.zeros_like(starts), np.full_like(starts, size - 1)
        if step > 0:  # a block dimension of stride 0 puts every block on the same bytes
            first = np.maximum((low - starts - reach) // step + 1, first)
            last = np.minimum((high - 1 - starts) // step, last)
        count = np.maximum(last - first + 1, 0)
        _check_runs(view, count.sum(dtype=float))
        index = np.arange(count.sum(), dtype=np.int64) - np.repeat(np.cumsum(count) - count, count)
        index += np.repeat(first, count)
        starts, low, high, blocks = (np.repeat(array, count) for array in (starts, low, high, blocks))
        starts = starts + index * step
        if (size, step) == block_dim:
            blocks, block_dim = index, None
    meets = (starts < high) & (starts + run_bytes > low)
    return starts[meets], low[meets], high[meets], blocks[meets]
