"""A triage report as text, as Markdown and as one HTML page, all from the same sections."""

from __future__ import annotations

import html
import json
import re
import textwrap
from collections.abc import Iterator, Sequence

from .judging import ENGINE, MERGED, Fault, Finding

LINE_LETTERS = 100  # most pages show so many without cutting them
LONGEST_JSON = 6_000
CHANGE = re.compile(r"#(\d{5})\b")
JUDGED = (
    "Judged: which bytes are written when a block is zeroed, and how many programs that takes.",
    "Not judged: when blocks are zeroed and in which order, which block ids are sent, transfers and swaps, and how "
    "kernels read the cache.",
)
LOOK_NEXT = (
    "If outputs are wrong although the plan is right, look at reads first: do the kernel and this file agree on which "
    "dimension is K or V, heads and tokens?",
    "Then at transfers: write the table of a transfer into `engine_segments` (`kvzero triage --help` says how) and run "
    "this again.",
    "Then at ids and order: `kvzero.audit_live` checks a write in the running process; case 05 shows ids that "
    "change while they are read.",
)
Section = tuple[str, list[tuple[str, list[str]]]]  # a title, and lines with the lines below each


def sections(report) -> list[Section]:
    """The report as titled lists, the conclusion first."""
    geometry = report.geometry
    if report.engine:
        version = geometry.engine or "version not stated"
        engine = (f"The engine's own plan ({version})", [_lines(report.engine, report)])
    else:
        note = geometry.extra.get("engine_plan_note", "the file does not hold the engine's own segments")
        engine = ("The engine's own plan", [(f"not judged: {note}", [])])
    eras = "Earlier planners on this layout (rebuilt from the upstream threads, run by arithmetic)"
    return [
        ("What to do", [(text, []) for text in advice(report)]),
        ("What was judged", [(text, []) for text in (*JUDGED, *_left_alone(report))]),
        engine,
        (eras, [_lines(finding, report) for finding in report.eras]),
    ]


def conclusion(report) -> str:
    """The result in one sentence."""
    if report.engine:
        if report.engine.ok:
            return "Right: the engine's own plan clears every byte that a block needs and harms no other."
        worst = next(fault for fault in report.engine.faults if not fault.harmless)
        return f"WRONG: the engine's own plan {sentence(worst, report)}"
    wrong = [finding.planner for finding in report.eras if not finding.ok]
    if wrong:
        which = ", ".join(wrong)
        return f"Of the earlier planners, {len(wrong)} of {len(report.eras)} go wrong on this layout: {which}."
    return "Every earlier planner writes exactly the bytes that this layout needs; nothing else was judged."


def advice(report) -> list[str]:
    """What the reader should do, most urgent first."""
    texts = []
    engine, geometry = report.engine, report.geometry
    if engine and not engine.ok:
        if geometry.engine.startswith("vLLM"):
            texts.append(
                "Until the engine is mended, swap in kvzero.vllm.KVBlockZeroer or choose another cache layout."
            )
        else:
            texts.append(
                "Correct the table in `engine_segments`: `kvzero plan` lists the bytes that a block owns. If it is the "
                "table of a transfer or a copy, then the bytes called wiped are those that it moves for the wrong "
                "block, and the bytes called dirty are those that it leaves out."
            )
        texts.append(
            "Report it: `--shrink FILE` writes the smallest geometry that still shows it, `--markdown` prints the text."
        )
    wrong = [finding for finding in report.eras if not finding.ok]
    if wrong and engine is None:
        texts.append(
            f"This layout needs {_needed_change(report, wrong)}. The file does not say what your engine would write; "
            "capture it with read_engine_plan=True, or write its table into `engine_segments`, to have that judged."
        )
    elif wrong and engine.ok:
        texts.append(f"This layout needs {_needed_change(report, wrong)}; the engine in this file plans it right.")
    if engine and engine.ok and engine.written_over_needed > 1.01:
        texts.append(
            f"Each fresh block costs {engine.written_over_needed:.2f} times the writes it needs; kvzero's plan writes "
            "each byte once."
        )
    if geometry.extra.get("needs_kv_cache_zeroing") is False:
        texts.append(
            "The engine would not zero blocks at all with this configuration (needs_kv_cache_zeroing is false)."
        )
    if (engine and engine.ok) or (engine is None and not wrong):
        texts += LOOK_NEXT
    return texts


