"""The two witnesses that judge a write: byte ranges alone, or memory that was written and compared.

Both take what is needed from naive indexing of the layer views, never from the planner, and both give an
`Audit`; `kvzero.report` says what its counts mean.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from . import errors
from .arena import REDZONE_BYTES, Arena
from .comparing import checked_blocks
from .geometry import CacheGeometry
from .intervals import as_ranges, intersect, subtract, total, union
from .ownership import needed_ranges, owned_within
from .plan import Plan, plan_segments
from .report import KINDS, Audit, Name, make_audit
from .views import INT64_MAX

__all__ = ["Audit", "audit_bytes", "audit_plan"]

# A faulty write farther than this from its storage is not run.
MAX_REDZONE_BYTES = 256 << 20


def audit_plan(
    plan: Plan,
    geometry: CacheGeometry,
    block_ids: Sequence[int],
    *,
    layers: str | Sequence[str] | None = None,
    groups: Sequence[Name] | None = None,
    pad_allowed: bool = False,
) -> Audit:
    """Judge a plan by arithmetic alone: no memory, no launch, any size of pool.

    Args:
        plan: the plan to judge, proven or not.
        geometry: the geometry that it was made for.
        block_ids: the blocks that would be zeroed.
        layers, groups: what is to be zeroed in them, as in `CacheGeometry.select`.
        pad_allowed: whether bytes of no view may be written (`absorb_pad`).

    Raises:
        UnknownBlockError: an id outside the pool.
        PlanGeometryError: the plan was made for other storages or another number of blocks.
        IntegerRangeError: the plan would write beyond the last address of 64 bits.
        TooManyRunsError: what is needed or damaged is scattered into too many runs of bytes.
        UnknownSelectionError, NothingSelectedError: see `CacheGeometry.select`.

    The cost follows the blocks asked about and the bytes written out of place, not the number of blocks.

    Example:
        >>> from kvzero.specimens import named, uniform_page
        >>> slab = named.geometry("packed-slab-51288")
        >>> audit = audit_plan(uniform_page.plan(slab), slab, [99])
        >>> audit.overrun_bytes, audit.stomped_bytes, audit.missed_bytes
        (112320, 0, 0)
    """
    block_ids = checked_blocks(geometry, block_ids)
    _check_plan(plan, geometry, block_ids)
    views = geometry.select(layers, groups)
    needed = needed_ranges(views, block_ids)
    issued = plan.ranges(block_ids)
    found: dict[str, dict[Name, np.ndarray]] = {kind: {} for kind in ("cleared", *KINDS)}
    for storage in geometry.storages:
        whole = as_ranges([(0, storage.nbytes)])
        written = union(issued[storage.id])
        wanted = needed.get(storage.id, as_ranges([]))
        astray = subtract(intersect(written, whole), wanted)
        here = [view for view in geometry.layers if view.storage == storage.id]
        live = [owned_within(view, geometry.num_blocks, astray) for view in here]
        stomped = union(np.concatenate([as_ranges([]), *live]))
        found["cleared"][storage.id] = intersect(written, wanted)
        found["overrun"][storage.id] = subtract(written, whole)
        found["stomped"][storage.id] = stomped
        found["missed"][storage.id] = subtract(wanted, written)
        found["pad"][storage.id] = subtract(astray, stomped)
    by_layer = {}
    selected = {view.name for view in views}
    for view in geometry.layers:
        missed = found["missed"][view.storage] if view.name in selected else as_ranges([])
        if len(missed):
            missed = intersect(needed_ranges([view], block_ids)[view.storage], missed)
        stomped = owned_within(view, geometry.num_blocks, found["stomped"][view.storage])
        by_layer[view.name] = {"missed_bytes": total(missed), "stomped_bytes": total(stomped)}
    return make_audit(
        geometry, found, by_layer, block_ids, planner=plan.planner, witness="arithmetic", device="none",
        needed_bytes=sum(total(ranges) for ranges in needed.values()),
        written_bytes=plan.bytes_per_block * len(block_ids), pad_allowed=pad_allowed,
    )  # fmt: skip


def audit_bytes(
    geometry: CacheGeometry,
    block_ids: Sequence[int],
    *,
    planner: str = "kvzero",
    device: str | torch.device = "cpu",
    layers: str | Sequence[str] | None = None,
    groups: Sequence[Name] | None = None,
    absorb_pad: bool = False,
) -> Audit:
    """Judge a planner by memory: build an arena, zero the blocks with its own kernel, compare every byte.

    Args:
        geometry: the pool to lay out.
        block_ids: the blocks to zero.
        planner: "kvzero", a specimen of `kvzero.specimens.PLANNERS`, or "engine" for the dump's own segments.
        device: torch device of the arena; on "cpu" the kernels run in Triton's interpreter.
        layers, groups: what is to be zeroed, as in `CacheGeometry.select`; a specimen without `layers` plans
            the layers of its era.
        absorb_pad: see `plan_segments`; kvzero may then write pad. The old planners know nothing of it, and
            their pad counts.

    Raises:
        UnknownBlockError: an id outside the pool; nothing is written.
        RedzoneTooLargeError, IntegerRangeError: a specimen would write so far away that no redzone catches it; it
            is not run.
        ArenaTooLargeError, RepeatedBytesError: the arena does not fit in memory, or a view cannot be indexed there.
        KvzeroError: whatever the planner itself raises.

    Example:
        >>> from kvzero.specimens import named
        >>> audit_bytes(named.geometry("packed-slab-51288"), [99]).ok
        True
    """
    block_ids = checked_blocks(geometry, block_ids)
    if planner == "kvzero":
        plan = plan_segments(geometry, layers=layers, groups=groups, absorb_pad=absorb_pad)
    else:
        from . import specimens  # not needed, and its kernels not built, for kvzero's own plan

        specimen = specimens.planner(planner)
        plan = specimen.plan(geometry, layers=layers, groups=groups)
    _check_plan(plan, geometry, block_ids)
    arena = Arena(geometry, device, redzone_bytes=_redzone_bytes(plan, geometry, block_ids))
    if planner == "kvzero":
        from .zeroer import BlockZeroer

        BlockZeroer(plan, arena.storages).zero(block_ids)
    elif block_ids:
        specimen.write(plan, arena.storages, block_ids)
    return arena.audit(
        block_ids, layers=layers, groups=groups, planner=planner,
        pad_allowed=absorb_pad and planner == "kvzero", written_bytes=plan.bytes_per_block * len(block_ids),
    )  # fmt: skip


def _redzone_bytes(plan: Plan, geometry: CacheGeometry, block_ids: Sequence[int]) -> int:
    """A redzone that holds all that the plan will write outside a storage; the plan says how far that is."""
    issued, farthest_bytes = plan.ranges(block_ids), 0
    for storage in geometry.storages:
        ranges = issued[storage.id]
        if len(ranges):
            outside_bytes = max(-int(ranges[:, 0].min()), int(ranges[:, 1].max()) - storage.nbytes)
            if outside_bytes > MAX_REDZONE_BYTES:
                raise errors.RedzoneTooLargeError(
                    where=geometry.where, planner=plan.planner, overrun_bytes=outside_bytes,
                    storage=storage.id, limit_bytes=MAX_REDZONE_BYTES,
                )  # fmt: skip
            farthest_bytes = max(farthest_bytes, outside_bytes)
    return max(REDZONE_BYTES, 2 * farthest_bytes)


def _check_plan(plan: Plan, geometry: CacheGeometry, block_ids: Sequence[int]) -> None:
    pairs = {
        "num_blocks": (plan.num_blocks, geometry.num_blocks),
        "storages": (_sizes(plan.storages), _sizes(geometry.storages)),
    }
    for what, (ours, theirs) in pairs.items():
        if ours != theirs:
            raise errors.PlanGeometryError(
                where=geometry.where, plan=plan.name, what=what, plan_value=ours, geometry_value=theirs
            )
    last = max(block_ids, default=0)
    for segment in plan.segments:  # a faulty span or stride may reach further than the arithmetic below counts
        reach = max(segment.block_stride_bytes, segment.start_bytes(last) + segment.span_bytes)
        if reach > INT64_MAX:
            raise errors.IntegerRangeError(
                where=geometry.where, what=f"the reach of a segment of planner {plan.planner}, in bytes",
                value=reach, limit=INT64_MAX,
            )  # fmt: skip


def _sizes(storages) -> dict[Name, int]:
    return {storage.id: storage.nbytes for storage in storages}
