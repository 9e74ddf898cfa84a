"""What the triage notebook shows around `kvzero.triage`: a table of the caches, and trials in memory."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from typing import Any

from kvzero import history
from kvzero.audit.audit import audit_bytes, audit_plan
from kvzero.audit.result import Audit
from kvzero.errors import ResizeError
from kvzero.layout.geometry import CacheGeometry
from kvzero.plan.resize import with_num_blocks
from kvzero.triage.judging import Finding

CACHES_HEADER = ("cache", "layers", "group", "spec", "page (bytes)", "block stride (bytes)", "first bytes, block 0")
# The interpreter runs about a thousand programs a second.
MOST_INTERPRETED_PROGRAMS = 8_000


def caches_table(geometry: CacheGeometry) -> tuple[Sequence[str], list[list[Any]]]:
    """Header and rows: a row for the views that differ in their layer's number and their place alone."""
    names = {view.name: re.sub(r"\d+", "*", view.name) for view in geometry.layers}
    shared = os.path.commonprefix([f"{name}." for name in names.values()]) if len(set(names.values())) > 1 else ""
    kinds: dict[tuple, list[int]] = {}
    for view in geometry.layers:
        name = names[view.name][shared.rfind(".") + 1 :]
        kind = (name, view.group, view.spec_kind, view.page_bytes, view.block_stride_bytes)
        kinds.setdefault(kind, []).append(view.byte_offset)
    rows = []
    for (name, group, spec, page, stride), firsts in kinds.items():
        span = f"{firsts[0]:,}" + (f" to {firsts[-1]:,}" if firsts[-1] != firsts[0] else "")
        rows.append([name, len(firsts), group, spec or "not stated", page, stride, span])
    return CACHES_HEADER, rows


def trial_pool(geometry: CacheGeometry, max_bytes: int) -> CacheGeometry | None:
    """The same layout with as many blocks as fit, or None if it cannot be made small enough.

    Args:
        geometry: any size of pool.
        max_bytes: bytes of all storages together.
    """
    while sum(storage.nbytes for storage in geometry.storages) > max_bytes:
        if geometry.num_blocks < 4:
            return None
        try:
            geometry = with_num_blocks(geometry, geometry.num_blocks // 2)
        except ResizeError:
            return None
    return geometry


def two_witnesses(geometry: CacheGeometry, finding: Finding, device: str) -> dict[int, tuple[Audit, Audit]]:
    """Each block that is the worst of a fault, judged by arithmetic and by memory; none where it cannot be run.

    Args:
        geometry: the layout that the finding is about; small.
        finding: of a planner that plans and goes wrong.
        device: where the planner's own kernel runs.

    Raises:
        KvzeroError: the arena refuses (see `kvzero.audit.audit.audit_bytes`).
    """
    blocks = sorted({fault.block for fault in finding.faults if fault.block is not None and not fault.harmless})
    if not blocks:
        return {}
    module = history.planner(finding.planner)
    plan = module.plan(geometry)
    if not plan.segments or (device == "cpu" and module.launch(plan, 1, None).programs > MOST_INTERPRETED_PROGRAMS):
        return {}
    return {
        block: (
            audit_plan(plan, geometry, [block]),
            audit_bytes(geometry, [block], planner=finding.planner, device=device),
        )
        for block in blocks
    }


def counts_text(audit: Audit) -> str:
    """The four counts of an audit in a line: bytes wiped, past the end, left dirty, of pad.

    >>> from kvzero import geometries, history
    >>> slab = geometries.load("dsv4_c4_mla_only__BLHNC")
    >>> counts_text(audit_plan(history.planner("page-per-segment").plan(slab), slab, [15]))
    'wiped 0, past the end 112,320, left dirty 0, pad 256'
    """
    words = {"stomped": "wiped", "overrun": "past the end", "missed": "left dirty", "pad": "pad"}
    return ", ".join(f"{word} {getattr(audit, f'{name}_bytes'):,}" for name, word in words.items())
