"""What the triage notebook shows around `kvzero.triage`: a table, a trial in memory, an explorer, a text to paste."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import ipywidgets as widgets

from .. import specimens
from ..audit import audit_bytes, audit_plan
from ..errors import ResizeError
from ..geometry import CacheGeometry
from ..report import Audit
from ..resize import with_num_blocks
from ..triage import MERGED, Triage
from ..triage.judging import ENGINE, Finding
from .exercise import Judgement, accepted, hint
from .explorers.base import Explorer, View
from .explorers.layout import layout_data
from .figures import draw_memory_map, map_text

HEADER = ("planner", "era", "verdict", "wiped", "past the end", "left dirty", "written / needed")
# The interpreter runs about a thousand programs a second.
MOST_INTERPRETED_PROGRAMS = 8_000
LONGEST_JSON = 6_000


def verdict_table(report: Triage) -> tuple[Sequence[str], list[list[Any]]]:
    """Header and rows: each planner and the bytes that it wipes, writes past the end, and leaves dirty."""
    findings = [*report.eras, *([report.engine] if report.engine else [])]
    return HEADER, [_row(finding) for finding in findings]


def _row(finding: Finding) -> list[Any]:
    refusal = finding.fault("refuses")
    counts = [fault.count_bytes if (fault := finding.fault(kind)) else 0 for kind in ("stomped", "overrun", "missed")]
    if refusal:
        return [finding.planner, finding.era, "✗ refuses", "-", "-", "-", "-"]
    verdict = "right" if finding.ok else "✗ wrong"
    ratio = f"{finding.written_over_needed:.2f}"
    return [finding.planner, finding.era, verdict, *counts, ratio]


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


def two_witnesses(geometry: CacheGeometry, finding: Finding, device: str) -> tuple[Audit, Audit] | None:
    """The worst block of a finding, judged by arithmetic and by memory; None where it cannot be run in memory.

    Args:
        geometry: the layout that the finding is about; small.
        finding: of a planner that plans and goes wrong.
        device: where the planner's own kernel runs.

    Raises:
        KvzeroError: the arena refuses (see `kvzero.audit.audit_bytes`).
    """
    if finding.audit is None:
        return None
    block = list(finding.audit.blocks)
    module = specimens.planner(finding.planner)
    plan = module.plan(geometry)
    if not plan.segments or (device == "cpu" and module.launch(plan, 1, None).programs > MOST_INTERPRETED_PROGRAMS):
        return None
    by_memory = audit_bytes(geometry, block, planner=finding.planner, device=device)
    return audit_plan(plan, geometry, block), by_memory


def counts(audit: Audit) -> dict[str, int]:
    """The four counts of an audit."""
    return {name: getattr(audit, f"{name}_bytes") for name in ("missed", "stomped", "pad", "overrun")}


def triage_explorer(report: Triage) -> Explorer:
    """Any planner on any block of this cache; show a static map before it, for pages without a kernel."""
    geometry = report.geometry
    names = ["kvzero", *(finding.planner for finding in report.eras), *([ENGINE] if report.engine else [])]
    controls = {
        "planner": widgets.Dropdown(options=names, description="planner"),
        "block": widgets.IntSlider(0, 0, geometry.num_blocks - 1, description="block to zero"),
    }
    presets = {f"{name}, block 0": {"planner": name, "block": 0} for name in names}
    presets |= {f"{name}, last block": {"planner": name, "block": geometry.num_blocks - 1} for name in names}

    def draw(state: dict[str, Any]) -> View:
        layout = layout_data(geometry, state["planner"], (state["block"],))
        code = f"show_layout(layout_data(cache, {state['planner']!r}, ({state['block']},)))"
        return View(draw_memory_map(layout.map), layout.sentence, map_text(layout.map), code, layout.segments_text)

    return Explorer(f"What each planner does to {geometry.name}", controls, draw, presets)


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


def issue_text(report: Triage, small: CacheGeometry | None) -> str:
    """The report as Markdown to paste into an issue: the text, and the smallest geometry if it is short enough."""
    parts = ["### KV-cache triage", "```text", report.text(), "```"]
    if small is not None:
        data = small.to_dict()
        parts.append(f"Smallest geometry that still shows it ({data['shows']}), as a file for `kvzero triage`:")
        text = json.dumps(data)
        parts += ["```json", text, "```"] if len(text) <= LONGEST_JSON else ["(attach the file; it is too long here)"]
    return "\n".join(parts)
