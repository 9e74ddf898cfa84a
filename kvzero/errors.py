"""Errors: a base class, a family for each part of the package, and a class of its own for what callers catch.

Every error names the broken `rule`, and carries the numbers that broke it as attributes, so that a caller or a test
never has to read the message.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar


class KvzeroError(Exception):
    """The base class of all errors.

    Args:
        rule: name of the broken rule; may be omitted for a class that stands for one rule.
        facts: numbers and names that fill the rule's message; each becomes an attribute.

    Example:
        >>> error = GeometryError("no-blocks", where="pool.json", num_blocks=0)
        >>> error.rule, error.num_blocks
        ('no-blocks', 0)
    """

    rule: str = "kvzero"
    messages: ClassVar[dict[str, str]] = {}  # rule to message; without one, the fact `detail` is the message

    def __init__(self, rule: str = "", /, **facts: Any) -> None:
        self.rule = rule or self.rule
        self.facts = facts
        for name, value in facts.items():
            setattr(self, name, value)
        super().__init__(_one_line(self.messages.get(self.rule, "{detail}").format(**facts)))

    def __reduce__(self) -> tuple:
        # Exceptions cross process borders in the audit; the default would drop the keyword arguments.
        return _rebuild, (type(self), self.rule, self.facts)

    def to_dict(self) -> dict[str, Any]:
        """The rule, the message and every fact, as plain data for JSON."""
        return {"rule": self.rule, "message": str(self), **self.facts}

    if TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any: ...  # each fact is an attribute


def _one_line(message: str, limit: int = 800) -> str:
    """Keep a message on one readable line, whatever the quoted file holds."""
    message = "".join(
        letter if letter.isprintable() else letter.encode("unicode_escape").decode() for letter in message
    )
    return message if len(message) <= limit else f"{message[: limit - 200]} ... {message[-200:]}"


def _rebuild(kind: type[KvzeroError], rule: str, facts: dict[str, Any]) -> KvzeroError:
    return kind(rule, **facts)


class GeometryError(KvzeroError):
    """A geometry file, tensor or selection breaks a rule of reading; `where` names the file and the layer."""

    messages = {
        "geometry-file": "{where}: not a geometry file: {detail}. Give a JSON file as `kvzero.capture` writes it.",
        "missing-key": "{where}: the key {key!r} is missing. Add it; it holds {meaning}.",
        "wrong-type": "{where}: the key {key!r} is {value!r}, but it must be {expected}.",
        "no-blocks": (
            "{where}: num_blocks is {num_blocks}, but a pool has at least 1 block. Give the pool's number of blocks."
        ),
        "duplicate-name": "{where}: the {kind} {name!r} appears more than once. Give each {kind} a name of its own.",
        "unknown-storage": (
            "{where}: storage {storage!r} is not listed; the storages are {known}. List it, or correct the layer."
        ),
        "shape-stride": (
            "{where}: shape has {shape_dims} dimensions and stride has {stride_dims}. Give one stride for each size."
        ),
        "negative-stride": (
            "{where}: the stride of dimension {dim} is {stride_elements} elements; strides must be 0 or more. Describe "
            "the view from its lowest address."
        ),
        "itemsize": (
            "{where}: itemsize is {itemsize} bytes, but dtype {dtype} has {dtype_bytes} bytes. Correct one of them."
        ),
        "block-dim-not-found": (
            "{where}: no dimension of shape {shape} has size {size} = {num_blocks} blocks x {kernel_blocks_per_block} "
            "kernel blocks per block{stated_by}. Check num_blocks and the stated sizes, or state block_dim; the view "
            "may belong to another block pool."
        ),
        "ambiguous-block-dim": (
            "{where}: the dimensions {candidates} of shape {shape}, with sizes {sizes}, could each count {num_blocks} "
            "blocks. State block_dim; it is not guessed."
        ),
        "block-count": (
            "{where}: dimension {block_dim} of shape {shape} has size {size}, which is not a multiple of the pool's "
            "{num_blocks} blocks. Every view of a pool holds every block: check num_blocks, or state another block_dim."
        ),
        "kernel-blocks": (
            "{where}: {source} states {stated_kernel_blocks_per_block} kernel blocks per block, but dimension "
            "{block_dim} of shape {shape} holds {kernel_blocks_per_block} for each of {num_blocks} blocks. Correct the "
            "wrong number; if the view belongs to another block pool, describe that pool on its own."
        ),
        "unstated-kernel-blocks": (
            "{where}: dimension {block_dim} of shape {shape} has size {size}, {kernel_blocks_per_block} times the "
            "pool's {num_blocks} blocks, but the block dimension of layer {other_layer} has {other_size}. The view may "
            "belong to another block pool: then describe that pool on its own. Otherwise state "
            "kernel_blocks_per_block, or manager_block_size and kernel_block_size."
        ),
        "page-size": (
            "{where}: the view keeps {page_bytes} bytes in a block by dimension {block_dim} of shape {shape} and "
            "{num_blocks} blocks, but {key} states {stated_bytes}. Correct the wrong number; if the view belongs to "
            "another block pool, describe that pool on its own."
        ),
        "integer-range": "{where}: {what} is {value} bytes, but the limit is {limit} bytes. Correct it.",
        "view-outside-storage": (
            "{where}: the view ends at byte {end_bytes}, {excess_bytes} bytes past the end of storage {storage!r} "
            "({nbytes} bytes). First block outside: {first_bad_block}. Check byte_offset, shape and stride."
        ),
        "repeated-elements": (
            "{where}: shape {shape} and stride {stride} put several elements on the same bytes: the {page_bytes} bytes "
            "of one block's elements lie within {reach_bytes} bytes. Give a view in which each element has bytes of "
            "its own; use size 1 for a dimension of stride 0."
        ),
        "unknown-selection": "{where}: there is no {kind} {name!r}; the {kind}s are {known}. Name one of these.",
        "tensor-kind": "{where}: {given} is given, but it must be {expected}.",
        "nothing-selected": (
            "{where}: none of the {num_layers} views is to be zeroed; recurrent state (spec_kind mamba) and views with "
            "zeroed_by_engine false are left alone. Select them with --layers all, or views and groups by name with "
            "--layers and --groups; in Python with layers= and groups=."
        ),
        "one-block": (
            "{where}: a pool of {num_blocks} block does not show its block stride, so it cannot be resized. Capture a "
            "pool of at least 2 blocks."
        ),
        "interleaved-arrays": (
            "{where}: an array of blocks with stride {block_stride_bytes} bytes starts at byte {start_bytes} of "
            "storage {storage!r}, inside one with stride {outer_stride_bytes} bytes. Which of the two grows is not "
            "clear; describe the larger pool itself."
        ),
        "uneven-distances": (
            "{where}: dimension {dim} of layer {layer} steps over arrays of blocks which would lie at unequal "
            "distances {distances_bytes} with {num_blocks} blocks. Describe the larger pool itself."
        ),
    }


class AmbiguousBlockDimError(GeometryError):
    """Several dimensions of a view could count the blocks, so the right one must be stated."""

    rule = "ambiguous-block-dim"


class ViewOutsideStorageError(GeometryError):
    """A view ends past the end of its storage."""

    rule = "view-outside-storage"


class NothingSelectedError(GeometryError):
    """A selection leaves no view to zero."""

    rule = "nothing-selected"


class ResizeError(GeometryError):
    """A layout cannot be given another number of blocks, because its arrays of blocks cannot be told apart."""


class PlanError(KvzeroError):
    """A geometry cannot be planned: zeroing a block would miss bytes, or write bytes of something else."""

    messages = {
        "span-exceeds-stride": (
            "{where}: one block spans {span_bytes} bytes in a row, but the next block starts {block_stride_bytes} "
            "bytes later. Block 0 would overlap block 1; check the stride of dimension {block_dim}."
        ),
        "blocks-overlap": (
            "{where}: block {block_a} of layer {layer_a} and block {block_b} of layer {layer_b} share byte "
            "{byte_offset} of storage {storage!r} (block strides {stride_a_bytes} and {stride_b_bytes} bytes). Zeroing "
            "one would wipe the other; check byte_offset and stride of both layers."
        ),
        "unequal-stride-overlap": (
            "{where}: layers {layer_a} and {layer_b} share byte {byte_offset} of storage {storage!r} in block {block}, "
            "with unequal block strides {stride_a_bytes} and {stride_b_bytes} bytes. No family of ranges writes each "
            "byte once; plan the two layers apart."
        ),
        "too-many-segments": (
            "{where}: one block falls into {num_ranges} separate ranges, more than {limit}. Check the strides; the "
            "innermost dimension should be contiguous."
        ),
    }


class BlocksOverlapError(PlanError):
    """Two blocks of a pool share a byte."""

    rule = "blocks-overlap"


class ZeroingError(KvzeroError):
    """A plan, its memory, a launch or a call with block ids is refused before anything is written."""

    messages = {
        "launch-too-large": (
            "one block needs {programs_per_block} programs, but one launch on {device} holds at most {limit_programs}. "
            "Use larger tiles, or plan fewer layers at a time."
        ),
        "unproven-plan": (
            "the plan of planner {planner!r} for {name!r} is not proven, so it is not launched on live memory. Make it "
            "with plan_segments."
        ),
        "plan-mismatch": (
            "the plan of group {group!r} has {group_num_blocks} blocks and storages {group_storages}, but the pool has "
            "{num_blocks} blocks and storages {storages}. Plan all groups from one geometry; give each pool its own "
            "zeroer."
        ),
        "pool-too-large": (
            "the plan {name!r} has {num_blocks:,} blocks, but a zeroer takes at most {limit_blocks:,}. Divide the "
            "pool, or use larger blocks."
        ),
        "storage-missing": (
            "no memory is given for storage {storage!r} of the plan, only for {given}. Give memory for each storage."
        ),
        "storage-size": (
            "storage {storage!r} has {nbytes} bytes in the plan, but the tensor given for it has {given_nbytes} bytes. "
            "Plan the geometry of this tensor."
        ),
        "storage-device": "{what} lies on {device}, but it must lie on {expected}. Give each device its own zeroer.",
        "storage-alias": (
            "{what_a} and {what_b} share memory from address {address} on, so zeroing a block of one would wipe the "
            "other. Give one storage for the whole allocation."
        ),
        "tile-bytes": "tile_bytes is {tile_bytes!r}, but it must be a power of two from {least} to {most:,}.",
        "num-ids": "num_ids is {num_ids!r}, but a call has a whole number of ids, 0 or more.",
        "storage-moved": (
            "storage {storage!r} was resized after the zeroer was built (address {address}, {nbytes:,} bytes then; "
            "{address_now}, {nbytes_now:,} bytes now). Build a new BlockZeroer for the new memory."
        ),
        "id-out-of-range": (
            "block id {block_id} is outside segment {segment} (storage {storage!r}, base {base_bytes} bytes), which "
            "holds {capacity_blocks} blocks, ids 0 to {last_block}. Nothing was written. Check the block table and the "
            "pool it belongs to."
        ),
        "ids-skipped": (
            "the GPU skipped {num_ids} block ids of earlier calls that lie outside the {capacity_blocks} blocks of "
            "{plan!r}; their other ids were zeroed. This call wrote nothing. Check the block table and the pool it "
            "belongs to."
        ),
        "id-type": (
            "block ids must be a one-dimensional list, array or tensor of integers, not {given}. Nothing was written."
        ),
        "unknown-group": "there is no group {group!r}; the groups are {known}. Pass group_plans to BlockZeroer.",
        "replay-room": (
            "{num_ids} ids are set where the captured launch has room for {max_ids}. Make replayable_ids({num_ids}) "
            "and capture again, or replay in parts."
        ),
    }


class LaunchTooLargeError(ZeroingError):
    """One block does not fit into one launch."""

    rule = "launch-too-large"


class UnprovenPlanError(ZeroingError):
    """A plan that `plan_segments` did not make is not launched on live memory."""

    rule = "unproven-plan"


class IdOutOfRangeError(ZeroingError):
    """A block id lies outside the pool."""

    rule = "id-out-of-range"


class SkippedIdsError(ZeroingError):
    """A GPU call skipped block ids that lie outside the pool."""

    rule = "ids-skipped"


class AuditError(KvzeroError):
    """An audit or an arena cannot be carried out as asked."""

    messages = {
        "unknown-block": (
            "{where}: block {block_id} is not in the pool; its ids are 0 to {last_block_id}. Name one of these."
        ),
        "plan-geometry": (
            "{where}: the plan {plan} has {what} {plan_value}, but the geometry has {geometry_value}. Make the plan "
            "from this geometry."
        ),
        "arena-too-large": (
            "{where}: the check in memory needs about {wanted_bytes} bytes on {device}, of which {free_bytes} are "
            "free. Use fewer blocks, or check by arithmetic (--witness arithmetic, `audit_plan`), without memory."
        ),
        "redzone-too-large": (
            "{where}: planner {planner} would write {overrun_bytes} bytes away from storage {storage!r}, beyond the "
            "largest redzone of {limit_bytes} bytes. It is not run; check it by arithmetic (--witness arithmetic, "
            "`audit_plan`)."
        ),
        "radius-blocks": (
            "radius_blocks is {radius_blocks!r}, but it counts the blocks that are watched on each side. Give a whole "
            "number of 0 or more, or None to watch every byte."
        ),
        "checksum-bytes": (
            "tile_bytes is {tile_bytes!r}, but a checksum covers a multiple of {word_bytes} bytes, from {word_bytes} "
            "to {most_bytes:,}. Give such a size; a smaller one locates a change more finely."
        ),
        "too-many-runs": (
            "{where}: the audit would follow {num_runs} separate runs of bytes, more than {limit}. Ask about fewer "
            "blocks, or check shape and stride; the innermost dimension should be contiguous."
        ),
    }


class HistoryError(KvzeroError):
    """An old planner refused a layout, as it did for its users, or a planner is unknown."""

    messages = {
        "non-uniform-pages": (
            "{where}: the uniform-page planner asserts one page size, but layer {layer} has {page_words} words and "
            "layer {first_layer} has {first_page_words}. Upstream #49704 gave each segment its own page size."
        ),
        "word-alignment": (
            "{where}: the {planner} planner asserts whole 4-byte words, but the {what} of layer {layer} is "
            "{value_bytes} bytes. kvzero takes any byte size."
        ),
        "grid-overflow": (
            "{where}: the {planner} launch needs {programs} programs ({num_ids} ids x {segments} segments x {chunks} "
            "chunks): {axis_programs} in its {axis}, where {device} allows {limit_programs}. kvzero splits the call."
        ),
        "unknown-planner": "there is no planner {name!r}; the planners are {known}. Name one of these.",
        "no-engine-segments": (
            "{where}: the geometry has no engine_segments. Dump them with `kvzero.capture`, or choose a planner."
        ),
    }


class NonUniformPagesError(HistoryError):
    """The first planner asserts that all pages have one size (#35219 to #49704)."""

    rule = "non-uniform-pages"


class WordAlignmentError(HistoryError):
    """The old planners assert that addresses, strides and pages are whole 4-byte words."""

    rule = "word-alignment"


class GridOverflowError(HistoryError):
    """An old launch put every program into one grid, beyond the device's limit (#50485, #52058)."""

    rule = "grid-overflow"


class CommandError(KvzeroError):
    """A command, a notebook run or a capture lacks something it needs."""

    messages = {
        "device-not-available": "device {device!r} is not available here. Choose one of {available}.",
        "engine-field": (
            "the {owner} does not hold {field!r}, which says how its cache is laid out. Call this after the caches are "
            "allocated, or pass the tensors themselves to kvzero.capture."
        ),
        "extra-missing": (
            "`kvzero {command}` needs what is not installed here: {missing}. Run `pip install -e '.[{extra}]'` in a "
            "clone of the project."
        ),
        "notebook-not-found": "{path}: no such notebook. Name .ipynb files, or run from the project's root.",
        "notebook-parameter": (
            "{path}: the parameter {name!r} is not declared; declared are {declared}. Use one of these."
        ),
        "notebook-parameter-type": (
            "{path}: the parameter {name!r} is {value!r}, but the notebook has the {expected} {default!r} there."
        ),
        "notebook-format": "{path}: not a notebook that can be run: {detail}. Name one that Jupyter opens.",
        "ranks": "{detail}. Start the ranks with `torchrun --nproc-per-node N -m kvzero audit …`.",
        "block-list": "--blocks {text!r}: cannot read {part!r}. Write ids, ranges, or last, as in 1,3 or 0-3,last.",
        "nothing-to-shrink": (
            "{where}: the planner {planner!r} is right on this layout, so it shows no fault. Name one that errs."
        ),
        "output-file": "{path}: cannot be written: {detail}. Name another.",
    }
