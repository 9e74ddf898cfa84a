"""Which bytes a view owns, and which views and blocks own a byte: the audit's arithmetic side.

Nothing here reads a plan or shares code with the planner, which folds dimensions by their strides. Here a page is
built as a set: the bytes of one element, then its union with shifted copies for each dimension in turn. The cost
grows with the blocks and the byte windows that are asked about, not with the size of the pool.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import lru_cache

import numpy as np

from kvzero import errors
from kvzero.layout.geometry import CacheGeometry
from kvzero.layout.intervals import as_ranges, union
from kvzero.layout.records import LayerView, Name

MAX_RUNS = 1 << 25  # ranges listed at once: about 3 GB
MAX_PAGE_RUNS = 1 << 22  # ranges of one page of one view
NO_NEXT_BLOCK_BYTES = 1 << 60  # the block stride of a pool of one block: beyond every offset


def needed_ranges(views: Iterable[LayerView], block_ids: Sequence[int]) -> dict[Name, np.ndarray]:
    """Find the bytes that views own in the given blocks.

    Args:
        views: the views to be zeroed.
        block_ids: block ids; duplicates count once.

    Returns:
        Storage id to sorted, disjoint (start, stop) byte ranges, int64 of shape (ranges, 2).

    Raises:
        AuditError: a view is scattered into too many ranges.

    Example:
        >>> view = LayerView("k", "a", 12, (5, 4), (12, 1), itemsize=4, block_dim=0)
        >>> needed_ranges([view], [3])["a"].tolist()
        [[156, 172]]
    """
    ids = np.unique(np.asarray(list(block_ids), dtype=np.int64))
    found: dict[Name, list[np.ndarray]] = {}
    for view in views:
        page = page_ranges(view)
        _check_runs(view, len(page) * len(ids))
        # If block 0 is the only one, its stride may be any number, even beyond 64 bits.
        shifts = ids * view.block_stride_bytes if ids.any() else ids
        found.setdefault(view.storage, []).append((shifts[:, None, None] + page).reshape(-1, 2))
    return {storage: union(np.concatenate(parts)) for storage, parts in found.items()}


@lru_cache(maxsize=4096)  # the audits of one layout ask for the same pages again and again
def page_ranges(view: LayerView) -> np.ndarray:
    """Find the bytes that a view owns in block 0.

    Args:
        view: any view; the order of its dimensions does not matter.

    Returns:
        Sorted, disjoint byte ranges of its storage, int64 of shape (ranges, 2), read-only.

    Raises:
        AuditError: the page is scattered into too many ranges.

    Example: K and V apart, each of four tokens.
        >>> view = LayerView("k", "a", 0, (2, 3, 4), (12, 4, 1), itemsize=2, block_dim=1)
        >>> page_ranges(view).tolist()
        [[0, 8], [24, 32]]
    """
    sizes = list(view.shape)
    sizes[view.block_dim] = view.kernel_blocks_per_block
    page = as_ranges([(view.byte_offset, view.byte_offset + view.itemsize)])
    for size, step in zip(reversed(sizes), reversed(view.stride), strict=True):
        done = 1  # so many indices of this dimension are in the page
        while done < size:
            more = min(done, size - done)
            _check_runs(view, 2 * len(page), MAX_PAGE_RUNS)
            page = union(np.concatenate((page, page + more * step * view.itemsize)))
            done += more
    page.flags.writeable = False
    return page


def owned_within(view: LayerView, num_blocks: int, windows: np.ndarray) -> np.ndarray:
    """Find the bytes of a view, in any block, that lie inside byte windows.

    Args:
        view: the view.
        num_blocks: blocks in the pool.
        windows: byte ranges of the view's storage, int64 of shape (windows, 2).

    Returns:
        Sorted, disjoint ranges, int64 of shape (ranges, 2).

    Raises:
        AuditError: the windows meet too many separate ranges of the view.

    Example:
        >>> view = LayerView("k", "a", 12, (5, 4), (12, 1), itemsize=4, block_dim=0)
        >>> owned_within(view, 5, as_ranges([(0, 70)])).tolist()
        [[12, 28], [60, 70]]
    """
    page, stride_bytes = page_ranges(view), view.block_stride_bytes
    windows = union(windows)
    found = [as_ranges([])]
    # Where a range reaches the same range of the next block, all blocks together own one range.
    joined = page[:, 1] - page[:, 0] >= stride_bytes
    for start, stop in page[joined].tolist():
        found.append(_clipped(start, stop + (num_blocks - 1) * stride_bytes, windows[:, 0], windows[:, 1]))
    for starts, lows, highs, _ in _meetings(view, num_blocks, page[~joined], windows):
        found.append(_clipped(starts[0], starts[1], lows, highs))
    return union(np.concatenate(found))


def owners_of_byte(geometry: CacheGeometry, storage: Name, byte_offset: int) -> list[tuple[str, int]]:
    """Name the owners of one byte.

    Args:
        geometry: the pool.
        storage: storage id.
        byte_offset: offset of the byte in the storage.

    Returns:
        (layer name, block id) pairs, in the order of the geometry's layers.

    Raises:
        AuditError: too many blocks share the byte.

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
        if view.storage == storage:
            blocks = [found for *_, found in _meetings(view, geometry.num_blocks, page_ranges(view), window)]
            owners += [(view.name, int(block)) for block in np.unique(np.concatenate(blocks or [[]]))]
    return owners


def _meetings(view: LayerView, num_blocks: int, page: np.ndarray, windows: np.ndarray):
    """Yield every meeting of a block's range with a window: ((starts, stops), window lows, highs, block ids)."""
    stride = view.block_stride_bytes if num_blocks > 1 else NO_NEXT_BLOCK_BYTES
    by_page = len(page) <= len(windows)  # loop over the shorter list, the other as arrays
    for row in (page if by_page else windows).tolist():
        (starts, stops), (lows, highs) = (row, windows.T) if by_page else (page.T, row)
        starts, stops, lows, highs = np.broadcast_arrays(starts, stops, lows, highs)
        first = np.maximum((lows - stops) // stride + 1, 0)
        last = np.minimum((highs - 1 - starts) // stride, num_blocks - 1)
        count = np.maximum(last - first + 1, 0)
        _check_runs(view, count.sum(dtype=float))
        block = np.arange(count.sum(), dtype=np.int64) - np.repeat(np.cumsum(count) - count - first, count)
        shift = block * (stride if num_blocks > 1 else 0)
        starts, stops, lows, highs = (np.repeat(array, count) for array in (starts, stops, lows, highs))
        yield (starts + shift, stops + shift), lows, highs, block


def _clipped(starts, stops, lows: np.ndarray, highs: np.ndarray) -> np.ndarray:
    return np.stack((np.maximum(starts, lows), np.minimum(stops, highs)), axis=1)


def _check_runs(view: LayerView, num_runs: float, limit: int = MAX_RUNS) -> None:
    if num_runs > limit:
        raise errors.AuditError("too-many-runs", where=f"layer {view.name}", num_runs=int(num_runs), limit=limit)
