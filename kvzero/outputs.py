"""What commands print and write: data as JSON can carry it, and files that are refused before anything is written."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from kvzero.errors import CommandError


def plain(data: Any) -> Any:
    """The same data as JSON can carry it; NaN and the infinities, which it cannot, become words.

    Args:
        data: dicts, lists and tuples of anything; what is not plain data becomes its text.

    Example:
        >>> plain({"num_blocks": float("nan"), "shape": (2, 3)})
        {'num_blocks': 'NaN', 'shape': [2, 3]}
    """
    return json.loads(json.dumps(data, default=str), parse_constant=str)


def check_outputs(paths: Sequence[str | Path], *inputs: str | Path) -> None:
    """Refuses files that could not be written, or would go over one another; writes and makes nothing itself.

    Args:
        paths: the files that are to be written; folders that are not there yet are taken to be made.
        inputs: files that must stay as they are.

    Raises:
        CommandError: two of the paths, or a path and an input, are one file; a path is a folder; or the folder
            that holds it, or would, is none or takes no files.
    """
    taken = {os.path.realpath(path): "it is the input" for path in inputs}
    for path in paths:
        place = os.path.realpath(path)
        if detail := taken.get(place) or _obstacle(place):
            raise CommandError("output-file", path=path, detail=detail)
        taken[place] = "it is another output"


def _obstacle(place: str) -> str:
    """Why no file can be written at an absolute path; "" if one can."""
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
    """Opens every file before the block writes one; if one cannot be written, those that were new are removed.

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
