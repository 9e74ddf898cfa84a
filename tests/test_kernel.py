"""The kernel itself: what the compiler makes of it, on any machine, and what it does with ids outside the pool."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from types import SimpleNamespace

import numpy as np
import pytest
import torch
import triton
import triton.language as tl
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from kvzero.layout.records import Segment
from kvzero.zero import kernel
from kvzero.zero.kernel import VALUES, jit_both, zero_tiles_compiled, zero_tiles_interpreted
from kvzero.zero.tiles import tile_table

HOPPER = GPUTarget("cuda", 90, 32)


def compiled(store_width_bytes: int, ids_per_program: int, by_value: bool, tile_bytes: int = 4096, lines: bool = False):
    """The kernel compiled for a GPU that need not be here."""
    signature = {"tiles_ptr": "*i64", "ids_ptr": "*i32", "skipped_ptr": "*i64"}
    signature |= dict.fromkeys(["num_ids", "num_blocks", "words_per_id", "no_block", "by_strips"], "i32")
    signature |= {f"v{i}": "i64" for i in range(VALUES)}
    step_bytes = tile_bytes if lines else tile_bytes - 128
    constants = {"TILE_BYTES": tile_bytes, "STEP_BYTES": step_bytes, "STORE_WIDTH": store_width_bytes}
    constants |= {"IDS_PER_PROGRAM": ids_per_program, "BY_VALUE": by_value}
    source = ASTSource(zero_tiles_compiled, signature | dict.fromkeys(constants, "constexpr"), constants)
    return triton.compile(source, target=HOPPER, options={"num_warps": 1, **kernel.NO_FLOATS})


@pytest.mark.parametrize("by_value", [True, False])
@pytest.mark.parametrize("shape", [(1, 4096), (4, 2048), (32, 32)])
@pytest.mark.parametrize("lines", [True, False])
def test_aligned_plans_get_16_byte_stores_and_no_other(lines, shape, by_value):
    ids_per_program, tile_bytes = shape
    if tile_bytes == 32 and not lines:
        pytest.skip("a tile of 32 bytes has no line to step by")
    ptx = compiled(16, ids_per_program, by_value, tile_bytes, lines).asm["ptx"]
    stores = re.findall(r"st\.global\.(\S+)", ptx)
    assert set(stores) == {"cs.v4.b32"} and len(stores) == ids_per_program * tile_bytes // 512


@pytest.mark.parametrize(("width_bytes", "narrow"), [(8, "b64"), (4, "b32"), (2, "b16"), (1, "b8")])
def test_odd_plans_get_16_byte_stores_between_their_ends(width_bytes, narrow):
    stores = re.findall(r"st\.global\.(\S+)", compiled(width_bytes, 1, by_value=False).asm["ptx"])
    assert "v4.b32" in stores and set(stores) <= {"v4.b32", "b64", narrow}


def test_without_the_hints_the_stores_are_narrow():
    """The discriminator of the two tests above: what an address out of a table gets by itself."""
    source = ASTSource(_unhinted, {"address_ptr": "*i64", "words": "i32"}, {})
    ptx = triton.compile(source, target=HOPPER, options=kernel.NO_FLOATS).asm["ptx"]
    stores = re.findall(r"st\.global\.(\S+)", ptx)
    assert stores and set(stores) == {"b32"}


@triton.jit
def _unhinted(address_ptr, words):
    word = tl.arange(0, 1024)
    tl.store(tl.load(address_ptr).to(tl.pointer_type(tl.int32)) + word, 0, mask=word < words)


@pytest.mark.parametrize("setting", [None, "0", "1"])
def test_compiled_and_interpreted_whatever_the_environment_says(setting):
    environment = {key: value for key, value in os.environ.items() if key != "TRITON_INTERPRET"}
    if setting is not None:
        environment["TRITON_INTERPRET"] = setting
    code = (
        "import os; from kvzero.zero.kernel import zero_tiles_compiled as c, zero_tiles_interpreted as i;"
        "print(type(c).__name__, type(i._kernel).__name__, os.environ.get('TRITON_INTERPRET'))"
    )
    run = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert run.stdout.split() == ["JITFunction", "InterpretedFunction", str(setting)]


@pytest.mark.parametrize("ids_per_program", [1, 4, 32])
@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
@pytest.mark.parametrize("no_block", [0, -1])
@pytest.mark.parametrize("by_strips", [True, False])
def test_ids_outside_the_pool_are_skipped_and_counted_in_the_kernel(ids_per_program, dtype, no_block, by_strips):
    spans, stride, base, num_blocks = (40, 70), 128, 3, 4
    memory = torch.full((base + num_blocks * stride + 2 * stride,), 7, dtype=torch.uint8)
    segments = [Segment(0, base, stride, spans[0]), Segment(0, base + 50, stride, spans[1])]
    plan = SimpleNamespace(segments=segments, num_blocks=num_blocks)
    addresses = np.full(2, memory.data_ptr(), dtype=np.uint64)
    table = torch.from_numpy(tile_table(plan, addresses, step_bytes=16))
    ids = torch.tensor([3, num_blocks, 0, -1, num_blocks + 1, -(2**31), 2**31 - 1], dtype=dtype)
    # In 64 bits, an id whose lower half lies in the pool.
    ids = torch.cat([ids, torch.tensor([(1 << 32) + 1])]) if dtype == torch.int64 else ids
    skipped = torch.zeros(1, dtype=torch.int64)
    batches = -(-len(ids) // ids_per_program)
    zero_tiles_interpreted[(len(table) * batches,) if by_strips else (len(table), batches)](
        table, ids.view(torch.int32), skipped, len(ids), num_blocks, ids.element_size() // 4, no_block, int(by_strips),
        *[0] * VALUES, TILE_BYTES=32, STEP_BYTES=16, STORE_WIDTH=1, IDS_PER_PROGRAM=ids_per_program, BY_VALUE=False,
    )  # fmt: skip
    assert int(skipped[0]) == len(ids) - 2 - (no_block == -1)
    want = torch.full_like(memory, 7)
    for block in 0, 3:
        for segment in segments:
            start = segment.start_bytes(block)
            want[start : start + segment.span_bytes] = 0
    assert torch.equal(memory, want)


@pytest.mark.parametrize("ids_per_program", [1, 2])
def test_programs_that_go_strip_by_strip_write_every_tile_of_every_id(ids_per_program):
    """Layers apart, each a strip of its own, of different numbers of tiles."""
    spans, num_blocks = (40, 70, 16), 5
    bases = [0, 5 * 40, 5 * 110]
    memory = torch.full((5 * 126,), 7, dtype=torch.uint8)
    segments = [Segment(0, base, span, span) for base, span in zip(bases, spans, strict=True)]
    plan = SimpleNamespace(segments=segments, num_blocks=num_blocks)
    table = torch.from_numpy(tile_table(plan, np.full(3, memory.data_ptr(), dtype=np.uint64), step_bytes=16))
    ids = torch.tensor([4, 0, 3], dtype=torch.int32)
    skipped = torch.zeros(1, dtype=torch.int64)
    zero_tiles_interpreted[(len(table) * -(-len(ids) // ids_per_program),)](
        table, ids, skipped, len(ids), num_blocks, 1, 0, 1,
        *[0] * VALUES, TILE_BYTES=32, STEP_BYTES=16, STORE_WIDTH=1, IDS_PER_PROGRAM=ids_per_program, BY_VALUE=False,
    )  # fmt: skip
    want = torch.full_like(memory, 7)
    for block in ids.tolist():
        for segment in segments:
            want[segment.start_bytes(block) : segment.start_bytes(block) + segment.span_bytes] = 0
    assert torch.equal(memory, want) and int(skipped[0]) == 0


def test_an_interpreted_kernel_runs_on_cpu_tensors():
    _, interpreted = jit_both(_add_one)
    numbers = torch.zeros(8, dtype=torch.int32)
    interpreted[(8,)](numbers)
    assert numbers.tolist() == [1] * 8


def _add_one(numbers_ptr):
    place = numbers_ptr + tl.program_id(0)
    tl.store(place, tl.load(place) + 1)
