"""Triage: from one geometry to a report on what every planner, old and new, does to it. Pure arithmetic, no memory.

The engine's own segments are judged if the file holds them; each era's planner is run beside them; for every fault
the report says how many bytes of which layers and blocks, the smallest block id that shows it, and the upstream
change after which this layout no longer shows it. That last is found by running the later eras, not looked up.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from . import specimens
from .audit import audit_plan
from .errors import KvzeroError
from .geometry import CacheGeometry
from .intervals import intersect
from .launch import AMD, CUDA, launch_for
from .ownership import owned_within, owners_of_byte
from .plan import Plan, plan_segments
from .report import Audit

ENGINE = "engine"
# Scanned one by one: in a small pool the smallest block id is then exact whatever the strides.
SCANNED_BLOCKS = 16
FAULTS = ("refuses", "overrun", "stomped", "missed", "pad", "launch")
GRAVEST_FIRST = ("overrun", "stomped", "missed", "launch", "refuses")  # silent damage before a clear stop
# The change that opened each era; #51749 (which layers are zeroed) came a day before #52058 (the launch).
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
        fixed_by: the change of the first later era that does not do this here; "" if none of those known.
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
        """Whether it costs writes and nothing else: pad belongs to nobody."""
        return self.kind == "pad"

    def to_dict(self) -> dict[str, Any]:
        """Plain data."""
        data = {name: getattr(self, name) for name in self.__dataclass_fields__}
        return {**data, "layers": list(self.layers), "hit_blocks": list(self.hit_blocks or ()) or None}


@dataclass(frozen=True)
class Finding:
    """What one planner does to the layout.

    Args:
        planner: a specimen's name, or "engine".
        era: the upstream changes that open and close it.
        faults: worst first; empty if it is right.
        segments: segments of its plan; 0 if it refuses.
        written_over_needed: bytes written for a block over bytes needed; 1.0 is every byte once.
        programs, empty_programs: of one launch for every block of the pool; None if it does not launch.
        most_blocks_on_amd: blocks that one launch holds on AMD, which counts threads over the whole launch.
        audit: the audit of the worst block, for maps; None if it refuses or is right.
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


@dataclass(frozen=True)
class Triage:
    """The report: the proven plan, the engine's own plan if the file states it, and every era.

    `ok` is about the engine's own plan alone: the old planners are history, and nearly always find something.
    """

    geometry: CacheGeometry
    plan: Plan
    programs: int
    engine: Finding | None
    eras: tuple[Finding, ...]

    @property
    def ok(self) -> bool:
        """False if the engine's own plan misses, stomps, overruns, or cannot be launched."""
        return self.engine is None or self.engine.ok

    def right_since(self) -> str:
        """The change from which on every planner known here is right on this layout; "" if the newest is not."""
        since = MERGED_FIRST
        for finding in (*self.eras, self.engine):
            if finding is None:
                continue
            if finding.ok and since == "":
                since = OPENED_BY[finding.planner][""]
            elif not finding.ok:
                since = ""
        return since

    def worst(self) -> Finding | None:
        """What to look at first: the engine's plan if it is wrong, else the newest of the eras with the gravest fault."""
        if self.engine and not self.engine.ok:
            return self.engine
        wrong = [finding for finding in self.eras if not finding.ok]
        gravest = {kind: [finding for finding in wrong if finding.fault(kind)] for kind in GRAVEST_FIRST}
        return next((findings[-1] for findings in gravest.values() if findings), None)

    def finding(self, planner: str) -> Finding:
        """The finding of one planner, "engine" included; raises KeyError."""
        return {finding.planner: finding for finding in (*self.eras, self.engine) if finding}[planner]

    def text(self) -> str:
        """The report in plain words."""
        from .triage_report import as_text

        return as_text(self)

    def html(self, picture_png: bytes | None = None) -> str:
        """The report as one HTML page that needs nothing else."""
        from .triage_report import as_html

        return as_html(self, picture_png)

    def to_dict(self) -> dict[str, Any]:
        """The report as plain data, as `kvzero triage --json` prints it."""
        from .triage_report import advice

        geometry = self.geometry
        return {
            "name": geometry.name,
            "engine": geometry.engine,
            "layout": geometry.layout,
            "num_blocks": geometry.num_blocks,
            "views": len(geometry.layers),
            "storage_bytes": sum(storage.nbytes for storage in geometry.storages),
            "needed_bytes_per_block": self.plan.needed_bytes_per_block,
            "plan": {
                "digest": self.plan.digest(),
                "segments": len(self.plan.segments),
                "bytes_per_block": self.plan.bytes_per_block,
                "programs": self.programs,
            },
            "engine_plan": self.engine.to_dict() if self.engine else None,
            "eras": [finding.to_dict() for finding in self.eras],
            "right_since": self.right_since(),
            "advice": advice(self),
            "ok": self.ok,
        }

    def _repr_html_(self) -> str:
        import html

        return f'<pre class="kvzero-triage">{html.escape(self.text())}</pre>'


