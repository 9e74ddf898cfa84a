"""Judge one planner on one layout by arithmetic: its faults, whose bytes they hit, and the first block to show them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Any

from kvzero import history as specimens
from kvzero.audit.audit import audit_plan
from kvzero.audit.result import Audit
from kvzero.errors import KvzeroError
from kvzero.layout.geometry import CacheGeometry
from kvzero.layout.intervals import intersect
from kvzero.layout.ownership import owned_within, owners_of_byte
from kvzero.layout.records import LayerView, Name, Segment
from kvzero.plan.planner import Plan
from kvzero.zero.tiles import AMD, CUDA

ENGINE = "engine"
# The upstream change that brought each planner, in general and for one kind of fault: #51749 (which layers are
# zeroed) was merged two days before #52058 (the launch).
OPENED_BY = {
    "page-per-segment": {"": "#49704"},
    "stride-and-span": {"": "#50276"},
    "masked-grid": {"": "#52058", "missed": "#51749"},
    ENGINE: {"": "#51718"},
}
MERGED_FIRST = "#35219"
MERGED = {
    "#35219": "2026-03-10", "#49704": "2026-07-24", "#50276": "2026-08-06", "#51749": "2026-08-11",
    "#52058": "2026-08-13", "#51718": "late August 2026",
}  # fmt: skip
# Pools of at most this many blocks are scanned whole, so the smallest block id is exact whatever the strides.
SCANNED_BLOCKS = 16
# Blocks scanned where a segment's stride is not that of the views: each block may go wrong in its own way.
SCANNED_WHILE_DRIFTING = 1_024
BYTE_FAULTS = ("overrun", "stomped", "missed", "pad")


@dataclass(frozen=True)
class Fault:
    """One way in which a planner goes wrong on a layout.

    Args:
        kind: "refuses" (raises before any write), "overrun", "stomped", "missed", "pad" (bytes of nobody) or
            "launch" (the launch for a whole pool is beyond a device's limit).
        count_bytes: distinct bytes in the worst single block; 0 for "refuses" and "launch".
        block: the block that is zeroed when it happens; None for "refuses" and "launch".
        smallest_block: the smallest block id that shows it.
        layers: layers whose bytes are hit.
        hit_blocks: first and last block whose bytes are hit; None if no view owns them.
        error: the refusal as plain data (`rule`, `message`, numbers).
        fixed_by: the change that brought the first later planner without this fault here; "" if there is none.
    """

    kind: str
    count_bytes: int = 0
    block: int | None = None
    smallest_block: int | None = None
    layers: tuple[str, ...] = ()
    hit_blocks: tuple[int, int] | None = None
    error: dict[str, Any] | None = None
    fixed_by: str = ""

    @property
    def harmless(self) -> bool:
        """Whether it costs only time: pad belongs to no view."""
        return self.kind == "pad"

    def to_dict(self) -> dict[str, Any]:
        """Plain data."""
        data = {name: getattr(self, name) for name in self.__dataclass_fields__}
        return {**data, "layers": list(self.layers), "hit_blocks": list(self.hit_blocks or ()) or None}


@dataclass(frozen=True)
class Finding:
    """What one planner does to the layout.

    Args:
        planner: an old planner's name, or "engine".
        era: the upstream changes that brought and replaced it.
        faults: worst first; empty if it is right.
        segments: number of segments of its plan; 0 if it refuses.
        written_over_needed: bytes written for a block over bytes needed; 1.0 is every byte once.
        programs, empty_programs: of one launch for every block of the pool; None if it does not launch.
        most_blocks_on_amd: blocks that one launch holds on AMD, which counts threads over the whole launch.
        audit: the audit of the worst block, for maps; None if it refuses.
    """

    planner: str
    era: str
    faults: tuple[Fault, ...] = ()
    segments: int = 0
    written_over_needed: float = 0.0
    programs: int | None = None
    empty_programs: int | None = None
    most_blocks_on_amd: int | None = None
    audit: Audit | None = field(default=None, repr=False, compare=False)

    @property
    def ok(self) -> bool:
        """Whether it writes what is needed, touches nothing that is live, and can be launched."""
        return all(fault.harmless for fault in self.faults)

    def fault(self, kind: str) -> Fault | None:
        """The fault of this kind, or None."""
        return next((fault for fault in self.faults if fault.kind == kind), None)

    def to_dict(self) -> dict[str, Any]:
        """Plain data."""
        names = ("planner", "era", "ok", "segments", "programs", "empty_programs", "most_blocks_on_amd")
        data = {name: getattr(self, name) for name in names}
        faults = [fault.to_dict() for fault in self.faults]
        return {**data, "written_over_needed": round(self.written_over_needed, 4), "faults": faults}


def judge_planner(geometry: CacheGeometry, planner: str, seen: dict | None = None) -> Finding:
    """Run one planner, or the engine's own segments ("engine"), on a layout.

    Args:
        geometry: the layout.
        planner: its name.
        seen: audits by segments, kept between calls for one geometry, since planners often agree.

    Raises:
        HistoryError: no such planner.
        HistoryError: "engine", and the file states no segments.
    """
    module = specimens.planner(planner)
    if planner == ENGINE:
        plan = module.plan(geometry)
    else:
        try:
            plan = module.plan(geometry)
        except KvzeroError as error:
            return Finding(planner, module.ERA, (Fault("refuses", error=error.to_dict()),))
    seen = {} if seen is None else seen
    if plan.segments not in seen:
        seen[plan.segments] = [audit_plan(plan, geometry, [block]) for block in telling_blocks(plan, geometry)]
    audits = [replace(audit, planner=planner) for audit in seen[plan.segments]]
    faults = [fault for kind in BYTE_FAULTS if (fault := _worst(kind, audits)) is not None]
    programs = empty = most_on_amd = None
    # An old planner may find no layer that it zeroes, or pages of no bytes: then there is nothing to launch.
    if plan.bytes_per_block and module.launch(plan, 1, None).programs_per_block:
        most_on_amd = AMD.max_programs // module.launch(plan, 1, None).programs_per_block
        try:
            launch = module.launch(plan, geometry.num_blocks, CUDA)
            programs, empty = launch.programs, launch.empty_programs_per_block * geometry.num_blocks
        except KvzeroError as error:
            faults.append(Fault("launch", error=error.to_dict()))
    return Finding(
        planner=planner,
        era=module.ERA,
        faults=tuple(faults),
        segments=len(plan.segments),
        written_over_needed=plan.bytes_per_block / plan.needed_bytes_per_block,
        programs=programs,
        empty_programs=empty,
        most_blocks_on_amd=most_on_amd,
        audit=max(audits, key=_damage),
    )


def telling_blocks(plan: Plan, geometry: CacheGeometry) -> list[int]:
    """Choose the block ids whose audits show every fault of a plan.

    Segments and views of one stride repeat with the block, so block b shows what block 0 does until something reaches
    an end of a storage. The first block of which a segment leaves its storage is found by division; the last block
    leaves it farthest. A segment of another stride than the views drifts over them: then the first 1,024 blocks are
    scanned. Small pools are scanned whole.
    """
    last = geometry.num_blocks - 1
    if last < SCANNED_BLOCKS:
        return list(range(last + 1))
    views: dict[Name, list[LayerView]] = {storage.id: [] for storage in geometry.storages}
    for view in geometry.layers:
        views[view.storage].append(view)
    drifting = any(_drifts(segment, views[segment.storage], last) for segment in plan.segments)
    scanned = range(min(SCANNED_WHILE_DRIFTING, last) if drifting else 2)
    sizes = {storage.id: storage.nbytes for storage in geometry.storages}
    leaving = last
    for segment in plan.segments:
        room = sizes[segment.storage] - segment.base_bytes - segment.span_bytes
        if segment.block_stride_bytes and room < last * segment.block_stride_bytes:
            leaving = min(leaving, max(room // segment.block_stride_bytes + 1, 0))
    return sorted({*scanned, leaving, last})


def _drifts(segment: Segment, views: Iterable[LayerView], last: int) -> bool:
    """Whether a segment meets, in any block up to the last, a view of its storage with another block stride."""
    end_bytes = segment.start_bytes(last) + segment.span_bytes
    return any(
        view.block_stride_bytes != segment.block_stride_bytes
        and view.byte_offset < end_bytes
        and segment.base_bytes < view.end_bytes
        for view in views
    )


def _worst(kind: str, audits: Iterable[Audit]) -> Fault | None:
    hits = [audit for audit in audits if getattr(audit, f"{kind}_bytes")]
    if not hits:
        return None
    audit = max(hits, key=lambda audit: getattr(audit, f"{kind}_bytes"))
    counts = {name: row.get(f"{kind}_bytes", 0) for name, row in audit.by_layer.items()}
    layers = sorted((name for name, count in counts.items() if count), key=lambda name: -counts[name])
    return Fault(
        kind=kind,
        count_bytes=getattr(audit, f"{kind}_bytes"),
        block=audit.blocks[0],
        smallest_block=min(hit.blocks[0] for hit in hits),
        layers=tuple(layers),
        hit_blocks=_hit_blocks(kind, audit, layers),
    )


def _hit_blocks(kind: str, audit: Audit, layers: list[str]) -> tuple[int, int] | None:
    """First and last block that own hit bytes, from the ends of what each layer lost."""
    found: set[int] = set()
    geometry = audit.geometry
    for name in layers:
        view = geometry.layer(name)
        lost = audit.ranges[kind][view.storage]
        lost = intersect(owned_within(view, geometry.num_blocks, lost), lost)
        alone = replace(geometry, layers=(view,))
        for byte in (int(lost[0, 0]), int(lost[-1, 1]) - 1):
            found |= {block for _, block in owners_of_byte(alone, view.storage, byte)}
    if kind == "missed":
        found &= set(audit.blocks)
    return (min(found), max(found)) if found else None


def _damage(audit: Audit) -> tuple[int, int, int, int]:
    return audit.overrun_bytes, audit.stomped_bytes, audit.missed_bytes, audit.pad_bytes
