"""Draw an audit as text: a row for each block, a column for each range of bytes, and a legend."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from kvzero.layout.geometry import CacheGeometry
from kvzero.layout.intervals import as_ranges, total, union
from kvzero.layout.ownership import needed_ranges
from kvzero.layout.records import Name

# Worst first: a cell shows the first of these that any of its bytes is.
GLYPHS = {
    "overrun": (">", "written outside the storage"),
    "stomped": ("X", "stomped: live, wiped"),
    "missed": ("!", "missed: needed, left dirty"),
    "pad": ("~", "pad, written"),
    "cleared": ("#", "needed, cleared"),
    "live": (".", "live, intact"),
    "intact pad": ("_", "pad, intact"),
}
MAX_LAYER_LINES = 6


@dataclass(frozen=True)
class Track:
    """A part of a storage in which blocks follow each other: block b is [start, start + width) + b * stride."""

    storage: Name
    start_bytes: int
    width_bytes: int
    stride_bytes: int


def tracks(geometry: CacheGeometry) -> list[Track]:
    """Find where blocks lie: one track per storage for a slab, one per layer or head if these lie apart.

    Example:
        >>> from kvzero.history import named
        >>> tracks(named.geometry("packed-slab-51288"))
        [Track(storage='slab', start_bytes=0, width_bytes=149760, stride_bytes=149760)]
    """
    found: list[Track] = []
    for storage in geometry.storages:
        here = [view for view in geometry.layers if view.storage == storage.id]
        if not here:
            continue  # no block keeps a byte there
        if geometry.num_blocks == 1:
            found.append(Track(storage.id, 0, storage.nbytes, storage.nbytes))
            continue
        for stride in sorted({view.block_stride_bytes for view in here}):
            same = [view for view in here if view.block_stride_bytes == stride]
            start = None
            for low, high in needed_ranges(same, [0])[storage.id].tolist():
                if start is not None and high <= start + stride:
                    continue
                start = low
                found.append(Track(storage.id, start, max(stride, high - low), stride))
    return found


def draw(audit, *, columns: int = 48, max_rows: int = 12) -> str:
    """Draw an audit; `Audit.text_map` describes the arguments."""
    grid = _Grid(audit.geometry, columns)
    rows = _rows(audit, grid, max_rows)
    lines = [
        audit.sentence(),
        f"One row is a block, {grid.row_bytes:,} bytes in {len(grid.tracks):,} "
        f"range{'s' * (len(grid.tracks) > 1)}; one cell is about {grid.cell_bytes:,} bytes.",
    ]
    first = audit.first
    shown = None
    for block in rows:
        if shown is not None and block > shown + 1:
            lines.append(f"{'…':>8} {block - shown - 1:,} more")
        shown = block
        mark = grid.cell_of(first["storage"], first["byte_offset"], block) if first else None
        label = f"{'*' if block in audit.blocks else ''}{block}"
        lines.append(f"{label:>8} {_cells(grid.glyphs(audit, block), mark)}")
    lines += _outside(audit, grid)
    lines.append("A cell shows the worst of its bytes. [ ]: the first offender. *: a block that was to be zeroed.")
    legend = [f"{glyph} {meaning}" for glyph, meaning in GLYPHS.values()]
    lines += ["   ".join(legend[:4]), "   ".join(legend[4:])]
    damaged = [(name, counts) for name, counts in audit.by_layer.items() if any(counts.values())]
    for name, counts in damaged[:MAX_LAYER_LINES]:
        stomped, missed = counts["stomped_bytes"], counts["missed_bytes"]
        lines.append(f"  {name}: {stomped:,} bytes stomped, {missed:,} missed")
    if len(damaged) > MAX_LAYER_LINES:
        lines.append(f"  and {len(damaged) - MAX_LAYER_LINES} more layers")
    return "\n".join(line.rstrip() for line in lines)


class _Grid:
    """The cells of a row: which byte ranges of a block each cell shows."""

    def __init__(self, geometry: CacheGeometry, columns: int) -> None:
        self.tracks = tracks(geometry)
        width, start, stride = (
            np.array([getattr(track, f"{name}_bytes") for track in self.tracks], np.int64)
            for name in ("width", "start", "stride")
        )
        self.row_bytes = int(width.sum())
        self.columns = max(1, min(columns, self.row_bytes))
        self.cell_bytes = -(-self.row_bytes // self.columns)
        cell_edges = np.arange(self.columns + 1) * self.row_bytes // self.columns
        track_edges = np.concatenate(([0], np.cumsum(width)))
        # Cut the row at every cell edge and every track edge: each piece lies in one cell and one track.
        cuts = np.unique(np.concatenate((cell_edges, track_edges)))
        track = np.searchsorted(track_edges, cuts[:-1], side="right") - 1
        shift = (start - track_edges[:-1])[track]
        self.cell = np.searchsorted(cell_edges, cuts[:-1], side="right") - 1
        self.low, self.high, self.stride = cuts[:-1] + shift, cuts[1:] + shift, stride[track]
        self.pieces_of = {
            storage.id: np.flatnonzero([self.tracks[index].storage == storage.id for index in track])
            for storage in geometry.storages
        }
        self.live = self._met(needed_ranges(geometry.layers, [0]), 0)

    def glyphs(self, audit, block: int) -> list[str]:
        """One glyph per cell of a block's row."""
        worst = np.full(self.columns, len(GLYPHS) - 1)
        for rank, kind in reversed(list(enumerate(GLYPHS))[:-1]):
            hit = self.live if kind == "live" else self._met(audit.ranges[kind], block)
            worst[self.cell[hit]] = rank
        return [list(GLYPHS.values())[rank][0] for rank in worst]

    def cell_of(self, storage: Name, byte_offset: int, block: int) -> int | None:
        """The cell of a block's row that holds a byte, or None."""
        low, high = self.low + block * self.stride, self.high + block * self.stride
        here = self.pieces_of[storage]
        inside = here[(low[here] <= byte_offset) & (byte_offset < high[here])]
        return int(self.cell[inside[0]]) if len(inside) else None

    def blocks_of(self, storage: Name, ranges: np.ndarray, limit: int, num_blocks: int) -> list[int]:
        """At most `limit` blocks whose rows hold bytes of the ranges."""
        blocks: dict[int, None] = {}
        some = ranges[:limit].tolist()
        for track in self.tracks if some else ():
            if len(blocks) >= min(limit, num_blocks):
                break
            if track.storage != storage:
                continue
            for low, high in some:
                first = max((low - track.start_bytes) // track.stride_bytes, 0)
                last = min((high - 1 - track.start_bytes) // track.stride_bytes, num_blocks - 1)
                blocks.update(dict.fromkeys(range(first, min(last, first + limit) + 1)))
        return list(blocks)[:limit]

    def _met(self, ranges_of: dict[Name, np.ndarray], block: int) -> np.ndarray:
        """Mask the pieces of a block's row that hold a byte of the ranges."""
        low, high = self.low + block * self.stride, self.high + block * self.stride
        met = np.zeros(len(low), bool)
        for storage, ranges in ranges_of.items():
            if len(ranges):
                here = self.pieces_of[storage]
                met[here] = _below(ranges, high[here]) > _below(ranges, low[here])
        return met


def _below(ranges: np.ndarray, points: np.ndarray) -> np.ndarray:
    """Count the bytes of sorted, disjoint ranges below each point."""
    sums = np.concatenate(([0], np.cumsum(ranges[:, 1] - ranges[:, 0])))
    at = np.searchsorted(ranges[:, 0], points, side="right")
    started = np.maximum(at - 1, 0)
    inside = np.clip(points, ranges[started, 0], ranges[started, 1]) - ranges[started, 0]
    return np.where(at == 0, 0, sums[started] + inside)


def _rows(audit, grid: _Grid, max_rows: int) -> list[int]:
    """Choose the blocks to show: that of the first damaged byte, audited ones, damaged ones, and neighbours."""
    num_blocks = audit.geometry.num_blocks
    wanted: dict[int, None] = {}
    if audit.first:
        byte_offset = audit.first["byte_offset"]
        byte = as_ranges([(byte_offset, byte_offset + 1)])
        if audit.first["block"] is not None:
            wanted[audit.first["block"]] = None
        wanted.update(dict.fromkeys(grid.blocks_of(audit.first["storage"], byte, 1, num_blocks)))
    wanted.update(dict.fromkeys(audit.blocks[: max_rows // 2]))
    for kind in ("stomped", "missed", "pad"):
        for storage, ranges in audit.ranges[kind].items():
            wanted.update(dict.fromkeys(grid.blocks_of(storage, ranges, max_rows, num_blocks)))
    for block in audit.blocks[:max_rows]:
        near = (block - 1, block, block + 1)
        wanted.update(dict.fromkeys(other for other in near if 0 <= other < num_blocks))
    return sorted(list(wanted)[:max_rows])


def _cells(glyphs: list[str], mark: int | None) -> str:
    """Join glyphs with spaces, with brackets around the marked one."""
    gaps = [" "] * (len(glyphs) + 1)
    if mark is not None:
        gaps[mark : mark + 2] = "[", "]"
    return "".join(gap + glyph for gap, glyph in zip(gaps, glyphs, strict=False)) + gaps[-1]


def _outside(audit, grid: _Grid) -> list[str]:
    """Describe what no row shows: writes before and past a storage, and in pad between the tracks."""
    lines = []
    glyph = GLYPHS["overrun"][0]
    first = audit.first or {}
    for storage, ranges in audit.ranges["overrun"].items():
        for where, part in (("before", np.minimum(ranges, 0)), ("past", np.maximum(ranges, 0))):
            part = union(part)
            if len(part) == 0:
                continue
            marked = (first.get("kind"), first.get("storage"), first.get("byte_offset")) == (
                "overrun", storage, int(part[0, 0]),
            )  # fmt: skip
            count = int(min(-(-total(part) // grid.cell_bytes), grid.columns))
            edge = "start" if where == "before" else "end"
            text = _cells([glyph] * count, 0 if marked else None).rstrip()
            lines.append(f"{edge:>8} {text}  {total(part):,} bytes {where} the {edge} of storage {storage}")
    num_blocks = audit.geometry.num_blocks
    for storage, ranges in audit.ranges["pad"].items():
        if len(ranges) == 0:
            continue
        ends = [
            (track.start_bytes, track.start_bytes + (num_blocks - 1) * track.stride_bytes + track.width_bytes)
            for track in grid.tracks
            if track.storage == storage
        ]
        apart = _outside_of(ranges, ends)
        if apart:
            lines.append(f"{'apart':>8}  {apart:,} bytes of pad written between the rows of storage {storage}")
    return lines


def _outside_of(ranges: np.ndarray, rows: list[tuple[int, int]]) -> int:
    covered = union(as_ranges(rows))
    return total(ranges) - int((_below(ranges, covered[:, 1]) - _below(ranges, covered[:, 0])).sum())
