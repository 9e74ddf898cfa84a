"""What several commands read: a geometry by file or by name, and a list of blocks."""

from __future__ import annotations

import os
from collections.abc import Sequence

from kvzero.errors import BlockListError
from kvzero.layout import geometries
from kvzero.layout.geometry import CacheGeometry

MAX_LISTED_BLOCKS = 1_000_000
MAX_DIGITS = 40  # Python reads no more than some thousands


def load_geometry(text: str) -> CacheGeometry:
    """The geometry in a file, or the packaged dump of that name if there is no such file.

    Raises:
        GeometryFileError: neither a file nor a packaged name, or not JSON; and every rule of `from_dict`.
    """
    if not os.path.exists(text) and text in geometries.names():
        return geometries.load(text)
    return CacheGeometry.from_json(text)


def parse_blocks(text: str, num_blocks: int) -> Sequence[int]:
    """Block ids from "1,3", "0-3" or "last", in that order, each once.

    Raises:
        BlockListError: a part is none of these, or a range runs backwards or is absurdly long.

    Example:
        >>> parse_blocks("5,0-2,last", num_blocks=8)
        [5, 0, 1, 2, 7]
    """
    blocks: dict[int, None] = {}
    for part in text.split(","):
        word = part.strip()
        if word == "last":
            blocks[num_blocks - 1] = None
            continue
        first, dash, last = word.partition("-")
        ends = (first, last) if dash else (first, first)
        if not all(end.isascii() and end.isdigit() and len(end) <= MAX_DIGITS for end in ends):
            raise BlockListError(text=text, part=word)
        low, high = int(ends[0]), int(ends[1])
        if not low <= high < low + MAX_LISTED_BLOCKS:
            raise BlockListError(text=text, part=word)
        blocks.update(dict.fromkeys(range(low, high + 1)))
    return list(blocks)
