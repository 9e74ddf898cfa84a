"""``kvzero plan``: the byte ranges that zero one block, proven from the layout alone."""

from __future__ import annotations

import argparse
import json

from kvzero.cli import add_command

MAX_LISTED_SEGMENTS = 24

EPILOG = """\
examples:
  kvzero plan cache.json
  kvzero plan cache.json --json
  kvzero plan cache.json --layers all   recurrent state and other views that a fresh block keeps, too
  kvzero plan dsv4_c4_full__BLHNC       a real layout that comes with kvzero

A segment is a family of byte ranges, one per block: block b is [base + b * stride, + span) of its storage.
No memory is needed and nothing is written, whatever the size of the cache.

Exit status: 0 with a plan, 2 for bad input or a layout that is refused, with the rule and the numbers.
"""


def add_parser(subparsers) -> None:
    """Declare ``kvzero plan``."""
    parser = add_command(
        subparsers,
        "plan",
        help="the byte ranges that zero one block of a cache",
        description="Plan which bytes zero a block of a KV cache, and prove the plan from its layout alone.",
        epilog=EPILOG,
    )
    parser.add_argument("--json", action="store_true", help="print the plan as one JSON object")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Run ``kvzero plan``; returns 0, or raises a KvzeroError."""
    from kvzero.cli.inputs import selected_geometry
    from kvzero.plan.planner import plan_segments
    from kvzero.zero.tiles import launch_for

    plan = plan_segments(selected_geometry(args))
    launch = launch_for(plan)
    if args.json:
        print(json.dumps({**plan.to_dict(), "launch": launch.to_dict()}))
        return 0
    print(f"{plan.name}: {plan.num_blocks:,} blocks, {len(plan.segments):,} segments, plan {plan.digest()}")
    print(f"bytes per block: {plan.bytes_per_block:,} written, {plan.needed_bytes_per_block:,} needed")
    blocks = f" in each of {launch.ids_per_program} blocks" if launch.ids_per_program > 1 else ""
    print(
        f"launch for all blocks: {launch.programs:,} programs of up to {launch.tile_bytes:,} bytes{blocks}, stores of "
        f"{launch.store_width_bytes} bytes, {launch.empty_programs_per_block} empty, in {launch.launches} launch"
        f"{'es' * (launch.launches > 1)}"
    )
    print(f"{'storage':>10} {'base_bytes':>16} {'block_stride_bytes':>20} {'span_bytes':>14}")
    for segment in plan.segments[:MAX_LISTED_SEGMENTS]:
        print(
            f"{segment.storage!s:>10} {segment.base_bytes:>16,} {segment.block_stride_bytes:>20,} "
            f"{segment.span_bytes:>14,}"
        )
    if len(plan.segments) > MAX_LISTED_SEGMENTS:
        print(f"{'…':>10} {len(plan.segments) - MAX_LISTED_SEGMENTS:,} more; --json lists all")
    return 0