def _left_alone(report) -> Iterator[str]:
    """A line for each kind of view that a fresh block leaves as it is."""
    for kind, names in report.not_zeroed().items():
        yield (
            f"Left as they are in a fresh block: {_count(len(names), 'view')} of kind {kind or 'not stated'} "
            f"({_names(names)}). `--layers all` judges them too."
        )


def _needed_change(report, wrong: list[Finding]) -> str:
    """Name the change that a version needs to be right here."""
    since = report.right_since()
    if not since:
        return "kvzero's plan: none of the planners rebuilt here is right on it"
    fixes = {fault.fixed_by for finding in wrong for fault in finding.faults if fault.fixed_by and not fault.harmless}
    last = max(fixes, key=list(MERGED).index, default=since)
    if list(MERGED).index(last) < list(MERGED).index(since):
        return f"{last}, which every version from {since} on contains"
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


def _lines(finding: Finding, report) -> tuple[str, list[str]]:
    """A planner's verdict, and a line for each of its faults."""
    title = "right" if finding.ok else "WRONG"
    if finding.planner != ENGINE:
        opened, closed = finding.era.split(" to ")
        title = f"{finding.planner}, {finding.era} ({MERGED[opened]} to {MERGED[closed]}): {title}"
    if finding.segments:
        title += f"; {_cost(finding)}"
    lines = []
    if not finding.segments and not finding.fault("refuses"):
        lines.append("zeroes no layer of this cache: it knew only full attention.")
    for fault in finding.faults:
        fix = ""
        if finding.planner != ENGINE and not fault.harmless:
            fix = f" Gone with {fault.fixed_by}." if fault.fixed_by else " No later planner rebuilt here fixes it."
        lines.append(f"{sentence(fault, report)}{fix}")
    if finding.most_blocks_on_amd is not None and finding.most_blocks_on_amd < report.geometry.num_blocks:
        lines.append(f"on AMD, which counts threads, one launch holds at most {finding.most_blocks_on_amd:,} blocks.")
    return title, lines


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
        low, high = fault.hit_blocks
        blocks = f"block {low}" if low == high else f"blocks {low} to {high}"
        return f"wipes {count} that are live {when}{first}: {_names(fault.layers)}, {blocks}."
    if fault.kind == "missed":
        needed = report.plan.needed_bytes_per_block
        return f"leaves {fault.count_bytes:,} of {needed:,} bytes dirty {when}{first}: {_names(fault.layers)}."
    return f"writes {count} of pad {when}{first}: they belong to nobody, so this costs and does no harm."


def _names(layers: Sequence[str]) -> str:
    return ", ".join(layers[:3]) + (f" and {len(layers) - 3} more" if len(layers) > 3 else "")


def _cost(finding: Finding) -> str:
    text = f"{_count(finding.segments, 'segment')}, writes {finding.written_over_needed:.3f} times what is needed"
    if finding.programs is not None:
        text += f", {_count(finding.programs, 'program')} for all blocks"
        if finding.empty_programs:
            text += f" ({100 * finding.empty_programs / finding.programs:.0f} % of them empty)"
    return text


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'s' * (number != 1)}"


def size_text(nbytes: int) -> str:
    """Bytes with the decimal unit that fits.

    >>> size_text(149_760), size_text(140_000_000_000)
    ('149.8 kB', '140.0 GB')
    """
    for unit, scale in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if nbytes >= scale:
            return f"{nbytes / scale:.1f} {unit}"
    return f"{nbytes} bytes"


def as_text(report) -> str:
    """The report in plain words, for a terminal."""
    lines = [_head(report), conclusion(report), _need(report)]
    for title, items in sections(report):
        bullet = "- " if title in ("What to do", "What was judged") else ""
        lines += ["", title]
        for item, below in items:
            lines += [f"  {bullet}{item}", *(f"    {line}" for line in below)]
    return "\n".join(_wrapped(line) for line in lines)


