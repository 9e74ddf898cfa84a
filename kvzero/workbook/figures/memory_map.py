"""The memory map as a figure: the whole pool folded, a few blocks to scale, and single bytes around one point."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure

from ...geometry import CacheGeometry
from ...plan import Plan
from ...report import Audit
from ...views import Name
from .atlas import STATES, UNITS_PER_LINE, Cell
from .map_data import MemoryMapData, memory_map_data
from .style import (
    BODY_POINTS,
    HAIR,
    INK,
    PAPER,
    SIGNS,
    SMALL_POINTS,
    SOFT,
    WIDTH_INCHES,
    Sheet,
    Sign,
    bytes_text,
    owner_sign,
    round_bytes,
    text_width,
    title_lines,
    wrap,
)

LEFT, RIGHT = 1.2, WIDTH_INCHES - 0.15  # the gutter on the left holds row labels
ROW, GAP = 0.27, 0.05
BAND_GAP = 0.07  # bands are apart in memory, and so on the map
LEAST_WIDTH = 0.022  # nothing on the map is thinner than this


def memory_map(
    geometry: CacheGeometry,
    plan: Plan | None = None,
    audit: Audit | None = None,
    blocks: Iterable[int] | None = None,
    layers: str | Sequence[str] | None = None,
    groups: Sequence[Name] | None = None,
    *,
    rows: Iterable[int] | None = None,
    focus: tuple[Name, int] | None = None,
    sentence: str | None = None,
) -> Figure:
    """Draw who owns each byte of a pool, what a plan writes, and what a write did.

    Args:
        geometry, plan, audit, blocks, layers, groups, rows, focus, sentence: see `memory_map_data`.

    Returns:
        A figure 9 inches wide; `show` displays it.

    Example:
        memory_map(geometry)                                        # who owns what
        memory_map(geometry, plan, blocks=[98])                     # and what the plan would write
        memory_map(geometry, audit=audit_plan(plan, geometry, [98]))  # and what that does
    """
    data = memory_map_data(
        geometry, plan, audit, blocks, layers, groups, rows=rows, focus=focus, sentence=sentence
    )
    return draw_memory_map(data)


def draw_memory_map(data: MemoryMapData) -> Figure:
    """Draw a memory map from its data; see `memory_map`."""
    title = title_lines(data.sentence, RIGHT - 0.2)
    key = _key_entries(data)
    fold_height = 0.0 if data.fold is None else min(1.3, max(0.4, 0.06 * len(data.fold.kinds)))
    top_fold = 0.18 + 0.19 * len(title)
    zoomed = 0.62 if data.window_bytes != (0, data.row_bytes) else 0.42
    top_rows = top_fold + (fold_height + zoomed if data.fold is not None else 0.06)
    columns = Columns(data)
    head = columns.head_inches
    top_bytes = top_rows + 0.22 + head + len(data.rows) * (ROW + GAP) + 0.5
    lines = byte_lines(data)
    top_key = top_bytes + 0.26 + sum(line.height for line in lines) + 0.1
    sheet = Sheet(top_key + 0.24 * -(-len(key) // 2) + 0.08)
    sheet.title(title)
    if data.fold is not None:
        _draw_fold(sheet, data, top_fold + 0.1, fold_height, top_rows)
    _draw_rows(sheet, data, columns, top_rows)
    _draw_bytes(sheet, data, lines, top_bytes)
    _draw_key(sheet, key, top_key)
    return sheet.finish()


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
        self.labels = self._labels(data, most=3)
        self.letters = not all(text_width(label) <= width for _, width, label in self.labels)
        self.legend: list[str] = []
        if self.letters:
            self.legend = self._legend()
            if len(self.legend) > 2:
                self.labels = self._labels(data, most=1)
                self.legend = self._legend()
            names = list(dict.fromkeys(label for *_, label in self.labels))
            self.labels = [(x, width, _letter(names.index(label))) for x, width, label in self.labels]
        self.head_inches = 0.2 + 0.17 * len(self.legend)

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

    def _labels(self, data: MemoryMapData, most: int) -> list[tuple[float, float, str]]:
        """(left edge, width, label) of each owned stretch, from the first row inside the pool."""
        inside = [row for row in data.rows if 0 <= row < data.num_blocks] or [data.rows[0]]
        found: list[list] = []
        for cell in (cell for cell in data.cells if cell.row == inside[0] and cell.layers):
            label = owner_text(data, cell, most)
            x, width = self.x(self.band(cell.start_bytes), cell.start_bytes), (cell.end_bytes - cell.start_bytes) * self.scale
            if found and found[-1][2] == label and abs(found[-1][0] + found[-1][1] - x) < 1e-6:
                found[-1][1] += width
            else:
                found.append([x, width, label])
        return [tuple(item) for item in found]


def _letter(index: int) -> str:
    return "abcdefghijklmnopqrstuvwxyz"[index % 26] * (index // 26 + 1)


def owner_text(data: MemoryMapData, cell: Cell, most: int = 1) -> str:
    """Who owns a cell, in a few words, naming up to `most` layers that share it."""
    if not cell.layers:
        return "outside" if cell.kind in ("redzone", "overrun") else "pad"
    more = f" +{len(cell.layers) - most}" if len(cell.layers) > most else ""
    kept = " (not zeroed)" if all(layer in data.not_zeroed for layer in cell.layers) else ""
    part = f", {cell.part}" if cell.part else ""
    named = sorted(cell.layers, key=lambda layer: layer in data.not_zeroed)[:most]
    return " + ".join(data.labels[layer] for layer in named) + more + part + kept


def _draw_fold(sheet: Sheet, data: MemoryMapData, top: float, height: float, below: float) -> None:
    fold = data.fold
    palette = np.array([to_rgb(owner_sign(0).fill)] + [to_rgb(SIGNS[state].fill) for state in STATES])
    owners = np.array([to_rgb(SIGNS["idle_pad"].fill)] + [to_rgb(owner_sign(i).fill) for i in range(4)])
    beyond = bool(fold.kinds[-1].any())  # the last line is what lies past the pool
    kinds = fold.kinds if beyond else fold.kinds[:-1]
    picture = np.broadcast_to(owners[np.where(fold.owners < 0, 0, fold.owners % 4 + 1)], (*kinds.shape, 3)).copy()
    if beyond:
        picture[-1] = to_rgb(SIGNS["redzone"].fill)
    picture[kinds > 0] = palette[kinds[kinds > 0]]
    per_row = f", {fold.rows_per_cell:,} to a line" if fold.rows_per_cell > 1 else ""
    sheet.text(
        0.15, top, f"The whole pool: {data.num_blocks:,} blocks down{per_row}; the {round_bytes(data.row_bytes)} of a "
        "block across, each column the worst of its bytes", SMALL_POINTS, SOFT,
    )  # fmt: skip
    top += 0.13
    sheet.axes.imshow(
        picture, extent=(LEFT, RIGHT, top + height, top), aspect="auto", interpolation="nearest", zorder=1
    )
    sheet.outline(LEFT, top, RIGHT - LEFT, height, HAIR, 0.8)
    line = height / len(kinds)
    sheet.text(LEFT - 0.1, top + min(0.07, height / 4), "block 0", align="right", colour=SOFT)
    last = top + height - max(0.07, line * (1.5 if beyond else 0.5))
    sheet.text(LEFT - 0.1, last, f"{data.num_blocks - 1:,}", align="right", colour=SOFT)
    _mark_states(sheet, kinds, top, height)
    scale = (RIGHT - LEFT) / data.row_bytes
    left, right = (LEFT + edge * scale for edge in data.window_bytes)
    for row in data.rows:
        y = top + (min(max(row // fold.rows_per_cell, 0), len(kinds) - 1) + 0.5) * line
        sheet.stroke([(LEFT - 0.06, y), (LEFT - 0.01, y)], INK, 1.4)
    if data.window_bytes != (0, data.row_bytes):
        right = max(right, left + 0.03)
        sheet.outline(left, top - 0.02, right - left, height + 0.04, INK, 1.3)
        for a, b in ((left, LEFT), (right, RIGHT)):
            sheet.stroke([(a, top + height + 0.02), (b, below - 0.02)], SOFT, 0.8, "--")


def _mark_states(sheet: Sheet, kinds: np.ndarray, top: float, height: float) -> None:
    """Put each state's glyph on its first place in the folded picture, so that colour is not its only sign."""
    taken: list[tuple[float, float]] = []
    for code, state in enumerate(STATES, start=1):
        rows, columns = np.nonzero(kinds == code)
        if len(rows) == 0:
            continue
        x = LEFT + (columns[0] + 0.5) / kinds.shape[1] * (RIGHT - LEFT)
        x = min(max(x, LEFT + 0.1), RIGHT - 0.1)
        y = min(max(top + (rows[0] + 0.5) / kinds.shape[0] * height, top + 0.08), top + height - 0.08)
        while any(abs(x - a) < 0.2 and abs(y - b) < 0.17 for a, b in taken):
            x += 0.2
        taken.append((x, y))
        sheet.box(x - 0.08, y - 0.07, 0.16, 0.14, SIGNS[state], edge=PAPER, line=1, over=3)
        sheet.glyph(x, y, SIGNS[state], 0.075, clear=0.12)


