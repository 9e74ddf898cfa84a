"""``kvzero layouts``: the real cache layouts that come with kvzero."""

from __future__ import annotations

import argparse
import json

EPILOG = """\
examples:
  kvzero layouts
  kvzero layouts --json
  kvzero triage dsv4_c4_full__BLHNC       a name stands wherever a file may stand

A name ends in the order of dimensions: L layer, B block, H head, N token, C content. LBNHC, LBHNC and LHBNC keep
layers apart; BLHNC, BLNHC and BHLNC keep the pages of all layers inside each block.

Exit status: 0, or 2 for bad input.
"""


def add_parser(subparsers) -> None:
    """Declare ``kvzero layouts``."""
    parser = subparsers.add_parser(
        "layouts",
        help="the real cache layouts that come with kvzero, by name",
        description="List the real cache layouts that come with kvzero.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--json", action="store_true", help="print the list as one JSON object")


def run(args: argparse.Namespace) -> int:
    """Run ``kvzero layouts``; returns 0."""
    from kvzero.layout import geometries

    rows = []
    for name in geometries.names():
        geometry = geometries.load(name)
        rows.append(
            {
                "name": name,
                "engine": geometry.engine,
                "num_blocks": geometry.num_blocks,
                "views": len(geometry.layers),
                "storages": len(geometry.storages),
                "storage_bytes": sum(storage.nbytes for storage in geometry.storages),
            }
        )
    if args.json:
        print(json.dumps({"layouts": rows}))
        return 0
    width = max(len(row["name"]) for row in rows)
    print(f"{'name':<{width}} {'blocks':>7} {'views':>6} {'storages':>9} {'storage_bytes':>14}")
    for row in rows:
        print(
            f"{row['name']:<{width}} {row['num_blocks']:>7,} {row['views']:>6,} {row['storages']:>9,} "
            f"{row['storage_bytes']:>14,}"
        )
    return 0
