"""The command line: ``python -m kvzero COMMAND`` or, once installed, ``kvzero COMMAND``.

Exit status: the command's own (0 good, 1 not proven), 2 for bad input or a plan that is refused, 130 when
interrupted. A reader that leaves early (``| head -1``) changes nothing: the command goes on to its result. Bad input
is one line on stderr, or with ``--json`` one ``{"error": …}`` object on stdout; never a traceback.
"""

from __future__ import annotations

import argparse
import errno
import importlib
import json
import os
import sys

from kvzero import __version__
from kvzero.errors import CommandError, KvzeroError
from kvzero.outputs import json_data

COMMANDS = ("plan", "audit", "triage", "layouts", "run", "bench")
BAD_INPUT = 2
INTERRUPTED = 130

EPILOG = """\
examples:
  kvzero run                                    every notebook, and what each one proves
  kvzero plan cache.json                        the byte ranges that zero one block
  kvzero audit cache.json --blocks 1,3          what zeroing these blocks would do, byte by byte
  kvzero triage cache.json                      what every planner, old and new, would do to this layout
  kvzero layouts                                real layouts to try, by name

`kvzero COMMAND --help` tells more about a command.
"""


class UsageError(KvzeroError):
    """The command line itself cannot be understood."""

    rule = "usage"


class _Stdout:
    """The standard output, which turns silent when its reader leaves, so that the exit status stays the command's."""

    def __init__(self, stream) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        try:
            return self._stream.write(text)
        except BrokenPipeError:
            _drop_stdout()
            return len(text)

    def flush(self) -> None:
        try:
            self._stream.flush()
        except BrokenPipeError:
            _drop_stdout()

    def __getattr__(self, name: str):
        return getattr(self._stream, name)


class _Parser(argparse.ArgumentParser):
    """A parser that reports wrong arguments like any other bad input, so that ``--json`` applies to them too."""

    def __init__(self, **options) -> None:
        super().__init__(allow_abbrev=False, **options)

    def error(self, message: str):
        raise UsageError(detail=f"{message} (see `{self.prog} --help`)")


def _parser(names: tuple[str, ...]) -> tuple[argparse.ArgumentParser, dict]:
    parser = _Parser(
        prog="kvzero",
        description="Zero freshly allocated KV-cache blocks, prove what was written, and run the workbook.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"kvzero {__version__}")
    subparsers = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    modules = {name: importlib.import_module(f"kvzero.cli.{name}") for name in names}
    for module in modules.values():
        module.add_parser(subparsers)
    return parser, modules


def _report(error: KvzeroError, *, as_json: bool) -> None:
    if as_json:
        print(json.dumps({"error": json_data(error.to_dict())}))
    else:
        print(f"error [{error.rule}]: {error}", file=sys.stderr)


def main(argv: list[str] | None = None) -> int:
    """Run one command.

    Args:
        argv: the words after ``kvzero``; None takes them from the command line.

    Returns:
        The exit status (see the top of this file).

    Example:
        >>> main(["plan", "no-such-file.json"])       # doctest: +SKIP
        2
    """
    words = sys.argv[1:] if argv is None else list(argv)
    if argv is None and sys.stdout is not None:
        sys.stdout.reconfigure(errors="backslashreplace")  # a terminal that lacks a letter still gets the line
        sys.stdout = _Stdout(sys.stdout)
    try:
        return _main(words)
    except OSError as error:
        if error.filename is not None or error.errno != errno.ENOSPC:
            raise
        _drop_stdout()
        _report(CommandError("output-file", path="the standard output", detail=error.strerror), as_json=False)
        return BAD_INPUT
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return INTERRUPTED


def _drop_stdout() -> None:
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _main(words: list[str]) -> int:
    # Import only the command that was asked for; help and mistakes need them all.
    names = tuple(name for name in COMMANDS if words[:1] == [name]) or COMMANDS
    try:
        parser, modules = _parser(names)
        args = parser.parse_args(words)
        status = modules[args.command].run(args)
    except KvzeroError as error:
        _report(error, as_json="--json" in words)
        status = BAD_INPUT
    if sys.stdout is not None:  # None if the shell closed it
        sys.stdout.flush()
    return status


if __name__ == "__main__":
    sys.exit(main())
