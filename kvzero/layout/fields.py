"""Typed access to the keys of a record; every refusal names the file, the layer and the key."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kvzero import errors

MEANING = {
    "name": "a name",
    "num_blocks": "the number of blocks in the pool",
    "storages": "the list of storages",
    "layers": "the list of layers",
    "id": "the storage's id",
    "nbytes": "the storage's size in bytes",
    "storage": "the id of the storage the layer lies in",
    "byte_offset": "the offset of the first element in the storage, in bytes",
    "shape": "the sizes of the view",
    "stride": "the strides of the view in elements",
    "itemsize": "the bytes of one element",
    "block_stride_bytes": "the bytes from one block to the next",
    "span_bytes": "the bytes to clear in one block",
    "manager_view_shape": "the sizes of the view by block, where kernel_block_stride is set",
    "manager_view_stride": "the strides of the view by block, where kernel_block_stride is set",
}


def require_object(record: Any, where: str) -> None:
    """Refuse a record that is not a JSON object."""
    if not isinstance(record, Mapping):
        raise errors.GeometryError("wrong-type", where=where, key="(entry)", value=record, expected="an object")


def _get(record: Mapping, key: str, where: str) -> Any:
    if key not in record:
        raise errors.GeometryError("missing-key", where=where, key=key, meaning=MEANING.get(key, "a value"))
    return record[key]


def records(record: Mapping, key: str, where: str) -> list:
    """Return a list of records; only `engine_segments` may be empty."""
    value = _get(record, key, where)
    if not isinstance(value, list):
        raise errors.GeometryError("wrong-type", where=where, key=key, value=describe(value), expected="a list")
    if not value and key != "engine_segments":
        raise errors.GeometryError(
            "wrong-type", where=where, key=key, value=value, expected="a list of at least one entry"
        )
    return value


def integer(record: Mapping, key: str, where: str, least: int | None = None) -> int:
    """Return an integer of at least `least`."""
    value = _get(record, key, where)
    if not _is_integer(value) or (least is not None and value < least):
        bound = "" if least is None else f" of at least {least}"
        raise errors.GeometryError("wrong-type", where=where, key=key, value=value, expected=f"an integer{bound}")
    return value


def sizes(record: Mapping, key: str, where: str, least: int | None) -> tuple[int, ...]:
    """Return a non-empty list of integers of at least `least`."""
    value = _get(record, key, where)
    bound = "" if least is None else f" of at least {least}"
    good = isinstance(value, (list, tuple)) and value
    if not good or not all(_is_integer(item) and (least is None or item >= least) for item in value):
        raise errors.GeometryError(
            "wrong-type", where=where, key=key, value=value, expected=f"a list of integers{bound}"
        )
    return tuple(value)


def text(record: Mapping, key: str, where: str, default: str | None = None) -> str:
    """Return a printable string; it must not be empty if it is required."""
    value = _get(record, key, where) if default is None else record.get(key, default)
    if not isinstance(value, str) or (default is None and not value):
        raise errors.GeometryError("wrong-type", where=where, key=key, value=value, expected="a string")
    _printable(value, key, where)
    return value


def flag(record: Mapping, key: str, where: str, default: bool) -> bool:
    """Return true or false."""
    value = record.get(key, default)
    if not isinstance(value, bool):
        raise errors.GeometryError("wrong-type", where=where, key=key, value=value, expected="true or false")
    return value


def name(record: Mapping, key: str, where: str, default: int | None = None) -> int | str:
    """Return a name: an integer or a printable string."""
    value = _get(record, key, where) if default is None else record.get(key, default)
    if not _is_integer(value) and not isinstance(value, str):
        raise errors.GeometryError("wrong-type", where=where, key=key, value=value, expected="an integer or a string")
    _printable(value, key, where)
    return value


def _printable(value: int | str, key: str, where: str) -> None:
    # Names are printed on terminals and drawn in figures, where control characters and lone surrogates break things.
    if isinstance(value, str) and not value.isprintable():
        raise errors.GeometryError(
            "wrong-type", where=where, key=key, value=value, expected="a string of printable characters"
        )


def _is_integer(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def describe(value: Any) -> str:
    """Describe a value of the wrong type for an error message."""
    return {dict: "an object", list: "a list", str: "a string", type(None): "null"}.get(type(value), repr(value))
