"""What an old planner or launch itself raised, and which planners there are."""

from __future__ import annotations

from .base import KvzeroError


class NonUniformPagesError(KvzeroError):
    """The uniform-page planner's assertion: all pages have one size (#35219 to #49704)."""

    rule = "non-uniform-pages"
    template = (
        "{where}: the uniform-page planner asserts one page size, but layer {layer} has {page_words} words and "
        "layer {first_layer} has {first_page_words}. Upstream #49704 gave each segment its own page size."
    )


class WordAlignmentError(KvzeroError):
    """The old planners' assertion: addresses, strides and pages are whole 4-byte words."""

    rule = "word-alignment"
    template = (
        "{where}: the {planner} planner asserts whole 4-byte words, but the {what} of layer {layer} is "
        "{value_bytes} bytes. kvzero takes any byte size."
    )


class GridOverflowError(KvzeroError):
    """An old launch put every program into one grid, and the grid has a limit (#50485, #52058)."""

    rule = "grid-overflow"
    template = (
        "{where}: the {planner} launch needs {programs} programs ({num_ids} ids x {segments} segments x {chunks} "
        "chunks): {axis_programs} in its {axis}, where {device} allows {limit_programs}. kvzero splits the call."
    )


class UnknownPlannerError(KvzeroError):
    """A planner is named as it is registered."""

    rule = "unknown-planner"
    template = "there is no planner {name!r}; the planners are {known}. Name one of these."


class NoEngineSegmentsError(KvzeroError):
    """The engine's own segments can be judged only where the file states them."""

    rule = "no-engine-segments"
    template = "{where}: the geometry has no engine_segments. Dump them with `kvzero.capture`, or choose a planner."
