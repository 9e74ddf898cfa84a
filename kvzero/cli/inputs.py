"""What several commands read: a layout by file or by name, the views to zero, and a list of blocks."""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from dataclasses import replace
from difflib import get_close_matches
from pathlib import Path

from kvzero.errors import CommandError, GeometryError
from kvzero.layout import geometries
from kvzero.layout.geometry import CacheGeometry

MAX_LISTED_BLOCKS = 1_000_000
MAX_DIGITS = 40  # Python reads no more than some thousands


def load_geometry(text: str, layers: str | None = None, groups: str | None = None) -> CacheGeometry:
    """Read the layout in a file, or the packaged one of that name if there is no such file.

    Args:
        text: a path or a name.
        layers: "all", or names of views with commas between; these are zeroed, and no others. None leaves the
            choice to the file.
        groups: ids of groups with commas between; only their views are zeroed.

    Raises:
        GeometryError: neither a file nor a packaged name, or not JSON; and every rule of `from_dict`.
        GeometryError, NothingSelectedError: see `CacheGeometry.select`.
    """
    if os.path.exists(text):
        geometry = CacheGeometry.from_json(text)
    elif text in geometries.names():
        geometry = geometries.load(text)
    else:
        raise GeometryError(
            "geometry-file", where=text, detail=f"there is no such file, and no packaged layout{_hint(text)}"
        )
    if layers is None and groups is None:
        return geometry
    ids = {str(view.group): view.group for view in geometry.layers}
    wanted = geometry.select(
        layers if layers in (None, "all") else _words(layers),
        groups if groups is None else [ids.get(word, word) for word in _words(groups)],
    )
    names = {view.name for view in wanted}
    views = tuple(replace(view, zeroed=view.name in names) for view in geometry.layers)
    return replace(geometry, layers=views)


def selected_geometry(args: argparse.Namespace) -> CacheGeometry:
    """Read the layout that a command names, with its --layers and --groups."""
    return load_geometry(args.geometry, args.layers, args.groups)


def _words(text: str) -> list[str]:
    return [word.strip() for word in text.split(",")]


def _hint(text: str) -> str:
    try:
        files = [path.name for path in Path.cwd().glob("*.json")]
    except OSError:
        files = []
    close = get_close_matches(text, [*files, *geometries.names()], n=1)
    return f"; did you mean {close[0]!r}? `kvzero layouts` lists them" if close else "; `kvzero layouts` lists them"


def parse_blocks(text: str, num_blocks: int) -> Sequence[int]:
    """Block ids from "1,3", "0-3" or "last", in that order, each once.

    Raises:
        CommandError: a part is none of these, or a range runs backwards or is absurdly long.

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
            raise CommandError("block-list", text=text, part=word)
        low, high = int(ends[0]), int(ends[1])
        if not low <= high < low + MAX_LISTED_BLOCKS:
            raise CommandError("block-list", text=text, part=word)
        blocks.update(dict.fromkeys(range(low, high + 1)))
    return list(blocks)
