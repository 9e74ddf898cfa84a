"""Where each byte of a pool goes on the map: rows are blocks, columns are the bytes that a block owns.

A band is a stretch of one storage cut into equal rows, one per block: a layer of its own, half of a K/V pair,
one head, or a whole packed slab. Inside it, byte `start + row * stride + column` is at (row, column), exactly
once; bytes outside every band are the storage's own head and tail. The bands of all storages, side by side,
make up the columns of the map.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product

import numpy as np

from kvzero.layout.geometry import CacheGeometry
from kvzero.layout.records import LayerView, Name


@dataclass(frozen=True, slots=True)
class Run:
    """One unbroken stretch of a layer's page: block b holds [base + b * stride, + span) of it.

    Args:
        layer: index of the layer in the geometry.
        part: where in the page it lies, such as "head 3", "K", or "" where the page is one stretch.
        base_bytes, stride_bytes, span_bytes: of the stretch, in its storage.
    """

    layer: int
    part: str
    base_bytes: int
    stride_bytes: int
    span_bytes: int


@dataclass(frozen=True, slots=True)
class Band:
    """A stretch of a storage with one row of `stride_bytes` for each block.

    Args:
        storage: id of the storage.
        start_bytes: offset of row 0 in the storage.
        stride_bytes: bytes in a row.
        column_bytes: where the band's first byte lies among the columns of the whole map.
    """

    storage: Name
    start_bytes: int
    stride_bytes: int
    column_bytes: int


def page_runs(view: LayerView, layer: int = 0) -> list[Run]:
    """The unbroken stretches of a layer's page in block 0, walked dimension by dimension.

    Args:
        view: the layer's view.
        layer: index that the runs are to carry.

    Returns:
        Runs sorted by base; holes between elements are in none of them.

    >>> view = LayerView("kv", 0, 0, (2, 8, 4), (64, 8, 1), 2, block_dim=1)   # K and V outermost
    >>> [(run.base_bytes, run.span_bytes, run.stride_bytes) for run in page_runs(view)]
    [(0, 8, 16), (128, 8, 16)]
    """
    letters = dim_letters(view)
    dims = []
    for dim, (size, step) in enumerate(zip(view.shape, view.stride, strict=True)):
        if dim == view.block_dim:
            size = view.kernel_blocks_per_block
        if size > 1:
            dims.append((step * view.itemsize, size, letters[dim]))
    span, outer = view.itemsize, []
    for step, size, letter in sorted(dims):
        if step <= span and not outer:
            span = max(span, (size - 1) * step + span)  # touches or overlaps: still one stretch
        else:
            outer.append((step, size, letter))
    outer.reverse()
    runs = []
    for index in product(*(range(size) for _, size, _ in outer)):
        offset = sum(i * step for i, (step, _, _) in zip(index, outer, strict=True))
        part = ", ".join(_part(letter, i) for i, (_, _, letter) in zip(index, outer, strict=True))
        runs.append(Run(layer, part, view.byte_offset + offset, view.block_stride_bytes, span))
    return sorted(runs, key=lambda run: run.base_bytes)


def dim_letters(view: LayerView) -> str:
    """The letters of a view's dimensions where they are known (see `toy`), else "?" for each but the block's.

    A dump of vLLM 0.33 has views [B, H, N, C], or [B, N, C] for one latent head.
    """
    stated = view.extra.get("dims")
    if stated and len(stated) == len(view.shape):
        return str(stated)
    if "backend" in view.extra and view.block_dim == 0 and view.spec_kind != "mamba":
        known = {4: "BHNC", 3: "BNC"}.get(len(view.shape))
        if known:
            return known
    return "".join("B" if dim == view.block_dim else "?" for dim in range(len(view.shape)))


def _part(letter: str, index: int) -> str:
    if letter == "K":
        return "KV"[index]
    names = {"H": "head", "N": "token", "C": "element", "B": "kernel block"}
    return f"{names.get(letter, 'part')} {index}"


def bands_of(geometry: CacheGeometry, runs: list[Run]) -> list[Band]:
    """Cut the storages into bands, from the places and strides of all runs.

    Args:
        geometry: the pool.
        runs: the runs of all its layers.

    Returns:
        Bands in the order of storages and offsets; bands of one storage share no byte, and every byte of every
        run lies in one (a run that does not fit its band's rows still does, only in the rows beside its own).
    """
    bands, column = [], 0
    for storage in geometry.storages:
        end = 0
        mine = sorted(
            (run for run in runs if geometry.layers[run.layer].storage == storage.id),
            key=lambda run: (run.base_bytes, -run.stride_bytes),
        )
        for run in mine:
            if bands and bands[-1].storage == storage.id and run.base_bytes < end:
                continue
            stride = storage.nbytes if geometry.num_blocks == 1 else run.stride_bytes
            # A first page that is set back a little from the row's start (a header, a packed neighbour that
            # is not in this file) still belongs to a row that starts where the last band ended.
            room = min(storage.nbytes, _next_base(mine, end + stride * geometry.num_blocks))
            start = end if run.base_bytes + run.span_bytes - end <= stride else run.base_bytes
            if start + stride * geometry.num_blocks > room:
                start = run.base_bytes
            if geometry.num_blocks == 1:
                start = 0
            bands.append(Band(storage.id, start, max(stride, 1), column))
            column += bands[-1].stride_bytes
            end = start + stride * geometry.num_blocks
    return bands


def _next_base(runs: list[Run], at: int) -> int:
    """Where the first run from `at` on starts; beyond everything if there is none."""
    return min((run.base_bytes for run in runs if run.base_bytes >= at), default=2**63 - 1)


def to_cells(ranges: np.ndarray, bands: list[Band], storage: Name) -> np.ndarray:
    """Cut byte ranges of a storage at the rows of its bands.

    Args:
        ranges: half-open byte ranges, shape (n, 2). What lies before the first band or past the last one, the
            outside of the storage included, falls on rows below 0 or past the end of these.
        bands: the bands of the whole map.
        storage: id of the storage.

    Returns:
        int64 array (m, 5) of band index, first row, last row (inclusive), first column, end column, in columns
        of the whole map. Rows that one range covers from end to end are one entry; every byte is in exactly one.

    >>> bands = [Band(0, 0, 100, 0), Band(0, 400, 50, 100)]
    >>> to_cells(np.array([[90, 110], [390, 460]]), bands, 0).tolist()
    [[0, 3, 3, 90, 100], [0, 0, 0, 90, 100], [0, 1, 1, 0, 10], [1, 1, 1, 100, 110], [1, 0, 0, 100, 150]]
    """
    mine = np.array([index for index, band in enumerate(bands) if band.storage == storage])
    lows = np.array([bands[index].start_bytes for index in mine])
    at0 = np.maximum(np.searchsorted(lows, ranges[:, 0], side="right") - 1, 0)
    at1 = np.maximum(np.searchsorted(lows, ranges[:, 1] - 1, side="right") - 1, 0)
    count = at1 - at0 + 1
    at = np.repeat(at0, count) + np.arange(count.sum()) - np.repeat(np.cumsum(count) - count, count)
    low, high = np.repeat(ranges[:, 0], count), np.repeat(ranges[:, 1], count)
    low = np.where(at > np.repeat(at0, count), lows[at], low)
    high = np.where(at < np.repeat(at1, count), np.append(lows, 0)[at + 1], high)
    return rows_and_columns(np.stack((low, high), axis=1), mine[at], bands)


def rows_and_columns(ranges: np.ndarray, at: np.ndarray, bands: list[Band]) -> np.ndarray:
    """Cut each range at the rows of the band that `at` gives it, however far it reaches; see `to_cells`."""
    start, stride, column = (
        np.array([getattr(band, name) for band in bands], dtype=np.int64)[at]
        for name in ("start_bytes", "stride_bytes", "column_bytes")
    )
    row0, column0 = np.divmod(ranges[:, 0] - start, stride)
    row1, column1 = np.divmod(ranges[:, 1] - start - 1, stride)
    column1 = column1 + 1
    one = row0 == row1
    head, tail = ~one & (column0 > 0), ~one & (column1 < stride)
    middle0, middle1 = row0 + head, row1 - tail
    whole = ~one & (middle1 >= middle0)
    zero = np.zeros_like(row0)
    parts = [
        np.stack((at, first, last, column + left, column + right), axis=1)[keep]
        for first, last, left, right, keep in (
            (row0, row0, column0, column1, one),
            (row0, row0, column0, stride, head),
            (row1, row1, zero, column1, tail),
            (middle0, middle1, zero, stride, whole),
        )
    ]
    return np.concatenate(parts)
