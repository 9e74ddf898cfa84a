"""A triage as text, and as one HTML page: the words and nothing else.

The numbers come from the report, a `kvzero.triage.Triage`.
"""

from __future__ import annotations

import html
import textwrap

from .judging import Fault, Finding
from .upstream import MERGED

NOTHING_NEWER = "no later era that is rebuilt here fixes it"
LINE_LETTERS = 100  # a page shows so many without cutting them


def as_text(report) -> str:
    """The report in plain words, for a terminal or an issue."""
    lines = [_head(report), "", _need(report), ""]
    if report.engine:
        version = report.geometry.engine or "version not stated"
        lines += [f"The engine's own plan ({version})", *_lines(report.engine, report)]
    else:
        note = report.geometry.extra.get("engine_plan_note", "the file does not hold the engine's own segments")
        lines += ["The engine's own plan", f"  not judged: {note}"]
    lines += ["", "Earlier planners on this layout (rebuilt from the upstream threads, run by arithmetic)"]
    for finding in report.eras:
        lines += _lines(finding, report)
    lines += ["", "What to do", *(f"  - {text}" for text in advice(report))]
    return "\n".join(_wrapped(line) for line in lines)


def _wrapped(line: str) -> str:
    """A line, broken between words where it is too long, and continued further in."""
    indent = " " * (4 + len(line) - len(line.lstrip()) - 2 * line.startswith("  - "))
    return textwrap.fill(
        line, LINE_LETTERS, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False
    )


def advice(report) -> list[str]:
    """What the reader should do, most urgent first."""
    texts = []
    engine = report.engine
    if engine and not engine.ok:
        texts.append(
            "The engine's own plan damages this cache. Swap in kvzero.vllm.KVBlockZeroer or change the "
            "cache layout, and report it: `--shrink FILE` writes the smallest geometry that still shows it."
        )
    wrong = [finding for finding in report.eras if not finding.ok]
    if wrong and engine is None:
        texts.append(
            f"This layout needs {_needed_change(report, wrong)}. The file does not say what your engine would write; "
            "capture it with read_engine_plan=True to have the engine itself judged."
        )
    elif wrong and engine.ok:
        texts.append(f"This layout needs {_needed_change(report, wrong)}; the engine in this file plans it right.")
    if engine and engine.ok and engine.written_over_needed > 1.01:
        texts.append(
            f"Each fresh block costs {engine.written_over_needed:.2f} times the writes it needs; kvzero's plan writes "
            "each byte once."
        )
    if report.geometry.extra.get("needs_kv_cache_zeroing") is False:
        texts.append(
            "The engine would not zero blocks at all with this configuration (needs_kv_cache_zeroing is false)."
        )
    if engine and engine.ok:
        texts.append(
            "If the engine still gives wrong tokens, look at when blocks are zeroed (loads, id buffers, graph capture) "
            "and which blocks, not at where: this plan is right. `kvzero.audit_live` checks it in the process."
        )
    return texts or ["Nothing: every planner is right on this layout."]


def _needed_change(report, wrong: list[Finding]) -> str:
    """What a version must contain to be right here; a change inside an era has no era of its own."""
    since = report.right_since()
    if not since:
        return "kvzero's plan: no era rebuilt here is right on it"
    fixes = {fault.fixed_by for finding in wrong for fault in finding.faults if fault.fixed_by and not fault.harmless}
    last = max(fixes, key=list(MERGED).index, default=since)
    if list(MERGED).index(last) < list(MERGED).index(since):
        return f"{last}, which every era from {since} on contains"
    return f"a version with {since} or newer"


def _head(report) -> str:
    geometry = report.geometry
    nbytes = sum(storage.nbytes for storage in geometry.storages)
    about = ", ".join(text for text in (geometry.engine, geometry.layout and f"layout {geometry.layout}") if text)
    return (
        f"{geometry.name}: {_count(len(geometry.layers), 'view')} in {_count(len(geometry.storages), 'storage')}, "
        f"{_count(geometry.num_blocks, 'block')}, {size_text(nbytes)}" + (f" ({about})" if about else "")
    )


def _need(report) -> str:
    plan = report.plan
    return (
        f"A fresh block needs {plan.needed_bytes_per_block:,} bytes zeroed. kvzero's plan: "
        f"{_count(len(plan.segments), 'segment')}, each byte once, {_count(report.programs, 'program')} for all blocks."
    )


def _lines(finding: Finding, report) -> list[str]:
    if finding.planner == "engine":
        title = f"  {'right' if finding.ok else 'WRONG'}"
    else:
        opened, closed = finding.era.split(" to ")
        dates = f"{MERGED[opened]} to {MERGED[closed]}"
        title = f"  {finding.planner}, {finding.era} ({dates}): {'right' if finding.ok else 'WRONG'}"
    lines = [title + (f"; {_cost(finding)}" if finding.segments else "")]
    if not finding.segments and not finding.fault("refuses"):
        lines.append("    zeroes no layer of this cache: it knew only full attention.")
    for fault in finding.faults:
        fix = ""
        if finding.planner != "engine" and not fault.harmless:
            fix = f" Gone with {fault.fixed_by}." if fault.fixed_by else f" {NOTHING_NEWER.capitalize()}."
        lines.append(f"    {sentence(fault, report)}{fix}")
    if finding.most_blocks_on_amd is not None and finding.most_blocks_on_amd < report.geometry.num_blocks:
        most = f"{finding.most_blocks_on_amd:,}"
        lines.append(f"    on AMD, which counts threads, one launch holds at most {most} blocks.")
    return lines


