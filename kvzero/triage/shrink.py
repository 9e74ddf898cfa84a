"""`shrink`: the smallest geometry on which a planner still goes wrong in the same ways, for a bug report."""

from __future__ import annotations

from collections.abc import Sequence

from kvzero.errors import CommandError, KvzeroError, ResizeError
from kvzero.layout.geometry import CacheGeometry
from kvzero.layout.intervals import as_ranges, intersect
from kvzero.layout.ownership import needed_ranges
from kvzero.plan.planner import plan_segments
from kvzero.plan.resize import with_num_blocks

from .judging import ENGINE, Finding, judge_planner

# Keys that describe the allocation of which the dump was taken, and so are wrong for a smaller one.
OF_THE_ORIGINAL = ("manager_view_shape", "manager_view_stride", "bound_view")


def shrink(geometry: CacheGeometry, planner: str) -> CacheGeometry:
    """Remove blocks and layers while the planner still shows every fault that it showed before.

    Args:
        geometry: a layout on which the planner goes wrong.
        planner: an old planner's name, or "engine".

    Returns:
        A geometry from which no single layer can be taken, with as few blocks as the rest allows; its `extra` says
        what it was made from. Offsets and strides are the original's, so the layers left out leave pad behind.

    Raises:
        CommandError: the planner is right on this layout.
        HistoryError: there is no such planner here.
        KvzeroError: the layout itself cannot be proven.

    Example:
        >>> from kvzero import geometries
        >>> small = shrink(geometries.load("dsv4_c4_mla_only__BLHNC"), "uniform-page")
        >>> small.num_blocks, [view.name for view in small.layers]
        (2, ['model.layers.0.attn.mla_attn', 'model.layers.1.attn.mla_attn'])
    """
    plan_segments(geometry)
    wanted = _kinds(judge_planner(geometry, planner))
    if not wanted:
        raise CommandError("nothing-to-shrink", where=geometry.where, planner=planner)

    def still(candidate: CacheGeometry | None) -> bool:
        return candidate is not None and _faults(candidate, planner) >= wanted

    small = _fewer_blocks(geometry, still)
    small = _fewer_layers(small, still, planner)
    small = _fewer_blocks(small, still)  # fewer layers may do with fewer blocks
    data = small.to_dict()
    kept = {key: data[key] for key in ("engine", "layout", "num_blocks", "storages", "engine_segments")}
    layers = [{key: layer[key] for key in layer if key not in OF_THE_ORIGINAL} for layer in data["layers"]]
    origin = f"{geometry.name}: {len(geometry.layers)} views, {geometry.num_blocks} blocks"
    shows = f"{planner}: {', '.join(sorted(wanted))}"
    name = f"{geometry.name}__smallest"
    return CacheGeometry.from_dict({"name": name, **kept, "layers": layers, "shrunk_from": origin, "shows": shows})


def _faults(geometry: CacheGeometry, planner: str) -> set[str]:
    """The kinds of fault; none if the planner is right, or if the layout cannot be proven and so shows nothing."""
    try:
        plan_segments(geometry)
        return _kinds(judge_planner(geometry, planner))
    except KvzeroError:
        return set()


def _kinds(finding: Finding) -> set[str]:
    return {
        f"refuses ({fault.error['rule']})" if fault.kind == "refuses" else fault.kind
        for fault in finding.faults
        if not fault.harmless
    }


def _fewer_blocks(geometry: CacheGeometry, still) -> CacheGeometry:
    """The fewest blocks, tried from one up: faults need a neighbour or two, or the whole pool."""
    tried = 1
    while tried < geometry.num_blocks:
        candidate = _resized(geometry, tried)
        if still(candidate):
            return candidate
        tried = tried + 1 if tried < 4 else tried * 2
    return geometry


def _resized(geometry: CacheGeometry, num_blocks: int) -> CacheGeometry | None:
    try:
        return with_num_blocks(geometry, num_blocks)
    except ResizeError:
        return None  # this layout does not say how its regions move; keep its blocks


def _fewer_layers(geometry: CacheGeometry, still, planner: str) -> CacheGeometry:
    """Leave out runs of layers, half of them first and then ever shorter runs, as in delta debugging."""
    run = max(len(geometry.layers) // 2, 1)
    while True:
        stop, cut = len(geometry.layers), False
        while stop > 0:  # from the end, so that early layers stay
            keep = [view.name for i, view in enumerate(geometry.layers) if not stop - run <= i < stop]
            candidate = _only(geometry, keep, planner) if keep else None
            if still(candidate):
                geometry, cut = candidate, True
            stop -= run
        if run == 1 and not cut:
            return geometry
        run = max(run // 2, 1)


def _only(geometry: CacheGeometry, names: Sequence[str], planner: str) -> CacheGeometry:
    """The geometry with these layers, their storages, and the engine's segments that start in their pages."""
    data = geometry.to_dict()
    layers = [layer for layer in data["layers"] if layer["name"] in set(names)]
    used = {layer["storage"] for layer in layers}
    segments = []
    if planner == ENGINE:
        pages = needed_ranges([view for view in geometry.layers if view.name in set(names)], [0])
        for segment in data["engine_segments"]:
            first = (segment["byte_offset"], segment["byte_offset"] + min(segment["span_bytes"], 1))
            if segment["storage"] in used and len(intersect(pages[segment["storage"]], as_ranges([first]))):
                segments.append(segment)
    storages = [storage for storage in data["storages"] if storage["id"] in used]
    return CacheGeometry.from_dict({**data, "layers": layers, "storages": storages, "engine_segments": segments})
