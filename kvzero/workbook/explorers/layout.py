"""Layout explorer: any dump or made-to-measure cache, any planner: the map, the segments, the verdict, the launch."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from kvzero.audit.audit import audit_plan
from kvzero.audit.result import Audit
from kvzero.errors import KvzeroError
from kvzero.history import PLANNERS, engine, planner
from kvzero.layout import geometries
from kvzero.layout.geometry import CacheGeometry
from kvzero.plan.planner import Plan, plan_segments
from kvzero.workbook.figures.map_data import MemoryMapData, memory_map_data
from kvzero.workbook.figures.map_text import map_text
from kvzero.workbook.figures.memory_map import draw_memory_map
from kvzero.workbook.figures.sheet import Figure, note_figure
from kvzero.workbook.knob import Knob, knob
from kvzero.workbook.tables import table_text
from kvzero.workbook.toy import ITEMSIZE, ORDERS, make_geometry
from kvzero.zero.tiles import Launch, launch_for

MADE = "made to measure"
PLANNER_NAMES = ("kvzero", *PLANNERS, engine.NAME)
SIZES = ("order", "layers", "num_blocks", "tokens", "heads", "content", "dtype", "pad_bytes", "kernel_blocks", "groups")
SEGMENT_ROWS = 8


@dataclass(frozen=True)
class Layout:
    """One planner on one cache.

    Args:
        geometry: the cache.
        planner: who plans.
        blocks: the blocks to zero.
        plan, audit, launch: its plan, the verdict on it, and its launch; None where it refuses.
        refusal: what it refuses with, else None.
        map: the memory map's data.
        sentence: what happens.
    """

    geometry: CacheGeometry
    planner: str
    blocks: tuple[int, ...]
    plan: Plan | None
    audit: Audit | None
    launch: Launch | None
    refusal: KvzeroError | None
    map: MemoryMapData
    sentence: str

    @property
    def segments_text(self) -> str:
        """The first segments and the launch, as a table."""
        if self.plan is None:
            return f"No plan: {self.refusal.rule}. {self.refusal}"
        rows = [
            [index, segment.storage, segment.base_bytes, segment.block_stride_bytes, segment.span_bytes]
            for index, segment in enumerate(self.plan.segments[:SEGMENT_ROWS])
        ]
        lines = [table_text(("segment", "storage", "base, bytes", "block stride, bytes", "span, bytes"), rows)]
        rest = len(self.plan.segments) - SEGMENT_ROWS
        if rest > 0:
            lines.append(f"… and {rest:,} more segments")
        lines.append(
            f"verdict: missed {self.audit.missed_bytes:,} B, stomped {self.audit.stomped_bytes:,} B, pad written "
            f"{self.audit.pad_bytes:,} B, overrun {self.audit.overrun_bytes:,} B; "
            f"issued {self.audit.written_bytes:,} B "
            f"for {self.audit.needed_bytes:,} B needed"
        )
        if self.launch is None:
            lines.append(f"launch: refused. {self.refusal}")
        else:
            blocks = self.launch.ids_per_program
            shared = f" in each of up to {blocks} blocks" if blocks > 1 else ""
            lines.append(
                f"launch: grid {self.launch.grid}, {self.launch.programs:,} programs of {self.launch.tile_bytes:,} B"
                f"{shared}, "
                f"{self.launch.empty_programs_per_block:,} of {self.launch.programs_per_block:,} a block empty, "
                f"stores of {self.launch.store_width_bytes} B"
            )
        return "\n".join(lines)

    @property
    def text(self) -> str:
        """The map and the tables as text."""
        return f"{map_text(self.map)}\n\n{self.segments_text}"


def layout_data(geometry: CacheGeometry, planner_name: str = "kvzero", blocks: tuple[int, ...] = (0,)) -> Layout:
    """Plan some blocks of a cache, judge the plan by arithmetic, and count its launch.

    Args:
        geometry: the cache.
        planner_name: "kvzero", a specimen's name, or "engine" for the segments that a dump states.
        blocks: the blocks to zero.

    Raises:
        HistoryError, AuditError: a name or a block that does not exist.

    Example:
        >>> layout_data(geometries.load("dsv4_c4_mla_only__BLHNC"), "uniform-page", (3,)).audit.stomped_bytes
        112128
    """
    module = None if planner_name == "kvzero" else planner(planner_name)
    plan = audit = launch = refusal = None
    try:
        plan = plan_segments(geometry) if module is None else module.plan(geometry)
    except KvzeroError as error:  # a planner that refuses is a result, not a failure
        refusal = error
    if plan is not None:
        audit = audit_plan(plan, geometry, blocks)
        try:
            launch = launch_for(plan, len(blocks)) if module is None else module.launch(plan, len(blocks))
        except KvzeroError as error:
            refusal = error
    data = memory_map_data(
        geometry, plan, audit, blocks, sentence=_refused(planner_name, refusal) if plan is None else None
    )
    return Layout(geometry, planner_name, tuple(blocks), plan, audit, launch, refusal, data, data.sentence)


def _refused(name: str, refusal: KvzeroError) -> str:
    return f"{name} refuses this cache ({refusal.rule}): {refusal}"


@lru_cache(maxsize=8)
def _load(name: str) -> CacheGeometry:
    return geometries.load(name)


def layout_geometry(state: dict[str, Any]) -> CacheGeometry:
    """The cache of a state: a dump by name, or one made from the sizes.

    Raises:
        ToyOptionError: sizes that do not go together.
    """
    if state["source"] != MADE:
        return _load(state["source"])
    return make_geometry(**{name: state[name] for name in SIZES})


def draw_layout(**state: Any) -> tuple[Figure, str, str]:
    """A state as (figure, sentence, text); sizes that do not go together are said in place of a picture."""
    try:
        geometry = layout_geometry(state)
        last = min(state["block"] + state["count"], geometry.num_blocks)
        layout = layout_data(geometry, state["planner"], tuple(range(min(state["block"], last - 1), last)))
    except KvzeroError as error:
        sentence = f"No such cache ({error.rule}): {error}"
        return note_figure(sentence), sentence, ""
    return draw_memory_map(layout.map), layout.sentence, layout.text


def show_layout(layout: Layout) -> None:
    """Display a layout's memory map with its sentence, map and tables as text."""
    from kvzero.workbook.figures.show import show

    show(draw_memory_map(layout.map), layout.sentence, layout.text)


