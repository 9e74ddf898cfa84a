"""Triton kernels that a page defines in a cell."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from kvzero.zero.kernel import NO_FLOATS, jit_both


def kernel_on(device: str) -> Callable:
    """Decorate a Triton kernel for one device: compiled for a GPU, run by Triton's interpreter on the CPU.

    Triton itself takes `TRITON_INTERPRET` from the environment before the function is defined; this needs no
    variable, and the kernel is launched in the same way, `kernel[grid](...)`.

    Args:
        device: "cuda" or "cpu", what `kvzero.device.pick_device` returned.

    Returns:
        A decorator for a function that uses the builtins of `triton.language` only (see `kvzero.zero.kernel.jit_both`).
        For a GPU the attribute `jit` of what it returns is Triton's own object.

    Example:
        >>> import torch, triton.language as tl
        >>> @kernel_on("cpu")
        ... def count(numbers, N: tl.constexpr):
        ...     tl.store(numbers + tl.arange(0, N), tl.arange(0, N))
        >>> numbers = torch.zeros(4, dtype=torch.int32)
        >>> count[(1,)](numbers, 4)
        >>> numbers.tolist()
        [0, 1, 2, 3]
    """

    def decorate(function: Callable):
        compiled, interpreted = jit_both(function)
        return _Compiled(compiled) if device == "cuda" else interpreted

    return decorate


class _Compiled:
    """A compiled kernel whose launches choose about float fusion, so that Triton does not warn on the page."""

    def __init__(self, jit) -> None:
        self.jit = jit

    def __getitem__(self, grid: tuple[int, ...]) -> Callable:
        return partial(self.jit[grid], **NO_FLOATS)
