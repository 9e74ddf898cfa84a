"""Whether families of byte ranges, one range per block, ever share a byte, without listing the blocks.

A family is (base_bytes, span_bytes, block_stride_bytes); its range in block b starts at base + b * stride.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from heapq import heappop, heappush

import numpy as np


def same_stride_clash(bases: np.ndarray, spans: np.ndarray, stride: int, num_blocks: int):
    """Find two families of one stride that share a byte in different blocks.

    Args:
        bases, spans: int64 arrays of shape (families,), in bytes; the families of one block are disjoint and
            no span is longer than the stride.
        stride: bytes between two blocks, the same for all families.
        num_blocks: blocks in the pool.

    Returns:
        None, or (i, j, block_i, block_j): two families and the blocks in which they meet.

    Modulo the stride all blocks of a family fall on one residue range, and base // stride says how many
    blocks the family is shifted by. Two families meet in different blocks if their residue ranges overlap
    and the shift between them is below the number of blocks. One sweep over the residues finds that.

    >>> same_stride_clash(np.array([0, 60]), np.array([60, 60]), 100, 4)
    (1, 0, 0, 1)
    """
    events = []
    for i, (base, span) in enumerate(zip(bases.tolist(), spans.tolist(), strict=True)):
        shift, residue = divmod(base, stride)
        events.append((residue, min(residue + span, stride), shift, i))
        if residue + span > stride:
            events.append((0, residue + span - stride, shift + 1, i))
    events.sort()
    open_shifts: list[tuple[int, int]] = []  # (shift, family) of the residue ranges open here, sorted
    ends: list[tuple[int, int, int]] = []
    for start, end, shift, i in events:
        while ends and ends[0][0] <= start:
            _, old_shift, old = heappop(ends)
            open_shifts.pop(bisect_left(open_shifts, (old_shift, old)))
        at = bisect_left(open_shifts, (shift, i))
        for near_shift, near in open_shifts[max(at - 1, 0) : at + 1]:
            distance = shift - near_shift
            if 0 < abs(distance) < num_blocks:
                # Family i starts `distance` blocks after the other, so its block 0 is the other's `distance`.
                return (near, i, max(distance, 0), max(-distance, 0))
        insort(open_shifts, (shift, i))
        heappush(ends, (end, shift, i))
    return None


def two_stride_clash(a: tuple[int, int, int], b: tuple[int, int, int], num_blocks: int):
    """Find blocks in which two families of unequal strides share a byte, in time that ignores the block count.

    Args:
        a, b: (base, span, stride) in bytes.
        num_blocks: blocks in the pool.

    Returns:
        None, or (block_a, block_b); two different blocks where there are any, else the same block twice.

    The pairs are counted by the floor sum of number theory (Euclid's algorithm on lattice points), the first
    one is then found by bisection.

    >>> two_stride_clash((0, 10, 100), (105, 10, 50), 4)  # a's block 1 is [100, 110), b's block 0 [105, 115)
    (1, 0)
    """
    low = b[0] - a[0] - a[1] + 1  # the two meet when low <= block_a * stride_a - block_b * stride_b <= high
    high = b[0] - a[0] + b[1] - 1

    def pairs(first_blocks: int) -> int:
        """Meeting pairs with block_a below `first_blocks`."""
        return _count(first_blocks, a[2], -low, b[2], num_blocks) - _count(
            first_blocks, a[2], -high - 1, b[2], num_blocks
        )

    def same_block_pairs(first_blocks: int) -> int:
        step = a[2] - b[2]
        lo, hi = (low, high) if step > 0 else (-high, -low)
        return max(0, min(hi // abs(step), first_blocks - 1) - max(-(-lo // abs(step)), 0) + 1)

    if pairs(num_blocks) == 0:
        return None
    different = pairs(num_blocks) > same_block_pairs(num_blocks)

    def found(first_blocks: int) -> bool:
        return pairs(first_blocks) - (same_block_pairs(first_blocks) if different else 0) > 0

    below, block_a = 0, num_blocks
    while block_a - below > 1:
        middle = (below + block_a) // 2
        below, block_a = (below, middle) if found(middle) else (middle, block_a)
    block_a -= 1
    block_b = max(0, -(-(block_a * a[2] - high) // b[2]))
    if different and block_b == block_a:
        block_b += 1
    return block_a, block_b


def _count(n: int, step: int, offset: int, divisor: int, limit: int) -> int:
    """Sum over i < n of how many k in [0, limit) have k * divisor <= step * i + offset."""
    start = max(0, -(offset // step)) if offset < 0 else 0  # first i with step * i + offset >= 0
    full = max(0, -(-((limit - 1) * divisor - offset) // step))  # first i from which all `limit` values count
    start, full = min(start, n), min(full, n)
    full = max(full, start)
    ramp = floor_sum(full - start, divisor, step, step * start + offset) + (full - start)
    return ramp + (n - full) * limit


def floor_sum(n: int, m: int, a: int, b: int) -> int:
    """Sum over i in [0, n) of (a * i + b) // m, for n, a, b >= 0 and m > 0.

    >>> floor_sum(4, 10, 6, 3)  # 0 + 0 + 1 + 2
    3
    """
    result = 0
    while n > 0:
        result += (n - 1) * n // 2 * (a // m) + n * (b // m)
        a, b = a % m, b % m
        top = a * n + b
        if top < m:
            break
        n, b, m, a = top // m, top % m, a, m
    return result
