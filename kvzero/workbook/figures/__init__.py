"""Figures of the workbook: plain data in, a small SVG out, and one way to display them all.

show_map(geometry, audit=audit)                    # the memory map, its sentence and its text form
show(bars(values, sentence, log=True), sentence)   # any other figure
"""

from .atlas import Cell, Fold
from .bands import Band, Run, page_runs
from .charts import Limit, bars
from .history import EVENTS, KINDS, Step, history_text, history_timeline
from .lines import sweep
from .map_data import MemoryMapData, memory_map_data
from .map_text import map_text
from .memory_map import draw_memory_map, memory_map
from .sheet import Figure, Sheet
from .show import bundle, draw_map, show, show_map
from .style import GLYPHS, SIGNS, Sign, bytes_text, owner_sign, round_bytes
from .timeline import ACTIONS, Event, timeline, timeline_text

__all__ = [
    "ACTIONS", "EVENTS", "GLYPHS", "KINDS", "SIGNS", "Band", "Cell", "Event", "Figure", "Fold", "Limit",
    "MemoryMapData", "Run", "Sheet", "Sign", "Step", "bars", "bundle", "bytes_text", "draw_map", "draw_memory_map",
    "history_text", "history_timeline", "map_text", "memory_map", "memory_map_data", "owner_sign", "page_runs",
    "round_bytes", "show", "show_map", "sweep", "timeline", "timeline_text",
]  # fmt: skip
