"""``kvzero bench``: how fast blocks are zeroed, next to the memory's limit and to the older kernels."""

from __future__ import annotations

import argparse
import json

from kvzero.device import DEVICES

EPILOG = """\
examples:
  kvzero bench                          a page of text
  kvzero bench --json > bench.json      every number, with the conditions of the run

On a GPU this takes about a minute and 30 GB of its memory, and checks every byte of every configuration that it
times. Clocks and power limits are left as they are. Without a GPU it measures planning and launch arithmetic and
says what it did not measure.

Exit status: 0 if everything that the run is held to held, 1 if not, 2 for bad input.
"""


def add_parser(subparsers) -> None:
    """Declare ``kvzero bench``."""
    parser = subparsers.add_parser(
        "bench",
        help="how fast blocks are zeroed here, next to the memory's limit",
        description="Measure zeroing on this machine: ours, the driver's memset, torch, and the older kernels.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--device", choices=DEVICES, default="auto", help="where to measure")
    parser.add_argument("--json", action="store_true", help="print the report as one JSON object")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Run ``kvzero bench``; returns 0 or 1, or raises a KvzeroError."""
    from kvzero.bench import run_bench, text

    report = run_bench(args.device)
    print(json.dumps(report, indent=1) if args.json else text(report))
    return 0 if all(target["held"] for target in report.get("targets", ())) else 1
