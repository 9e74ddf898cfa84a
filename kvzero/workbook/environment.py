"""The card that tells a reader what the numbers of a notebook were made with."""

from __future__ import annotations

import datetime
import html
import platform
from dataclasses import dataclass
from importlib.metadata import version

from kvzero import __version__


@dataclass(frozen=True)
class EnvironmentCard:
    """What a notebook ran on; the last expression of its first code cell, so that every page carries it.

    Args:
        device: "cpu" or "cuda".
        device_name: the processor's or the GPU's name.
        kernel: how the Triton kernel runs there.
        versions: package name to version.
        date: of the run, ISO 8601, UTC.
    """

    device: str
    device_name: str
    kernel: str
    versions: dict[str, str]
    date: str

    def __str__(self) -> str:
        versions = ", ".join(f"{name} {number}" for name, number in self.versions.items())
        return f"device {self.device} ({self.device_name}), {self.kernel}; {versions}; {self.date}"

    def _repr_html_(self) -> str:
        return f"<p class='kvzero-card'>{html.escape(str(self))}</p>"

    __repr__ = __str__


def environment_card(device: str) -> EnvironmentCard:
    """Describes the machine and the versions in one line.

    Args:
        device: what ``kvzero.device.pick_device`` returned.

    Returns:
        The card; it shows itself as text and HTML.
    """
    import torch

    if device == "cuda":
        name, kernel = torch.cuda.get_device_name(), "kernel compiled"
    else:
        name, kernel = platform.machine(), "kernel run by Triton's interpreter"
    versions = {"Python": platform.python_version()}
    versions |= {package: version(package) for package in ("torch", "triton", "numpy")}
    # The package may run from its folder, where nothing has installed it.
    versions["kvzero"] = __version__
    today = datetime.datetime.now(datetime.timezone.utc).date().isoformat()
    return EnvironmentCard(device, name, kernel, versions, today)
