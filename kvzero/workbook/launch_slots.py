"""What the notebook about the launch that overflowed looks at: the programs of one block, and programs really run."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
import triton.language as tl

from kvzero.history import PLANNERS
from kvzero.layout.geometry import CacheGeometry
from kvzero.plan.planner import Plan, plan_segments
from kvzero.zero.kernel import NO_FLOATS, jit_both
from kvzero.zero.tiles import SEGMENT, Launch, step_for, tile_rows
from kvzero.zero.zeroer import BlockZeroer

from .figures.sheet import Figure, Sheet
from .figures.style import BLUE, SOFT, Sign, text_width, title_lines
from .tables import table_text

# The function that each kernel is, as `programs_run` counts its calls.
KERNELS = {"stride-and-span": "_zero_spans", "masked-grid": "_zero_masked", "kvzero": "_zero_tiles"}
LABEL_INCHES, BAR_INCHES, PANEL_INCHES = 1.95, 4.2, 0.8
WORK = Sign("has work", "", BLUE)
EMPTY = Sign("starts, finds nothing to do", "", "#ffe3d1", "xxxx", "#d98a57")


@dataclass(frozen=True)
class SlotRow:
    """The segments of one length, and the programs that a launch gives to each of them in one block.

    Args:
        segments: how many segments have this length.
        words: their length in words of 4 bytes.
        filled: programs that have something to write.
        slots: programs that are started.
    """

    segments: int
    words: int
    filled: int
    slots: int


def slot_rows(plan: Plan, launch: Launch) -> list[SlotRow]:
    """How a launch spreads over the segments of one block, longest first.

    Args:
        plan: a specimen's plan, whose launch gives every segment as many programs as the longest; or a proven
            one, whose launch gives each its own tiles.
        launch: the launch of that plan.

    Example:
        >>> from kvzero.history import masked_grid, named
        >>> plan = masked_grid.plan(named.geometry("launch-overflow-52058"))
        >>> slot_rows(plan, masked_grid.launch(plan))[1]
        SlotRow(segments=90, words=292, filled=1, slots=10)
    """
    spans = np.array([segment.span_bytes for segment in plan.segments])
    if plan.proven:
        filled = np.bincount(tile_rows(plan, step_for(plan, launch.tile_bytes))[:, SEGMENT])
        slots = filled
    else:
        filled = -(-spans // launch.tile_bytes)
        slots = np.full(len(spans), launch.programs_per_block // len(spans))
    kinds = sorted({(int(span), int(f), int(s)) for span, f, s in zip(spans, filled, slots, strict=True)}, reverse=True)
    return [SlotRow(int((spans == span).sum()), span // 4, f, s) for span, f, s in kinds]


def slots_text(launches: Sequence[tuple[str, Sequence[SlotRow]]]) -> str:
    """The numbers of `slots_figure` as a table."""
    rows = [
        [name, row.segments, row.words, row.slots, row.filled, row.segments * (row.slots - row.filled)]
        for name, its_rows in launches
        for row in its_rows
    ]
    return table_text(
        ["launch", "segments", "words in each", "programs for each", "with work", "empty, all segments"], rows
    )


def slots_figure(launches: Sequence[tuple[str, Sequence[SlotRow]]], sentence: str) -> Figure:
    """Draw the programs of one block: a panel a launch, as high as its segments and as wide as their programs.

    Args:
        launches: (name, rows of `slot_rows`); every panel has its own scale of width, from none to the most programs
            that a segment gets, so what is seen is the share with work.
        sentence: what to see, on top.
    """
    title = title_lines(sentence, 8.7)
    top = 0.35 + 0.19 * len(title)
    sheet = Sheet(top + len(launches) * (PANEL_INCHES + 0.45) + 0.25)
    sheet.title(title)
    for index, (name, rows) in enumerate(launches):
        y = top + index * (PANEL_INCHES + 0.45)
        programs = sum(row.segments * row.slots for row in rows)
        sheet.text(0.15, y, f"{name}: {programs:,} programs for one block", bold=True)
        y += 0.14
        most, segments = max(row.slots for row in rows), sum(row.segments for row in rows)
        for row in rows:
            height = PANEL_INCHES * row.segments / segments
            sheet.text(LABEL_INCHES - 0.1, y + height / 2, f"{row.segments} pages, {row.words:,} words", align="right")
            width, work = BAR_INCHES * row.slots / most, BAR_INCHES * row.filled / most
            if width > work:
                sheet.box(LABEL_INCHES + work, y, width - work, height, EMPTY, "#b8b8b8")
            sheet.box(LABEL_INCHES, y, work, height, WORK, "#ffffff")
            told = f"{row.filled:,} of {row.slots:,} programs have work"
            sheet.text(LABEL_INCHES + BAR_INCHES + 0.1, y + height / 2, told)
            y += height
    y = sheet.height_inches - 0.2
    x = LABEL_INCHES
    for sign in (WORK, EMPTY):
        sheet.box(x, y - 0.08, 0.24, 0.16, sign, "#b8b8b8")
        sheet.text(x + 0.3, y, sign.word, colour=SOFT)
        x += 0.6 + text_width(sign.word)
    sheet.text(x, y, "width: programs of one page", colour=SOFT)
    return sheet.finish()


def programs_run(kernel: str, call: Callable[[], object]) -> int:
    """Count the programs that Triton's interpreter runs during a call, by Python's own profiling hook.

    A program is one call of the kernel's Python function; nothing in the kernel or in Triton is changed.

    Args:
        kernel: the name of the kernel's function, such as "_zero_masked".
        call: launches it on CPU tensors.

    Example:
        >>> def kernel(): pass
        >>> programs_run("kernel", lambda: [kernel() for _ in range(3)])
        3
    """
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


def _mark(flag_ptr):
    # Only the first program writes: whether the grid was launched is all that is asked.
    if (tl.program_id(0) == 0) & (tl.program_id(1) == 0) & (tl.program_id(2) == 0):
        tl.store(flag_ptr, 1)


_mark_compiled, _ = jit_both(_mark)


def launch_outcome(grid: tuple[int, ...], device: str) -> str:
    """What becomes of a launch of programs that do nothing: "ran", "silently did not run", or the error's type.

    Args:
        grid: the grid, of one to three dimensions; two thousand million programs take a GPU a second or two.
        device: a CUDA device.
    """
    flag = torch.zeros(1, dtype=torch.int32, device=device)
    try:
        _mark_compiled[grid](flag, **NO_FLOATS)
        torch.cuda.synchronize(device)
    except (OverflowError, RuntimeError, ValueError) as error:
        return type(error).__name__
    return "ran" if flag.item() else "silently did not run"


def dirty_after(geometry: CacheGeometry, device: str, zero: Callable[[dict], object]) -> int:
    """Allocate a pool, fill every byte, let `zero(storages)` clear it, and count the bytes that are not zero."""
    storages = {
        each.id: torch.full((each.nbytes,), 0xA5, dtype=torch.uint8, device=device) for each in geometry.storages
    }
    zero(storages)
    return sum(int(torch.count_nonzero(storage)) for storage in storages.values())


def dirty_far_out(planner_name: str, *, stride_bytes: int, page_bytes: int, block: int, device: str) -> int:
    """Zero one block of a pool so large that its offset needs more than 32 bits; count what is left dirty in its page.

    On a CPU the pool is promised by the operating system and never touched but for that page.

    Args:
        planner_name: "kvzero" or a specimen.
        stride_bytes, page_bytes: distance between blocks, and what the one layer keeps in each.
        block: the block, which is also the pool's last.
        device: where the pool is.
    """
    layer = {
        "name": "layer.0", "storage": 0, "byte_offset": 0, "shape": [block + 1, page_bytes],
        "stride": [stride_bytes, 1], "itemsize": 1, "dtype": "uint8", "spec_kind": "mla_attention",
    }  # fmt: skip
    sizes = {"id": 0, "nbytes": (block + 1) * stride_bytes}
    pool = CacheGeometry.from_dict(
        {"name": "far out", "num_blocks": block + 1, "storages": [sizes], "layers": [layer]}, source="a large pool"
    )
    memory = torch.empty(sizes["nbytes"], dtype=torch.uint8, device=device)
    page = memory[block * stride_bytes :][:page_bytes]
    page.fill_(0xA5)
    if planner_name == "kvzero":
        BlockZeroer(plan_segments(pool), {0: memory}).zero([block])
    else:
        PLANNERS[planner_name].write(PLANNERS[planner_name].plan(pool), {0: memory}, [block])
    return int(torch.count_nonzero(page))
