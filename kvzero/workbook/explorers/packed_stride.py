"""Boundary knob: how long may a segment's span be in a packed slab before it reaches what is not its own?"""

from __future__ import annotations

from dataclasses import dataclass, replace

import ipywidgets as widgets

from kvzero.audit.audit import audit_plan
from kvzero.errors import KvzeroError
from kvzero.layout.records import Segment
from kvzero.plan.planner import Plan
from kvzero.workbook.figures.charts import Limit
from kvzero.workbook.figures.sheet import Figure, Sheet
from kvzero.workbook.figures.style import (
    BODY_POINTS,
    HAIR,
    INK,
    PAPER,
    SIGNS,
    SOFT,
    WIDTH_INCHES,
    owner_sign,
    text_width,
    title_lines,
)
from kvzero.workbook.toy import make_geometry

from .base import Explorer, View, call_text

LEFT, RIGHT = 1.5, WIDTH_INCHES - 0.2


class SpanOutOfKnobError(KvzeroError):
    """A span is asked for that the knob does not turn to."""

    rule = "span-out-of-knob"
    template = "span_bytes = {span_bytes:,} is outside the knob: it turns from 1 to {stride_bytes:,}, the block stride."


@dataclass(frozen=True)
class PackedStride:
    """What one span does to one block of a packed slab.

    Args:
        page_bytes, pad_bytes, layers, num_blocks, block, span_bytes: the state; see `packed_stride_data`.
        stride_bytes: from one block to the next.
        missed_bytes, pad_written_bytes, stomped_bytes, overrun_bytes: the audit's counts, in distinct bytes.
        flips: spans at which the verdict changes: the page, and page and pad together.
        inequality: the rule with its numbers, and whether it holds.
        sentence: what happens.
    """

    page_bytes: int
    pad_bytes: int
    layers: int
    num_blocks: int
    block: int
    span_bytes: int
    stride_bytes: int
    missed_bytes: int
    pad_written_bytes: int
    stomped_bytes: int
    overrun_bytes: int
    flips: tuple[Limit, ...]
    inequality: str
    sentence: str

    @property
    def text(self) -> str:
        """The numbers as text."""
        return "\n".join(
            [
                self.sentence,
                self.inequality,
                f"page {self.page_bytes:,} B + pad {self.pad_bytes:,} B, {self.layers} layers: "
                f"block stride {self.stride_bytes:,} B",
                f"zeroing block {self.block} of {self.num_blocks} with span {self.span_bytes:,} B: "
                f"missed {self.missed_bytes:,} B, pad written {self.pad_written_bytes:,} B, "
                f"stomped {self.stomped_bytes:,} B, overrun {self.overrun_bytes:,} B",
                *(f"flips after {flip.value:,} B: {flip.name}" for flip in self.flips),
            ]
        )


