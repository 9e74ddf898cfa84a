"""One exception type per broken rule, each carrying the numbers that broke it.

Every fact passed to an exception becomes an attribute, so that a caller asserts on type and numbers and
never on the text of a message.
"""

from __future__ import annotations

from .audit import (
    ArenaTooLargeError,
    PlanGeometryError,
    RedzoneTooLargeError,
    UnknownBlockError,
)
from .base import KvzeroError
from .geometry import (
    AmbiguousBlockDimError,
    BlockCountError,
    BlockDimNotFoundError,
    DuplicateNameError,
    GeometryFileError,
    IntegerRangeError,
    ItemsizeError,
    KernelBlocksError,
    MissingKeyError,
    NegativeStrideError,
    NoBlocksError,
    NothingSelectedError,
    ResizeError,
    ShapeStrideError,
    UnknownSelectionError,
    UnknownStorageError,
    ViewOutsideStorageError,
    WrongTypeError,
)
from .plan import (
    BlocksOverlapError,
    SpanExceedsStrideError,
    TooManySegmentsError,
    UnequalStrideOverlapError,
)
from .specimens import (
    GridOverflowError,
    NoEngineSegmentsError,
    NonUniformPagesError,
    UnknownPlannerError,
    WordAlignmentError,
)
from .tools import (
    BlockListError,
    DeviceNotAvailableError,
    EngineFieldError,
    NotebookNotFoundError,
    NothingToShrinkError,
    OutputFileError,
    RanksError,
)
from .zeroer import (
    CaptureRoomError,
    IdOutOfRangeError,
    IdTypeError,
    LaunchTooLargeError,
    PlanMismatchError,
    StorageDeviceError,
    StorageMissingError,
    StorageMovedError,
    StorageSizeError,
    UnknownGroupError,
    UnprovenPlanError,
)

__all__ = [
    "KvzeroError",
    "AmbiguousBlockDimError",
    "ArenaTooLargeError",
    "BlockCountError",
    "BlockDimNotFoundError",
    "BlockListError",
    "BlocksOverlapError",
    "CaptureRoomError",
    "DeviceNotAvailableError",
    "DuplicateNameError",
    "EngineFieldError",
    "GeometryFileError",
    "GridOverflowError",
    "IdOutOfRangeError",
    "IdTypeError",
    "IntegerRangeError",
    "ItemsizeError",
    "KernelBlocksError",
    "LaunchTooLargeError",
    "MissingKeyError",
    "NegativeStrideError",
    "NoBlocksError",
    "NoEngineSegmentsError",
    "NonUniformPagesError",
    "NotebookNotFoundError",
    "NothingSelectedError",
    "NothingToShrinkError",
    "OutputFileError",
    "PlanGeometryError",
    "PlanMismatchError",
    "RanksError",
    "RedzoneTooLargeError",
    "ResizeError",
    "ShapeStrideError",
    "SpanExceedsStrideError",
    "StorageDeviceError",
    "StorageMissingError",
    "StorageMovedError",
    "StorageSizeError",
    "TooManySegmentsError",
    "UnequalStrideOverlapError",
    "UnknownBlockError",
    "UnknownGroupError",
    "UnknownPlannerError",
    "UnknownSelectionError",
    "UnknownStorageError",
    "UnprovenPlanError",
    "ViewOutsideStorageError",
    "WordAlignmentError",
    "WrongTypeError",
]
