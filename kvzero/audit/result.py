"""`Audit`: what a write did, as counts, byte ranges, one sentence and a text map.

Counts are distinct bytes: `missed` (needed, left dirty), `stomped` (written, but live for another block or
for a layer that is not to be zeroed), `pad` (written, belongs to no view), `overrun` (written outside the
storage).
"""

from __future__ import annotations

import html
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from kvzero.audit.textmap import draw
from kvzero.layout.geometry import CacheGeometry
from kvzero.layout.intervals import total
from kvzero.layout.ownership import owners_of_byte
from kvzero.layout.records import LayerView

# Worst first: this order also chooses the first offender.
KINDS = ("overrun", "stomped", "missed", "pad")
Name = int | str
# Owners listed for the first offender, whose byte overlaid groups may share.
MAX_OWNERS = 16


@dataclass(frozen=True)
class Audit:
    """What zeroing some blocks did.

    Args:
        planner: who planned the write.
        witness: how it was checked: "arithmetic" (byte ranges only) or "bytes" (memory was written and compared).
        device: device of the memory; "none" for arithmetic.
        blocks: block ids, as given.
        missed_bytes, stomped_bytes, pad_bytes, overrun_bytes: distinct bytes, as the top of this file defines them.
        needed_bytes: distinct bytes that were to be zeroed.
        written_bytes: bytes issued; a byte that is written twice counts twice.
        first: the first damaged byte of the worst kind found (overrun, stomped, missed, pad): `kind`, `storage`,
            `byte_offset` (below 0 before the storage), `layer` and `block` of its owner (None if no view owns
            it), and `owners`, up to 16 (layer, block) pairs; None if there is no damage.
        by_layer: layer name to `missed_bytes` and `stomped_bytes`, distinct bytes of that layer's pages.
        ranges: kind ("cleared" and the four above) to storage id to sorted (start, stop) byte ranges.
        geometry: what was audited.
        pad_allowed: whether pad may be written (`absorb_pad`).
    """

    planner: str
    witness: str
    device: str
    blocks: tuple[int, ...]
    missed_bytes: int
    stomped_bytes: int
    pad_bytes: int
    overrun_bytes: int
    needed_bytes: int
    written_bytes: int
    first: dict[str, Any] | None
    by_layer: dict[str, dict[str, int]]
    ranges: dict[str, dict[Name, np.ndarray]] = field(repr=False, compare=False)
    geometry: CacheGeometry = field(repr=False, compare=False)
    pad_allowed: bool = False

    @property
    def ok(self) -> bool:
        """Whether nothing was missed, stomped or overrun, and no pad was written unless that is allowed."""
        return not (self.missed_bytes or self.stomped_bytes or self.overrun_bytes) and (
            self.pad_allowed or not self.pad_bytes
        )

    def sentence(self) -> str:
        """What happened, to how many bytes, and where first, in one sentence."""
        who = f"{self.planner or 'the write'} on {_blocks_text(self.blocks)}"
        if self.ok:
            pad = f", and {self.pad_bytes:,} bytes of pad, which is allowed" if self.pad_bytes else ""
            times = self.written_bytes / max(self.needed_bytes + self.pad_bytes, 1)
            cost = f" It writes {times:.2f} times as much as that." if times > 1 else ""
            return f"{who}: all {self.needed_bytes:,} needed bytes are zero{pad}, and no other byte changed.{cost}"
        parts = {
            "overrun": f"writes {self.overrun_bytes:,} bytes outside the storage",
            "stomped": f"wipes {self.stomped_bytes:,} live bytes that are not its own",
            "missed": f"leaves {self.missed_bytes:,} of {self.needed_bytes:,} needed bytes dirty",
            "pad": f"writes {self.pad_bytes:,} bytes of pad",
        }
        done = [text for kind, text in parts.items() if getattr(self, f"{kind}_bytes")]
        text = done[0] if len(done) == 1 else ", ".join(done[:-1]) + " and " + done[-1]
        first = self.first or {}
        owner = f" ({first['layer']}, block {first['block']})" if first["layer"] is not None else ""
        where = f"{first['byte_offset']:,} of storage {first['storage']}{owner}"
        return f"{who}: {text}; first {first['kind']} byte: {where}."

    def text_map(self, *, columns: int = 48, max_rows: int = 12) -> str:
        """Draw the audit as text: the sentence, a row for each block, a column for each range of bytes, the legend.

        Args:
            columns: cells in a row; a cell shows the worst of its bytes.
            max_rows: maximum number of rows; the audited and the damaged blocks come first.
        """
        return draw(self, columns=columns, max_rows=max_rows)

    def to_dict(self) -> dict[str, Any]:
        """Plain data, as `kvzero audit --json` prints it."""
        names = (
            "planner", "witness", "device", "blocks", "missed_bytes", "stomped_bytes", "pad_bytes", "overrun_bytes",
            "needed_bytes", "written_bytes", "ok", "first", "by_layer",
        )  # fmt: skip
        return {**{name: getattr(self, name) for name in names}, "blocks": list(self.blocks)}

    def __str__(self) -> str:
        return self.text_map()

    def _repr_html_(self) -> str:
        return f"<pre>{html.escape(self.text_map())}</pre>"