def _draw_rows(sheet: Sheet, data: MemoryMapData, columns: Columns, top: float) -> None:
    low, high = data.window_bytes
    whole = (low, high) == (0, data.row_bytes)
    part = "" if whole else f", bytes {low:,} to {high:,} of a block's {data.row_bytes:,}"
    few = "" if len(data.rows) >= data.num_blocks else " (▸ asked to be zeroed)" if data.blocks else ""
    sheet.text(0.15, top + 0.08, f"Blocks, to scale{part}{few}", SMALL_POINTS, SOFT)
    base = top + 0.18 + columns.head_inches
    for index, line in enumerate(columns.legend):
        sheet.text(LEFT, top + 0.28 + 0.17 * index, line)
    for x, width, label in columns.labels:
        if text_width(label) <= max(width, 0.1):
            sheet.text(x + width / 2, base - 0.09, label, align="center", bold=columns.letters)
    before = None
    for index, row in enumerate(data.rows):
        y = base + index * (ROW + GAP)
        if before is not None and row != before + 1:
            sheet.stroke([(LEFT - 0.9, y - GAP / 2), (RIGHT, y - GAP / 2)], SOFT, 0.8, ":")
        before = row
        asked = data.blocks is not None and row in data.blocks
        name = f"block {row:,}" if 0 <= row < data.num_blocks else ("before" if row < 0 else "past the end")
        sheet.text(LEFT - 0.1, y + ROW / 2, ("▸ " if asked else "") + name, BODY_POINTS, align="right",
                   bold=asked)  # fmt: skip
        for cell in (cell for cell in data.cells if cell.row == row):
            _draw_cell(sheet, data, columns, cell, y)
    _draw_measures(sheet, data, columns, base + len(data.rows) * (ROW + GAP))


