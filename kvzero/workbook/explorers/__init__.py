"""Knobs that several pages share: the size of a launch, and layouts with their planners."""

from .launch_size import LaunchSize, launch_size_data, launch_size_figure, launch_size_knob
from .layout import Layout, layout_data, layout_knob, show_layout

__all__ = [
    "LaunchSize", "Layout", "launch_size_data", "launch_size_figure", "launch_size_knob", "layout_data", "layout_knob",
    "show_layout",
]  # fmt: skip
