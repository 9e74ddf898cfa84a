"""The second panel of a memory map: a few blocks as rows, their bytes as columns, to scale."""

from __future__ import annotations

from collections.abc import Sequence

from .atlas import STATES, Cell
from .map_data import Measure, MemoryMapData
from .panel import LEFT, RIGHT, bracket, kernel_mark, kernel_marks, owner_text, told
from .sheet import Sheet
from .style import BODY_POINTS, INK, PAPER, SIGNS, SMALL_POINTS, SOFT, owner_sign, text_width, wrap

ROW, GAP = 0.27, 0.05
BAND_GAP = 0.07  # bands are apart in memory, and so on the map
LEAST_WIDTH = 0.022  # nothing on the map is thinner than this


class Columns:
    """Where the columns of the block panel lie on the sheet: true to scale inside the window, bands apart."""

    def __init__(self, data: MemoryMapData):
        low, high = data.window_bytes
        self.bands = [
            (index, max(low, band.column_bytes), min(high, band.column_bytes + band.stride_bytes))
            for index, band in enumerate(data.bands)
            if band.column_bytes < high and band.column_bytes + band.stride_bytes > low
        ]
        gap = min(BAND_GAP, 1.2 / max(1, len(self.bands)))
        self.scale = (RIGHT - LEFT - gap * (len(self.bands) - 1)) / (high - low)
        self.lefts = {index: LEFT + (a - low) * self.scale + gap * i for i, (index, a, _) in enumerate(self.bands)}
        self.origin = {index: a for index, a, _ in self.bands}
        self.most = 3  # names of layers that share bytes; beyond them, a count
        self.labels = self._labels(data)
        self.letters = not all(text_width(label) <= width for _, width, label in self.labels)
        self.legend: list[str] = []
        if self.letters:
            self.legend = self._legend()
            if len(self.legend) > 2:
                self.most = 1
                self.labels = self._labels(data)
                self.legend = self._legend()
            names = list(dict.fromkeys(label for *_, label in self.labels))
            self.labels = [(x, width, _letter(names.index(label))) for x, width, label in self.labels]
        self.head_inches = 0.24 + 0.17 * len(self.legend)

    def _legend(self) -> list[str]:
        """The letters and the names that they stand for, where the names do not fit over their columns."""
        names = dict.fromkeys(label for *_, label in self.labels)
        items = [f"{_letter(index)} = {name}".replace(" ", "\u00a0") for index, name in enumerate(names)]
        return wrap("   ".join(items), RIGHT - LEFT, SMALL_POINTS)

    def x(self, index: int, column: int) -> float:
        """The place of a column of the whole map, in the band that it belongs to."""
        return self.lefts[index] + (column - self.origin[index]) * self.scale

    def band(self, column: int) -> int:
        """The band in the window that holds a column."""
        return next(index for index, a, b in self.bands if a <= column < b)

    def _labels(self, data: MemoryMapData) -> list[tuple[float, float, str]]:
        """(left edge, width, label) of each owned stretch, from the first row inside the pool."""
        inside = [row for row in data.rows if 0 <= row < data.num_blocks] or [data.rows[0]]
        found: list[list] = []
        for cell in (cell for cell in data.cells if cell.row == inside[0] and cell.layers):
            label = owner_text(data, cell, self.most)
            x, width = (
                self.x(self.band(cell.start_bytes), cell.start_bytes),
                (cell.end_bytes - cell.start_bytes) * self.scale,
            )
            if found and found[-1][2] == label and abs(found[-1][0] + found[-1][1] - x) < 1e-6:
                found[-1][1] += width
            else:
                found.append([x, width, label])
        return [tuple(item) for item in found]


