"""Layouts with their planners, as a knob that several pages share."""

from .layout import Layout, layout_data, layout_knob, show_layout

__all__ = ["Layout", "layout_data", "layout_knob", "show_layout"]
