"""The first launch: what makes a compiler start again, and what that does to ranks that wait for each other.

`variant` states Triton's rules for what a compiled form depends on; `compile_for_hopper` asks the installed compiler
itself, which needs no GPU; `compilations` counts what it compiles while something runs. `step` is a model of ranks
that meet in a collective, with times as data.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from kvzero.history import parts
from kvzero.history.uniform_page import zero_uniform
from kvzero.plan.planner import Plan
from kvzero.zero.kernel import NO_FLOATS, jit_both

from .figures.timeline import Event

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


@dataclass(frozen=True)
class Compiled:
    """One run of the compiler.

    Args:
        seconds: how long it took here.
        key: the compiler's own name for the form.
        machine_code: what a GPU would be given.
    """

    seconds: float
    key: str
    machine_code: bytes


def compile_for_hopper(kernel, plan: Plan, count_class: str) -> Compiled:
    """Compile a form for an H200, with no GPU needed, bypassing every cache.

    Args:
        kernel: one of `KERNELS`.
        plan: a plan of the uniform-page specimen; gives the constants.
        count_class: what `class_of` says of the number of ids, or "any".
    """
    segments, page_words = len(plan.segments), plan.segments[0].span_bytes // parts.WORD_BYTES
    constants = {3: segments, 4: page_words, 5: parts.common_chunk_words(plan)}
    aligned = [["tt.divisibility", ALIGNMENT]]
    attributes = {(0,): aligned, (1,): aligned}
    types = ["*i64", "*i64", "i32", "constexpr", "constexpr", "constexpr"]
    if count_class == "1":
        types[2], constants[2] = "constexpr", 1
    elif count_class == "multiple of 16":
        attributes[(2,)] = aligned
    signature = dict(zip(kernel.arg_names, types, strict=True))
    source = ASTSource(kernel, signature, {(index,): value for index, value in constants.items()}, attributes)
    with triton.knobs.compilation.scope():
        triton.knobs.compilation.always_compile = True
        start = time.perf_counter()
        compiled = triton.compile(source, target=HOPPER, options=NO_FLOATS)
        seconds = time.perf_counter() - start
    return Compiled(seconds, compiled.hash, compiled.asm["cubin"])


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


def launch(kernel, plan: Plan, storages: Mapping, block_ids: Sequence[int], first: int = 0) -> None:
    """Launch one of `KERNELS` on a GPU.

    Args:
        kernel: one of `KERNELS`.
        plan: a plan of the uniform-page specimen.
        storages: storage id to a uint8 tensor on the GPU.
        block_ids: block ids, not checked.
        first: 8-byte places to leave free before the ids; an odd number makes their address no multiple of 16.
    """
    addresses, _, spans, _ = parts.tables(plan, storages, block_ids)
    ids = torch.tensor([0] * first + list(block_ids), dtype=torch.int64, device=addresses.device)[first:]
    page_words, chunk_words = plan.segments[0].span_bytes // parts.WORD_BYTES, parts.common_chunk_words(plan)
    programs = len(block_ids) * len(plan.segments) * (page_words // chunk_words)
    kernel[(programs,)](addresses, ids, len(block_ids), len(plan.segments), page_words, chunk_words, **NO_FLOATS)


@dataclass(frozen=True)
class Work:
    """Something that a rank does before it meets the others.

    Args:
        label: a word or two.
        ms: how long.
        action: a key of the timeline's actions.
    """

    label: str
    ms: float
    action: str = "run"


@dataclass(frozen=True)
class Step:
    """One step of all ranks.

    Args:
        events: for `timeline`, in milliseconds.
        waits_ms: rank to how long it sat in the collective before the last rank came.
        timed_out: ranks that waited longer than the limit.
        ends_ms: when the collective is over.
    """

    events: tuple[Event, ...]
    waits_ms: dict[str, float]
    timed_out: tuple[str, ...]
    ends_ms: float


def step(ranks: Mapping[str, Sequence[Work]], *, collective_ms: float = 20.0, limit_ms: float = 1_000.0) -> Step:
    """Ranks do their work and meet in a collective: a model with times as data.

    Args:
        ranks: rank to its work, in order. A collective starts when the last rank has come.
        collective_ms: how long the collective takes once all are there.
        limit_ms: how long a rank may wait before its watchdog ends the job.

    Example:
        >>> step({"0": [Work("compile", 1_200)], "1": [Work("load", 150)]}).timed_out
        ('1',)
    """
    events, arrivals = [], {}
    for rank, works in ranks.items():
        at = 0.0
        for work in works:
            events.append(Event(rank, at, at + work.ms, work.label, work.action))
            at += work.ms
        arrivals[rank] = at
    start = max(arrivals.values())
    waits = {rank: start - at for rank, at in arrivals.items()}
    late = tuple(rank for rank, wait in waits.items() if wait > limit_ms)
    for rank, at in arrivals.items():
        if waits[rank]:
            end = at + limit_ms if rank in late else start
            events.append(Event(rank, at, end, "waits in all-reduce", "wait"))
        if rank in late:
            events.append(Event(rank, at + limit_ms, start, "watchdog", "wrong"))
        elif not late:
            events.append(Event(rank, start, start + collective_ms, "all-reduce"))
    return Step(tuple(events), waits, late, start + collective_ms)
