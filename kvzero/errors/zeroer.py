"""Rules of launching, of the memory that is zeroed, and of block ids."""

from __future__ import annotations

from .base import KvzeroError


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


class PoolTooLargeError(KvzeroError):
    """A block id fits into 32 bits, as the kernel reads it."""

    rule = "pool-too-large"
    template = (
        "the plan {name!r} has {num_blocks:,} blocks, but a zeroer takes at most {limit_blocks:,}. "
        "Divide the pool, or use larger blocks."
    )


class StorageMissingError(KvzeroError):
    """Every storage of the plan is given as memory."""

    rule = "storage-missing"
    template = "no memory is given for storage {storage!r} of the plan, only for {given}. Give memory for each storage."


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


class StorageAliasError(KvzeroError):
    """No byte of memory stands for two storages: a plan is proven for each storage alone."""

    rule = "storage-alias"
    template = (
        "{what_a} and {what_b} share memory from address {address} on, so zeroing a block of one "
        "would wipe the other. Give one storage for the whole allocation."
    )


class TileBytesError(KvzeroError):
    """A tile is a power of two of bytes, within bounds."""

    rule = "tile-bytes"
    template = "tile_bytes is {tile_bytes!r}, but it must be a power of two from {least} to {most:,}."


class NumIdsError(KvzeroError):
    """A launch is counted for a number of ids."""

    rule = "num-ids"
    template = "num_ids is {num_ids!r}, but a call has a whole number of ids, 0 or more."


class StorageMovedError(KvzeroError):
    """The memory that a zeroer writes is still where it was."""

    rule = "storage-moved"
    template = (
        "storage {storage!r} was resized after the zeroer was built (address {address}, {nbytes:,} bytes then; "
        "{address_now}, {nbytes_now:,} bytes now). Build a new BlockZeroer for the new memory."
    )


class IdOutOfRangeError(KvzeroError):
    """A block id lies inside every segment."""

    rule = "id-out-of-range"
    template = (
        "block id {block_id} is outside segment {segment} (storage {storage!r}, base {base_bytes} bytes), which holds "
        "{capacity_blocks} blocks, ids 0 to {last_block}. Nothing was written. Check the block table and the pool it "
        "belongs to."
    )


class SkippedIdsError(KvzeroError):
    """Every block id on the GPU lies inside the pool."""

    rule = "ids-skipped"
    template = (
        "the GPU skipped {num_ids} block ids of earlier calls that lie outside the {capacity_blocks} blocks of "
        "{plan!r}; their other ids were zeroed. This call wrote nothing. Check the block table and the pool it "
        "belongs to."
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


class ReplayRoomError(KvzeroError):
    """The ids set between replays fit into the launch that was captured."""

    rule = "replay-room"
    template = (
        "{num_ids} ids are set where the captured launch has room for {max_ids}. Make replayable_ids({num_ids}) and "
        "capture again, or replay in parts."
    )