def _draw_cell(sheet: Sheet, data: MemoryMapData, columns: Columns, cell: Cell, y: float) -> None:
    x = columns.x(columns.band(cell.start_bytes), cell.start_bytes)
    true_width = (cell.end_bytes - cell.start_bytes) * columns.scale
    width = max(true_width, LEAST_WIDTH)
    thin = true_width < LEAST_WIDTH
    if cell.layers:
        sheet.box(x, y, width, ROW, owner_sign(cell.layers[0]), edge=PAPER if width > 0.06 else None, over=thin)
    else:
        outside = cell.kind in ("redzone", "overrun")
        sheet.box(x, y, width, ROW, SIGNS["redzone" if outside else "idle_pad"], over=thin)
    if cell.kind in STATES:
        sign, inset = SIGNS[cell.kind], 0.045
        sheet.box(x, y + inset, width, ROW - 2 * inset, sign, edge=PAPER if width > 0.06 else None, over=1 + thin)
        if width >= 0.11:
            count = max(1, min(5, round(width / 0.9)))
            for i in range(count):
                sheet.glyph(x + width * (i + 0.5) / count, y + ROW / 2, sign, 0.09, clear=min(0.15, width))
    first = data.first
    if first and first["storage"] == cell.storage and 0 <= first["byte_offset"] - cell.offset_bytes < cell.end_bytes - cell.start_bytes:
        _bracket(sheet, x + (first["byte_offset"] - cell.offset_bytes) * columns.scale, y, max(width, 0.1), ROW)


def _bracket(sheet: Sheet, x: float, y: float, width: float, height: float) -> None:
    tick, out = 0.045, 0.025
    for edge, way in ((x - out, 1), (x + width + out, -1)):
        shape = [(edge + way * tick, y - out), (edge, y - out), (edge, y + height + out), (edge + way * tick, y + height + out)]
        sheet.stroke(shape, PAPER, 3.6, over=4)
        sheet.stroke(shape, INK, 2.0, over=5)


def _draw_measures(sheet: Sheet, data: MemoryMapData, columns: Columns, y: float) -> None:
    """The span of a page stretch and the block stride, as dimension lines under the rows."""
    inside = [row for row in data.rows if 0 <= row < data.num_blocks]
    owned = [cell for cell in data.cells if inside and cell.row == inside[0] and cell.layers]
    if not owned:
        return
    index = columns.band(owned[0].start_bytes)
    _, low, high = next(item for item in columns.bands if item[0] == index)
    band = data.bands[index]
    end = owned[0].end_bytes
    for cell in owned[1:]:  # a write may have cut the stretch in two
        if cell.start_bytes == end and (cell.layers, cell.part) == (owned[0].layers, owned[0].part):
            end = cell.end_bytes
    span = end - owned[0].start_bytes
    x0, x1 = columns.x(index, owned[0].start_bytes), columns.x(index, owned[0].start_bytes) + span * columns.scale
    whole_band = (low, high) == (band.column_bytes, band.column_bytes + band.stride_bytes)
    _measure(sheet, x0, x1, y + 0.06, f"span {span:,} B")
    if whole_band:
        x1 = columns.x(index, low) + band.stride_bytes * columns.scale
        _measure(sheet, columns.x(index, low), x1, y + 0.25, f"block stride {band.stride_bytes:,} B")
    else:
        sheet.text(LEFT, y + 0.25, f"block stride {band.stride_bytes:,} B, wider than this window", colour=SOFT)


