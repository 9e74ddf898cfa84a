"""``kvzero triage``: bring your own cache; what each planner, old and new, would do to it."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from kvzero.cli import add_command

EPILOG = """\
examples:
  kvzero triage cache.json                            the report, in plain words
  kvzero triage cache.json --markdown                 the same to paste into an issue
  kvzero triage cache.json --html report.html         the same as one page to send
  kvzero triage cache.json --shrink smallest.json     the smallest geometry that still shows the fault
  kvzero triage dsv4_c4_full__BLHNC                   a real layout that comes with kvzero

To get such a file, paste into a worker process, after the caches are allocated:
  from kvzero import capture_vllm; capture_vllm(self, "cache-{rank}.json")                     vLLM
  from kvzero import capture; capture(tensors, num_blocks=N, path="cache.json")                any engine

To have another table judged, such as that of a zeroer or a transfer of your own, write it into the file:
  "engine_segments": [{"storage": 0, "byte_offset": 0, "block_stride_bytes": 149760, "span_bytes": 37376}, …]
Each entry is a family of byte ranges, one per block: block b is [byte_offset + b * block_stride_bytes, + span_bytes)
of the storage.

Everything is arithmetic: no GPU, no memory, whatever the size of the cache.

Exit status: 0 if the engine's own plan (where the file holds it) is right; 1 if it misses or wipes a byte, leaves
its storage, or cannot be launched; 2 for bad input or a layout that is refused, and then no file is written. The
old planners do not count: they are history, and find something on most layouts.
"""


def add_parser(subparsers) -> None:
    """Declare ``kvzero triage``."""
    parser = add_command(
        subparsers,
        "triage",
        help="what every planner does to your cache, and what to do about it",
        description="Read a cache layout, judge the engine's own plan and every older planner on it, and say it.",
        epilog=EPILOG,
    )
    parser.add_argument("--json", action="store_true", help="print the report as one JSON object")
    parser.add_argument("--markdown", action="store_true", help="print the report as Markdown, to paste into an issue")
    parser.add_argument("--html", metavar="FILE", help="also write the report as one HTML page")
    parser.add_argument("--shrink", metavar="FILE", help="also write the smallest geometry that shows the fault")
    parser.add_argument(
        "--planner", metavar="NAME", help="whose fault to shrink (default: the engine's, else the gravest)"
    )
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Run ``kvzero triage``; returns 0 or 1 by the engine's own plan, or raises a KvzeroError."""
    from kvzero import history
    from kvzero.cli.inputs import selected_geometry
    from kvzero.errors import CommandError
    from kvzero.outputs import check_outputs, writable
    from kvzero.triage import triage
    from kvzero.triage.shrink import shrink

    if args.planner is not None:
        history.planner(args.planner)
    outputs = [path for path in (args.html, args.shrink) if path is not None]
    check_outputs(outputs, args.geometry)
    geometry = selected_geometry(args)
    report = triage(geometry)
    worst = report.worst()
    planner = args.planner if args.planner is not None else (worst.planner if worst else None)
    small = None
    if args.shrink is not None:
        if planner is None:
            raise CommandError("nothing-to-shrink", where=geometry.where, planner="all")
        small = shrink(geometry, planner)
    page = report.html(_pictures(report)) if args.html is not None else None
    # Everything is computed before the first byte is written, so a refusal leaves no file behind.
    with writable(outputs):
        if page is not None:
            Path(args.html).write_text(page, encoding="utf-8")
        if small is not None:
            small.to_json(args.shrink)
    if args.json:
        smallest = {"planner": planner, **_size(small)} if small is not None else None
        print(json.dumps({**report.to_dict(), "smallest": smallest}, default=str))
        return 0 if report.ok else 1
    print(report.markdown(small) if args.markdown else report.text())
    if small is not None and not args.markdown:
        print(
            f"\nSmallest geometry that still shows {planner}'s fault: {small.num_blocks} blocks, "
            f"{len(small.layers)} views, written to {args.shrink}"
        )
    return 0 if report.ok else 1


def _size(geometry) -> dict[str, int]:
    return {"num_blocks": geometry.num_blocks, "views": len(geometry.layers)}


def _pictures(report) -> list:
    """The memory maps of the engine's own plan and of the worst planner, as SVG."""
    from kvzero.workbook.figures import draw_map

    pictures = []
    for finding in dict.fromkeys((report.engine, report.worst())):
        if finding is None or finding.audit is None:
            continue
        audit, picture = finding.audit, ""
        # A map shows the storages of the views; damage elsewhere is told by the sentence and the text map.
        if audit.first is None or audit.first["storage"] in {view.storage for view in report.geometry.layers}:
            figure, sentence, _ = draw_map(audit.geometry, audit=audit)
            picture = figure.svg(sentence, telling=True)
        pictures.append((finding, picture))
    return pictures
