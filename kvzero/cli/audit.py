"""``kvzero audit``: what zeroing some blocks does to a cache, byte by byte."""

from __future__ import annotations

import argparse
import json
import os
import re
import sys
from pathlib import Path

from kvzero.cli import add_command
from kvzero.device import DEVICES, pick_device

INTERPRETED_PROGRAMS_PER_SECOND = 1_000

EPILOG = """\
examples:
  kvzero audit cache.json --blocks 1,3
  kvzero audit cache.json --blocks 0-3,last --planner page-per-segment
  kvzero audit dsv4_c4_mla_only__BLHNC --blocks last --planner uniform-page
  kvzero audit cache.json --blocks last --witness bytes --device cuda
  kvzero audit "cache-{rank}.json" --blocks 1                                     a file for each rank, one table
  torchrun --nproc-per-node 2 -m kvzero audit "cache-{rank}.json" --blocks 1      the same, each rank on its own GPU

planners: kvzero (this package); engine (the table in the file's `engine_segments`, the engine's own or one that you
wrote there: `kvzero triage --help`); and the old planners that are kept here, by name: uniform-page,
page-per-segment, stride-and-span, masked-grid.

witness: how the write is checked. arithmetic compares byte ranges; it needs no memory, so the cache may have any size.
bytes allocates the cache, fills it with canaries, runs the planner's own kernel, and compares every byte. On a CPU
the kernels of old planners run in Triton's interpreter, which is slow.

Exit status: 0 if exactly the needed bytes are zeroed; 1 if a byte is missed, stomped (live bytes of something
else), overrun (outside the storage) or written in pad; 2 for bad input or a plan that is refused.
"""


def add_parser(subparsers) -> None:
    """Declare ``kvzero audit``."""
    parser = add_command(
        subparsers,
        "audit",
        help="what zeroing some blocks does, byte by byte",
        description="Zero some blocks of a KV cache, by arithmetic or in memory, and say what was missed or hit.",
        epilog=EPILOG,
    )
    parser.add_argument(
        "--blocks", default="last", metavar="LIST", help="block ids: 1,3 or 0-3 or last (default: last)"
    )
    parser.add_argument("--planner", default="kvzero", metavar="NAME", help="the planner to audit (default: kvzero)")
    parser.add_argument(
        "--witness",
        choices=("arithmetic", "bytes"),
        help="how to check the write (default: bytes if --device names one, else arithmetic)",
    )
    parser.add_argument(
        "--device",
        choices=DEVICES,
        default="auto",
        help="device of the bytes check; auto (default) takes a GPU if there is one",
    )
    parser.add_argument(
        "--time-limit",
        type=_seconds,
        default=300.0,
        metavar="SECONDS",
        help="under torchrun: how long to wait for a rank before naming it and going on (default: 300)",
    )
    parser.add_argument("--json", action="store_true", help="print the result as one JSON object")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Run ``kvzero audit``; returns 0 if the audit is ok, else 1, or raises a KvzeroError."""
    if _ranks() > 1:
        return _run_ranks(args)
    device = None
    if _witness(args) == "bytes":
        device = pick_device(args.device)
    if "{rank}" in args.geometry:
        return _run_files(args, device)
    audit, _ = _audit(args, args.geometry, device)
    print(json.dumps(audit.to_dict()) if args.json else audit.text_map())
    return 0 if audit.ok else 1


def _ranks() -> int:
    from kvzero.errors import CommandError

    text = os.environ.get("WORLD_SIZE") or "1"
    if not (text.isascii() and text.isdigit() and len(text) < 10):
        raise CommandError("ranks", detail=f"WORLD_SIZE is {text!r}, not a number of ranks")
    return int(text)


def _seconds(text: str) -> float:
    seconds = float(text)
    if not 0 < seconds < float("inf"):
        raise ValueError
    return seconds


def _witness(args: argparse.Namespace) -> str:
    return args.witness or ("arithmetic" if args.device == "auto" else "bytes")


def _audit(args: argparse.Namespace, path: str, device):
    """The audit and the plan; by bytes on the device if there is one, else by arithmetic."""
    from kvzero import history
    from kvzero.audit.audit import audit_bytes, audit_plan
    from kvzero.cli.inputs import load_geometry, parse_blocks
    from kvzero.plan.planner import plan_segments

    planner = plan_segments if args.planner == "kvzero" else history.planner(args.planner).plan
    geometry = load_geometry(path, args.layers, args.groups)
    blocks = parse_blocks(args.blocks, geometry.num_blocks)
    plan = planner(geometry)
    if device is None:
        return audit_plan(plan, geometry, blocks), plan
    if args.planner != "kvzero" and str(device) == "cpu":
        _say_how_long(history.planner(args.planner).launch(plan, len(blocks), limits=None).programs)
    return audit_bytes(geometry, blocks, planner=args.planner, device=device), plan


def _say_how_long(programs: int) -> None:
    """An old kernel may need a million programs, and the interpreter runs about a thousand a second."""
    if programs > 10 * INTERPRETED_PROGRAMS_PER_SECOND:
        minutes = programs / INTERPRETED_PROGRAMS_PER_SECOND / 60
        print(
            f"{programs:,} programs in Triton's interpreter: about {minutes:,.1f} minutes; "
            "--witness arithmetic judges at once",
            file=sys.stderr,
        )


def _report(args: argparse.Namespace, number: int, device) -> dict:
    """The report of one rank; `{rank}` in the file name is its number."""
    audit, plan = _audit(args, args.geometry.replace("{rank}", str(number)), device)
    return {"plan": plan.to_dict(), "digest": plan.digest(), "sentence": audit.sentence(), **audit.to_dict()}


def _run_ranks(args: argparse.Namespace) -> int:
    """One audit per rank under torchrun."""
    from kvzero.ranks import Rank, run_ranks

    def work(rank: Rank) -> dict:
        rank.stage("auditing")
        return _report(args, rank.number, rank.device if _witness(args) == "bytes" else None)

    return run_ranks(work, device=args.device, time_limit_s=args.time_limit, as_json=args.json)


def _run_files(args: argparse.Namespace, device) -> int:
    """The files of all ranks, one after another in this process."""
    from kvzero.ranks import run_files, table

    pattern = re.compile(re.escape(args.geometry).replace(re.escape("{rank}"), "([0-9]+)", 1))
    folder = Path(args.geometry).parent
    files = [str(folder / path.name) for path in folder.iterdir()] if folder.is_dir() else []
    numbers = [int(found[1]) for name in files if (found := pattern.fullmatch(name))]
    verdict = run_files(lambda number: _report(args, number, device), count=max(numbers, default=0) + 1)
    print(json.dumps(verdict) if args.json else table(verdict))
    return verdict["exit_code"]