_TOY = {
    "source": MADE, "order": "LBNHC", "layers": 4, "num_blocks": 4, "tokens": 4, "heads": 2, "content": 16,
    "dtype": "uint8", "pad_bytes": 0, "kernel_blocks": 1, "groups": 1, "planner": "kvzero", "block": 1, "count": 1,
}  # fmt: skip
PRESETS: dict[str, dict[str, Any]] = {
    "uniform pages, layers apart": _TOY,
    "packed: all layers in each block, padded": {**_TOY, "order": "BLNHC", "pad_bytes": 8},
    "packed, the old planner on the last block": {
        **_TOY, "order": "BLNHC", "pad_bytes": 8, "planner": "uniform-page", "block": 3,
    },
    "packed, the old planner on block 1": {**_TOY, "order": "BLNHC", "pad_bytes": 8, "planner": "uniform-page"},
    "K/V outermost: two spans per layer": {**_TOY, "order": "LKBNHC"},
    "heads outside the block": {**_TOY, "order": "LHBNC"},
    "heads outside the block, the hull planner": {**_TOY, "order": "LHBNC", "planner": "masked-grid"},
    "kernel blocks inside a block": {**_TOY, "kernel_blocks": 4},
    "two groups overlaid": {**_TOY, "groups": 2},
    "real: two page sizes (GLM-5.2), the old planner": {
        **_TOY, "source": "glm52_fp8_dsmla_indexer__LBNHC", "planner": "uniform-page",
    },
    "real: DeepSeek-V4 slab, the old planner": {
        **_TOY, "source": "dsv4_c4_mla_only__BLHNC", "planner": "uniform-page", "block": 3,
    },
    "real: DeepSeek-V4 slab, three groups": {**_TOY, "source": "dsv4_c4_full__BLHNC", "block": 3},
    "real: Llama 3, heads outside the block": {**_TOY, "source": "llama3_8b_bf16__LHBNC"},
}  # fmt: skip


def layout_knob() -> Knob:
    """A knob over any dump or made-to-measure cache, and any planner."""
    controls = {
        "source": [MADE, *geometries.names()], "order": {f"{name}: {about}": name for name, about in ORDERS.items()},
        "layers": range(1, 13), "num_blocks": range(1, 65), "tokens": range(1, 33), "heads": range(1, 9),
        "content": range(2, 129, 2), "dtype": list(ITEMSIZE), "pad_bytes": range(0, 65, 4),
        "kernel_blocks": range(1, 9), "groups": range(1, 4), "planner": list(PLANNER_NAMES), "block": range(64),
        "count": range(1, 5),
    }  # fmt: skip
    return knob(draw_layout, controls=controls, steps=PRESETS, boundary="packed, the old planner on the last block",
                title="Who owns each byte, and what does a planner write?")  # fmt: skip
