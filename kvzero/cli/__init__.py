"""The sub-commands of ``python -m kvzero``, one module each.

A module has ``add_parser(subparsers)``, which declares the command, its arguments and an example, and
``run(args) -> int``, which does the work and returns the exit status. Modules are cheap to import: what they
need (torch, Jupyter) is imported inside ``run``.
"""

from __future__ import annotations

import argparse


def add_command(subparsers, name: str, **texts: str) -> argparse.ArgumentParser:
    """Declares a command whose first argument is a geometry; `texts` are those of argparse."""
    parser = subparsers.add_parser(name, formatter_class=argparse.RawDescriptionHelpFormatter, **texts)
    parser.add_argument(
        "geometry", metavar="GEOMETRY", help="a JSON file that describes the cache, or the name of a packaged one"
    )
    return parser
