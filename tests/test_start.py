"""The first picture: its numbers against plain indexing, and its knobs."""

from __future__ import annotations

import pytest
import torch

from kvzero.workbook.start import first_picture
from kvzero.workbook.toy import ToyOptionError


@pytest.mark.parametrize("pad_bytes", [0, 8])
def test_each_row_says_where_the_page_lies(pad_bytes):
    found = first_picture(layers=3, num_blocks=4, page_bytes=16, pad_bytes=pad_bytes, block=2)
    slab = torch.arange(4 * 3 * (16 + pad_bytes)).reshape(4, 3, 16 + pad_bytes)  # each element is its own address
    for layer, (_, base, stride, span, blocks, start, end) in enumerate(found.rows):
        page = slab[2, layer, :16]
        assert (start, end) == (int(page[0]), int(page[-1]) + 1)
        assert (base, stride) == (int(slab[0, layer, 0]), int(slab[1, layer, 0] - slab[0, layer, 0]))
        assert (span, blocks) == (16, 4)


def test_the_sentence_counts_what_is_written():
    found = first_picture(layers=2, num_blocks=3, page_bytes=24, pad_bytes=4, block=9)
    assert found.block == 2
    assert found.map.totals == {"planned": 48}
    assert "writes 48 bytes" in found.sentence


def test_a_page_of_no_bytes_is_refused():
    with pytest.raises(ToyOptionError):
        first_picture(layers=1, num_blocks=1, page_bytes=0, pad_bytes=0, block=0)
