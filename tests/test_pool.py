"""The tiny pool, the toy decoder and the chance knob of the first case."""

from __future__ import annotations

import math

import pytest
import torch

from kvzero.workbook.decoder import decode
from kvzero.workbook.pool import PAGE_BYTES, WIDTH, Pool, attend, serve
from kvzero.workbook.stale import stale_chance, stale_knob


def test_attention_and_state_share_every_byte_of_a_block():
    pool = Pool(4, dtype=torch.bfloat16)
    pool.state[2] = 1.0
    assert int((pool.attention[2].view(torch.uint8) != 0).sum()) == PAGE_BYTES // 2  # 0x3F80 in each fp32
    assert int((pool.attention[[0, 1, 3]].view(torch.uint8) != 0).sum()) == 0


def test_blocks_leave_in_the_order_in_which_they_came_back():
    pool = Pool(4)
    first = pool.allocate_attention(2)
    pool.release([first[1], first[0]])
    assert pool.allocate_attention(4) == [2, 3, 1, 0]


def test_attention_is_that_of_the_existing_tokens():
    random = torch.Generator().manual_seed(3)
    query, keys, values = (torch.randn(*shape, generator=random) for shape in ((8,), (6, 8), (6, 8)))
    row, probabilities = attend(query, keys, values, 4)
    weights = [math.exp(float(key @ query) / math.sqrt(8)) for key in keys[:4]]
    expected = sum(weight * value for weight, value in zip(weights, values[:4], strict=True)) / sum(weights)
    torch.testing.assert_close(row, expected)
    assert probabilities[4:].tolist() == [0, 0]


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.bfloat16])
def test_only_recycled_blocks_hurt_and_zeroing_heals_them(dtype):
    dirty = serve(Pool(32, dtype=dtype, zeroing=False, seed=5), 80)
    assert not any(request.nan_columns for request in dirty if not request.recycled)
    assert sum(request.nan_columns > 0 for request in dirty) >= 5
    clean = serve(Pool(32, dtype=dtype, zeroing=True, seed=5), 80)
    assert [request.blocks for request in clean] == [request.blocks for request in dirty]
    assert not any(request.nan_columns for request in clean)


def test_unwritten_finite_memory_changes_no_token_and_nan_does():
    zeroed = torch.zeros(4, 16, 2 * WIDTH, dtype=torch.bfloat16)
    text = decode(zeroed, 12, splits=1)
    assert torch.equal(decode(torch.full_like(zeroed, 3e4), 12, splits=1), text)
    poisoned = zeroed.clone()
    poisoned[:, 15, WIDTH:] = float("nan")
    assert not torch.equal(decode(poisoned, 12, splits=1), text)
    assert not zeroed.any()


def test_the_chance_of_a_nan():
    assert stale_chance(values=3, share=0.5).chance == pytest.approx(0.875)
    half = stale_chance(values=1, share=0.0053).half_values
    assert stale_chance(values=half, share=0.0053).chance >= 0.5 > stale_chance(values=half - 1, share=0.0053).chance
    assert stale_chance(values=9, share=0.0).half_values is None


def test_the_knob_shows_what_its_data_says():
    turned = stale_knob({"e4m3fn": 0.0053, "e2m1": 0.0})
    turned.set(format="e2m1", values=7)
    assert turned.sentence == stale_chance(values=7, share=0.0, name="e2m1").sentence
    assert turned.errors == []