def _wrapped(line: str) -> str:
    """A line, broken between words where it is too long, and continued further in."""
    indent = " " * (4 + len(line) - len(line.lstrip()) - 2 * line.startswith("  - "))
    return textwrap.fill(line, LINE_LETTERS, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)


def as_markdown(report, small=None) -> str:
    """The report as Markdown, to paste into an issue of any project.

    Args:
        report: the triage.
        small: the smallest geometry that shows the worst fault, to put below it if it is short enough.
    """
    title = f"### KV-cache triage of {report.geometry.name}"
    lines = [title, f"**{conclusion(report)}**", _head(report), _need(report)]
    for title, items in sections(report):
        rows = [row for item, below in items for row in (f"- {item}", *(f"  - {line}" for line in below))]
        lines.append(f"**{title}**\n\n" + "\n".join(rows))
    worst = report.worst()
    if worst and worst.audit:
        lines.append(_folded(f"What {worst.planner} does to memory", "text", worst.audit.text_map()))
    if small is not None:
        text = json.dumps(small.to_dict())
        title = "The smallest cache that still shows it, as a file for `kvzero triage`"
        lines.append(_folded(title, "json", text) if len(text) <= LONGEST_JSON else f"{title}: attach it, it is long.")
    # A bare number would point into the project in which the text is pasted.
    return CHANGE.sub(r"vllm-project/vllm#\1", "\n\n".join(lines))


def _folded(title: str, kind: str, text: str) -> str:
    return f"<details><summary>{html.escape(title)}</summary>\n\n```{kind}\n{text}\n```\n\n</details>"


PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title}</title><style>
:root {{ color-scheme: light dark; }}
body {{ font: 16px/1.5 system-ui, sans-serif; max-width: 62rem; margin: 2rem auto; padding: 0 1rem;
overflow-wrap: anywhere; }}
.conclusion {{ font-size: 1.2em; font-weight: 600; }}
figure {{ margin: 1rem 0; overflow-x: auto; }} figure svg {{ max-width: 100%; height: auto; background: #fff; }}
pre {{ overflow-x: auto; padding: 1rem; border: 1px solid #999; }}
</style></head><body>
<h1>{title}</h1><p class="conclusion">{conclusion}</p><p>{head}</p><p>{need}</p>
{parts}</body></html>
"""


def as_html(report, pictures: Sequence[tuple[Finding, str]] = ()) -> str:
    """The report as one HTML page that loads nothing else.

    Args:
        report: the triage.
        pictures: findings and the SVG of the memory map of each, "" for none.
    """
    parts = [_list(*section) for section in sections(report)]
    for place, (finding, picture) in enumerate(pictures, start=2):
        audit = finding.audit
        who = "the engine's own plan" if finding.planner == ENGINE else finding.planner
        text = f"<details><summary>The same as text</summary><pre>{html.escape(audit.text_map())}</pre></details>"
        seen = f"<figure>{picture}</figure>" if picture else f"<p>{html.escape(audit.sentence())}</p>"
        parts.insert(place, f"<h2>What {who} does to memory</h2>{seen}{text}")
    return PAGE.format(
        title=html.escape(f"Triage of {report.geometry.name}"),
        conclusion=_linked(conclusion(report)),
        head=html.escape(_head(report)),
        need=html.escape(_need(report)),
        parts="\n".join(parts),
    )


def _list(title: str, items: list[tuple[str, list[str]]]) -> str:
    rows = []
    for item, below in items:
        inner = "".join(f"<li>{_linked(line)}</li>" for line in below)
        rows.append(f"<li>{_linked(item)}{f'<ul>{inner}</ul>' if inner else ''}</li>")
    return f"<h2>{html.escape(title)}</h2><ul>{''.join(rows)}</ul>"


def _linked(text: str) -> str:
    """Text as HTML, with links to changes, and code where Markdown has it."""
    text = re.sub("`([^`]+)`", r"<code>\1</code>", html.escape(text))
    return CHANGE.sub(r'<a href="https://github.com/vllm-project/vllm/pull/\1">#\1</a>', text)
