"""Probe explorer: pick a byte with a slider or type it, and read what it is."""

from __future__ import annotations

from typing import Any

import ipywidgets as widgets

from kvzero.layout import geometries
from kvzero.layout.geometry import CacheGeometry
from kvzero.plan.planner import Plan, plan_segments
from kvzero.workbook.figures.map_data import MemoryMapData, memory_map_data
from kvzero.workbook.figures.map_text import map_text
from kvzero.workbook.figures.memory_map import draw_memory_map
from kvzero.workbook.figures.sheet import Figure
from kvzero.workbook.probe import Probe, probe

from .base import Explorer, View

NEAR_ROWS = 2


def probe_map(geometry: CacheGeometry, plan: Plan | None, found: Probe) -> MemoryMapData:
    """The memory map around a probed byte, with what the plan writes for the block that it is in.

    Args:
        geometry: the pool.
        plan: whose segments to draw; None for none.
        found: the probe.
    """
    block = found.owners[0].block if found.owners else (found.written_by[0][1] if found.written_by else None)
    blocks = [block] if block is not None and plan is not None else []
    rows = None
    if block is not None:
        rows = range(max(0, block - NEAR_ROWS), min(geometry.num_blocks, block + NEAR_ROWS + 1))
    return memory_map_data(
        geometry, plan if blocks else None, blocks=blocks or None, rows=rows, focus=(found.storage, found.byte),
        sentence=found.sentence(),
    )  # fmt: skip


def probe_figure(geometry: CacheGeometry, plan: Plan | None, found: Probe) -> Figure:
    """Draw the map around a probed byte, which is bracketed."""
    return draw_memory_map(probe_map(geometry, plan, found))


def probe_explorer(geometry: CacheGeometry | None = None, plan: Plan | None = None, byte: int = 0) -> Explorer:
    """The probe as a widget.

    Args:
        geometry: the pool; a DeepSeek-V4 slab if None.
        plan: whose segments to look through; kvzero's own if None.
        byte: where to start.

    The arrow keys move the slider by a byte, a token, a page or a block, as the menu says; the number beside it
    can be typed.
    """
    geometry = geometry or geometries.load("dsv4_c4_mla_only__BLHNC")
    plan = plan or plan_segments(geometry)
    first = geometry.layers[0]
    first_storage = geometry.storages[0]
    steps = {"a byte": 1, "16 bytes": 16, "a page": first.page_bytes, "a block stride": first.block_stride_bytes}
    controls = {
        "storage": widgets.Dropdown(options=[storage.id for storage in geometry.storages], description="storage"),
        "step": widgets.Dropdown(options=list(steps), description="move by"),
        "byte": widgets.IntSlider(byte, 0, first_storage.nbytes - 1, description="byte"),
    }

    def adapt(found) -> None:
        last = geometry.storage(found["storage"].value).nbytes - 1
        found["byte"].value = min(found["byte"].value, last)
        found["byte"].max = last
        found["byte"].step = min(steps[found["step"].value], last)

    def draw(state: dict[str, Any]) -> View:
        found = probe(geometry, plan, state["storage"], state["byte"])
        data = probe_map(geometry, plan, found)
        code = f"probe(geometry, plan, {state['storage']!r}, {state['byte']})"
        return View(draw_memory_map(data), data.sentence, map_text(data), code)

    page_end = first.byte_offset + first.page_bytes
    start = {"storage": first_storage.id, "step": "a byte"}
    presets = {
        "the start": {**start, "byte": byte},
        "the last byte of a page": {**start, "storage": first.storage, "byte": page_end - 1},
        "the byte after it": {
            **start,
            "storage": first.storage,
            "byte": min(page_end, geometry.storage(first.storage).nbytes - 1),
        },
        "the last byte of the storage": {**start, "byte": first_storage.nbytes - 1},
    }
    return Explorer(f"What is this byte? ({geometry.name})", controls, draw, presets, adapt)
