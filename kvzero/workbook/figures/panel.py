"""What the panels of a memory map share, and the first of them: the whole pool, folded."""

from __future__ import annotations

import numpy as np

from .atlas import STATES, Cell
from .map_data import MemoryMapData
from .sheet import Sheet
from .style import HAIR, INK, PAPER, SIGNS, SMALL_POINTS, SOFT, WIDTH_INCHES, Sign, owner_sign, round_bytes

FATES = {
    "kept": "not written", "idle_pad": "not written", "redzone": "not written", "planned": "will be written",
    "cleared": "cleared", "pad": "pad, written", "missed": "missed, left dirty", "stomped": "stomped",
    "overrun": "overrun, written",
}  # fmt: skip
HARM = ("missed", "stomped", "overrun")
LEAST_HARM = 0.035  # inches
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


def draw_fold(sheet: Sheet, data: MemoryMapData, top: float, height: float, below: float) -> None:
    fold = data.fold
    beyond = bool(fold.kinds[-1].any())  # the last line is what lies past the pool
    kinds = fold.kinds if beyond else fold.kinds[:-1]
    per_row = f", {fold.rows_per_cell:,} to a line" if fold.rows_per_cell > 1 else ""
    sheet.text(
        0.15, top, f"The whole pool: {data.num_blocks:,} blocks down{per_row}; the {round_bytes(data.row_bytes)} of a "
        "block across, each column the worst of its bytes", SMALL_POINTS, SOFT,
    )  # fmt: skip
    top += 0.13
    _draw_grid(sheet, fold.owners, kinds, beyond, top, height)
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


def _draw_grid(sheet: Sheet, owners: np.ndarray, kinds: np.ndarray, beyond: bool, top: float, height: float) -> None:
    """The folded pool, as few boxes: lines that are alike are one, and so are neighbours in a line."""
    scale, line = (RIGHT - LEFT) / kinds.shape[1], height / len(kinds)
    for left, right in _runs(owners):
        sign = SIGNS["idle_pad"] if owners[left] < 0 else owner_sign(int(owners[left]))
        sheet.box(LEFT + left * scale, top, (right - left) * scale, height, Sign("", "", sign.fill))
    if beyond:
        sheet.box(LEFT, top + height - line, RIGHT - LEFT, line, Sign("", "", SIGNS["redzone"].fill), over=1)
    changes = [0, *(1 + np.flatnonzero((kinds[1:] != kinds[:-1]).any(axis=1))).tolist(), len(kinds)]
    for first, last in zip(changes, changes[1:], strict=False):
        for left, right in _runs(kinds[first]):
            code = int(kinds[first, left])
            if code:
                state = STATES[code - 1]
                # One bad block of a hundred must be seen: what is wrong is never thinner than a thick line.
                least = LEAST_HARM if state in HARM else 0.0
                tall = max((last - first) * line, least)
                y = min(top + first * line, top + height - tall)
                wide = max((right - left) * scale, least)
                x = min(LEFT + left * scale, RIGHT - wide)
                sheet.box(x, y, wide, tall, Sign("", "", SIGNS[state].fill), over=2 + code / 10)


def _runs(line: np.ndarray) -> list[tuple[int, int]]:
    """The stretches of a line in which all values are the same."""
    edges = [0, *(1 + np.flatnonzero(line[1:] != line[:-1])).tolist(), len(line)]
    return list(zip(edges, edges[1:], strict=False))


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