def _measure(sheet: Sheet, x0: float, x1: float, y: float, words: str) -> None:
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
    for x in (x0, x1):
        sheet.stroke([(x, y - 0.04), (x, y + 0.04)], SOFT)


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


def byte_lines(data: MemoryMapData) -> list[ByteLine]:
    """Cut the byte panel's cells into lines, and place a label where the owner changes."""
    line, found = data.unit_bytes * UNITS_PER_LINE, []
    scale = (RIGHT - LEFT) / line
    said = ""
    for low in range(data.byte_cells[0].start_bytes, data.byte_cells[-1].end_bytes, line):
        pieces, labels, free = [], [], 0.0
        for cell in data.byte_cells:
            a, b = max(cell.start_bytes, low), min(cell.end_bytes, low + line)
            if a >= b:
                continue
            pieces.append((cell, a, b))
            where = f", block {cell.row:,}" if 0 <= cell.row < data.num_blocks and cell.layers else ""
            words, x = owner_text(data, cell) + where, LEFT + (a - low) * scale
            at = max(x, free)
            if words != said and at - x < 0.5 and at + text_width(words) < WIDTH_INCHES:
                labels.append((at, x, words))
                free, said = at + text_width(words) + 0.14, words
        found.append(ByteLine(low, pieces, labels))
    return found


def _draw_bytes(sheet: Sheet, data: MemoryMapData, lines: list[ByteLine], top: float) -> None:
    """Lines of characters around the focus, in the order of addresses, like a memory dump."""
    unit, (storage, focus) = data.unit_bytes, data.focus
    width = (RIGHT - LEFT) / UNITS_PER_LINE
    each = "a byte" if unit == 1 else f"{unit} bytes"
    sheet.text(0.15, top + 0.06, f"Bytes around {focus:,} of storage {storage}, each character {each}", SMALL_POINTS, SOFT)
    y = top + 0.2
    for line in lines:
        y += line.height - 0.2
        sheet.text(LEFT - 0.1, y + 0.1, f"{line.low:,}", align="right", colour=SOFT)
        for at, x, words in line.labels:
            sheet.text(at, y - 0.095, words)
            sheet.stroke([(x, y - 0.05), (x, y)], INK, 0.8)
        for cell, a, b in line.pieces:
            x = LEFT + (a - line.low) / unit * width
            sign = SIGNS[cell.kind]
            fill = owner_sign(cell.layers[0]).fill if cell.kind == "kept" else sign.fill
            # The glyphs are the pattern here; a hatch under them would only blur them.
            sheet.box(x, y, (b - a) / unit * width, 0.2, Sign("", "", fill), edge=PAPER)
            for i in range((b - a) // unit):
                sheet.glyph(x + (i + 0.5) * width, y + 0.1, sign, 0.08)
        if data.marked and line.low <= focus < line.low + unit * UNITS_PER_LINE:
            _bracket(sheet, LEFT + (focus - line.low) // unit * width, y, width, 0.2)
        y += 0.2


def _key_entries(data: MemoryMapData) -> list[tuple[str, str]]:
    """(kind, words) of every sign that the map uses, with its count of bytes in the whole pool."""
    used = {cell.kind for cell in (*data.cells, *data.byte_cells)}
    entries = []
    for kind, sign in SIGNS.items():
        if kind in data.totals:
            entries.append((kind, f"{sign.word}: {bytes_text(data.totals[kind])}"))
        elif kind in used:
            entries.append((kind, sign.word))
    return entries


def _draw_key(sheet: Sheet, entries: list[tuple[str, str]], top: float) -> None:
    half = -(-len(entries) // 2)
    for index, (kind, words) in enumerate(entries):
        x = 0.15 + (index // half) * (WIDTH_INCHES / 2)
        y = top + (index % half) * 0.24
        sign = owner_sign(0) if kind == "kept" else SIGNS[kind]
        sheet.box(x, y, 0.3, 0.18, sign, edge=HAIR)
        sheet.glyph(x + 0.15, y + 0.09, SIGNS[kind], 0.09, clear=0.14)
        sheet.text(x + 0.4, y + 0.09, words)
