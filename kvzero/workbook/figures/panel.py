"""What the panels of a memory map share: where they lie on the sheet, and how owners and the first offender look."""

from __future__ import annotations

from .atlas import Cell
from .map_data import MemoryMapData
from .sheet import Sheet
from .style import INK, PAPER, WIDTH_INCHES

FATES = {
    "kept": "not written", "idle_pad": "not written", "redzone": "not written", "planned": "will be written",
    "cleared": "cleared", "pad": "pad, written", "missed": "missed, left dirty", "stomped": "stomped",
    "overrun": "overrun, written",
}  # fmt: skip
LEFT, RIGHT = 1.4, WIDTH_INCHES - 0.15  # the gutter on the left holds offsets of up to 13 digits


def owner_text(data: MemoryMapData, cell: Cell, most: int = 1) -> str:
    """Who owns a cell, in a few words, naming up to `most` layers that share it."""
    if not cell.layers:
        return "outside" if cell.kind in ("redzone", "overrun") else "pad"
    more = f" +{len(cell.layers) - most}" if len(cell.layers) > most else ""
    kept = " (not zeroed)" if all(layer in data.not_zeroed for layer in cell.layers) else ""
    part = f", {cell.part}" if cell.part else ""
    named = sorted(cell.layers, key=lambda layer: layer in data.not_zeroed)[:most]
    return " + ".join(data.labels[layer] for layer in named) + more + part + kept


def told(data: MemoryMapData, cell: Cell) -> str:
    """What a cell is, in words: layer, block, byte range in its storage, and what was done to it by whom."""
    first, last = cell.offset_bytes, cell.offset_bytes + cell.end_bytes - cell.start_bytes - 1
    who = "outside the storage" if cell.kind in ("redzone", "overrun") else owner_text(data, cell, 9)
    where = f", block {cell.row:,}" if cell.layers else ""
    by = f", by {data.planner}" if data.planner and cell.kind not in ("kept", "idle_pad", "redzone", "missed") else ""
    return f"{who}{where}, bytes {first:,} to {last:,} of storage {cell.storage}: {FATES[cell.kind]}{by}"


def bracket(sheet: Sheet, x: float, y: float, width: float, height: float) -> None:
    """Square brackets around the first offender, as in the text form."""
    tick, out = 0.045, 0.025
    for edge, way in ((x - out, 1), (x + width + out, -1)):
        shape = [
            (edge + way * tick, y - out),
            (edge, y - out),
            (edge, y + height + out),
            (edge + way * tick, y + height + out),
        ]
        sheet.stroke(shape, PAPER, 3.6, over=4)
        sheet.stroke(shape, INK, 2.0, over=5)


def kernel_marks(data: MemoryMapData, scale: float) -> tuple[int, ...]:
    """The columns of the kernel blocks' edges, if marks at this scale (inches a byte) stand apart; else none."""
    edges = data.kernel_edges
    close = min((b - a for a, b in zip(edges, edges[1:], strict=False)), default=1) * scale < 0.04
    return () if close else edges


def kernel_mark(sheet: Sheet, x: float, y: float, height: float) -> None:
    """A thin mark in a row where a kernel block ends."""
    sheet.stroke([(x, y), (x, y + height)], PAPER, 2.2, over=1)
    sheet.stroke([(x, y), (x, y + height)], INK, 0.9, over=2)