def packed_stride_data(
    *, page_bytes: int, pad_bytes: int, layers: int, num_blocks: int, block: int, span_bytes: int
) -> PackedStride:
    """Zero one block of a packed slab with a given span, and judge it by arithmetic.

    Args:
        page_bytes: bytes of a layer in a block.
        pad_bytes: bytes after each page that belong to nobody.
        layers: layers side by side in a block.
        num_blocks: blocks in the slab.
        block: the block to zero.
        span_bytes: bytes that each segment clears, from the start of its page. Right is the page; the old
            planners took the block stride.

    Raises:
        SpanOutOfKnobError: a span of 0 or beyond the block stride.
        ToyOptionError, UnknownBlockError: the other numbers.

    Example:
        >>> last = packed_stride_data(page_bytes=37_376, pad_bytes=64, layers=4, num_blocks=100, block=99,
        ...                           span_bytes=149_760)
        >>> last.overrun_bytes, last.inequality
        (112320, 'span 149,760 ≤ page 37,376 + pad 64 = 37,440?  No: 112,320 bytes too many.')
    """
    geometry = make_geometry(
        layers=layers, num_blocks=num_blocks, tokens=1, heads=1, content=page_bytes, order="BLNHC",
        pad_bytes=pad_bytes, name="packed slab",
    )  # fmt: skip
    step = page_bytes + pad_bytes
    stride = layers * step
    if not 1 <= span_bytes <= stride:
        raise SpanOutOfKnobError(span_bytes=span_bytes, stride_bytes=stride)
    segments = tuple(Segment(0, view.byte_offset, stride, span_bytes) for view in geometry.layers)
    plan = Plan("the knob", geometry.name, num_blocks, geometry.storages, segments, layers * page_bytes)
    audit = audit_plan(plan, geometry, [block])
    over = span_bytes - step
    answer = f"Yes, with {-over:,} to spare." if over <= 0 else f"No: {_bytes(over)} too many."
    if span_bytes < page_bytes:
        answer = f"Yes, but {_bytes(page_bytes - span_bytes)} of each page stay dirty."
    inequality = f"span {span_bytes:,} ≤ page {page_bytes:,} + pad {pad_bytes:,} = {step:,}?  {answer}"
    return PackedStride(
        page_bytes, pad_bytes, layers, num_blocks, block, span_bytes, stride, audit.missed_bytes, audit.pad_bytes,
        audit.stomped_bytes, audit.overrun_bytes,
        (Limit("page: all that is needed", page_bytes), Limit("page + pad: the last harmless span", step)),
        inequality, _sentence(audit, span_bytes, page_bytes, block, num_blocks, over),
    )  # fmt: skip


def _bytes(count: int, kind: str = "") -> str:
    return f"{count:,} {kind}byte{'' if count == 1 else 's'}"


def _sentence(audit, span: int, page: int, block: int, num_blocks: int, over: int) -> str:
    if audit.overrun_bytes:
        return (
            f"Block {block} is the last one: {_bytes(audit.overrun_bytes)} of zeros land past the end of the "
            "slab, in memory of somebody else, and nobody is told."
        )
    if audit.stomped_bytes:
        where = f"block {block + 1}" if over > 0 else "the layer beside it"
        return f"Zeroing block {block} silently wipes {_bytes(audit.stomped_bytes, 'live ')} of {where}."
    if audit.missed_bytes:
        return f"The span is shorter than the page: {audit.missed_bytes:,} needed bytes of block {block} stay dirty."
    if audit.pad_bytes:
        return f"Only pad is hit: {audit.pad_bytes:,} bytes that belong to nobody. Wrong, and harmless by luck."
    return f"The span is the page: block {block} is cleared, and not one other byte."


def damage_bytes(state: PackedStride, span_bytes: int) -> int:
    """Bytes stomped or overrun at another span, in closed form."""
    step = state.page_bytes + state.pad_bytes
    over = max(0, span_bytes - step)
    if state.block == state.num_blocks - 1:
        return over
    pages, rest = divmod(over, step)
    return pages * state.page_bytes + min(rest, state.page_bytes)


def packed_stride_figure(state: PackedStride) -> Figure:
    """Draw the slab around the block, where each segment writes, and the damage over the span."""
    title = title_lines(state.sentence, WIDTH_INCHES - 0.3)
    shown = min(state.layers, 6)
    top = 0.45 + 0.19 * len(title)
    chart = top + 0.62 + 0.24 * shown + 0.62
    sheet = Sheet(chart + 1.58)
    sheet.title(title)
    _draw_slab(sheet, state, top, shown)
    good = "✓" if state.page_bytes <= state.span_bytes <= state.page_bytes + state.pad_bytes else "✗"
    sheet.text(0.15, chart - 0.35, f"{good}  {state.inequality}", BODY_POINTS + 0.5, bold=True)
    _draw_damage(sheet, state, chart)
    return sheet.finish()


