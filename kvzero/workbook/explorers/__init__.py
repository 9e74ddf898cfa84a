"""Explorers of the workbook: for each a pure `*_data`, a figure of it, and a thin widget over the two.

A notebook shows the figure first, with `show`, so that the page reads without a kernel; the widget comes after.
"""

from .base import Explorer, View
from .id_race import IdRace, id_race_data, id_race_figure, id_race_knob
from .launch_size import LaunchSize, launch_size_data, launch_size_figure, launch_size_knob
from .layout import Layout, layout_data, layout_explorer, show_layout

__all__ = [
    "Explorer", "IdRace", "LaunchSize", "Layout", "View",
    "id_race_data", "id_race_figure", "id_race_knob", "launch_size_data", "launch_size_figure", "launch_size_knob",
    "layout_data", "layout_explorer",  "show_layout",
]  # fmt: skip
