"""Triage: one layout, judged under the engine's own plan and under every old planner, by arithmetic alone.

For each fault the report says how many bytes of which layers and blocks it hits, the smallest block id that shows it,
and the upstream change after which this layout no longer shows it, which is found by running the later planners.
"""

from __future__ import annotations

import html
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from kvzero import history as specimens
from kvzero.layout.geometry import CacheGeometry
from kvzero.plan.planner import Plan, plan_segments
from kvzero.zero.tiles import launch_for

from .judging import ENGINE, MERGED_FIRST, OPENED_BY, Finding, judge_planner
from .words import advice, as_html, as_markdown, as_text, conclusion

GRAVEST_FIRST = ("overrun", "stomped", "missed", "launch", "refuses")  # silent damage before a clear stop


@dataclass(frozen=True)
class Triage:
    """The proven plan, the engine's own plan if the file states it, and the findings about the old planners (`eras`).

    `ok` is about the engine's own plan alone: old planners go wrong on most layouts.
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
        """The change since which every planner is right on this layout; "" if the newest is not."""
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
        """What to look at first: the engine's plan if it is wrong, else the newest planner with the gravest fault."""
        if self.engine and not self.engine.ok:
            return self.engine
        wrong = [finding for finding in self.eras if not finding.ok]
        gravest = {kind: [finding for finding in wrong if finding.fault(kind)] for kind in GRAVEST_FIRST}
        return next((findings[-1] for findings in gravest.values() if findings), None)

    def finding(self, planner: str) -> Finding:
        """The finding of one planner, "engine" included; raises KeyError."""
        return {finding.planner: finding for finding in (*self.eras, self.engine) if finding}[planner]

    def not_zeroed(self) -> dict[str, list[str]]:
        """The views that a fresh block leaves as they are: spec kind to layer names."""
        found: dict[str, list[str]] = {}
        for view in self.geometry.layers:
            if not view.zeroed:
                found.setdefault(view.spec_kind, []).append(view.name)
        return found

    def text(self) -> str:
        """The report in plain words."""
        return as_text(self)

    def markdown(self, small: CacheGeometry | None = None) -> str:
        """The report as Markdown to paste into an issue; `small` is the smallest geometry that shows the fault."""
        return as_markdown(self, small)

    def html(self, pictures: Sequence[tuple[Finding, str]] = ()) -> str:
        """The report as one HTML page that loads nothing else; `pictures` are findings and the SVG of each."""
        return as_html(self, pictures)

    def to_dict(self) -> dict[str, Any]:
        """The report as plain data, as `kvzero triage --json` prints it."""
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
            "not_zeroed": self.not_zeroed(),
            "right_since": self.right_since(),
            "conclusion": conclusion(self),
            "advice": advice(self),
            "ok": self.ok,
        }

    def _repr_html_(self) -> str:
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


def _with_fixes(eras: list[Finding], engine: Finding | None) -> Iterable[Finding]:
    for index, finding in enumerate(eras):
        later = [*eras[index + 1 :], *([engine] if engine else [])]
        yield replace(finding, faults=tuple(replace(f, fixed_by=_fixed_by(f.kind, later)) for f in finding.faults))


def _fixed_by(kind: str, later: list[Finding]) -> str:
    for finding in later:
        # A planner that refuses a layout writes nothing, which is no fix of what the one before it wrote.
        if finding.fault(kind) is None and (kind == "refuses" or finding.fault("refuses") is None):
            changes = OPENED_BY[finding.planner]
            return changes.get(kind, changes[""])
    return ""
