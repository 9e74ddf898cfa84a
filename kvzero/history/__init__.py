"""Old planners and id paths, rebuilt and required to fail as they did.

Each planner module has `NAME`, `ERA` (the upstream changes that open and close it), `plan(geometry)`, which
returns an unproven `Plan` or raises what its users saw, `launch(plan, num_ids)`, `write(plan, storages,
block_ids)` with the kernel of its time, and `MUST_DO`, what it has to do on named geometries. They are
reconstructions from the upstream threads they cite, not copies of the upstream code. `engine` is the
exception: it takes the segments that the engine itself stated in a dump.

The id paths, `shared_id_buffer` and `ring_id_buffer`, run on a real stream or on `stream_model`.
"""

from __future__ import annotations

from types import ModuleType

from kvzero.errors import HistoryError
from kvzero.history import engine, masked_grid, page_per_segment, stride_and_span, uniform_page

PLANNERS: dict[str, ModuleType] = {
    module.NAME: module for module in (uniform_page, page_per_segment, stride_and_span, masked_grid)
}
"""The old planners, oldest first."""


def planner(name: str) -> ModuleType:
    """Return the old planner with this name, or the engine's own segments for "engine".

    Raises:
        HistoryError: no such planner.

    Example:
        >>> planner("uniform-page").ERA
        '#35219 to #49704'
    """
    known = {**PLANNERS, engine.NAME: engine}
    if name not in known:
        raise HistoryError("unknown-planner", name=name, known=["kvzero", *known])
    return known[name]
