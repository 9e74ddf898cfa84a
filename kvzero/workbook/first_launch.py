"""The first launch: what makes a compiler start again.

`argument_rules` and `key_of` state Triton's rules for what a compiled kernel depends on; `compile_for_hopper` asks the
installed compiler itself, which needs no GPU; `compilations` counts what it compiles while something runs.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from kvzero.history.uniform_page import zero_uniform
from kvzero.zero.kernel import NO_FLOATS, jit_both

# The signature (which argument is a pointer, a number, a constant) is the one that the compile log of #47546 shows.
specialised, _ = jit_both(zero_uniform)
plain_count, _ = jit_both(zero_uniform, do_not_specialize=["num_ids"])
KERNELS = {"as of #35219": specialised, "as of #49903": plain_count}
ALIGNMENT = 16
MULTIPLE = f", multiple of {ALIGNMENT}"
HOPPER = GPUTarget("cuda", 90, 32)


def argument_rules(kernel) -> dict[str, str]:
    """What a compiled kernel depends on, argument by argument, read off its decorated signature.

    Args:
        kernel: a function under `triton.jit` (not interpreted).

    Returns:
        Argument to "value" (a constant: each value has a kernel of its own), "type" (nothing but the type), or
        "type and class" (of a number: 1, multiple of 16, other; of a pointer: multiple of 16 or not).
    """
    rules = {}
    for param in kernel.params:
        if param.is_constexpr:
            rules[param.name] = "value"
        elif param.do_not_specialize or param.do_not_specialize_on_alignment:
            rules[param.name] = "type"
        else:
            rules[param.name] = "type and class"
    return rules


def key_of(kernel, arguments: Sequence) -> dict[str, object]:
    """What a launch looks up a compiled kernel by, argument by argument.

    Args:
        kernel: a function under `triton.jit` (not interpreted).
        arguments: those of the launch, in order: int64 tensors and integers.

    Returns:
        Argument to its value (of a constant, and of an integer that is 1), or to its type and, unless the signature
        says otherwise, whether the number or the address is a multiple of 16.

    Example:
        >>> ids = torch.zeros(33, dtype=torch.int64)
        >>> key_of(specialised, [ids, ids[1:], 32, 6, 64, 64])["ids"]
        '*i64'
        >>> key_of(specialised, [ids, ids, 32, 6, 64, 64])["num_ids"]
        'i32, multiple of 16'
    """
    key = {}
    for param, argument in zip(kernel.params, arguments, strict=True):
        looked_at = not param.do_not_specialize
        if param.is_constexpr or (looked_at and isinstance(argument, int) and argument == 1):
            key[param.name] = argument
            continue
        number, kind = (argument.data_ptr(), "*i64") if isinstance(argument, torch.Tensor) else (argument, "i32")
        key[param.name] = kind + MULTIPLE * (looked_at and number % ALIGNMENT == 0)
    return key


def compile_for_hopper(kernel, key: Mapping[str, object]) -> tuple[str, bytes]:
    """Compile a kernel for an H200, with no GPU needed, bypassing every cache.

    Args:
        kernel: a function under `triton.jit` (not interpreted).
        key: what `key_of` says of a launch.

    Returns:
        (the compiler's own name for it, the machine code).
    """
    signature, constants, attributes = {}, {}, {}
    for index, (name, what) in enumerate(key.items()):
        if isinstance(what, int):
            signature[name], constants[(index,)] = "constexpr", what
            continue
        signature[name] = what.removesuffix(MULTIPLE)
        if what.endswith(MULTIPLE):
            attributes[(index,)] = [["tt.divisibility", ALIGNMENT]]
    with triton.knobs.compilation.scope():
        triton.knobs.compilation.always_compile = True
        compiled = triton.compile(ASTSource(kernel, signature, constants, attributes), target=HOPPER, options=NO_FLOATS)
    return compiled.hash, compiled.asm["cubin"]


@contextlib.contextmanager
def compilations() -> Iterator[list[str]]:
    """Counts what Triton compiles, or loads for the first time, in a `with` block: the names of the kernels.

    It is the hook by which vLLM's monitor warns (#40137, #45631).
    """
    found: list[str] = []
    knobs = triton.knobs.runtime
    before = knobs.jit_post_compile_hook

    def hook(*_, fn, **__) -> None:
        found.append(fn.name)

    knobs.jit_post_compile_hook = hook
    try:
        yield found
    finally:
        knobs.jit_post_compile_hook = before
