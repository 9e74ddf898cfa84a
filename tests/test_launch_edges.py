"""Launches at their edges: programs really run, offsets beyond 31 bits, and grids beyond the launcher."""

from __future__ import annotations

import sys

import pytest
import torch
import triton.language as tl

from kvzero import Arena, BlockZeroer, CacheGeometry, plan_segments
from kvzero.errors import GridOverflowError
from kvzero.history import PLANNERS, masked_grid
from kvzero.workbook.kernels import kernel_on
from kvzero.workbook.toy import make_geometry
from kvzero.zero.tiles import CUDA, launch_for

# The function that each kernel is; a program is one call of it by the interpreter.
KERNELS = {"stride-and-span": "_zero_spans", "masked-grid": "_zero_masked", "kvzero": "_zero_tiles"}


def programs_run(kernel: str, call) -> int:
    """How often the kernel's function is called, by Python's profiling hook."""
    count = 0

    def look(frame, event, _):
        nonlocal count
        count += event == "call" and frame.f_code.co_name == kernel

    before = sys.getprofile()
    sys.setprofile(look)
    try:
        call()
    finally:
        sys.setprofile(before)
    return count


def test_the_launch_is_what_the_interpreter_runs():
    pool = make_geometry(layers=3, num_blocks=4, tokens=1, heads=1, content=[4_672, 4_672, 1_168], order="LBNHC")
    arena = Arena(pool)
    for era, expected in (("stride-and-span", 876), ("masked-grid", 6)):
        plan = PLANNERS[era].plan(pool)
        ran = programs_run(KERNELS[era], lambda era=era, plan=plan: PLANNERS[era].write(plan, arena.storages, [2]))
        assert ran == PLANNERS[era].launch(plan, 1).programs == expected
    plan = plan_segments(pool)
    zeroer = BlockZeroer(plan, arena.storages, tile_bytes=4_096, interpret=True)
    ran = programs_run(KERNELS["kvzero"], lambda: zeroer.zero([1, 2]))
    assert ran == launch_for(plan, 2, tile_bytes=4_096).programs == 10


@pytest.mark.parametrize("planner", ["stride-and-span", "masked-grid", "kvzero"])
def test_an_offset_beyond_31_bits_is_reached(planner):
    """#52109: block 2,143 starts beyond 2^31 bytes. The operating system promises the pool; one page is used."""
    stride_bytes, page_bytes, block = 1_002_240, 8_448, 2_143
    assert block * stride_bytes > 2**31
    layer = {
        "name": "layer.0", "storage": 0, "byte_offset": 0, "shape": [block + 1, page_bytes],
        "stride": [stride_bytes, 1], "itemsize": 1, "dtype": "uint8", "spec_kind": "mla_attention",
    }  # fmt: skip
    storage = {"id": 0, "nbytes": (block + 1) * stride_bytes}
    pool = CacheGeometry.from_dict(
        {"name": "far out", "num_blocks": block + 1, "storages": [storage], "layers": [layer]}, source="a large pool"
    )
    memory = torch.empty(storage["nbytes"], dtype=torch.uint8)
    page = memory[block * stride_bytes :][:page_bytes]
    page.fill_(0xA5)
    if planner == "kvzero":
        BlockZeroer(plan_segments(pool), {0: memory}).zero([block])
    else:
        PLANNERS[planner].write(PLANNERS[planner].plan(pool), {0: memory}, [block])
    assert int(torch.count_nonzero(page)) == 0


def test_a_grid_of_three_dimensions_is_held_to_each():
    """A page of one chunk too many: z stops at 65,535, however few the blocks are."""
    page_bytes = 65_535 * 4_096
    fits, refused = (
        masked_grid.plan(make_geometry(layers=1, num_blocks=2, tokens=1, heads=1, content=page_bytes + more))
        for more in (0, 4)
    )
    assert masked_grid.launch(fits, 2, CUDA).grid == (2, 1, 65_535)
    with pytest.raises(GridOverflowError, match="third dimension"):
        masked_grid.launch(refused, 2, CUDA)


@pytest.mark.gpu
def test_a_grid_beyond_31_bits_does_not_run():
    @kernel_on("cuda")
    def mark(flag):
        tl.store(flag, 1)

    flag = torch.zeros(1, dtype=torch.int32, device="cuda")
    mark[(2,)](flag)
    assert flag.item() == 1
    flag.zero_()
    with pytest.raises((OverflowError, RuntimeError)):
        mark[(2**31,)](flag)
    assert flag.item() == 0
