"""What commands print and write: data as JSON can carry it, and files that are checked before anything is written."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from kvzero.errors import CommandError


def json_data(data: Any) -> Any:
    """Convert data to what JSON can carry; NaN and the infinities become text.

    Args:
        data: dicts, lists and tuples of anything; a value that JSON lacks becomes its text.

    Example:
        >>> json_data({"num_blocks": float("nan"), "shape": (2, 3)})
        {'num_blocks': 'NaN', 'shape': [2, 3]}
    """
    return json.loads(json.dumps(data, default=str), parse_constant=str)


def check_outputs(paths: Sequence[str | Path], *inputs: str | Path) -> None:
    """Refuse output files that could not be written or would overwrite one another; create nothing.

    Args:
        paths: the files that are to be written; missing folders will be created later.
        inputs: files that must stay as they are.

    Raises:
        CommandError: two of the paths, or a path and an input, are one file; a path is a folder; or its folder is
            no folder or is not writable.
    """
    taken = {os.path.realpath(path): "it is the input" for path in inputs}
    for path in paths:
        place = os.path.realpath(path)
        if detail := taken.get(place) or _obstacle(place):
            raise CommandError("output-file", path=path, detail=detail)
        taken[place] = "it is another output"


def _obstacle(place: str) -> str:
    """Say why no file can be written at an absolute path; "" if one can."""
    if os.path.isdir(place):
        return "a folder has that name"
    parent = os.path.dirname(place)
    while not os.path.exists(parent):
        parent = os.path.dirname(parent)
    if not os.path.isdir(parent):
        return f"{parent} is no folder"
    return "" if os.access(place if os.path.exists(place) else parent, os.W_OK) else "the permission is missing"


@contextmanager
def writable(paths: Sequence[str | Path]) -> Iterator[None]:
    """Open every file before the body writes one; if one cannot be written, remove those that were new.

    Raises:
        CommandError: a file cannot be written.
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
        raise CommandError("output-file", path=error.filename or path, detail=error.strerror) from error
