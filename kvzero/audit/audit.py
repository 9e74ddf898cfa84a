"""Two checks of a write: `audit_plan` compares byte ranges, `audit_bytes` writes memory and compares every byte.

Both return an `Audit`. Neither takes from the planner which bytes are needed: arithmetic builds each page as a set
(`kvzero.layout.ownership`), memory is compared by indexing the views.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import torch

from kvzero import errors
from kvzero.audit.arena import REDZONE_BYTES, Arena
from kvzero.audit.blocks import BlockIds, Wanted, views_to_blocks
from kvzero.audit.result import KINDS, Audit, Name, make_audit
from kvzero.layout.geometry import CacheGeometry
from kvzero.layout.intervals import as_ranges, intersect, subtract, total, union
from kvzero.layout.ownership import needed_ranges, owned_within
from kvzero.plan.planner import Plan, plan_segments

__all__ = ["Audit", "audit_bytes", "audit_plan"]

# A plan that writes farther than this from a storage is not run.
MAX_REDZONE_BYTES = 256 << 20


def audit_plan(
    plan: Plan,
    geometry: CacheGeometry,
    block_ids: BlockIds,
    *,
    group_plans: Mapping[Name, Plan] | None = None,
    layers: str | Sequence[str] | None = None,
    groups: Sequence[Name] | None = None,
    pad_allowed: bool = False,
) -> Audit:
    """Check a plan by arithmetic, without memory or a launch; the pool may have any size.

    Args:
        plan: the plan to judge, proven or not.
        geometry: the geometry that it was made for.
        block_ids: the blocks that would be zeroed, or a mapping of group to blocks, as `BlockZeroer.zero` takes it.
        group_plans: the plan of each group, for a mapping; `plan` then writes nothing.
        layers, groups: the views that are to be zeroed, as in `CacheGeometry.select`.
        pad_allowed: whether bytes that belong to no view may be written (`absorb_pad`).

    Raises:
        ZeroingError, AuditError: ids that are no integers, or lie outside the pool.
        ZeroingError: a mapping names a group that has no plan.
        AuditError: the plan was made for other storages or another number of blocks.
        AuditError: the needed or damaged bytes are scattered into too many ranges.
        GeometryError, NothingSelectedError: see `CacheGeometry.select`.

    The cost grows with the blocks asked about and the damage, not with the size of the pool.

    Example:
        >>> from kvzero.history import named, uniform_page
        >>> slab = named.geometry("packed-slab-51288")
        >>> audit = audit_plan(uniform_page.plan(slab), slab, [99])
        >>> audit.overrun_bytes, audit.stomped_bytes, audit.missed_bytes
        (112320, 0, 0)
    """
    blocks, wanted = views_to_blocks(geometry, block_ids, layers, groups)
    writes = [(plan, blocks)]
    if isinstance(block_ids, Mapping):
        plans = group_plans or {}
        for group in block_ids:
            if group not in plans:
                raise errors.ZeroingError("unknown-group", group=group, known=list(plans))
        writes = [(plans[group], ids) for group, (_, ids) in zip(block_ids, wanted, strict=True)]
    issued = _issued(writes, geometry)
    needed = _needed(wanted, geometry)
    found: dict[str, dict[Name, np.ndarray]] = {kind: {} for kind in ("cleared", *KINDS)}
    for storage in geometry.storages:
        whole = as_ranges([(0, storage.nbytes)])
        written = union(issued[storage.id])
        own = needed[storage.id]
        astray = subtract(intersect(written, whole), own)
        here = [view for view in geometry.layers if view.storage == storage.id]
        live = [owned_within(view, geometry.num_blocks, astray) for view in here]
        stomped = union(np.concatenate([as_ranges([]), *live]))
        found["cleared"][storage.id] = intersect(written, own)
        found["overrun"][storage.id] = subtract(written, whole)
        found["stomped"][storage.id] = stomped
        found["missed"][storage.id] = subtract(own, written)
        found["pad"][storage.id] = subtract(astray, stomped)
    by_layer = {view.name: {"missed_bytes": 0, "stomped_bytes": 0} for view in geometry.layers}
    for views, ids in wanted:
        for view in views:
            if len(found["missed"][view.storage]):
                own = needed_ranges([view], ids)[view.storage]
                by_layer[view.name]["missed_bytes"] = total(intersect(own, found["missed"][view.storage]))
    for view in geometry.layers:
        stomped = owned_within(view, geometry.num_blocks, found["stomped"][view.storage])
        by_layer[view.name]["stomped_bytes"] = total(stomped)
    return make_audit(
        geometry, found, by_layer, blocks, wanted, planner=plan.planner, witness="arithmetic", device="none",
        needed_bytes=sum(total(ranges) for ranges in needed.values()),
        written_bytes=sum(each.bytes_per_block * len(ids) for each, ids in writes), pad_allowed=pad_allowed,
    )  # fmt: skip


def audit_bytes(
    geometry: CacheGeometry,
    block_ids: BlockIds,
    *,
    planner: str = "kvzero",
    device: str | torch.device = "cpu",
    layers: str | Sequence[str] | None = None,
    groups: Sequence[Name] | None = None,
    absorb_pad: bool = False,
) -> Audit:
    """Check a planner in memory: build an arena, zero the blocks with the planner's own kernel, compare every byte.

    Args:
        geometry: the pool to allocate.
        block_ids: the blocks to zero, or a mapping of group to blocks, each zeroed by a plan for that group alone.
        planner: "kvzero", an old planner of `kvzero.history.PLANNERS`, or "engine" for the dump's own segments.
        device: torch device of the arena; on "cpu" old kernels run in Triton's interpreter.
        layers, groups: the views that are to be zeroed, as in `CacheGeometry.select`; without `layers`, an old
            planner takes those that it knew.
        absorb_pad: see `plan_segments`; kvzero may then write pad. The pad that old planners write counts as damage.

    Raises:
        AuditError: an id outside the pool; nothing is written.
        AuditError: an old planner would write so far away that no redzone catches it; it is not run.
        AuditError: the arena does not fit in memory.
        KvzeroError: any error of the planner.

    Example:
        >>> from kvzero.history import named
        >>> audit_bytes(named.geometry("packed-slab-51288"), [99]).ok
        True
    """
    blocks, wanted = views_to_blocks(geometry, block_ids, layers, groups)
    old = None
    if planner != "kvzero":
        from kvzero import history  # not imported for kvzero's own plan

        old = history.planner(planner)

    def plan_for(groups) -> Plan:
        if old is None:
            return plan_segments(geometry, layers=layers, groups=groups, absorb_pad=absorb_pad)
        return old.plan(geometry, layers=layers, groups=groups)

    if isinstance(block_ids, Mapping):
        writes = [(plan_for([group]), ids) for group, (_, ids) in zip(block_ids, wanted, strict=True)]
    else:
        writes = [(plan_for(groups), blocks)]
    arena = Arena(geometry, device, redzone_bytes=_redzone_bytes(_issued(writes, geometry), geometry, planner))
    for plan, ids in writes:
        if old is None:
            from kvzero.zero.zeroer import BlockZeroer

            BlockZeroer(plan, arena.storages, interpret=arena.device.type == "cpu").zero(ids)
        elif ids:
            old.write(plan, arena.storages, ids)
    return arena.audit(
        block_ids, layers=layers, groups=groups, planner=planner,
        pad_allowed=absorb_pad and planner == "kvzero",
        written_bytes=sum(plan.bytes_per_block * len(ids) for plan, ids in writes),
    )  # fmt: skip


def _issued(writes: Sequence[tuple[Plan, Sequence[int]]], geometry: CacheGeometry) -> dict[Name, np.ndarray]:
    """The byte ranges that the plans write for their blocks, by storage; raises AuditError."""
    parts: dict[Name, list[np.ndarray]] = {storage.id: [as_ranges([])] for storage in geometry.storages}
    for plan, ids in writes:
        _check_plan(plan, geometry)
        for storage, ranges in plan.ranges(ids).items():
            parts[storage].append(ranges)
    return {storage: np.concatenate(ranges) for storage, ranges in parts.items()}


def _needed(wanted: Wanted, geometry: CacheGeometry) -> dict[Name, np.ndarray]:
    """The byte ranges that the views own in their blocks, by storage."""
    parts: dict[Name, list[np.ndarray]] = {storage.id: [as_ranges([])] for storage in geometry.storages}
    for views, ids in wanted:
        for storage, ranges in needed_ranges(views, ids).items():
            parts[storage].append(ranges)
    return {storage: union(np.concatenate(ranges)) for storage, ranges in parts.items()}


def _redzone_bytes(issued: Mapping[Name, np.ndarray], geometry: CacheGeometry, planner: str) -> int:
    """The size of a redzone that holds everything that a planner will write outside a storage."""
    farthest_bytes = 0
    for storage in geometry.storages:
        ranges = issued[storage.id]
        if len(ranges):
            outside_bytes = max(-int(ranges[:, 0].min()), int(ranges[:, 1].max()) - storage.nbytes)
            if outside_bytes > MAX_REDZONE_BYTES:
                raise errors.AuditError(
                    "redzone-too-large", where=geometry.where, planner=planner, overrun_bytes=outside_bytes,
                    storage=storage.id, limit_bytes=MAX_REDZONE_BYTES,
                )  # fmt: skip
            farthest_bytes = max(farthest_bytes, outside_bytes)
    return max(REDZONE_BYTES, 2 * farthest_bytes)


def _check_plan(plan: Plan, geometry: CacheGeometry) -> None:
    pairs = {
        "num_blocks": (plan.num_blocks, geometry.num_blocks),
        "storages": (_sizes(plan.storages), _sizes(geometry.storages)),
    }
    for what, (ours, theirs) in pairs.items():
        if ours != theirs:
            raise errors.AuditError(
                "plan-geometry", where=geometry.where, plan=plan.name, what=what, plan_value=ours, geometry_value=theirs
            )


def _sizes(storages) -> dict[Name, int]:
    return {storage.id: storage.nbytes for storage in storages}