def make_audit(
    geometry: CacheGeometry,
    found: dict[str, dict[Name, np.ndarray]],
    by_layer: dict[str, dict[str, int]],
    block_ids: Sequence[int],
    wanted: Sequence[tuple[Sequence[LayerView], Sequence[int]]],
    **facts: Any,
) -> Audit:
    """Count the byte ranges that a check found, and name the first damaged byte.

    Args:
        geometry: what was audited.
        found: kind ("cleared" and `KINDS`) to storage id to sorted, disjoint byte ranges, int64 of shape (ranges, 2).
        by_layer: layer name to `missed_bytes` and `stomped_bytes`.
        block_ids: the blocks that were to be zeroed.
        wanted: pairs of views and the blocks in which they were to be zeroed.
        facts: the other fields of `Audit`.

    Raises:
        AuditError: too many blocks share the first damaged byte.

    Example:
        >>> from kvzero.history import named
        >>> slab = named.geometry("packed-slab-51288")
        >>> found = {kind: {"slab": np.empty((0, 2), np.int64)} for kind in ("cleared", *KINDS)}
        >>> found["stomped"]["slab"] = np.array([[149_760, 149_764]])
        >>> wanted = [(slab.layers, [0])]
        >>> audit = make_audit(slab, found, {}, [0], wanted, planner="mine", witness="bytes", device="cpu",
        ...                    needed_bytes=149_504, written_bytes=149_508)
        >>> audit.stomped_bytes, audit.first["layer"], audit.first["block"]
        (4, 'layer.0', 1)
    """
    counts: dict[str, Any] = {f"{kind}_bytes": sum(total(ranges) for ranges in found[kind].values()) for kind in KINDS}
    blocks = tuple(int(block) for block in block_ids)
    asked = {(view.name, int(block)) for views, ids in wanted for view in views for block in ids}
    first = _first(geometry, found, asked)
    return Audit(**facts, **counts, blocks=blocks, first=first, by_layer=by_layer, ranges=found, geometry=geometry)


def _first(geometry: CacheGeometry, found, asked: set[tuple[str, int]]) -> dict[str, Any] | None:
    for kind in KINDS:
        for storage in geometry.storages:
            ranges = found[kind][storage.id]
            if len(ranges) == 0:
                continue
            byte_offset = int(ranges[0, 0])
            owned = kind in ("stomped", "missed")
            owners = owners_of_byte(geometry, storage.id, byte_offset) if owned else []
            if kind == "missed":  # a byte may also belong to a layer or block that was not to be zeroed
                owners = [owner for owner in owners if owner in asked]
            layer, block = owners[0] if owners else (None, None)
            return {
                "kind": kind,
                "storage": storage.id,
                "byte_offset": byte_offset,
                "layer": layer,
                "block": block,
                "owners": [list(owner) for owner in owners[:MAX_OWNERS]],
            }
    return None


def _blocks_text(blocks: Sequence[int]) -> str:
    shown = ", ".join(str(block) for block in blocks[:6]) + (", …" if len(blocks) > 6 else "")
    return f"block{'' if len(blocks) == 1 else 's'} {shown}"
