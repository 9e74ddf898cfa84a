"""One exception type per broken rule, each carrying the numbers that broke it.

Every fact passed to an exception becomes an attribute, so that a caller asserts on type and numbers and
never on the text of a message.
"""

from __future__ import annotations


class KvzeroError(Exception):
    """A rule of kvzero was broken; `rule` names it, `facts` holds the numbers.

    A subclass states its `rule` and a `template`; the facts fill the template and become attributes.

    Example:
        >>> error = NoBlocksError(where="pool.json", num_blocks=0)
        >>> error.rule, error.num_blocks
        ('no-blocks', 0)
    """

    rule = "kvzero"
    template = "{detail}"

    def __init__(self, **facts: object) -> None:
        self.facts = facts
        for name, value in facts.items():
            setattr(self, name, value)
        super().__init__(_one_line(self.template.format(**facts)))

    def __reduce__(self) -> tuple:
        # Exceptions cross process borders in the audit; the default would drop the keyword facts.
        return _rebuild, (type(self), self.facts)

    def to_dict(self) -> dict[str, object]:
        """The rule, the message and every fact, as plain data for JSON."""
        return {"rule": self.rule, "message": str(self), **self.facts}


def _one_line(message: str, limit: int = 800) -> str:
    """A message stays one line and readable, whatever the file that it quotes holds."""
    message = message.replace("\r", "\\r").replace("\n", "\\n")
    return message if len(message) <= limit else f"{message[: limit - 200]} ... {message[-200:]}"


def _rebuild(kind: type[KvzeroError], facts: dict[str, object]) -> KvzeroError:
    return kind(**facts)


# ---- reading a geometry: `where` is the file, and the layer where there is one ----


class GeometryFileError(KvzeroError):
    """The file cannot be read, or is not JSON."""

    rule = "geometry-file"
    template = "{where}: not a geometry file: {detail}. Give a JSON file as `kvzero.capture` writes it."


class MissingKeyError(KvzeroError):
    """A required key is absent."""

    rule = "missing-key"
    template = "{where}: the key {key!r} is missing. Add it; it holds {meaning}."


class WrongTypeError(KvzeroError):
    """A key holds a value of the wrong type or sign."""

    rule = "wrong-type"
    template = "{where}: the key {key!r} is {value!r}, but it must be {expected}."


class NoBlocksError(KvzeroError):
    """A pool has at least one block."""

    rule = "no-blocks"
    template = "{where}: num_blocks is {num_blocks}, but a pool has at least 1 block."


class DuplicateNameError(KvzeroError):
    """Storages and layers have names of their own."""

    rule = "duplicate-name"
    template = "{where}: the {kind} {name!r} appears more than once. Give each {kind} a name of its own."


class UnknownStorageError(KvzeroError):
    """A layer must lie in a storage that the geometry lists."""

    rule = "unknown-storage"
    template = "{where}: storage {storage!r} is not listed; the storages are {known}."


class ShapeStrideError(KvzeroError):
    """Shape and stride describe the same dimensions."""

    rule = "shape-stride"
    template = "{where}: shape has {shape_dims} dimensions and stride has {stride_dims}; they must be equal."


class NegativeStrideError(KvzeroError):
    """Strides count forward."""

    rule = "negative-stride"
    template = (
        "{where}: the stride of dimension {dim} is {stride_elements} elements; strides must be 0 or more. "
        "Describe the view from its lowest address."
    )


class ItemsizeError(KvzeroError):
    """The element size and the named dtype agree."""

    rule = "itemsize"
    template = "{where}: itemsize is {itemsize} bytes, but dtype {dtype} has {dtype_bytes} bytes."


class BlockDimNotFoundError(KvzeroError):
    """No dimension of the view counts the blocks."""

    rule = "block-dim-not-found"
    template = (
        "{where}: no dimension of shape {shape} counts {num_blocks} blocks of {kernel_blocks_per_block} kernel "
        "blocks each. Check num_blocks, or state block_dim."
    )


class AmbiguousBlockDimError(KvzeroError):
    """More than one dimension could count the blocks, so it must be stated."""

    rule = "ambiguous-block-dim"
    template = (
        "{where}: the dimensions {candidates} of shape {shape} could each count {num_blocks} blocks. "
        "State block_dim; it is not guessed."
    )


class BlockCountError(KvzeroError):
    """The views of one pool agree on the number of blocks."""

    rule = "block-count"
    template = (
        "{where}: dimension {block_dim} of shape {shape} has size {size}, which is not a multiple of the pool's "
        "{num_blocks} blocks. Every view of a pool holds every block."
    )


