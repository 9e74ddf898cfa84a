"""The third panel of a memory map: single bytes around one point, in the order of addresses."""

from __future__ import annotations

from dataclasses import dataclass, replace

from .atlas import UNITS_PER_LINE, Cell
from .map_data import MemoryMapData
from .panel import LEFT, RIGHT, bracket, owner_text
from .sheet import Sheet
from .style import INK, PAPER, SIGNS, SMALL_POINTS, SOFT, WIDTH_INCHES, Sign, owner_sign, text_width

FLAG = 0.05
MOST_PUSH = 0.1  # inches; a label that would stand farther from its bytes is left out


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


@dataclass(frozen=True)
class Run:
    """Bytes of one line that one owner has in one block: where they are drawn (inches), and who that is."""

    left: float
    right: float
    owner: str
    where: str  # ", block 7", or nothing where no block is
    is_pad: bool


def byte_lines(data: MemoryMapData, most: int) -> list[ByteLine]:
    """Cut the byte panel's cells into lines, and place a label, of at most `most` names, where the owner changes."""
    line, found = data.unit_bytes * UNITS_PER_LINE, []
    said = ("", "")  # the owner and the block of the last label
    for low in range(data.byte_cells[0].start_bytes, data.byte_cells[-1].end_bytes, line):
        cut = [(cell, max(cell.start_bytes, low), min(cell.end_bytes, low + line)) for cell in data.byte_cells]
        pieces = [(cell, a, b) for cell, a, b in cut if a < b]
        labels, said = line_labels(line_runs(data, pieces, low, most), said)
        found.append(ByteLine(low, pieces, labels))
    return found


def line_runs(data: MemoryMapData, pieces: list[tuple[Cell, int, int]], low: int, most: int) -> list[Run]:
    """The pieces of a line, joined as long as the owner and the block stay the same."""
    scale, runs = (RIGHT - LEFT) / (data.unit_bytes * UNITS_PER_LINE), []
    for cell, a, b in pieces:
        where = f", block {cell.row:,}" if 0 <= cell.row < data.num_blocks and cell.layers else ""
        run = Run(LEFT + (a - low) * scale, LEFT + (b - low) * scale, owner_text(data, cell, most), where,
                  not cell.layers and cell.kind not in ("redzone", "overrun"))  # fmt: skip
        if runs and (runs[-1].owner, runs[-1].where) == (run.owner, run.where):
            run = replace(run, left=runs.pop().left)
        runs.append(run)
    return runs


def line_labels(runs: list[Run], said: tuple[str, str]) -> tuple[list[tuple[float, float, str]], tuple[str, str]]:
    """Labels of a line, as `ByteLine.labels`, and the last one's owner and block.

    An owner's label ends before the next owner's begins: what the last label said already is left out of it, if need
    be. Pad is named only where its name fits over it; its sign and the key say the same.
    """
    labels, free = [], 0.0
    for index, run in enumerate(runs):
        if (run.owner, run.where) == said:
            continue
        at = max(run.left + FLAG, free)
        if run.is_pad and (at > run.left + FLAG or at + text_width(run.owner) > run.right):
            continue
        ways = [run.owner + run.where]
        if run.where and run.where == said[1]:
            ways.append(run.owner)
        if run.where and run.owner == said[0]:
            ways.append(run.where[2:])
        stop = next((other.left for other in runs[index + 1 :] if not other.is_pad), WIDTH_INCHES)
        fitting = [words for words in ways if at + text_width(words) < stop]
        words = fitting[0] if fitting else min(ways, key=text_width)
        if at - run.left < FLAG + MOST_PUSH and at + text_width(words) < WIDTH_INCHES:
            labels.append((at, run.left, words))
            free, said = at + text_width(words) + 2 * FLAG, (run.owner, run.where)
    return labels, said


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
