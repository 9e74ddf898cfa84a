"""The first picture of the workbook: a small cache that the reader changes, and its four numbers."""

from __future__ import annotations

from dataclasses import dataclass

from kvzero.layout.geometry import CacheGeometry
from kvzero.plan.planner import Plan, plan_segments

from .figures.map_data import MemoryMapData, memory_map_data
from .figures.map_text import map_text
from .figures.memory_map import draw_memory_map
from .figures.sheet import Figure
from .knob import Knob, knob
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


def draw_first_picture(**sizes: int) -> tuple[Figure, str, str]:
    """The picture as (figure, sentence, text); see `first_picture`."""
    found = first_picture(**sizes)
    return draw_memory_map(found.map), found.sentence, found.text


def first_picture_knob(*, layers: int, num_blocks: int, page_bytes: int, pad_bytes: int, block: int) -> Knob:
    """A knob that starts at the picture with these sizes; see `first_picture`."""
    start = {"layers": layers, "num_blocks": num_blocks, "page_bytes": page_bytes, "pad_bytes": pad_bytes,
             "block": block}  # fmt: skip
    controls = {
        "layers": range(1, max(8, layers) + 1), "num_blocks": range(1, max(8, num_blocks) + 1),
        "page_bytes": range(1, max(128, page_bytes) + 1), "pad_bytes": range(max(64, pad_bytes) + 1),
        "block": range(max(8, num_blocks)),
    }  # fmt: skip
    steps = {
        "as above": start,
        "no pad": {"pad_bytes": 0},
        "one layer: span and block stride are equal": {"layers": 1, "pad_bytes": 0},
        "the last block": {"block": num_blocks - 1},
    }
    return knob(draw_first_picture, controls=controls, steps=steps, title="Block, page, segment",
                boundary="one layer: span and block stride are equal")  # fmt: skip
