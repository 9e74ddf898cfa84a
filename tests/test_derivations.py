"""Derived page sizes against the dumps of the engine's own allocator, and against its logs."""

from __future__ import annotations

import pytest

from kvzero import geometries
from kvzero.workbook.derivations import PAGES, ROWS, block_tokens, padded, slab_stride_bytes, state_bytes


@pytest.mark.parametrize("page", PAGES, ids=lambda page: f"{page.row}, {page.tokens} x {page.heads}")
def test_a_page_is_what_the_allocator_made(page):
    assert page.measured_bytes() == (page.nbytes,)


def test_rows_have_the_widths_of_the_history():
    widths = {"latent fp8_ds_mla": 656, "indexer fp8": 132, "indexer mxfp4": 68, "latent of DeepSeek-V4": 584}
    assert {name: ROWS[name].nbytes for name in widths} == widths


def test_padding_rounds_up_and_keeps_multiples():
    assert [padded(size, 576) for size in (1, 576, 577, 37_376)] == [576, 576, 1_152, 37_440]


def test_slab_strides_are_those_of_the_overflow_reports():
    assert slab_stride_bytes(21, 20) == 1_002_240  # aiter #4774
    assert slab_stride_bytes(30, 31) == 1_435_968  # aiter #4427
    assert slab_stride_bytes(30, 31, indexer="indexer mxfp4") == 1_315_008  # vllm #48993
    assert slab_stride_bytes(4, 0) == geometries.load("dsv4_c4_full__BLHNC").layers[0].block_stride_bytes


@pytest.mark.parametrize(
    ("dump", "kernel_tokens"),
    [
        ("qwen3next_528_fi16__LBNHC", 16),
        ("qwen3next_544_fi32__LBNHC", 32),
        ("kimi_linear_mla_kda_flashmla64__LBNHC", 64),
    ],
)
def test_a_hybrid_block_is_the_fewest_kernel_blocks_that_hold_a_state(dump, kernel_tokens):
    geometry = geometries.load(dump)
    attention = geometry.select()[0]
    tokens = attention.extra["manager_block_size"]
    assert block_tokens(state_bytes(geometry), attention.page_bytes // tokens, kernel_tokens) == tokens
    # Fewest: one kernel block less would not hold the state.
    assert (tokens - kernel_tokens) * attention.page_bytes // tokens < state_bytes(geometry) <= attention.page_bytes
