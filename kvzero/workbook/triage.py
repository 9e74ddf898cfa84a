"""What the triage notebook shows around `kvzero.triage`: a table, a trial in memory, an explorer, a text to paste."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from typing import Any

from kvzero import history as specimens
from kvzero.audit.audit import audit_bytes, audit_plan
from kvzero.audit.result import Audit
from kvzero.errors import ResizeError
from kvzero.layout.geometry import CacheGeometry
from kvzero.plan.resize import with_num_blocks
from kvzero.triage import MERGED, Triage
from kvzero.triage.judging import ENGINE, Finding

from .exercise import Judgement, accepted, hint
from .explorers.layout import layout_data
from .figures import Figure, draw_memory_map
from .knob import Knob, knob

HEADER = ("planner", "era", "verdict", "wiped", "past the end", "left dirty", "written / needed")
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


def reply_to(report: Triage, guess: str | None) -> str:
    """The answer to what the oldest planner does: "a" it harms another block, "b" it refuses, "c" neither."""
    faults = {fault.kind: fault for fault in report.finding("uniform-page").faults}
    if "refuses" in faults:
        answer, why = "b", "two of the distances that it takes for pages differ."
    elif harm := faults.get("stomped") or faults.get("overrun"):
        answer, why = "a", f"all the distances agree, so it starts; then it zeroes {harm.count_bytes:,} bytes too many."
    else:
        answer, why = "c", "what it writes stays within the block."
    said = f"You said {guess}. " if guess in ("a", "b", "c") else ""
    return f"{said}The answer is {answer}: {why}"


def verdict_table(report: Triage) -> tuple[Sequence[str], list[list[Any]]]:
    """Header and rows: each planner and the bytes that it wipes, writes past the end, and leaves dirty."""
    findings = [*report.eras, *([report.engine] if report.engine else [])]
    return HEADER, [_row(finding) for finding in findings]


def _row(finding: Finding) -> list[Any]:
    refusal = finding.fault("refuses")
    if refusal:
        return [finding.planner, finding.era, "✗ refuses", "-", "-", "-", "-"]
    harm = [
        f"{fault.count_bytes:,}\N{NO-BREAK SPACE}(block\N{NO-BREAK SPACE}{fault.block})"
        if (fault := finding.fault(kind))
        else "0"
        for kind in ("stomped", "overrun", "missed")
    ]
    verdict = "right" if finding.ok else "✗ wrong"
    return [finding.planner, finding.era, verdict, *harm, f"{finding.written_over_needed:.3f}"]


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
    module = specimens.planner(finding.planner)
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

    >>> from kvzero import geometries, specimens
    >>> slab = geometries.load("dsv4_c4_mla_only__BLHNC")
    >>> counts_text(audit_plan(specimens.planner("page-per-segment").plan(slab), slab, [15]))
    'wiped 0, past the end 112,320, left dirty 0, pad 256'
    """
    words = {"stomped": "wiped", "overrun": "past the end", "missed": "left dirty", "pad": "pad"}
    return ", ".join(f"{word} {getattr(audit, f'{name}_bytes'):,}" for name, word in words.items())


def triage_knob(report: Triage) -> Knob:
    """Any planner on any block of this cache."""
    geometry = report.geometry
    names = ["kvzero", *(finding.planner for finding in report.eras), *([ENGINE] if report.engine else [])]

    def draw(planner: str, block: int) -> tuple[Figure, str, str]:
        layout = layout_data(geometry, planner, (block,))
        return draw_memory_map(layout.map), layout.sentence, layout.text

    last = geometry.num_blocks - 1
    steps = {"kvzero, block 0": {"planner": "kvzero", "block": 0}}
    steps |= {f"{name}, last block": {"planner": name, "block": last} for name in names[1:]}
    return knob(draw, controls={"planner": names, "block": range(last + 1)}, steps=steps,
                title=f"What each planner does to {geometry.name}")  # fmt: skip


def judge_change(report: Triage, answer: str) -> Judgement:
    """Judge the change from which on this layout is safe, by running the eras after it."""
    since = report.right_since()
    if answer == since:
        return accepted(f"From {since} on, every planner here is right on {report.geometry.name}.")
    if answer not in MERGED:
        return hint(f"{answer} opens no era here; the changes are {', '.join(MERGED)}.")
    order = list(MERGED)
    if since and order.index(answer) > order.index(since):
        return hint(f"{answer} is safe, but an earlier change already is: look further up in the table.")
    findings = [*report.eras, *([report.engine] if report.engine else [])]
    after = [finding for finding in findings if _opens(finding) >= order.index(answer) and not finding.ok]
    if not after:  # `since` is "": the newest planner that is known here goes wrong
        return hint(f"{answer} opens nothing that is known here, and what is known before it goes wrong.")
    kinds = ", ".join(fault.kind for fault in after[-1].faults if not fault.harmless)
    return hint(f"With {answer} alone, {after[-1].planner} still goes wrong here ({kinds}).")


def _opens(finding: Finding) -> int:
    opened = "#51718" if finding.planner == ENGINE else finding.era.split(" to ")[0]
    return list(MERGED).index(opened)
