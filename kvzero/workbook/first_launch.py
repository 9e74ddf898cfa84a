"""The first launch: what makes a compiler start again.

`variant` and `key_of` state Triton's rules for what a compiled kernel depends on; `compile_for_hopper` asks the
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
HOPPER = GPUTarget("cuda", 90, 32)


def class_of(number: int) -> str:
    """What Triton looks at in a plain integer argument: is it 1, a multiple of 16, or neither?

    >>> [class_of(number) for number in (1, 2, 15, 16, 17, 32)]
    ['1', 'other', 'other', 'multiple of 16', 'other', 'multiple of 16']
    """
    if number == 1:
        return "1"
    return "multiple of 16" if number % ALIGNMENT == 0 else "other"


def argument_rules(kernel) -> dict[str, str]:
    """What a compiled form of a kernel depends on, argument by argument, read off its decorated signature.

    Args:
        kernel: a function under `triton.jit` (not interpreted).

    Returns:
        Argument to "value" (a constant: each value is a form of its own), "type" (nothing but the type), or
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


def variant(kernel, num_ids: int, ids_aligned: bool = True) -> tuple[str, str]:
    """The compiled form that a launch with so many ids needs, by the rules of `argument_rules`.

    Args:
        kernel: one of `KERNELS`.
        num_ids: ids of the call.
        ids_aligned: whether the ids start at a multiple of 16 bytes; a slice from an odd place does not.

    Returns:
        (class of the number, alignment of the ids). The other arguments do not change while a model runs.

    Example:
        >>> variant(specialised, 1), variant(plain_count, 1)
        (('1', 'aligned'), ('any', 'aligned'))
    """
    count = next(param for param in kernel.params if param.name == "num_ids")
    return (
        "any" if count.do_not_specialize else class_of(num_ids),
        "aligned" if ids_aligned else "not aligned",
    )


MULTIPLE = f", multiple of {ALIGNMENT}"


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