def _draw_slab(sheet: Sheet, state: PackedStride, top: float, shown: int) -> None:
    step, stride = state.page_bytes + state.pad_bytes, state.stride_bytes
    scale = (RIGHT - LEFT) / (2 * stride)
    last = state.block == state.num_blocks - 1
    names = [f"block {state.block}", "past the end of the slab" if last else f"block {state.block + 1}"]
    for half, name in enumerate(names):
        left = LEFT + half * stride * scale
        sheet.text(left + 0.03, top - 0.09, name, bold=not half)
        if half and last:
            sheet.box(left, top, stride * scale, 0.3, SIGNS["redzone"], edge=PAPER)
            continue
        for layer in range(state.layers):
            x = left + layer * step * scale
            sheet.box(x, top, state.page_bytes * scale, 0.3, owner_sign(layer), edge=PAPER)
            if state.pad_bytes:
                sheet.box(
                    x + state.page_bytes * scale, top, max(state.pad_bytes * scale, 0.022), 0.3, SIGNS["idle_pad"]
                )
            if step * scale > 0.62:
                words = f"layer {layer}"
                sheet.box(
                    x + state.page_bytes * scale / 2 - 0.25,
                    top + 0.06,
                    0.5,
                    0.18,
                    replace(owner_sign(layer), hatch=""),
                    over=2,
                )
                sheet.text(x + state.page_bytes * scale / 2, top + 0.15, words, align="center")
    edge = LEFT + stride * scale
    sheet.stroke([(edge, top - 0.16), (edge, top + 0.36 + 0.24 * shown)], INK, 1.6, over=0)
    sheet.text(LEFT - 0.12, top + 0.15, "memory", colour=SOFT, align="right")
    for row in range(shown):
        layer = row if state.layers <= shown or row < shown - 1 else state.layers - 1
        y = top + 0.4 + 0.24 * row
        start, end = layer * step, layer * step + state.span_bytes
        sheet.text(LEFT - 0.12, y + 0.09, f"segment {layer} writes", align="right")
        for low, high, kind in _parts(state, start, end):
            harm = kind in ("stomped", "overrun")
            x, width = LEFT + low * scale, max((high - low) * scale, 0.06 if harm else 0.022)
            sheet.box(x, y, width, 0.18, SIGNS[kind], edge=PAPER, over=15 * harm)
            if width > 0.14:
                sheet.glyph(x + width / 2, y + 0.09, SIGNS[kind], 0.08, clear=0.14)
    y, x = top + 0.52 + 0.24 * shown, LEFT
    for kind in ("cleared", "pad", "stomped", "overrun"):
        word = SIGNS[kind].word.split(":")[0]
        sheet.box(x, y - 0.08, 0.22, 0.16, SIGNS[kind])
        sheet.glyph(x + 0.11, y, SIGNS[kind], 0.075, clear=0.13)
        sheet.text(x + 0.28, y, word)
        x += 0.45 + text_width(word)


def _parts(state: PackedStride, start: int, end: int):
    """Cut one write at pages and at the end of the block: (low, high, kind), counted from the block's start."""
    step, stride = state.page_bytes + state.pad_bytes, state.stride_bytes
    at = start
    while at < end:
        place, inside = divmod(at, step)
        page = inside < state.page_bytes
        stop = min(end, place * step + (state.page_bytes if page else step))
        beyond = at >= stride
        if beyond and state.block == state.num_blocks - 1:
            yield at, end, "overrun"
            return
        yield at, stop, ("stomped" if beyond else "cleared") if page else "pad"
        at = stop


