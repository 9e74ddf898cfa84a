"""The chain of changes as numbers: our checks, run against the planner of each era on every packaged dump.

Nothing here is typed in: every cell is counted from a plan that a specimen made, or from the error that it raised.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import date

import numpy as np

from kvzero import history as specimens
from kvzero.audit.audit import Audit, audit_plan
from kvzero.errors import KvzeroError
from kvzero.history import named
from kvzero.layout import geometries
from kvzero.layout.geometry import CacheGeometry
from kvzero.layout.intervals import total, union
from kvzero.plan.planner import Plan, plan_segments
from kvzero.zero.tiles import launch_for

from .figures.history import EVENTS

ERAS = (*specimens.PLANNERS, "engine", "kvzero")
"""Planners, oldest first; "engine" is what vLLM 0.33 stated in the dumps, "kvzero" our proven plan."""


def plan_of(era: str, geometry: CacheGeometry) -> Plan:
    """The plan that an era makes; raises what the era raised."""
    return plan_segments(geometry) if era == "kvzero" else specimens.planner(era).plan(geometry)


def ends_outside(plan: Plan) -> bool:
    """Whether a segment's last block ends beyond its storage: three numbers and a comparison per segment.

    Example:
        >>> ends_outside(plan_of("uniform-page", named.geometry("packed-slab-51288")))
        True
    """
    sizes = {storage.id: storage.nbytes for storage in plan.storages}
    last = plan.num_blocks - 1
    return any(
        each.base_bytes + last * each.block_stride_bytes + each.span_bytes > sizes[each.storage]
        for each in plan.segments
    )


def blocks_share_bytes(plan: Plan) -> bool:
    """Whether two blocks of the plan write one byte in common."""
    apart = together = 0
    every = range(plan.num_blocks)
    for ranges in plan.ranges(every).values():
        together += total(union(ranges)) if len(ranges) else 0
    for block in every:
        apart += sum(total(union(ranges)) for ranges in plan.ranges([block]).values() if len(ranges))
    return apart != together


@dataclass(frozen=True)
class Finding:
    """What our checks say of one era on one dump.

    Args:
        era, dump: which.
        refused: the rule of the error that the planner raised, or "".
        outside: `ends_outside`.
        shared: `blocks_share_bytes`.
        audit: of the first, second and last block together, or None if the planner raised.
    """

    era: str
    dump: str
    refused: str
    outside: bool = False
    shared: bool = False
    audit: Audit | None = None


def judge(era: str, dump: str) -> Finding:
    """Run one era's planner on one packaged dump, and our checks on its plan.

    Example:
        >>> judge("uniform-page", "glm52_fp8_dsmla_indexer__LBNHC").refused
        'non-uniform-pages'
    """
    geometry = geometries.load(dump)
    try:
        plan = plan_of(era, geometry)
    except KvzeroError as error:
        return Finding(era, dump, error.rule)
    blocks = sorted({0, min(1, geometry.num_blocks - 1), geometry.num_blocks - 1})
    audit = audit_plan(plan, geometry, blocks)
    return Finding(era, dump, "", ends_outside(plan), blocks_share_bytes(plan), audit)


def judge_all(eras: Sequence[str] = ERAS) -> list[Finding]:
    """`judge` for every era and every packaged dump."""
    return [judge(era, dump) for era in eras for dump in geometries.names()]


CHECKS: dict[str, Callable[[Finding], bool]] = {
    "refused": lambda found: bool(found.refused),
    "ends outside": lambda found: found.outside,
    "share bytes": lambda found: found.shared,
    "missed": lambda found: found.audit is not None and found.audit.missed_bytes > 0,
    "stomped": lambda found: found.audit is not None and found.audit.stomped_bytes > 0,
    "overrun": lambda found: found.audit is not None and found.audit.overrun_bytes > 0,
}
"""The checks of a plan, in the order of their cost: what the planner itself refuses, two comparisons, the audit."""


def counts(findings: Iterable[Finding], eras: Sequence[str] = ERAS) -> dict[str, dict[str, int]]:
    """For each era and each check, on how many dumps it fires."""
    table = {era: dict.fromkeys(CHECKS, 0) for era in eras}
    for found in findings:
        for name, fires in CHECKS.items():
            table[found.era][name] += fires(found)
    return table


def right(findings: Iterable[Finding], era: str) -> int:
    """On how many dumps an era's plan is exactly right, by the audit."""
    return sum(found.era == era and found.audit is not None and found.audit.ok for found in findings)


def launch_programs(era: str, geometry_name: str, num_ids: int | None = None) -> int | str:
    """Programs of one call, or the rule of the error with which the era refuses it.

    Args:
        era: one of `ERAS`.
        geometry_name: a name that `kvzero.history.named.geometry` knows.
        num_ids: ids of the call; None means every block.

    Example:
        >>> [launch_programs(era, "launch-overflow-52058") for era in ("stride-and-span", "masked-grid")]
        ['grid-overflow', 12434700]
    """
    try:
        plan = plan_of(era, named.geometry(geometry_name))
        launch = launch_for(plan, num_ids) if era == "kvzero" else specimens.planner(era).launch(plan, num_ids)
    except KvzeroError as error:
        return error.rule
    return launch.programs


def launch_words(era: str, geometry_name: str) -> str:
    """What comes of a call on every block, in a few words for a table.

    Args:
        era, geometry_name: as for `launch_programs`.

    Example:
        >>> [launch_words(era, "launch-overflow-52058") for era in ("uniform-page", "stride-and-span", "masked-grid")]
        ['✗ refused by the planner', '✗ grid-overflow', '12,434,700 programs']
    """
    try:
        plan_of(era, named.geometry(geometry_name))
    except KvzeroError:  # it never comes to a launch that a limit could judge
        return "✗ refused by the planner"
    found = launch_programs(era, geometry_name)
    return f"✗ {found}" if isinstance(found, str) else f"{found:,} programs"


@dataclass(frozen=True)
class Sleeper:
    """A change, and the failure that it set up.

    Args:
        change, failure: sources in `EVENTS`.
        assumption: what was taken for granted, in a few words.
    """

    change: str
    failure: str
    assumption: str

    @property
    def days(self) -> int:
        """Days from the change to the failure, or to the fix that made it known."""
        return (day_of(self.failure) - day_of(self.change)).days


def day_of(source: str) -> date:
    """The day of a step of the history."""
    return next(step.day for step in EVENTS if step.source == source)


SLEEPERS = (
    Sleeper("#35219", "#48085", "a call is over before the next one begins"),
    Sleeper("#35219", "#43009", "start-up steps run every kernel"),
    Sleeper("#35219", "#50276", "the block stride is the page"),
    Sleeper("#35219", "#48481", "the zero comes before the load"),
    Sleeper("#35219", "#56524", "recurrent state is written before it is read"),
    Sleeper("#48085", "1Cat-vLLM #406", "a merged fix stays merged"),
    Sleeper("#48481", "#55085", "a loaded block is a full block"),
    Sleeper("#47574", "#49704", "who is zeroed does not change how"),
    Sleeper("#49903", "#57156", "block 0 stays as the warm-up left it"),
    Sleeper("#51749", "#52058", "more segments are only more of the same"),
)
"""Each pair is told in the threads of its two numbers; the wording of the assumption is ours."""


def median_days(sleepers: Sequence[Sleeper] = SLEEPERS) -> float:
    """The median time that an assumption slept."""
    return float(np.median([each.days for each in sleepers]))
