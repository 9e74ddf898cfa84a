"""Which device to use: one rule for notebooks, commands, ranks and the bench."""

from __future__ import annotations

from kvzero.errors import CommandError

DEVICES = ("auto", "cpu", "cuda")


def pick_device(device: str = "auto") -> str:
    """Choose the device to use.

    Args:
        device: "cpu", "cuda", or "auto" for a GPU if there is one and the CPU otherwise.

    Returns:
        "cpu" (Triton's interpreter runs the kernel) or "cuda" (the kernel is compiled).

    Raises:
        CommandError: for "cuda" where torch sees no GPU, or a device of another name.

    Example:
        >>> pick_device("cpu")
        'cpu'
    """
    import torch  # here, because the parsers of commands need only the names

    has_gpu = device != "cpu" and torch.cuda.is_available()
    if device not in DEVICES or (device == "cuda" and not has_gpu):
        raise CommandError("device-not-available", device=device, available=DEVICES if has_gpu else ("auto", "cpu"))
    return "cuda" if has_gpu else "cpu"
