"""Rules of a geometry file and of its views; `where` is the file, and the layer where there is one."""

from __future__ import annotations

from .base import KvzeroError


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
    template = "{where}: num_blocks is {num_blocks}, but a pool has at least 1 block. Give the pool's number of blocks."


class DuplicateNameError(KvzeroError):
    """Storages and layers have names of their own."""

    rule = "duplicate-name"
    template = "{where}: the {kind} {name!r} appears more than once. Give each {kind} a name of its own."


class UnknownStorageError(KvzeroError):
    """A layer must lie in a storage that the geometry lists."""

    rule = "unknown-storage"
    template = "{where}: storage {storage!r} is not listed; the storages are {known}. List it, or correct the layer."


class ShapeStrideError(KvzeroError):
    """Shape and stride describe the same dimensions."""

    rule = "shape-stride"
    template = "{where}: shape has {shape_dims} dimensions and stride has {stride_dims}. Give one stride for each size."


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
    template = "{where}: itemsize is {itemsize} bytes, but dtype {dtype} has {dtype_bytes} bytes. Correct one of them."


class BlockDimNotFoundError(KvzeroError):
    """No dimension of the view counts the blocks."""

    rule = "block-dim-not-found"
    template = (
        "{where}: no dimension of shape {shape} has size {size} = {num_blocks} blocks x {kernel_blocks_per_block} "
        "kernel blocks per block{stated_by}. Check num_blocks and the stated sizes, or state block_dim; the view may "
        "belong to another block pool."
    )


class AmbiguousBlockDimError(KvzeroError):
    """More than one dimension could count the blocks, so it must be stated."""

    rule = "ambiguous-block-dim"
    template = (
        "{where}: the dimensions {candidates} of shape {shape}, with sizes {sizes}, could each count {num_blocks} "
        "blocks. State block_dim; it is not guessed."
    )


class BlockCountError(KvzeroError):
    """The views of one pool agree on the number of blocks."""

    rule = "block-count"
    template = (
        "{where}: dimension {block_dim} of shape {shape} has size {size}, which is not a multiple of the pool's "
        "{num_blocks} blocks. Every view of a pool holds every block: check num_blocks, or state another block_dim."
    )


class KernelBlocksError(KvzeroError):
    """The number of kernel blocks in a block agrees with what the file states."""

    rule = "kernel-blocks"
    template = (
        "{where}: {source} states {stated_kernel_blocks_per_block} kernel blocks per block, but dimension {block_dim} "
        "of shape {shape} holds {kernel_blocks_per_block} for each of {num_blocks} blocks. Correct the wrong number; "
        "if the view belongs to another block pool, describe that pool on its own."
    )


class UnstatedKernelBlocksError(KvzeroError):
    """A multiple of the number of blocks does not prove that a block holds several kernel blocks."""

    rule = "unstated-kernel-blocks"
    template = (
        "{where}: dimension {block_dim} of shape {shape} has size {size}, {kernel_blocks_per_block} times the pool's "
        "{num_blocks} blocks, but the block dimension of layer {other_layer} has {other_size}. The view may belong to "
        "another block pool: then describe that pool on its own. Otherwise state kernel_blocks_per_block, or "
        "manager_block_size and kernel_block_size."
    )


class PageSizeError(KvzeroError):
    """A view keeps at most the stated page in each block."""

    rule = "page-size"
    template = (
        "{where}: the view keeps {page_bytes} bytes in a block by dimension {block_dim} of shape {shape} and "
        "{num_blocks} blocks, but {key} states {stated_bytes}. Correct the wrong number; if the view belongs to "
        "another block pool, describe that pool on its own."
    )


class IntegerRangeError(KvzeroError):
    """Every number stays below a stated limit, so that no sum of offsets leaves a 64-bit integer."""

    rule = "integer-range"
    template = "{where}: {what} is {value} bytes, but the limit is {limit} bytes. Correct it."


class ViewOutsideStorageError(KvzeroError):
    """A view ends inside its storage."""

    rule = "view-outside-storage"
    template = (
        "{where}: the view ends at byte {end_bytes}, {excess_bytes} bytes past the end of storage {storage!r} "
        "({nbytes} bytes). First block outside: {first_bad_block}. Check byte_offset, shape and stride."
    )


class RepeatedElementsError(KvzeroError):
    """Every element of a view has bytes of its own."""

    rule = "repeated-elements"
    template = (
        "{where}: shape {shape} and stride {stride} put several elements on the same bytes: the {page_bytes} bytes of "
        "one block's elements lie within {reach_bytes} bytes. Give a view in which each element has bytes of its own; "
        "use size 1 for a dimension of stride 0."
    )


class UnknownSelectionError(KvzeroError):
    """A selection names layers or groups that exist."""

    rule = "unknown-selection"
    template = "{where}: there is no {kind} {name!r}; the {kind}s are {known}. Name one of these."


class TensorKindError(KvzeroError):
    """Caches are dense tensors, since only those lie in memory as shape and stride say."""

    rule = "tensor-kind"
    template = "{where}: {given} is given, but it must be {expected}."


class NothingSelectedError(KvzeroError):
    """A plan zeroes at least one view."""

    rule = "nothing-selected"
    template = (
        "{where}: none of the {num_layers} views is to be zeroed; recurrent state (spec_kind mamba) and views with "
        "zeroed_by_engine false are left alone. Select them with --layers all, or views and groups by name with "
        "--layers and --groups; in Python with layers= and groups=."
    )


class ResizeError(KvzeroError):
    """A layout can be given another number of blocks only if its arrays of blocks can be told apart."""


class OneBlockError(ResizeError):
    """Two blocks show how far apart blocks lie; one does not."""

    rule = "one-block"
    template = (
        "{where}: a pool of {num_blocks} block does not show its block stride, so it cannot be resized. Capture a pool "
        "of at least 2 blocks."
    )


class InterleavedArraysError(ResizeError):
    """Arrays of blocks lie one after the other, or block by block side by side."""

    rule = "interleaved-arrays"
    template = (
        "{where}: an array of blocks with stride {block_stride_bytes} bytes starts at byte {start_bytes} of storage "
        "{storage!r}, inside one with stride {outer_stride_bytes} bytes. Which of the two grows is not clear; describe "
        "the larger pool itself."
    )


class UnevenDistancesError(ResizeError):
    """The arrays of blocks that one view steps over lie at equal distances."""

    rule = "uneven-distances"
    template = (
        "{where}: dimension {dim} of layer {layer} steps over arrays of blocks which would lie at unequal distances "
        "{distances_bytes} with {num_blocks} blocks. Describe the larger pool itself."
    )