class KernelBlocksError(KvzeroError):
    """The number of kernel blocks in a block agrees with what the file states."""

    rule = "kernel-blocks"
    template = (
        "{where}: a block holds {kernel_blocks_per_block} kernel blocks by its shape {shape} and {num_blocks} "
        "blocks, but {stated_kernel_blocks_per_block} as stated. Correct one of them."
    )


class IntegerRangeError(KvzeroError):
    """Every number fits the integer that will hold it."""

    rule = "integer-range"
    template = "{where}: {what} is {value}, beyond the largest 64-bit signed integer, {limit}."


class ViewOutsideStorageError(KvzeroError):
    """A view ends inside its storage."""

    rule = "view-outside-storage"
    template = (
        "{where}: the view ends at byte {end_bytes}, {excess_bytes} bytes past the end of storage {storage!r} "
        "({nbytes} bytes). First block outside: {first_bad_block}. Check byte_offset, shape and stride."
    )


class UnknownSelectionError(KvzeroError):
    """A selection names layers or groups that exist."""

    rule = "unknown-selection"
    template = "{where}: there is no {kind} {name!r}; the {kind}s are {known}."


class NothingSelectedError(KvzeroError):
    """A plan zeroes at least one view."""

    rule = "nothing-selected"
    template = (
        "{where}: none of the {num_layers} views is to be zeroed. Select layers='all', or groups or layers by name."
    )


# ---- proving a plan ----


class SpanExceedsStrideError(KvzeroError):
    """The bytes to clear in a block are at most the distance to the next block."""

    rule = "span-exceeds-stride"
    template = (
        "{where}: one block spans {span_bytes} bytes in a row, but the next block starts {block_stride_bytes} "
        "bytes later. Block 0 would overlap block 1; check the stride of dimension {block_dim}."
    )


class BlocksOverlapError(KvzeroError):
    """No two blocks of a pool share a byte."""

    rule = "blocks-overlap"
    template = (
        "{where}: block {block_a} of layer {layer_a} and block {block_b} of layer {layer_b} share byte "
        "{byte_offset} of storage {storage!r} (block strides {stride_a_bytes} and {stride_b_bytes} bytes). "
        "Zeroing one would wipe the other; check byte_offset and stride of both layers."
    )


class UnequalStrideOverlapError(KvzeroError):
    """Views that share bytes of one block have the same block stride."""

    rule = "unequal-stride-overlap"
    template = (
        "{where}: layers {layer_a} and {layer_b} share byte {byte_offset} of storage {storage!r} in block "
        "{block}, with unequal block strides {stride_a_bytes} and {stride_b_bytes} bytes. No family of ranges "
        "writes each byte once; plan the two layers apart."
    )


class TooManySegmentsError(KvzeroError):
    """A view falls into a bounded number of separate ranges per block."""

    rule = "too-many-segments"
    template = (
        "{where}: one block falls into {num_ranges} separate ranges, more than {limit}. "
        "Check the strides; the innermost dimension should be contiguous."
    )


class DeviceNotAvailableError(KvzeroError):
    """The device that was asked for is there."""

    rule = "device-not-available"
    template = "device {device!r} is not available here. Choose one of {available}."


# ---- auditing ----


class UnknownBlockError(KvzeroError):
    """An audit asks about blocks of the pool."""

    rule = "unknown-block"
    template = "{where}: block {block_id} is not in the pool; its ids are 0 to {last_block_id}."


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


# ---- specimens: what an old planner itself raised ----


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


class UnknownPlannerError(KvzeroError):
    """A planner is named as it is registered."""

    rule = "unknown-planner"
    template = "there is no planner {name!r}; the planners are {known}."


class NoEngineSegmentsError(KvzeroError):
    """The engine's own segments can be judged only where the file states them."""

    rule = "no-engine-segments"
    template = "{where}: the geometry has no engine_segments. Dump them with `kvzero.capture`, or choose a planner."


class ResizeError(KvzeroError):
    """A layout can be given another number of blocks only if its arrays of blocks can be told apart."""

    rule = "resize"
    template = "{where}: cannot change the number of blocks: {detail}."


class EngineFieldError(KvzeroError):
    """An engine's object holds the fields that describe its cache."""

    rule = "engine-field"
    template = (
        "the {owner} does not hold {field!r}, which says how its cache is laid out. Call this after the caches are "
        "allocated, or pass the tensors themselves to kvzero.capture.capture."
    )


class NotebookNotFoundError(KvzeroError):
    """A path that is to be run is a notebook."""

    rule = "notebook-not-found"
    template = "{path}: no such notebook. Name .ipynb files, or run from the project's root."