def _letter(index: int) -> str:
    return "abcdefghijklmnopqrstuvwxyz"[index % 26] * (index // 26 + 1)


def draw_blocks(sheet: Sheet, data: MemoryMapData, columns: Columns, top: float) -> None:
    low, high = data.window_bytes
    whole = (low, high) == (0, data.row_bytes)
    part = "" if whole else f", bytes {low:,} to {high:,} of a block's {data.row_bytes:,}: {data.window_reason}"
    asked_for = " (▸ asked to be zeroed)" if data.blocks else ""
    sheet.text(0.15, top + 0.08, f"Blocks, to scale{part}{asked_for}", SMALL_POINTS, SOFT)
    base = top + 0.18 + columns.head_inches
    for index, line in enumerate(columns.legend):
        sheet.text(LEFT, top + 0.28 + 0.17 * index, line)
    for x, width, label in columns.labels:
        if text_width(label) <= max(width, 0.1):
            sheet.text(x + width / 2, base - 0.13, label, align="center", bold=columns.letters)
    _draw_rows(sheet, data, columns, base)
    _draw_kernel_edges(sheet, data, columns, base)
    below = base + len(data.rows) * (ROW + GAP)
    _break_marks(sheet, data, base - 0.03, below - GAP + 0.03)
    if data.beyond:
        _draw_beyond(sheet, data, columns, below)
    _draw_measures(sheet, data, columns, below + _beyond_inches(data))


def rows_inches(data: MemoryMapData) -> float:
    """The height of the rows."""
    return len(data.rows) * (ROW + GAP) + _beyond_inches(data)


def _beyond_inches(data: MemoryMapData) -> float:
    return ROW + GAP + 0.26 if data.beyond else 0.0


def _draw_rows(sheet: Sheet, data: MemoryMapData, columns: Columns, base: float) -> None:
    before = None
    for index, row in enumerate(data.rows):
        y = base + index * (ROW + GAP)
        if before is not None and row != before + 1:
            sheet.stroke([(0.15, y - GAP / 2), (RIGHT, y - GAP / 2)], SOFT, 0.8, ":")
        before = row
        asked = data.blocks is not None and row in data.blocks
        name = f"block {row:,}" if 0 <= row < data.num_blocks else ("before" if row < 0 else "past the end")
        sheet.text(LEFT - 0.1, y + ROW / 2, ("▸ " if asked else "") + name, BODY_POINTS, align="right",
                   bold=asked)  # fmt: skip
        cells = [cell for cell in data.cells if cell.row == row]
        places = [columns.x(columns.band(cell.start_bytes), cell.start_bytes) for cell in cells]
        _draw_cells(sheet, data, cells, places, columns.scale, y)


def _draw_beyond(sheet: Sheet, data: MemoryMapData, columns: Columns, y: float) -> None:
    """An overrun that the map's columns would cut, in a row of its own, and where it lies in words."""
    cells, (storage, byte) = data.beyond, data.focus
    scale = min(columns.scale, (RIGHT - LEFT) / cells[-1].end_bytes)
    sheet.stroke([(0.15, y - GAP / 2), (RIGHT, y - GAP / 2)], SOFT, 0.8, ":")
    sheet.text(LEFT - 0.1, y + ROW / 2, "before" if byte < 0 else "past the end", BODY_POINTS, align="right")
    _draw_cells(sheet, data, cells, [LEFT + cell.start_bytes * scale for cell in cells], scale, y)
    written = [cell for cell in cells if cell.kind == "overrun"]
    count = sum(cell.end_bytes - cell.start_bytes for cell in written)
    x, end = (LEFT + edge * scale for edge in (written[0].start_bytes, written[-1].end_bytes))
    small = "" if scale == columns.scale else ", drawn smaller"
    sheet.stroke([(x, y + ROW + 0.03), (x, y + ROW + 0.09), (end, y + ROW + 0.09), (end, y + ROW + 0.03)], SOFT)
    words = f"overrun {count:,} B, from byte {written[0].offset_bytes:,} of storage {storage}{small}"
    left = min(x, RIGHT - text_width(words))
    sheet.text(left, y + ROW + 0.17, words, colour=SOFT)


def _draw_cells(
    sheet: Sheet, data: MemoryMapData, cells: Sequence[Cell], places: Sequence[float], scale: float, y: float
) -> None:
    """A row: whose bytes they are as its ground, and what was done to them on top, one box where they touch."""
    written: list[list] = []  # left, right, kind of neighbouring cells with the same fate
    for cell, x in zip(cells, places, strict=True):
        true_width = (cell.end_bytes - cell.start_bytes) * scale
        width, thin = max(true_width, LEAST_WIDTH), true_width < LEAST_WIDTH
        outside = cell.kind in ("redzone", "overrun")
        ground = owner_sign(cell.layers[0]) if cell.layers else SIGNS["redzone" if outside else "idle_pad"]
        sheet.box(x, y, width, ROW, ground, edge=PAPER if cell.layers and width > 0.06 else None, over=thin)
        sheet.tell(x, y, width, ROW, told(data, cell))
        if cell.kind in STATES:
            if written and written[-1][2] == cell.kind and abs(written[-1][1] - x) < 1e-6:
                written[-1][1] = x + true_width
            else:
                written.append([x, x + true_width, cell.kind])
        first = data.first
        if first and first["storage"] == cell.storage:
            inside = first["byte_offset"] - cell.offset_bytes
            if 0 <= inside < cell.end_bytes - cell.start_bytes:
                bracket(sheet, x + inside * scale, y, max(width, 0.1), ROW)
    for left, right, kind in written:
        sign, inset, width = SIGNS[kind], 0.045, max(right - left, LEAST_WIDTH)
        sheet.box(left, y + inset, width, ROW - 2 * inset, sign, over=1 + (width == LEAST_WIDTH))
        if width >= 0.11:
            count = max(1, min(9, round(width / 0.9)))
            for i in range(count):
                sheet.glyph(left + width * (i + 0.5) / count, y + ROW / 2, sign, 0.09, clear=min(0.15, width))


def _break_marks(sheet: Sheet, data: MemoryMapData, top: float, bottom: float) -> None:
    """A jagged edge on each side where a block goes on outside the window."""
    low, high = data.window_bytes
    for x, cut in ((LEFT, low > 0), (RIGHT, high < data.row_bytes)):
        if cut:
            steps = max(2, round((bottom - top) / 0.06))
            zigzag = [(x + 0.03 * (i % 2 * 2 - 1), top + (bottom - top) * i / steps) for i in range(steps + 1)]
            sheet.stroke(zigzag, PAPER, 4.5, over=4)
            sheet.stroke(zigzag, INK, 1.0, over=5)


def _draw_measures(sheet: Sheet, data: MemoryMapData, columns: Columns, y: float) -> None:
    """A span or a page, and the block stride, as dimension lines under the rows."""
    measure = data.measure
    if measure is None:
        return
    _, low, high = next(item for item in columns.bands if item[0] == measure.band)
    band = data.bands[measure.band]
    _measure(sheet, columns, measure, (low, high), (measure.start_bytes, measure.end_bytes), y + 0.06, measure.words)
    if measure.stride_bytes is None:
        return
    words = f"block stride {measure.stride_bytes:,} B"
    if (low, high) == (band.column_bytes, band.column_bytes + band.stride_bytes):
        _measure(sheet, columns, measure, (low, high), (low, high), y + 0.25, words)
    else:
        sheet.text(LEFT, y + 0.25, f"{words}, wider than this window", colour=SOFT)


def _measure(sheet: Sheet, columns: Columns, measure: Measure, window, stretch, y: float, words: str) -> None:
    """One dimension line; an end that the window cuts off has no tick, and the words say so."""
    low, high = max(stretch[0], window[0]), min(stretch[1], window[1])
    words += "" if (low, high) == stretch else ", cut by this window"
    x0 = columns.x(measure.band, low)
    x1 = x0 + (high - low) * columns.scale
    room = text_width(words) + 0.12
    if x1 - x0 > room + 0.1:
        middle = (x0 + x1) / 2
        sheet.stroke([(x0, y), (middle - room / 2, y)], SOFT)
        sheet.stroke([(middle + room / 2, y), (x1, y)], SOFT)
        sheet.text(middle, y, words, align="center", colour=SOFT)
    else:
        sheet.stroke([(x0, y), (x1, y)], SOFT)
        left = x1 + room + 0.05 <= RIGHT
        sheet.text(x1 + 0.06 if left else x0 - 0.06, y, words, align="left" if left else "right", colour=SOFT)
    for x in (edge for edge, whole in ((x0, low == stretch[0]), (x1, high == stretch[1])) if whole):
        sheet.stroke([(x, y - 0.04), (x, y + 0.04)], SOFT)


def _draw_kernel_edges(sheet: Sheet, data: MemoryMapData, columns: Columns, base: float) -> None:
    """Where kernel blocks end, as marks at the edges of each row; what is written in one piece stays whole."""
    for index, row in enumerate(data.rows):
        y = base + index * (ROW + GAP)
        for column in kernel_marks(data, columns.scale) if 0 <= row < data.num_blocks else ():
            x = columns.x(columns.band(column), column)
            kernel_mark(sheet, x, y, 0.05)
            kernel_mark(sheet, x, y + ROW - 0.05, 0.05)