def sentence(fault: Fault, report) -> str:
    """One fault in plain words, with its numbers."""
    if fault.kind == "refuses":
        return f"refuses at start: {fault.error['message']}"
    if fault.kind == "launch":
        return f"cannot launch for {_count(report.geometry.num_blocks, 'block')}: {fault.error['message']}"
    count = f"{fault.count_bytes:,} bytes"
    when = f"when block {fault.block} is zeroed"
    first = "" if fault.smallest_block == fault.block else f" (block {fault.smallest_block} is the first to show it)"
    if fault.kind == "overrun":
        return f"writes {count} past the end of the storage {when}{first}."
    if fault.kind == "stomped":
        return f"wipes {count} that are live {when}{first}: {_whose(fault)}."
    if fault.kind == "missed":
        needed = report.plan.needed_bytes_per_block
        return f"leaves {fault.count_bytes:,} of {needed:,} bytes dirty {when}{first}: {_names(fault.layers)}."
    return f"writes {count} of pad {when}{first}: they belong to nobody, so this costs and does no harm."


def _whose(fault: Fault) -> str:
    first, last = fault.hit_blocks
    blocks = f"block {first}" if first == last else f"blocks {first} to {last}"
    return f"{_names(fault.layers)}, {blocks}"


def _names(layers: tuple[str, ...]) -> str:
    shown = ", ".join(layers[:3])
    return shown + (f" and {len(layers) - 3} more" if len(layers) > 3 else "")


def _cost(finding: Finding) -> str:
    text = f"{_count(finding.segments, 'segment')}, writes {finding.written_over_needed:.3f} times what is needed"
    if finding.programs is not None:
        text += f", {finding.programs:,} programs for all blocks"
        if finding.empty_programs:
            text += f" ({100 * finding.empty_programs / finding.programs:.0f} % of them empty)"
    return text


def _count(number: int, noun: str) -> str:
    plural = noun if number == 1 else noun[:-1] + "ies" if noun.endswith("gy") else f"{noun}s"
    return f"{number:,} {plural}"


def size_text(nbytes: int) -> str:
    """Bytes with the decimal unit that fits.

    >>> size_text(149_760), size_text(140_000_000_000)
    ('149.8 kB', '140.0 GB')
    """
    for unit, scale in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if nbytes >= scale:
            return f"{nbytes / scale:.1f} {unit}"
    return f"{nbytes} bytes"


PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>{title}</title><style>
body {{ font: 16px/1.5 system-ui, sans-serif; max-width: 62rem; margin: 2rem auto; padding: 0 1rem; color: #1a1a1a; }}
table {{ border-collapse: collapse; width: 100%; }} td, th {{ border: 1px solid #999; padding: .4rem .6rem;
text-align: left; vertical-align: top; }} td:nth-child(-n+2) {{ white-space: nowrap; }}
pre {{ overflow-x: auto; background: #f4f4f4; padding: 1rem; }}
img {{ max-width: 100%; }} </style></head><body>
<h1>{title}</h1><p>{head}</p><p>{need}</p>
<table><thead><tr><th>planner</th><th>verdict</th><th>cost</th><th>what it does here</th></tr></thead>
<tbody>{rows}</tbody></table>
{picture}<h2>What to do</h2><ul>{advice}</ul></body></html>
"""


def as_html(report, picture: str = "") -> str:
    """The report as one HTML page without any outside reference.

    Args:
        report: the triage.
        picture: the map of the worst finding as HTML, put next to its text map.
    """
    rows = [_row(finding, report) for finding in ([report.engine] if report.engine else []) + list(report.eras)]
    worst = report.worst()
    seen = ""
    if worst and worst.audit:
        about = f"What {worst.planner} does to {report.geometry.name}: {worst.audit.sentence()}"
        seen = f"<h2>Seen</h2><p>{html.escape(about)}</p>{picture}<pre>{html.escape(worst.audit.text_map())}</pre>"
    return PAGE.format(
        title=html.escape(f"Triage of {report.geometry.name}"),
        head=html.escape(_head(report)),
        need=html.escape(_need(report)),
        rows="".join(rows),
        picture=seen,
        advice="".join(f"<li>{html.escape(text)}</li>" for text in advice(report)),
    )


def _row(finding: Finding, report) -> str:
    name = "the engine's own plan" if finding.planner == "engine" else f"{finding.planner}, {finding.era}"
    cells = [name, "right" if finding.ok else "WRONG", _cost(finding) if finding.segments else "-"]
    said = "<br>".join(html.escape(line.strip()) for line in _lines(finding, report)[1:]) or "-"
    return "<tr>" + "".join(f"<td>{html.escape(cell)}</td>" for cell in cells) + f"<td>{said}</td></tr>"
