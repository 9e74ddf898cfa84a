"""``kvzero run``: every notebook through papermill, and what each one proves."""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path

from kvzero.device import DEVICES
from kvzero.errors import CommandError
from kvzero.outputs import check_outputs

EPILOG = """\
examples:
  kvzero run                        all of notebooks/, on the GPU if there is one
  kvzero run notebooks/04_packed_stride_overflow.ipynb --device cpu
  kvzero run -p num_blocks 200 notebooks/04_packed_stride_overflow.ipynb
  kvzero run --html                 also writes a static site, out/site/index.html

Exit status: 0 if every claim of every notebook is proven and no file is left beside one, 1 if not, 2 for bad input.
"""


def add_parser(subparsers) -> None:
    """Declare ``kvzero run``."""
    parser = subparsers.add_parser(
        "run",
        help="run notebooks and print what each one proves",
        description="Run notebooks through papermill, judge each one, and print its claims with numbers.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("notebooks", nargs="*", metavar="NOTEBOOK", help="default: all of notebooks/")
    parser.add_argument(
        "--device",
        choices=DEVICES,
        default="auto",
        help="auto (default) takes a GPU if there is one; cpu runs the kernel in Triton's interpreter",
    )
    parser.add_argument("-o", "--out", type=_folder, default=Path("out"), metavar="DIR", help="default: out")
    parser.add_argument(
        "-p",
        dest="parameters",
        nargs=2,
        action="append",
        default=[],
        metavar=("NAME", "VALUE"),
        help="a parameter that every named notebook declares; may be given several times",
    )
    parser.add_argument("--html", action="store_true", help="also write a static site, DIR/site/index.html")


def _folder(text: str) -> Path:
    if not text:
        raise argparse.ArgumentTypeError("an empty name is no folder")
    return Path(text)


@contextmanager
def _knob_steps(wanted: bool) -> Iterator[None]:
    """Have the notebooks draw what the knobs of a site step through."""
    if wanted:
        os.environ["KVZERO_KNOB_STEPS"] = "steps"
    try:
        yield
    finally:
        os.environ.pop("KVZERO_KNOB_STEPS", None)


def run(args: argparse.Namespace) -> int:
    """Run ``kvzero run``; returns 0 if all is proven and nothing left behind, else 1, or raises a KvzeroError."""
    needed = ["nbformat", "papermill", "ipykernel"] + ["nbconvert"] * args.html
    if missing := [name for name in needed if find_spec(name) is None]:
        raise CommandError("extra-missing", command="run", missing=", ".join(missing), extra="workbook")
    from kvzero.workbook import runner, site

    notebooks = runner.find_notebooks(args.notebooks)
    if args.html:
        check_outputs(site.page_files(notebooks, args.out / "site"))
    results = []
    parameters = dict(args.parameters)
    device = parameters.pop("device", args.device)
    running = runner.run_notebooks(notebooks, args.out, device=device, parameters=parameters)
    print(f"running {len(notebooks)} notebook(s) into {args.out}", flush=True)
    before = runner.files_beside(notebooks)
    with _knob_steps(args.html):
        for result in running:
            results.append(result)
            print(runner.progress_line(result, len(results), len(notebooks)), flush=True)
            if not result.proven:
                print(runner.failure_text(result), flush=True)
    left = sorted(runner.files_beside(notebooks) - before)
    print(f"\n{runner.table(results, left)}")
    if args.html:
        index = site.build(results, args.out / "site")
        print(f"site: {index}")
    return 0 if all(result.proven for result in results) and not left else 1
