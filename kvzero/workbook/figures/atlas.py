"""A geometry as an atlas: which layer owns which column of which row, and what a write did to it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import gcd

import numpy as np

from kvzero.layout.geometry import CacheGeometry
from kvzero.layout.intervals import as_ranges, intersect, subtract, union
from kvzero.layout.records import Name

from .bands import Run, bands_of, page_runs, to_cells

STATES = ("planned", "cleared", "pad", "missed", "stomped", "overrun")  # the worst last
MAX_PIECES = 12
FOLD_ROWS, FOLD_COLUMNS = 100, 720
BYTE_LINES, UNITS_PER_LINE, LEAST_UNITS = 4, 64, 12


@dataclass(frozen=True, slots=True)
class Cell:
    """A stretch of one row in which all bytes are alike.

    Args:
        row: the block, or a number below 0 or from `num_blocks` on for what lies before and after the pool.
        start_bytes, end_bytes: columns of the whole map, half open.
        storage, offset_bytes: where the first byte lies.
        layers: indices of the layers that own it; none for pad and outside.
        part: where in the page it lies ("head 3", "K"), if the page is not one stretch.
        kind: a key of `style.SIGNS`.
    """

    row: int
    start_bytes: int
    end_bytes: int
    storage: Name
    offset_bytes: int
    layers: tuple[int, ...]
    part: str
    kind: str


@dataclass(frozen=True, slots=True)
class Fold:
    """The whole pool folded into a grid: `kinds[i, j]` is the worst of `STATES` (1 based; 0: none) in that part.

    Args:
        kinds: uint8 array (folded rows, folded columns).
        owners: int16 array (folded columns): index of the layer that owns most of it, -1 for pad.
        rows_per_cell: blocks folded into one row of the grid.
    """

    kinds: np.ndarray
    owners: np.ndarray
    rows_per_cell: int


class Atlas:
    """One geometry's bands and page stretches, and the questions that a map asks of them."""

    def __init__(self, geometry: CacheGeometry):
        self.geometry = geometry
        labels = short_names([view.name for view in geometry.layers])
        groups = [view.group for view in geometry.layers]
        several = len(set(groups)) > 1
        self.labels = tuple(
            f"{label} g{group}" if several else label for label, group in zip(labels, groups, strict=True)
        )
        runs = [run for index, view in enumerate(geometry.layers) for run in page_runs(view, index)]
        self.bands = bands_of(geometry, runs)
        self.row_bytes = sum(band.stride_bytes for band in self.bands)
        self.homes: list[list[Run]] = [[] for _ in self.bands]
        self.strays: list[list[Run]] = [[] for _ in self.bands]
        starts = {storage.id: [] for storage in geometry.storages}
        for index, band in enumerate(self.bands):
            starts[band.storage].append((band.start_bytes, index))
        for run in runs:
            places = starts[geometry.layers[run.layer].storage]
            at = np.searchsorted([start for start, _ in places], run.base_bytes, side="right") - 1
            index = places[max(at, 0)][1]
            band = self.bands[index]
            column = run.base_bytes - band.start_bytes
            fits = column + run.span_bytes <= band.stride_bytes
            regular = run.stride_bytes == band.stride_bytes or geometry.num_blocks == 1
            if fits and regular:
                self.homes[index].append(run)
            else:
                for _, other in places:
                    self.strays[other].append(run)
        self._templates: dict[int, list[tuple[int, int, tuple[int, ...], str]]] = {}

    def territory(self, index: int) -> tuple[int, int]:
        """The storage offsets that a band's rows hold, what lies outside the storage included."""
        band = self.bands[index]
        first = index == 0 or self.bands[index - 1].storage != band.storage
        last = index + 1 == len(self.bands) or self.bands[index + 1].storage != band.storage
        low = -(2**62) if first else band.start_bytes
        return low, (2**62 if last else self.bands[index + 1].start_bytes)

    def band_at(self, storage: Name, byte: int) -> int:
        """The band that holds a byte."""
        for index, band in enumerate(self.bands):
            low, high = self.territory(index)
            if band.storage == storage and low <= byte < high:
                return index
        raise KeyError(storage)

    def row_of(self, storage: Name, byte: int) -> int:
        """The row that holds a byte."""
        band = self.bands[self.band_at(storage, byte)]
        return (byte - band.start_bytes) // band.stride_bytes

    def column_of(self, storage: Name, byte: int) -> int:
        """The column of the whole map that holds a byte."""
        band = self.bands[self.band_at(storage, byte)]
        return band.column_bytes + (byte - band.start_bytes) % band.stride_bytes

    def template(self, index: int) -> list[tuple[int, int, tuple[int, ...], str]]:
        """The owners in a row of a band: (start, end, layers, part) in columns of the band, pads included."""
        if index not in self._templates:
            band = self.bands[index]
            spans = [
                (run.base_bytes - band.start_bytes, run.base_bytes - band.start_bytes + run.span_bytes, run)
                for run in self.homes[index]
            ]
            self._templates[index] = _sweep(spans, 0, band.stride_bytes)
        return self._templates[index]

    def owners(self, index: int, low: int, high: int) -> list[tuple[int, int, tuple[int, ...], str]]:
        """The owners of the storage's bytes [low, high), all in one band's territory, as storage offsets."""
        band, found = self.bands[index], []
        nbytes = self.geometry.storage(band.storage).nbytes
        spans = []
        for run in self.homes[index] + self.strays[index]:
            first = max(0, -((run.base_bytes + run.span_bytes - 1 - low) // run.stride_bytes))
            last = min(self.geometry.num_blocks - 1, (high - 1 - run.base_bytes) // run.stride_bytes)
            for block in range(first, last + 1):
                start = run.base_bytes + block * run.stride_bytes
                spans.append((max(start, low), min(start + run.span_bytes, high), run))
        for start, end, layers, part in _sweep(spans, low, high):
            for a, b, outside in ((start, min(end, 0), True), (max(start, 0), min(end, nbytes), False)):
                if a < b:
                    found.append((a, b, () if outside else layers, "outside" if outside else part))
            if end > max(start, nbytes):
                found.append((max(start, nbytes), end, (), "outside"))
        return found

    def pieces(self) -> list[tuple[int, int, int, tuple[int, ...], str]]:
        """The owned stretches of a row: (start, end, band, layers, part) in columns of the whole map."""
        return [
            (band.column_bytes + start, band.column_bytes + end, index, layers, part)
            for index, band in enumerate(self.bands)
            for start, end, layers, part in self.template(index)
            if layers
        ]

    def window(self, column: int) -> tuple[int, int]:
        """The columns to show: all, or some pieces around a column."""
        pieces = self.pieces()
        if len(pieces) <= MAX_PIECES:
            return 0, self.row_bytes
        at = int(np.searchsorted([piece[0] for piece in pieces], column, side="right")) - 1
        at = min(max(at - MAX_PIECES // 3, 0), max(len(pieces) - MAX_PIECES, 0))
        some = pieces[at : at + MAX_PIECES]
        end = min((piece[0] for piece in pieces if piece[0] >= some[-1][1]), default=self.row_bytes)
        band = self.bands[some[-1][2]]
        return some[0][0], min(end, band.column_bytes + band.stride_bytes)

    def row_cells(self, row: int, window: tuple[int, int], ranges) -> list[Cell]:
        """The cells of one row inside a window of columns."""
        cells = []
        for index, band in enumerate(self.bands):
            left = max(window[0] - band.column_bytes, 0)
            right = min(window[1] - band.column_bytes, band.stride_bytes)
            low, high = self.territory(index)
            start = band.start_bytes + row * band.stride_bytes
            a, b = max(start + left, low), min(start + right, high)
            if left < right and a < b:
                shift = band.column_bytes - start
                cells += self._cells(index, row, a, b, shift, ranges)
        return cells

    def stretch_cells(self, index: int, row: int, low: int, high: int, ranges) -> list[Cell]:
        """The cells of [low, high) of a band's storage, all in its territory, with columns from 0 at `low`."""
        return self._cells(index, row, low, high, -low, ranges)

    def byte_cells(self, place: tuple[Name, int], ranges) -> tuple[tuple[Cell, ...], int]:
        """The cells around a byte, and the unit, at most 16 bytes, that divides all their edges.

        A unit is small enough to give a short page some characters, and lines wholly outside the storage are
        left out but for one.
        """
        storage, byte = place
        nbytes = self.geometry.storage(storage).nbytes
        for unit in (16, 8, 4, 2, 1):
            line = unit * UNITS_PER_LINE
            low = (byte // line - 1) * line
            if low < 0 <= byte:
                low = 0
            high = low + BYTE_LINES * line
            if byte < nbytes:
                high = min(high, max(-(-nbytes // line), byte // line + 1) * line + (line if nbytes % line == 0 else 0))
            cells = []
            for index, band in enumerate(self.bands):
                if band.storage == storage:
                    a, b = self.territory(index)
                    a, b = max(a, low), min(b, high)
                    if a < b:
                        cells += self._cells(index, None, a, b, 0, ranges)
            edges = [edge for cell in cells for edge in (cell.start_bytes, cell.end_bytes)]
            pages = [cell.end_bytes - cell.start_bytes for cell in cells[1:-1] if cell.layers]
            if gcd(unit, *edges) == unit and min(pages, default=byte + 999) >= LEAST_UNITS * unit:
                break
        return tuple(cells), unit

    def _cells(self, index: int, row: int | None, low: int, high: int, shift: int, ranges) -> list[Cell]:
        band, cells = self.bands[index], []
        marks = _marks(ranges, band.storage, low, high)
        for start, end, layers, part in self.owners(index, low, high):
            idle = "kept" if layers else ("redzone" if part == "outside" else "idle_pad")
            for a, b, state in _cut(start, end, marks):
                here = (a - band.start_bytes) // band.stride_bytes if row is None else row
                cells.append(
                    Cell(here, a + shift, b + shift, band.storage, a, layers, "" if part == "outside" else part,
                         state or idle)
                )  # fmt: skip
        return cells

    def fold(self, ranges) -> Fold:
        """Fold the whole pool into a grid of at most FOLD_ROWS by FOLD_COLUMNS."""
        columns = min(FOLD_COLUMNS, self.row_bytes)
        scale = columns / self.row_bytes
        per = -(-self.geometry.num_blocks // FOLD_ROWS)
        rows = -(-self.geometry.num_blocks // per)
        owners = np.full(columns, -1, np.int16)
        for start, end, _, layers, _ in sorted(self.pieces(), key=lambda piece: piece[1] - piece[0], reverse=True):
            owners[int(start * scale) : max(int(np.ceil(end * scale)), int(start * scale) + 1)] = layers[0]
        # One extra row takes what lies past the end of the pool.
        kinds = np.zeros((rows + 1, columns), np.uint8)
        for code, state in enumerate(STATES, start=1):
            for storage, found in ranges.get(state, {}).items():
                if not len(found):
                    continue
                cells = to_cells(found, self.bands, storage)
                count = np.zeros((rows + 2, columns + 1), np.int32)
                top = np.clip(cells[:, 1] // per, 0, rows)
                bottom = np.clip(cells[:, 2] // per, 0, rows) + 1
                left = np.minimum((cells[:, 3] * scale).astype(np.int64), columns - 1)
                right = np.minimum(np.ceil(cells[:, 4] * scale).astype(np.int64), columns)
                right = np.maximum(right, left + 1)
                for row, column, sign in ((top, left, 1), (top, right, -1), (bottom, left, -1), (bottom, right, 1)):
                    np.add.at(count, (row, column), sign)
                kinds[count.cumsum(0).cumsum(1)[: rows + 1, :columns] > 0] = code
        return Fold(kinds, owners, per)


def _sweep(spans, low: int, high: int) -> list[tuple[int, int, tuple[int, ...], str]]:
    """Cut [low, high) where owners change: (start, end, layers, part), with no layers for what nobody owns."""
    edges = sorted({low, high, *(edge for start, end, _ in spans for edge in (start, end))})
    spans = sorted(spans, key=lambda span: span[0])
    pieces, active, following = [], [], 0
    for start, end in zip(edges, edges[1:], strict=False):
        while following < len(spans) and spans[following][0] <= start:
            active.append(spans[following])
            following += 1
        active = [span for span in active if span[1] > start]
        layers = tuple(sorted({run.layer for _, _, run in active}))
        parts = dict.fromkeys(run.part for _, _, run in active)
        pieces.append((start, end, layers, ", ".join(parts) if len(parts) == 1 else ""))
    return pieces


def _marks(ranges, storage: Name, low: int, high: int) -> list[tuple[int, int, str]]:
    """The written or missed stretches inside [low, high), sorted, each with its state; the worst wins."""
    window, taken, marks = as_ranges([(low, high)]), as_ranges([]), []
    for state in reversed(STATES):
        found = (ranges or {}).get(state, {}).get(storage)
        if found is None or len(found) == 0:
            continue
        # Sorted and disjoint, so the ranges that meet the window are neighbours.
        first = int(np.searchsorted(found[:, 1], low, side="right"))
        last = int(np.searchsorted(found[:, 0], high, side="left"))
        mine = subtract(intersect(found[first:last], window), taken)
        taken = union(np.concatenate((taken, mine)))
        marks += [(a, b, state) for a, b in mine.tolist()]
    return sorted(marks)


def _cut(start: int, end: int, marks) -> Iterable[tuple[int, int, str]]:
    """Cut [start, end) at the marks: (start, end, state), with "" between them."""
    at = start
    for a, b, state in marks:
        a, b = max(a, start), min(b, end)
        if a >= b:
            continue
        if at < a:
            yield at, a, ""
        yield a, b, state
        at = b
    if at < end:
        yield at, end, ""


def short_names(names: Sequence[str]) -> tuple[str, ...]:
    """Drop from each name the words that all names share.

    Args:
        names: layer names with words parted by dots.

    Returns:
        As many names, each still one of a kind.

    >>> short_names(["model.layers.0.self_attn.attn", "model.layers.1.self_attn.attn", "model.layers.1.indexer"])
    ('0 self_attn attn', '1 self_attn attn', '1 indexer')
    >>> short_names(["layer.0", "layer.1"])
    ('layer 0', 'layer 1')
    """
    words = [name.split(".") for name in names]
    shared = set(words[0]).intersection(*words) if words else set()
    brief = []
    for parts in words:
        kept = [word for word in parts if word not in shared] or parts[-1:]
        if all(re.fullmatch(r"\d+", word) for word in kept):
            kept = ["layer", *kept]
        brief.append(" ".join(kept))
    return tuple(brief) if len(set(brief)) == len(set(names)) else tuple(names)
