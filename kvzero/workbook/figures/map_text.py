"""The memory map as text: equal in rank with the picture, for logs, screen readers and pages without images."""

from __future__ import annotations

from collections.abc import Sequence

from .atlas import STATES, Cell
from .map_data import MemoryMapData
from .style import GLYPHS, SIGNS, bytes_text

COLUMNS = 64
LETTERS = "abcdefghijklmnopqrstuvwxyz"


def map_text(data: MemoryMapData, *, columns: int = COLUMNS) -> str:
    """Write a memory map down.

    Args:
        data: what the map shows.
        columns: characters in a row.

    Returns:
        The sentence; a row for each block shown, in which a layer's own bytes carry its letter, what a write
        did carries its glyph, and the worst of the bytes behind a character wins; the bytes around the focus;
        and the key with all counts. The first offender is in brackets.
    """
    low, high = data.window_bytes
    layers = sorted({cell.layers[0] for cell in data.cells if cell.layers})
    letters = {layer: LETTERS[index % 26] for index, layer in enumerate(layers)}
    width = min(columns, high - low)
    each = f"{(high - low) / width:,.1f}".removesuffix(".0")
    part = "" if (low, high) == (0, data.row_bytes) else f"bytes {low:,} to {high:,} ({data.window_reason}) of "
    lines = [data.sentence, f"{part}{data.row_bytes:,} bytes a block, {each} to a character; the worst of them shows"]
    before = None
    for row in data.rows:
        if before is not None and row != before + 1:
            lines.append(f"{'':>14} ({row - before - 1:,} blocks between)")
        before = row
        cells = [cell for cell in data.cells if cell.row == row]
        asked = ">" if data.blocks is not None and row in data.blocks else ""
        name = f"block {row:,}" if 0 <= row < data.num_blocks else ("before" if row < 0 else "past the end")
        lines.append(f"{asked + name:>14} {_row(cells, low, high, width, letters, data)}")
    if data.beyond:
        stretch = data.beyond[-1].end_bytes
        characters = max(1, min(width, stretch * width // (high - low)))
        name = "before" if data.focus[1] < 0 else "past the end"
        lines.append(f"{name:>14} {_row(data.beyond, 0, stretch, characters, letters, data)}")
        lines.append(f"{'':>14}  (from byte {data.beyond[0].offset_bytes:,} of storage {data.beyond[0].storage})")
    unit = data.unit_bytes
    if data.measure:
        stride = data.measure.stride_bytes
        lines.append(data.measure.words + (f", block stride {stride:,} B" if stride else ""))
    if data.kernel_words and data.kernel_edges:
        lines.append(data.kernel_words.removeprefix("edge of a "))
    lines.append(
        f"around byte {data.focus[1]:,} of storage {data.focus[0]} ({data.focus_reason}), "
        f"a character is {unit} byte{'s' * (unit > 1)}"
    )
    lines += _byte_lines(data, letters)
    used = {cell.kind for cell in (*data.cells, *data.beyond, *data.byte_cells)}
    parts = {
        layer: dict.fromkeys(c.part for c in data.cells if c.layers[:1] == (layer,) and c.part) for layer in layers
    }
    names = ", ".join(
        f"{letters[layer]} {data.labels[layer]}" + (f" (in parts: {'; '.join(parts[layer])})" if parts[layer] else "")
        for layer in layers
    )
    lines.append(f"layers: {names}")
    for kind, sign in SIGNS.items():
        if kind == "kept":
            continue
        if kind in data.totals or kind in used:
            count = f": {bytes_text(data.totals[kind])}" if kind in data.totals else ""
            lines.append(f"  {sign.glyph}  {sign.word}{count}")
    return "\n".join(lines)


def _rank(cell: Cell) -> int:
    return STATES.index(cell.kind) + 2 if cell.kind in STATES else int(bool(cell.layers))


def _character(cell: Cell, letters) -> str:
    return letters.get(cell.layers[0], ".") if cell.kind == "kept" else GLYPHS[cell.kind]


def _row(cells: Sequence[Cell], low: int, high: int, width: int, letters, data: MemoryMapData) -> str:
    worst: list[Cell | None] = [None] * width
    mark = None
    for cell in cells:
        first = (cell.start_bytes - low) * width // (high - low)
        last = (cell.end_bytes - 1 - low) * width // (high - low)
        for at in range(first, last + 1):
            if worst[at] is None or _rank(cell) > _rank(worst[at]):
                worst[at] = cell
        offender = data.first
        if offender and cell.storage == offender["storage"]:
            inside = offender["byte_offset"] - cell.offset_bytes
            if 0 <= inside < cell.end_bytes - cell.start_bytes:
                mark = (cell.start_bytes + inside - low) * width // (high - low)
    return _bracketed("".join(_character(cell, letters) if cell else " " for cell in worst), mark)


def _bracketed(characters: str, mark: int | None) -> str:
    if mark is None:
        return f" {characters}"
    return f" {characters[:mark]}[{characters[mark]}]{characters[mark + 1 :]}"


def _byte_lines(data: MemoryMapData, letters) -> list[str]:
    unit = data.unit_bytes
    start = data.byte_cells[0].start_bytes
    characters = "".join(
        _character(cell, letters) * ((cell.end_bytes - cell.start_bytes) // unit) for cell in data.byte_cells
    )
    at, lines = (data.focus[1] - start) // unit, []
    for first in range(0, len(characters), 64):
        mark = at - first if data.marked and first <= at < first + 64 else None
        lines.append(f"{start + first * unit:>14,} {_bracketed(characters[first : first + 64], mark)}")
    return lines
