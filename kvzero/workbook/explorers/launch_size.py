"""Boundary knob: how many programs does each era's launch ask for, and where does a device refuse?"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from kvzero.errors import GridOverflowError
from kvzero.history import masked_grid, page_per_segment, stride_and_span
from kvzero.layout.geometry import CacheGeometry
from kvzero.plan.planner import Plan, plan_segments
from kvzero.workbook.figures.charts import Limit, bars
from kvzero.workbook.figures.sheet import Figure
from kvzero.workbook.knob import Knob, knob
from kvzero.workbook.tables import table_text
from kvzero.workbook.toy import make_geometry
from kvzero.zero.tiles import AMD, CUDA, DeviceLimits, launch_for

DEVICES = {"CUDA": CUDA, "AMD": AMD}


@dataclass(frozen=True)
class Choice:
    """One era's launch.

    Args:
        name: who plans it.
        programs_per_block, programs: what it asks for in one launch.
        empty_percent: of its programs, those with nothing to write.
        launches: that it is split into; the old ones never split.
        programs_per_launch: programs of the largest of them.
        first_refused_blocks: the smallest number of blocks that the device refuses, 1 if every call is; None if it
            splits instead.
        refused: whether this call is refused.
        too_many: where every call is refused, the dimension of the grid that is too long and by how much.
    """

    name: str
    programs_per_block: int
    programs: int
    empty_percent: float
    launches: int
    programs_per_launch: int
    first_refused_blocks: int | None
    refused: bool
    too_many: str = ""

    @property
    def refused_from(self) -> str:
        """The smallest refused call in words."""
        if self.first_refused_blocks is None:
            return "never: it splits"
        return "every call" if self.first_refused_blocks == 1 else f"from {self.first_refused_blocks:,} blocks"


@dataclass(frozen=True)
class LaunchSize:
    """What each era's launch asks of a device.

    Args:
        long_segments, long_words, short_segments, short_words, blocks, device: the state; see `launch_size_data`.
        limit_programs: most programs in one launch on the device.
        choices: the eras, oldest first, kvzero last.
        inequality: the oldest era's numbers against the limit.
        sentence: what happens.
    """

    long_segments: int
    long_words: int
    short_segments: int
    short_words: int
    blocks: int
    device: str
    limit_programs: int
    choices: tuple[Choice, ...]
    inequality: str
    sentence: str

    @property
    def rows(self) -> list[list[object]]:
        """The choices as rows of a table."""
        return [
            [
                choice.name, choice.programs_per_block, choice.programs, f"{choice.empty_percent:.0f} %",
                choice.launches, choice.refused_from, "✗ refused" if choice.refused else "✓ fits",
            ]
            for choice in self.choices
        ]  # fmt: skip

    @property
    def text(self) -> str:
        """The numbers as text."""
        return "\n".join([self.sentence, self.inequality, table_text(HEADER, self.rows)])


HEADER = ("launch", "programs per block", "programs", "empty", "launches", "refused", "this call")


def launch_size_data(
    *,
    long_segments: int,
    long_words: int,
    short_segments: int = 0,
    short_words: int = 1,
    blocks: int,
    device: str = "CUDA",
) -> LaunchSize:
    """Count the programs of each era's launch for a cache with pages of two sizes.

    Args:
        long_segments, long_words: layers with the longer page, and its length in words of 4 bytes.
        short_segments, short_words: layers with the shorter page, and its length in words.
        blocks: blocks zeroed in one call.
        device: "CUDA" (grid x below 2^31) or "AMD" (work items of a launch below 2^32); y and z at most 65,535.

    Raises:
        ToyOptionError: a size below 1.
        KeyError: another device.

    Example: DeepSeek-V4's cache in #52058.
        >>> sizes = {"long_segments": 91, "long_words": 9_344, "short_segments": 90, "short_words": 292}
        >>> data = launch_size_data(**sizes, blocks=6_870)
        >>> [choice.programs for choice in data.choices][:2]
        [2904745920, 12434700]
    """
    limits = DEVICES[device]
    geometry = two_page_geometry(long_segments, long_words, short_segments, short_words, blocks)
    plan = plan_segments(geometry)
    old, masked = stride_and_span.plan(geometry), masked_grid.plan(geometry)
    smallest = _choice("flat grid (#49704)", page_per_segment, old, blocks, limits, None)
    grid = _choice("masked grid (#52058)", masked_grid, masked, blocks, limits, _ids_limit(limits))
    ours = launch_for(plan, blocks, limits)
    kvzero = Choice(
        "kvzero, a table of tiles", ours.programs_per_block, ours.programs,
        100 * ours.empty_programs_per_block / ours.programs_per_block, ours.launches, prod(ours.grid),
        None, False,
    )  # fmt: skip
    over = smallest.programs - limits.max_programs
    answer = f"No: {over:,} too many." if over > 0 else f"Yes, {-over:,} to spare."
    inequality = (
        f"{'✗' if over > 0 else '✓'} {blocks:,} blocks × {smallest.programs_per_block:,} programs = "
        f"{smallest.programs:,} ≤ "
        f"{limits.max_programs:,}?  {answer}"
    )
    return LaunchSize(
        long_segments, long_words, short_segments, short_words, blocks, device, limits.max_programs,
        (smallest, grid, kvzero), inequality, _sentence(smallest, grid, kvzero, device, blocks),
    )  # fmt: skip


def two_page_geometry(long_segments, long_words, short_segments, short_words, blocks) -> CacheGeometry:
    """A cache with layers apart and pages of two lengths, in words; planning it costs no memory."""
    widths = [4 * long_words] * long_segments + [4 * short_words] * short_segments
    return make_geometry(
        layers=len(widths), num_blocks=blocks, tokens=1, heads=1, content=widths, order="LBNHC", name="two page sizes"
    )


def _ids_limit(limits: DeviceLimits) -> int | None:
    # On CUDA only the ids are in grid x; the other dimensions have limits of their own.
    return None if limits.max_work_items is not None else limits.max_grid_x


def _choice(name: str, module, plan: Plan, blocks: int, limits: DeviceLimits, ids_limit: int | None) -> Choice:
    launch = module.launch(plan, blocks, limits=None)
    per_block = launch.programs_per_block
    first, too_many = (limits.max_programs // per_block if ids_limit is None else ids_limit) + 1, ""
    try:
        module.launch(plan, 1, limits)
    except GridOverflowError as error:
        first = 1
        too_many = f"{error.axis_programs:,} programs in its {error.axis}, at most {error.limit_programs:,}"
    empty = 100 * launch.empty_programs_per_block / per_block
    return Choice(name, per_block, launch.programs, empty, 1, launch.programs, first, blocks >= first, too_many)


def _sentence(smallest: Choice, grid: Choice, kvzero: Choice, device: str, blocks: int) -> str:
    flat, masked = (
        "at every call" if choice.first_refused_blocks == 1 else f"from {choice.first_refused_blocks:,} blocks on"
        for choice in (smallest, grid)
    )
    if smallest.refused and grid.refused:
        split = f"Split into {kvzero.launches}, the" if kvzero.launches > 1 else "The"
        return (
            f"At {blocks:,} blocks {device} refuses both old launches: the flat grid {flat}, the "
            f"masked grid {masked}. {split} tile table runs."
        )
    if smallest.refused:
        times = smallest.programs / max(grid.programs, 1)
        return (
            f"{device} refuses the flat grid {flat}; at {blocks:,} the masked grid "
            f"needs {times:,.1f} times fewer programs and fits."
        )
    if grid.refused:
        why = grid.too_many or masked
        return f"{device} refuses the masked grid ({why}); the flat grid is refused {flat}."
    return f"At {blocks:,} blocks every launch fits on {device}; the flat grid is refused {flat}."


def launch_size_figure(data: LaunchSize) -> Figure:
    """Draw the programs of each era's launch against the device's limit, on a logarithmic scale."""
    limit = Limit(f"{data.device}: most programs in a launch", data.limit_programs)
    title = f"{data.sentence}\n{data.inequality}"
    # The limit that is drawn is one of programs; a dimension that is too long does not show in a bar. A call that is
    # split is drawn by its largest launch, since the limit is one of a launch.
    values = []
    for choice in data.choices:
        split = f", in {choice.launches:,} launches" if choice.launches > 1 else ""
        name = f"✗ {choice.name}" if choice.too_many else f"{choice.name}{split}"
        values.append((name, choice.programs_per_launch))
    return bars(
        values,
        title,
        unit="programs",
        limits=[limit],
        log=True,
    )


DEEPSEEK = {"long_segments": 91, "long_words": 9_344, "short_segments": 90, "short_words": 292}
PRESETS = {
    "DeepSeek-V4, #52058: 181 segments, 6,870 blocks": {**DEEPSEEK, "blocks": 6_870, "device": "CUDA"},
    "the same, the last number of blocks that CUDA takes": {**DEEPSEEK, "blocks": 5_079, "device": "CUDA"},
    "one block more": {**DEEPSEEK, "blocks": 5_080, "device": "CUDA"},
    "the same on AMD": {**DEEPSEEK, "blocks": 6_870, "device": "AMD"},
    "uniform pages of 8,192 words, 32 layers": {
        "long_segments": 32, "long_words": 8_192, "short_segments": 0, "short_words": 4, "blocks": 6_870,
        "device": "CUDA",
    },
}  # fmt: skip


def draw_launch_size(**state) -> tuple[Figure, str, str]:
    """The launches as (figure, sentence, text); see `launch_size_data`."""
    data = launch_size_data(**state)
    return launch_size_figure(data), f"{data.sentence} {data.inequality}", data.text


def launch_size_knob() -> Knob:
    """A knob over the sizes of a launch."""
    controls = {
        "long_segments": range(1, 201), "long_words": range(4, 20_001, 4), "short_segments": range(201),
        "short_words": range(4, 20_001, 4), "blocks": range(1, 20_001), "device": list(DEVICES),
    }  # fmt: skip
    return knob(draw_launch_size, controls=controls, steps=PRESETS, title="Does the launch fit the device?",
                boundary="one block more")  # fmt: skip