def _draw_damage(sheet: Sheet, state: PackedStride, top: float) -> None:
    """Bytes stomped or overrun over the span, with the flips and where the knob stands."""
    stride, height = state.stride_bytes, 0.8
    most = max(damage_bytes(state, stride), 1)
    label = f"{most:,} B"
    top += 0.25

    def place(span: float, damage: float) -> tuple[float, float]:
        return LEFT + span / stride * (RIGHT - LEFT), top + height - damage / most * height

    for damage in (0, most):
        y = place(0, damage)[1]
        sheet.stroke([(LEFT, y), (RIGHT, y)], HAIR, 0.8, over=-15)
        sheet.text(LEFT - 0.08, y, label if damage else "0 B", colour=SOFT, align="right")
    sheet.text(LEFT - 0.08, top + height / 2, "harm done", colour=SOFT, align="right")
    step = state.page_bytes + state.pad_bytes
    corners = [0, step, stride]  # where the line bends: each next page, and each next pad
    corners += [n * step + extra for n in range(1, state.layers) for extra in (state.page_bytes, step)]
    spans = sorted({span for span in corners if span <= stride})
    sheet.stroke([place(span, damage_bytes(state, span)) for span in spans], SIGNS["stomped"].fill, 2.4, over=4)
    flip = state.page_bytes + state.pad_bytes
    x = place(flip, 0)[0]
    sheet.stroke([(x, top - 0.2), (x, top + height)], INK, 1.3, "--", over=5)
    words = f"flips here: page + pad = {flip:,}"
    fits = x + 0.1 + text_width(words) < RIGHT
    sheet.text(x + (0.06 if fits else -0.06), top - 0.16, words, align="left" if fits else "right")
    x, y = place(state.span_bytes, damage_bytes(state, state.span_bytes))
    sheet.stroke([(x, top - 0.04), (x, top + height)], INK, 1.0, over=6)
    sheet.stroke(
        [(x - 0.07, top + height + 0.1), (x, top + height + 0.01), (x + 0.07, top + height + 0.1)], INK, 2.2, over=6
    )
    sheet.text(
        min(max(x, LEFT + 0.6), RIGHT - 0.7),
        top + height + 0.22,
        f"span {state.span_bytes:,} B",
        align="center",
        bold=True,
    )
    sheet.text(RIGHT, top + height + 0.4, f"span, up to the block stride {stride:,} B", colour=SOFT, align="right")


SLAB = {"page_bytes": 37_376, "pad_bytes": 64, "layers": 4, "num_blocks": 100}
PRESETS = {
    "the old planner, block 98: span = block stride": {**SLAB, "block": 98, "span_bytes": 149_760},
    "the old planner, block 99, the last": {**SLAB, "block": 99, "span_bytes": 149_760},
    "the fix: span = page": {**SLAB, "block": 98, "span_bytes": 37_376},
    "just safe: span = page + pad": {**SLAB, "block": 98, "span_bytes": 37_440},
    "one byte more": {**SLAB, "block": 98, "span_bytes": 37_441},
    "one layer only: stride = span, the bug cannot show": {
        "page_bytes": 37_376, "pad_bytes": 0, "layers": 1, "num_blocks": 100, "block": 98, "span_bytes": 37_376,
    },
}  # fmt: skip


def packed_stride_knob() -> Explorer:
    """The knob as a widget; show `packed_stride_figure` before it, for pages without a kernel."""
    slider = widgets.IntSlider
    controls = {
        "page_bytes": slider(37_376, 64, 65_536, 64, description="page, bytes"),
        "pad_bytes": slider(64, 0, 4_096, 64, description="pad, bytes"),
        "layers": slider(4, 1, 8, description="layers"),
        "num_blocks": slider(100, 2, 200, description="blocks in the slab"),
        "block": slider(98, 0, 99, description="block to zero"),
        "span_bytes": slider(149_760, 1, 149_760, description="span, bytes"),
    }

    def adapt(found) -> None:
        stride = found["layers"].value * (found["page_bytes"].value + found["pad_bytes"].value)
        for name, most in (("block", found["num_blocks"].value - 1), ("span_bytes", stride)):
            found[name].value = min(found[name].value, most)
            found[name].max = most

    def draw(state) -> View:
        data = packed_stride_data(**state)
        return View(packed_stride_figure(data), data.sentence, data.text, call_text("packed_stride_data", state))

    return Explorer("How long may a span be?", controls, draw, PRESETS, adapt)