def triage(geometry: CacheGeometry) -> Triage:
    """Judge a cache layout by every planner, by arithmetic alone.

    Args:
        geometry: the cache, as dumped or captured; any size of pool.

    Raises:
        KvzeroError: the layout cannot be proven; then nothing else is said about it.

    The cost follows views and segments, not blocks.

    Example:
        >>> from kvzero import geometries
        >>> report = triage(geometries.load("dsv4_c4_mla_only__BLHNC"))
        >>> report.ok, [(finding.planner, finding.ok) for finding in report.eras[1:3]]
        (True, [('page-per-segment', False), ('stride-and-span', True)])
        >>> fault = report.finding("page-per-segment").fault("stomped")
        >>> fault.count_bytes, fault.smallest_block, fault.fixed_by
        (112128, 0, '#50276')
    """
    # Reports are pasted into issues: they name the file and not where it lies.
    geometry = replace(geometry, source=Path(geometry.source).name)
    plan = plan_segments(geometry)
    seen: dict = {}
    eras = [judge_planner(geometry, name, seen) for name in specimens.PLANNERS]
    engine = judge_planner(geometry, ENGINE, seen) if geometry.engine_segments else None
    return Triage(
        geometry=geometry,
        plan=plan,
        programs=launch_for(plan, geometry.num_blocks).programs,
        engine=engine,
        eras=tuple(_with_fixes(eras, engine)),
    )


def judge_planner(geometry: CacheGeometry, planner: str, seen: dict | None = None) -> Finding:
    """Run one planner, or the engine's own segments ("engine"), on a layout.

    Args:
        geometry: the layout.
        planner: its name.
        seen: audits by segments, kept between calls for one geometry: eras often plan alike.

    Raises:
        UnknownPlannerError: no such planner.
        NoEngineSegmentsError: "engine", and the file states no segments.
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
    faults = [fault for kind in FAULTS[1:5] if (fault := _worst(kind, audits)) is not None]
    programs = empty = most_on_amd = None
    # An old planner may find no layer that it zeroes, or pages of no bytes: then there is nothing to launch.
    if plan.bytes_per_block and module.launch(plan, 1, None).programs_per_block:
        most_on_amd = AMD.max_programs // module.launch(plan, 1, None).programs_per_block
        try:
            launch = module.launch(plan, geometry.num_blocks, CUDA)
            programs, empty = launch.programs, launch.empty_programs_per_block * geometry.num_blocks
        except KvzeroError as error:
            faults.append(Fault("launch", error=error.to_dict()))
    wrong = [audit for audit in audits if not audit.ok]
    return Finding(
        planner=planner,
        era=module.ERA,
        faults=tuple(faults),
        segments=len(plan.segments),
        written_over_needed=plan.bytes_per_block / plan.needed_bytes_per_block,
        programs=programs,
        empty_programs=empty,
        most_blocks_on_amd=most_on_amd,
        audit=max(wrong, key=_damage) if wrong else None,
    )


def telling_blocks(plan: Plan, geometry: CacheGeometry) -> list[int]:
    """The block ids whose audits tell all that a plan can do wrong.

    Segments and views repeat with the block, so what block b does is what block 0 does, moved, as long as nothing
    reaches an end of a storage: the first two blocks show whether the strides agree, the first block of which a
    segment leaves its storage is found by division, and the last block does the most of that. Small pools are
    scanned whole.
    """
    last = geometry.num_blocks - 1
    if last < SCANNED_BLOCKS:
        return list(range(last + 1))
    sizes = {storage.id: storage.nbytes for storage in geometry.storages}
    blocks, leaving = {0, 1, last}, last
    for segment in plan.segments:
        room = sizes[segment.storage] - segment.base_bytes - segment.span_bytes
        if segment.block_stride_bytes and room < last * segment.block_stride_bytes:
            leaving = min(leaving, max(room // segment.block_stride_bytes + 1, 0))
    return sorted({*blocks, leaving})


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


def _with_fixes(eras: list[Finding], engine: Finding | None) -> Iterable[Finding]:
    for index, finding in enumerate(eras):
        later = [*eras[index + 1 :], *([engine] if engine else [])]
        yield replace(finding, faults=tuple(replace(f, fixed_by=_fixed_by(f.kind, later)) for f in finding.faults))


def _fixed_by(kind: str, later: list[Finding]) -> str:
    for finding in later:
        # An era that refuses a layout writes nothing; it has not fixed what the one before it wrote.
        if finding.fault(kind) is None and (kind == "refuses" or finding.fault("refuses") is None):
            changes = OPENED_BY[finding.planner]
            return changes.get(kind, changes[""])
    return ""