# ---- launching and zeroing ----


class LaunchTooLargeError(KvzeroError):
    """One block fits into one launch."""

    rule = "launch-too-large"
    template = (
        "one block needs {programs_per_block} programs, but one launch on {device} holds at most {limit_programs}. "
        "Use larger tiles, or plan fewer layers at a time."
    )


class UnprovenPlanError(KvzeroError):
    """Only a plan that `plan_segments` proved is launched on live memory."""

    rule = "unproven-plan"
    template = (
        "the plan of planner {planner!r} for {name!r} is not proven, so it is not launched on live memory. "
        "Make it with plan_segments."
    )


class PlanMismatchError(KvzeroError):
    """The plans of the groups of one pool have the same blocks and storages."""

    rule = "plan-mismatch"
    template = (
        "the plan of group {group!r} has {group_num_blocks} blocks and storages {group_storages}, but the pool has "
        "{num_blocks} blocks and storages {storages}. Plan all groups from one geometry; give each pool its own zeroer."
    )


class StorageMissingError(KvzeroError):
    """Every storage of the plan is given as memory."""

    rule = "storage-missing"
    template = "no tensor is given for storage {storage!r} of the plan; tensors are given for {given}."


class StorageSizeError(KvzeroError):
    """The memory given for a storage has the size that the plan was proven for."""

    rule = "storage-size"
    template = (
        "storage {storage!r} has {nbytes} bytes in the plan, but the tensor given for it has {given_nbytes} bytes. "
        "Plan the geometry of this tensor."
    )


class StorageDeviceError(KvzeroError):
    """All memory of one zeroer lies on one device, the CPU or a GPU."""

    rule = "storage-device"
    template = "{what} lies on {device}, but it must lie on {expected}. Give each device its own zeroer."


class StorageMovedError(KvzeroError):
    """The memory that a zeroer writes is still where it was."""

    rule = "storage-moved"
    template = (
        "storage {storage!r} was {what} after the zeroer was built (address {address} then, {address_now} now). "
        "Nothing was written; build a new BlockZeroer."
    )


class IdOutOfRangeError(KvzeroError):
    """A block id lies inside every segment."""

    rule = "id-out-of-range"
    template = (
        "block id {block_id} is outside segment {segment} (storage {storage!r}, base {base_bytes} bytes), which holds "
        "{capacity_blocks} blocks, ids 0 to {last_block}. {outcome} Check the block table and the pool it belongs to."
    )


class IdTypeError(KvzeroError):
    """Block ids are whole numbers in one dimension."""

    rule = "id-type"
    template = (
        "block ids must be a one-dimensional list, array or tensor of integers, not {given}. Nothing was written."
    )


class UnknownGroupError(KvzeroError):
    """Ids are given for groups that the zeroer was built with."""

    rule = "unknown-group"
    template = "there is no group {group!r}; the groups are {known}. Pass group_plans to BlockZeroer."


class CaptureRoomError(KvzeroError):
    """The ids of a captured launch fit into the room reserved for graphs."""

    rule = "capture-room"
    template = (
        "a graph capture needs room for {num_ids} ids, but {left_ids} are left of those reserved for graphs. Call "
        "reserve_for_capture({num_ids}) before the capture, or pass the ids as a GPU tensor."
    )


class GridOverflowError(KvzeroError):
    """An old launch put every program into one grid, and the grid has a limit (#50485, #52058)."""

    rule = "grid-overflow"
    template = (
        "{where}: the {planner} launch needs {programs} programs ({num_ids} ids x {segments} segments x {chunks} "
        "chunks): {axis_programs} in its {axis}, where {device} allows {limit_programs}. kvzero splits the call."
    )


class RanksError(KvzeroError):
    """A run of many ranks has what it needs to meet."""

    rule = "ranks"
    template = "{detail}. Start the ranks with `torchrun --nproc-per-node N -m kvzero audit …`."


class BlockListError(KvzeroError):
    """Blocks on the command line are ids, ranges of ids, or the word "last"."""

    rule = "block-list"
    template = "--blocks {text!r}: cannot read {part!r}. Write ids, ranges, or last, as in 1,3 or 0-3,last."


class NothingToShrinkError(KvzeroError):
    """Only a layout on which a planner goes wrong is made smaller."""

    rule = "nothing-to-shrink"
    template = "{where}: the planner {planner!r} is right on this layout, so there is no fault to show with less."


class OutputFileError(KvzeroError):
    """A file that was asked for can be written."""

    rule = "output-file"
    template = "{path}: cannot be written: {detail}."
