"""Files that commands write: refused before anything is written, and none left behind by a failure."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from kvzero.errors import OutputFileError


def check_outputs(paths: Sequence[str | Path], *inputs: str | Path) -> None:
    """Refuses a file that is written twice, or over an input.

    Raises:
        OutputFileError: two of the paths, or a path and an input, are one file.
    """
    taken = {os.path.realpath(path): "the input" for path in inputs}
    for path in paths:
        if os.path.realpath(path) in taken:
            raise OutputFileError(path=path, detail=f"it is {taken[os.path.realpath(path)]}")
        taken[os.path.realpath(path)] = "another output"


@contextmanager
def writable(paths: Sequence[str | Path]) -> Iterator[None]:
    """Opens every file before the block writes one; if one cannot be written, those that were new are removed.

    Raises:
        OutputFileError: a file cannot be written.
    """
    new, path = [], ""
    try:
        for path in paths:
            is_new = not os.path.lexists(path)
            with open(path, "ab"):
                new += [path] * is_new
        yield
    except OSError as error:
        for each in new:
            os.unlink(each)
        raise OutputFileError(path=error.filename or path, detail=error.strerror) from error
