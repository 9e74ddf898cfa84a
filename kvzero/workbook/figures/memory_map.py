"""The memory map as a figure: the whole pool folded, a few blocks to scale, and single bytes around one point."""

from __future__ import annotations

import re
from collections.abc import Iterable

from kvzero.audit.result import Audit
from kvzero.layout.geometry import CacheGeometry
from kvzero.layout.records import Name
from kvzero.plan.planner import Plan

from .block_panel import Columns, draw_blocks, rows_inches
from .byte_panel import ByteLine, byte_lines, draw_bytes
from .map_data import MemoryMapData, memory_map_data
from .panel import RIGHT, draw_fold, kernel_mark, kernel_marks
from .sheet import Figure, Sheet
from .style import HAIR, SIGNS, WIDTH_INCHES, bytes_text, owner_sign, title_lines


def memory_map(
    geometry: CacheGeometry,
    plan: Plan | None = None,
    audit: Audit | None = None,
    blocks: Iterable[int] | None = None,
    *,
    rows: Iterable[int] | None = None,
    focus: tuple[Name, int] | None = None,
    sentence: str | None = None,
) -> Figure:
    """Draw who owns each byte of a pool, what a plan writes, and what a write did.

    Args:
        geometry, plan, audit, blocks, rows, focus, sentence: see `memory_map_data`.

    Returns:
        A figure 9 inches wide; `show` displays it.

    Example:
        memory_map(geometry)                                        # who owns what
        memory_map(geometry, plan, blocks=[98])                     # and what the plan would write
        memory_map(geometry, audit=audit_plan(plan, geometry, [98]))  # and what that does
    """
    data = memory_map_data(geometry, plan, audit, blocks, rows=rows, focus=focus, sentence=sentence)
    return draw_memory_map(data)


def draw_memory_map(data: MemoryMapData) -> Figure:
    """Draw a memory map from its data; see `memory_map`."""
    title = title_lines(data.sentence, RIGHT - 0.2)
    fold_height = 0.0 if data.fold is None else min(1.3, max(0.4, 0.06 * len(data.fold.kinds)))
    top_fold = 0.18 + 0.19 * len(title)
    zoomed = 0.62 if data.window_bytes != (0, data.row_bytes) else 0.42
    top_rows = top_fold + (fold_height + zoomed if data.fold is not None else 0.06)
    columns = Columns(data)
    head = columns.head_inches
    top_bytes = top_rows + 0.22 + head + rows_inches(data) + 0.5
    lines = byte_lines(data, columns.most)
    key = _key_entries(data, columns, lines)
    top_key = top_bytes + 0.26 + sum(line.height for line in lines) + 0.1
    sheet = Sheet(top_key + 0.24 * -(-len(key) // 2) + 0.08)
    sheet.title(title)
    if data.fold is not None:
        draw_fold(sheet, data, top_fold + 0.1, fold_height, top_rows)
    draw_blocks(sheet, data, columns, top_rows)
    draw_bytes(sheet, data, lines, top_bytes)
    _draw_key(sheet, key, top_key)
    return sheet.finish()


def _key_entries(data: MemoryMapData, columns: Columns, lines: list[ByteLine]) -> list[tuple[str, str]]:
    """(kind, words) of every sign that the map uses, with its count of bytes in the whole pool."""
    used = {cell.kind for cell in (*data.cells, *data.beyond, *data.byte_cells)}
    entries = []
    for kind, sign in SIGNS.items():
        if kind in data.totals:
            entries.append((kind, f"{sign.word}: {bytes_text(data.totals[kind])}"))
        elif kind in used:
            entries.append((kind, sign.word))
    if kernel_marks(data, columns.scale):
        entries.append(("kernel block", data.kernel_words))
    labels = [*columns.legend, *(label for *_, label in columns.labels)]
    labels += [label for line in lines for *_, label in line.labels]
    if any(re.search(r"[ \u00a0]\+\d", label) for label in labels):
        entries.append(("+n", "and n more layers on the same bytes"))
    return entries


def _draw_key(sheet: Sheet, entries: list[tuple[str, str]], top: float) -> None:
    half = -(-len(entries) // 2)
    for index, (kind, words) in enumerate(entries):
        x = 0.15 + (index // half) * (WIDTH_INCHES / 2)
        y = top + (index % half) * 0.24
        sheet.text(x + 0.4, y + 0.09, words)
        if kind == "+n":
            sheet.text(x + 0.15, y + 0.09, kind, align="center")
            continue
        if kind == "kernel block":
            kernel_mark(sheet, x + 0.15, y, 0.18)
            continue
        sign = owner_sign(0) if kind == "kept" else SIGNS[kind]
        sheet.box(x, y, 0.3, 0.18, sign, edge=HAIR)
        sheet.glyph(x + 0.15, y + 0.09, SIGNS[kind], 0.09, clear=0.14)
