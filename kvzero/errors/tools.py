"""Rules of the commands and of what is built around the core."""

from __future__ import annotations

from .base import KvzeroError


class DeviceNotAvailableError(KvzeroError):
    """The device that was asked for is there."""

    rule = "device-not-available"
    template = "device {device!r} is not available here. Choose one of {available}."


class EngineFieldError(KvzeroError):
    """An engine's object holds the fields that describe its cache."""

    rule = "engine-field"
    template = (
        "the {owner} does not hold {field!r}, which says how its cache is laid out. Call this after the caches are "
        "allocated, or pass the tensors themselves to kvzero.layout.capture.capture."
    )


class ExtraMissingError(KvzeroError):
    """What a command needs beyond the package itself is installed."""

    rule = "extra-missing"
    template = (
        "`kvzero {command}` needs what is not installed here: {missing}. "
        "Run `pip install -e '.[{extra}]'` in a clone of the project."
    )


class NotebookNotFoundError(KvzeroError):
    """A path that is to be run is a notebook."""

    rule = "notebook-not-found"
    template = "{path}: no such notebook. Name .ipynb files, or run from the project's root."


class NotebookParameterError(KvzeroError):
    """A parameter is one that the notebook declares."""

    rule = "notebook-parameter"
    template = "{path}: the parameter {name!r} is not declared; declared are {declared}. Use one of these."


class NotebookParameterTypeError(KvzeroError):
    """A parameter has the type of the notebook's own value."""

    rule = "notebook-parameter-type"
    template = "{path}: the parameter {name!r} is {value!r}, but the notebook has the {expected} {default!r} there."


class NotebookFormatError(KvzeroError):
    """A notebook is one that Jupyter can read and run."""

    rule = "notebook-format"
    template = "{path}: not a notebook that can be run: {detail}. Name one that Jupyter opens."


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
    template = "{where}: the planner {planner!r} is right on this layout, so it shows no fault. Name one that errs."


class OutputFileError(KvzeroError):
    """A file that was asked for can be written."""

    rule = "output-file"
    template = "{path}: cannot be written: {detail}. Name another."
