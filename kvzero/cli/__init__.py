"""The sub-commands of ``python -m kvzero``, one module each.

A module has ``add_parser(subparsers)``, which declares the command, its arguments and an example, and
``run(args) -> int``, which does the work and returns the exit status. Modules are cheap to import: what they
need (torch, Jupyter) is imported inside ``run``.
"""

from __future__ import annotations

import argparse


def add_command(subparsers, name: str, **texts: str) -> argparse.ArgumentParser:
    """Declare a command whose first argument is a layout; `texts` are those of argparse."""
    parser = subparsers.add_parser(name, formatter_class=argparse.RawDescriptionHelpFormatter, **texts)
    parser.add_argument(
        "geometry",
        metavar="GEOMETRY",
        help="a JSON file that describes the cache, or the name of a packaged layout (`kvzero layouts`)",
    )
    parser.add_argument(
        "--layers",
        metavar="LIST",
        help="which views a fresh block zeroes: all, or names with commas between (default: as the file says; "
        "recurrent state is left alone)",
    )
    parser.add_argument("--groups", metavar="LIST", help="only views of these cache groups, as in 0,1")
    return parser
