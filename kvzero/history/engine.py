"""The segments that the engine itself stated in a dump (vLLM 0.33), as a plan that can be judged."""

from __future__ import annotations

from kvzero.errors import HistoryError
from kvzero.history import masked_grid, parts
from kvzero.layout.geometry import CacheGeometry
from kvzero.plan.planner import Plan

NAME = "engine"
ERA = "as dumped"
# The engine's kernel of that version is the masked 3-D grid.
launch = masked_grid.launch
write = masked_grid.write
MUST_DO = ()


def plan(geometry: CacheGeometry, *, layers=None, groups=None) -> Plan:
    """The engine's own segments, unproven.

    Args:
        geometry: a geometry with `engine_segments`.
        layers, groups: only what counts as needed follows them; the segments are what the engine stated.

    Raises:
        HistoryError: the geometry states none.

    Example: interleaved layers, each written as one range over all of them.
        >>> from kvzero.history import named
        >>> stated = plan(named.geometry("llama3_8b_bf16__BHLNC"))
        >>> round(stated.bytes_per_block / stated.needed_bytes_per_block, 1)
        28.1
    """
    if not geometry.engine_segments:
        raise HistoryError("no-engine-segments", where=geometry.where)
    return parts.unproven_plan(NAME, geometry, geometry.engine_segments, layers, groups)
