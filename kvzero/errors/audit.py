"""Rules of the arena and the audit."""

from __future__ import annotations

from .base import KvzeroError


class UnknownBlockError(KvzeroError):
    """An audit asks about blocks of the pool."""

    rule = "unknown-block"
    template = "{where}: block {block_id} is not in the pool; its ids are 0 to {last_block_id}. Name one of these."


class PlanGeometryError(KvzeroError):
    """A plan is judged against the geometry that it was made for."""

    rule = "plan-geometry"
    template = (
        "{where}: the plan {plan} has {what} {plan_value}, but the geometry has {geometry_value}. "
        "Make the plan from this geometry."
    )


class ArenaTooLargeError(KvzeroError):
    """An arena and its audit fit in memory."""

    rule = "arena-too-large"
    template = (
        "{where}: the bytes witness needs about {wanted_bytes} bytes on {device}, of which {free_bytes} are free. "
        "Use fewer blocks, or the arithmetic witness, which needs no memory."
    )


class RedzoneTooLargeError(KvzeroError):
    """A faulty write stays inside the redzone, or it is not run."""

    rule = "redzone-too-large"
    template = (
        "{where}: planner {planner} would write {overrun_bytes} bytes away from storage {storage!r}, beyond the "
        "largest redzone of {limit_bytes} bytes. It is not run; use the arithmetic witness."
    )


class RadiusBlocksError(KvzeroError):
    """A live audit watches some whole blocks on each side, or all bytes."""

    rule = "radius-blocks"
    template = (
        "radius_blocks is {radius_blocks!r}, but it counts the blocks that are watched on each side. "
        "Give a whole number of 0 or more, or None to watch every byte."
    )


class ChecksumBytesError(KvzeroError):
    """A checksum of a live audit covers whole words, and fits into one pass."""

    rule = "checksum-bytes"
    template = (
        "tile_bytes is {tile_bytes!r}, but a checksum covers a multiple of {word_bytes} bytes, from {word_bytes} to "
        "{most_bytes:,}. Give such a size; a smaller one locates a change more finely."
    )


class TooManyRunsError(KvzeroError):
    """An audit follows a bounded number of separate runs of bytes."""

    rule = "too-many-runs"
    template = (
        "{where}: the audit would follow {num_runs} separate runs of bytes, more than {limit}. "
        "Ask about fewer blocks, or check shape and stride; the innermost dimension should be contiguous."
    )
