"""The clash arithmetic against a plain double loop over all blocks, and the interval sets against sets of bytes."""

from __future__ import annotations

import numpy as np
from hypothesis import assume, example, given
from hypothesis import strategies as st

from kvzero.layout.intervals import as_ranges, intersect, subtract, total, union
from kvzero.plan.overlap import floor_sum, same_stride_clash, two_stride_clash

family = st.tuples(st.integers(0, 60), st.integers(1, 12), st.integers(1, 25))
ranges = st.lists(st.tuples(st.integers(0, 40), st.integers(0, 9)), max_size=8).map(
    lambda pairs: as_ranges([(start, start + length) for start, length in pairs])
)


def meetings(a, b, num_blocks):
    return {
        (i, j)
        for i in range(num_blocks)
        for j in range(num_blocks)
        if max(a[0] + i * a[2], b[0] + j * b[2]) < min(a[0] + i * a[2] + a[1], b[0] + j * b[2] + b[1])
    }


@given(family, family, st.integers(1, 7))
def test_two_strides_meet_as_a_double_loop_says(a, b, num_blocks):
    assume(a[2] != b[2])
    want, got = meetings(a, b, num_blocks), two_stride_clash(a, b, num_blocks)
    assert (got is None) == (not want)
    assert got is None or got in want
    if any(i != j for i, j in want):
        assert got[0] != got[1]


@given(st.lists(st.tuples(st.integers(0, 100), st.integers(1, 20)), min_size=1, max_size=6), st.integers(1, 20),
       st.integers(2, 6))  # fmt: skip
@example([(15, 8), (41, 2)], 20, 3)  # they meet only where the first one wraps round the stride
def test_equal_strides_meet_as_a_double_loop_says(pairs, stride, num_blocks):
    disjoint = union(as_ranges([(base, base + min(span, stride)) for base, span in pairs]))
    spans = disjoint[:, 1] - disjoint[:, 0]
    assume(spans.max() <= stride)
    families = [(int(base), int(span), stride) for base, span in zip(disjoint[:, 0], spans, strict=True)]
    want = {
        (a, b, i, j)
        for a, one in enumerate(families)
        for b, other in enumerate(families)
        for i, j in meetings(one, other, num_blocks)
        if i != j
    }
    got = same_stride_clash(disjoint[:, 0], spans, stride, num_blocks)
    assert got in want if want else got is None


def test_a_million_blocks_cost_nothing():
    # Only the very last blocks meet: 999,999 * 101 + 1 reaches the other family's block 999,999 - 1 + ...
    a, b = (0, 1, 101), (101 * 999_999, 1, 1)
    assert two_stride_clash(a, b, 1_000_000) == (999_999, 0)
    assert two_stride_clash((0, 1, 101), (101 * 1_000_000, 1, 1), 1_000_000) is None


@given(st.integers(0, 30), st.integers(1, 20), st.integers(0, 40), st.integers(0, 40))
def test_floor_sum_is_the_sum(n, m, a, b):
    assert floor_sum(n, m, a, b) == sum((a * i + b) // m for i in range(n))


def members(array: np.ndarray) -> set[int]:
    return {byte for start, stop in array.tolist() for byte in range(start, stop)}


@given(ranges, ranges)
def test_range_sets_behave_like_sets_of_bytes(a, b):
    for got, want in (
        (union(a), members(a)),
        (intersect(a, b), members(a) & members(b)),
        (subtract(a, b), members(a) - members(b)),
    ):
        assert members(got) == want
        assert total(got) == len(want)  # disjoint
        assert (got[1:, 0] > got[:-1, 1]).all() if len(got) > 1 else True  # sorted, and nothing left to join
