"""The first picture of the workbook: a small cache that the reader changes, and its four numbers."""

from __future__ import annotations

from dataclasses import dataclass

import ipywidgets as widgets

from kvzero.layout.geometry import CacheGeometry
from kvzero.plan.planner import Plan, plan_segments

from .explorers.base import Explorer, View, call_text
from .figures.map_data import MemoryMapData, memory_map_data
from .figures.map_text import map_text
from .figures.memory_map import draw_memory_map
from .tables import table_text
from .toy import make_geometry


@dataclass(frozen=True)
class FirstPicture:
    """A packed cache and what zeroing one block of it writes.

    Args:
        geometry: the cache: all layers side by side in each block, one byte an element.
        plan: kvzero's plan for it.
        block: the block to zero.
        map: the data of the memory map.
        rows: a row for each layer: name, base, block stride, span, blocks, start and end in this block.
        sentence: what to see.
    """

    geometry: CacheGeometry
    plan: Plan
    block: int
    map: MemoryMapData
    rows: tuple[tuple[str, int, int, int, int, int, int], ...]
    sentence: str

    HEADER = ("layer", "base", "block stride", "span", "blocks", "starts at", "ends before")

    @property
    def text(self) -> str:
        """The map and the numbers as text."""
        return f"{map_text(self.map)}\n\n{table_text(self.HEADER, self.rows)}"


def first_picture(*, layers: int, num_blocks: int, page_bytes: int, pad_bytes: int, block: int) -> FirstPicture:
    """Lay out a small packed cache and plan one block.

    Args:
        layers: layers side by side in a block.
        num_blocks: blocks in the pool.
        page_bytes: bytes that each layer keeps in a block.
        pad_bytes: bytes after each page that belong to nobody.
        block: the block to zero; the last one if it is larger.

    Raises:
        ToyOptionError: a size below 1, or a negative pad.

    Example:
        >>> first_picture(layers=3, num_blocks=4, page_bytes=64, pad_bytes=8, block=1).rows[2]
        ('layer.2', 144, 216, 64, 4, 360, 424)
    """
    geometry = make_geometry(
        layers=layers, num_blocks=num_blocks, tokens=1, heads=1, content=page_bytes, order="BLNHC",
        pad_bytes=pad_bytes, name="a small packed cache",
    )  # fmt: skip
    block = min(block, num_blocks - 1)
    plan = plan_segments(geometry)
    rows = []
    for view in geometry.layers:
        start = view.byte_offset + block * view.block_stride_bytes
        place = (view.byte_offset, view.block_stride_bytes, view.page_bytes, num_blocks)
        rows.append((view.name, *place, start, start + view.page_bytes))
    pages = "1 page" if layers == 1 else f"{layers} pages"
    stride = geometry.layers[0].block_stride_bytes
    sentence = (
        f"Block {block} holds {pages} of {page_bytes} bytes; the next block starts {stride} bytes later, "
        f"and zeroing block {block} writes {plan.needed_bytes_per_block} bytes."
    )
    data = memory_map_data(geometry, plan, blocks=[block], sentence=sentence)
    return FirstPicture(geometry, plan, block, data, tuple(rows), sentence)


def first_picture_explorer(**sizes: int) -> Explorer:
    """The picture with knobs.

    Args:
        sizes: where to start; see `first_picture`.
    """

    def draw(state: dict) -> View:
        found = first_picture(**state)
        return View(draw_memory_map(found.map), found.sentence, found.text, call_text("first_picture", state))

    slider = widgets.IntSlider
    controls = {
        "layers": slider(3, 1, 8, description="layers"),
        "num_blocks": slider(4, 1, 8, description="blocks"),
        "page_bytes": slider(64, 8, 128, 8, description="page, bytes"),
        "pad_bytes": slider(8, 0, 64, 4, description="pad, bytes"),
        "block": slider(1, 0, 3, description="block to zero"),
    }

    def adapt(found) -> None:
        last = found["num_blocks"].value - 1
        found["block"].value = min(found["block"].value, last)
        found["block"].max = last

    start = {**{name: control.value for name, control in controls.items()}, **sizes}
    presets = {
        "as above": start,
        "no pad": {**start, "pad_bytes": 0},
        "one layer: span and block stride are equal": {**start, "layers": 1, "pad_bytes": 0},
        "the last block": {**start, "block": start["num_blocks"] - 1},
    }
    return Explorer("Block, page, segment", controls, draw, presets, adapt)
