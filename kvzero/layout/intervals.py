"""Arithmetic on sets of half-open byte ranges, stored as NumPy arrays of shape (ranges, 2)."""

from __future__ import annotations

import numpy as np


def as_ranges(pairs) -> np.ndarray:
    """Pairs (start, stop) as an int64 array of shape (ranges, 2); no pairs give shape (0, 2)."""
    return np.asarray(pairs, dtype=np.int64).reshape(-1, 2)


def total(ranges: np.ndarray) -> int:
    """The sum of lengths, in bytes; a byte in two ranges counts twice.

    >>> total(as_ranges([(0, 4), (2, 6)]))
    8
    """
    return int((ranges[:, 1] - ranges[:, 0]).sum())


def union(ranges: np.ndarray) -> np.ndarray:
    """The same bytes as sorted, disjoint ranges; touching ranges become one.

    >>> union(as_ranges([(4, 8), (0, 4), (10, 12)])).tolist()
    [[0, 8], [10, 12]]
    """
    ranges = ranges[ranges[:, 1] > ranges[:, 0]]
    if len(ranges) <= 1:
        return ranges
    ranges = ranges[np.argsort(ranges[:, 0], kind="stable")]
    reach = np.maximum.accumulate(ranges[:, 1])
    opens = np.concatenate(([True], ranges[1:, 0] > reach[:-1]))
    closes = np.concatenate((opens[1:], [True]))
    return np.stack((ranges[opens, 0], reach[closes]), axis=1)


def intersect(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """The bytes that lie in both sets, as disjoint ranges.

    >>> intersect(as_ranges([(0, 10)]), as_ranges([(8, 12), (2, 4)])).tolist()
    [[2, 4], [8, 10]]
    """
    return _depth(union(a), union(b), wanted=2)


def subtract(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """The bytes of `a` that are not in `b`, as disjoint ranges.

    >>> subtract(as_ranges([(0, 10)]), as_ranges([(2, 4)])).tolist()
    [[0, 2], [4, 10]]
    """
    a = union(a)
    if len(a) == 0:
        return a
    # The bytes of `a` outside `b` are those of `a` in the gaps of `b`, taken between the ends of `a`.
    b = union(b)
    edges = np.concatenate(([a[0, 0]], b.reshape(-1), [a[-1, 1]]))
    gaps = edges.reshape(-1, 2)
    return intersect(a, gaps[gaps[:, 1] > gaps[:, 0]])


def _depth(a: np.ndarray, b: np.ndarray, wanted: int) -> np.ndarray:
    """Where `wanted` of the two disjoint sets cover, by counting starts and stops along the line."""
    points = np.concatenate((a[:, 0], b[:, 0], a[:, 1], b[:, 1]))
    steps = np.concatenate((np.ones(len(a) + len(b), np.int64), -np.ones(len(a) + len(b), np.int64)))
    order = np.lexsort((steps, points))  # at one point, stops come before starts: ranges are half open
    points, depth = points[order], np.cumsum(steps[order])
    starts = np.flatnonzero(depth == wanted)
    return union(np.stack((points[starts], points[starts + 1]), axis=1)) if len(starts) else a[:0]
