"""The third panel of a memory map: single bytes around one point, in the order of addresses."""

from __future__ import annotations

from dataclasses import dataclass

from .atlas import UNITS_PER_LINE, Cell
from .map_data import MemoryMapData
from .panel import LEFT, RIGHT, bracket, owner_text
from .style import INK, PAPER, SIGNS, SMALL_POINTS, SOFT, WIDTH_INCHES, Sheet, Sign, owner_sign, text_width

FLAG = 0.05


@dataclass(frozen=True)
class ByteLine:
    """One line of the byte panel: its first byte, its pieces (cell, start, end), and labels (x, byte x, words)."""

    low: int
    pieces: list[tuple[Cell, int, int]]
    labels: list[tuple[float, float, str]]

    @property
    def height(self) -> float:
        """Inches that it takes."""
        return 0.42 if self.labels else 0.25


def byte_lines(data: MemoryMapData, most: int) -> list[ByteLine]:
    """Cut the byte panel's cells into lines, and place a label, of at most `most` names, where the owner changes."""
    line, found = data.unit_bytes * UNITS_PER_LINE, []
    scale = (RIGHT - LEFT) / line
    said = ("", "")  # the owner and the block of the last label
    for low in range(data.byte_cells[0].start_bytes, data.byte_cells[-1].end_bytes, line):
        pieces, labels, free = [], [], 0.0
        for cell in data.byte_cells:
            a, b = max(cell.start_bytes, low), min(cell.end_bytes, low + line)
            if a >= b:
                continue
            pieces.append((cell, a, b))
            where = f", block {cell.row:,}" if 0 <= cell.row < data.num_blocks and cell.layers else ""
            owner, x = owner_text(data, cell, most), LEFT + (a - low) * scale
            at = max(x + FLAG, free)
            # Pushed on by the label of the same owner: the block is all that is new.
            short = where[2:] if labels and at > x + FLAG and where and said[0] == owner else owner + where
            if (owner, where) != said and at - x < 0.5 and at + text_width(short) < WIDTH_INCHES:
                labels.append((at, x, short))
                free, said = at + text_width(short) + 2 * FLAG, (owner, where)
        found.append(ByteLine(low, pieces, labels))
    return found


def draw_bytes(sheet: Sheet, data: MemoryMapData, lines: list[ByteLine], top: float) -> None:
    """Lines of characters around the focus, in the order of addresses, like a memory dump."""
    unit, (storage, focus) = data.unit_bytes, data.focus
    width = (RIGHT - LEFT) / UNITS_PER_LINE
    each = "a byte" if unit == 1 else f"{unit} bytes"
    words = f"Bytes around {focus:,} of storage {storage}, {data.focus_reason}; each character {each}"
    sheet.text(0.15, top + 0.06, words, SMALL_POINTS, SOFT)
    y = top + 0.2
    for line in lines:
        y += line.height - 0.2
        sheet.text(LEFT - 0.1, y + 0.1, f"{line.low:,}", align="right", colour=SOFT)
        for at, x, words in line.labels:
            sheet.text(at, y - 0.095, words)
            flag = at - FLAG  # beside its words; it slants where an earlier label pushed them on
            sheet.stroke([(x, y), (x, y - 0.015), (flag, y - 0.035), (flag, y - 0.15)], INK, 0.8)
        for cell, a, b in line.pieces:
            x = LEFT + (a - line.low) / unit * width
            sign = SIGNS[cell.kind]
            fill = owner_sign(cell.layers[0]).fill if cell.kind == "kept" else sign.fill
            # The glyphs are the pattern here; a hatch under them would only blur them.
            sheet.box(x, y, (b - a) / unit * width, 0.2, Sign("", "", fill), edge=PAPER)
            for i in range((b - a) // unit):
                sheet.glyph(x + (i + 0.5) * width, y + 0.1, sign, 0.08)
        if data.marked and line.low <= focus < line.low + unit * UNITS_PER_LINE:
            bracket(sheet, LEFT + (focus - line.low) // unit * width, y, width, 0.2)
        y += 0.2
