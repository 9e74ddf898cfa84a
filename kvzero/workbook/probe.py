"""What one byte of a pool is: its storage, layer, block, token and head, and which segments of a plan write it."""

from __future__ import annotations

from dataclasses import dataclass

from kvzero.errors import KvzeroError
from kvzero.layout.geometry import CacheGeometry
from kvzero.layout.ownership import owners_of_byte
from kvzero.layout.records import LayerView, Name
from kvzero.plan.planner import Plan

from .figures import Figure, draw_map
from .figures.bands import dim_letters


class ByteOutsideStorageError(KvzeroError):
    """A byte was asked for that its storage does not have."""

    rule = "byte-outside-storage"
    messages = {
        "byte-outside-storage": (
            "byte {byte:,} is outside storage {storage}: it has bytes 0 to {last_byte:,}. Choose one of those."
        )
    }


@dataclass(frozen=True, slots=True)
class Owner:
    """One layer that keeps the byte.

    Args:
        layer, group, block: whose byte it is.
        page_offset_bytes: its place among the bytes that the layer keeps in the block, in the order of addresses.
        page_bytes: how many those are.
        token, head: of the block, counted from 0; None where the layout does not say.
        half: "K" or "V" where the two are kept apart, else "".
        element: index within one head and token; None where the layout does not say.
        byte_in_element: place in an element of several bytes.
        index: the indices of the view's dimensions, as the tensor would be indexed.
    """

    layer: str
    group: Name
    block: int
    page_offset_bytes: int
    page_bytes: int
    token: int | None
    head: int | None
    half: str
    element: int | None
    byte_in_element: int
    index: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Probe:
    """What one byte is.

    Args:
        storage, byte: where it lies.
        owners: the layers that keep it; none for pad, several where groups overlay each other.
        written_by: (segment index, block) pairs that write it when every block is zeroed.
    """

    storage: Name
    byte: int
    owners: tuple[Owner, ...]
    written_by: tuple[tuple[int, int], ...]

    def sentence(self) -> str:
        """The record as one plain sentence."""
        where = f"Byte {self.byte:,} of storage {self.storage}"
        if not self.owners:
            what = "is pad: it belongs to no layer"
        else:
            what = "is " + "; and ".join(map(_owner_text, self.owners))
        if not self.written_by:
            return f"{where} {what}. No segment writes it."
        pairs = [f"segment {segment} for block {block}" for segment, block in self.written_by[:3]]
        more = f" and {len(self.written_by) - 3} more" if len(self.written_by) > 3 else ""
        return f"{where} {what}. Written by {', '.join(pairs)}{more}."


def _owner_text(owner: Owner) -> str:
    parts = [f"block {owner.block:,}", f"layer {owner.layer}"]
    if owner.half:
        parts.append(owner.half)
    if owner.token is not None:
        parts.append(f"token {owner.token}")
    if owner.head is not None:
        parts.append(f"head {owner.head}")
    return ", ".join(parts) + f", byte {owner.page_offset_bytes:,} of the page's {owner.page_bytes:,}"


def probe(geometry: CacheGeometry, plan: Plan | None, storage: Name, byte: int) -> Probe:
    """Look up one byte.

    Args:
        geometry: the pool.
        plan: whose segments to look through; None for no plan.
        storage: id of the storage.
        byte: offset in it.

    Raises:
        GeometryError: there is no such storage.
        ByteOutsideStorageError: the storage is smaller.

    Example:
        >>> from kvzero.plan.planner import plan_segments
        >>> from kvzero.workbook.toy import make_geometry
        >>> pool = make_geometry(layers=2, num_blocks=4, tokens=4, heads=2, content=8, order="BLNHC", pad_bytes=4)
        >>> found = probe(pool, plan_segments(pool), 0, 237)
        >>> found.owners[0].block, found.owners[0].token, found.owners[0].head, found.written_by
        (1, 2, 0, ((1, 1),))
    """
    nbytes = geometry.storage(storage).nbytes
    if not 0 <= byte < nbytes:
        raise ByteOutsideStorageError(storage=storage, byte=byte, last_byte=nbytes - 1)
    owners = tuple(_owner(geometry.layer(name), block, byte) for name, block in owners_of_byte(geometry, storage, byte))
    return Probe(storage, byte, owners, writers(plan, storage, byte) if plan is not None else ())


def draw_byte(geometry: CacheGeometry, plan: Plan, storage: Name, byte: int) -> tuple[Figure, str, str]:
    """What one byte is, as (figure, sentence, text): the map around it, for `show` and for a knob's function.

    Args:
        geometry, plan, storage, byte: those of `probe`.

    Raises:
        GeometryError, ByteOutsideStorageError: as `probe` does.
    """
    found = probe(geometry, plan, storage, byte)
    homes = [owner.block for owner in found.owners] or [block for _, block in found.written_by]
    near = range(max(0, homes[0] - 2), min(geometry.num_blocks, homes[0] + 3)) if homes else None
    return draw_map(
        geometry, plan if homes else None, blocks=homes[:1] or None, rows=near, focus=(storage, byte),
        sentence=found.sentence(),
    )  # fmt: skip


def writers(plan: Plan, storage: Name, byte: int) -> tuple[tuple[int, int], ...]:
    """The (segment index, block) pairs that write a byte when every block of the pool is zeroed.

    Args:
        plan: the plan.
        storage, byte: the byte; it may lie outside the storage.
    """
    found = []
    for index, segment in enumerate(plan.segments):
        if segment.storage != storage:
            continue
        if plan.num_blocks == 1:
            first = last = 0
        else:
            first = max(0, -((segment.base_bytes + segment.span_bytes - 1 - byte) // segment.block_stride_bytes))
            last = min(plan.num_blocks - 1, (byte - segment.base_bytes) // segment.block_stride_bytes)
        for block in range(first, last + 1):
            if 0 <= byte - segment.start_bytes(block) < segment.span_bytes:
                found.append((index, block))
    return tuple(found)


def _owner(view: LayerView, block: int, byte: int) -> Owner:
    rest = byte - view.byte_offset - block * view.block_stride_bytes
    # The block dimension counts kernel blocks; within one block only those inside it remain.
    sizes = [view.kernel_blocks_per_block if dim == view.block_dim else size for dim, size in enumerate(view.shape)]
    index = [0] * len(sizes)
    for dim in sorted(range(len(sizes)), key=lambda dim: -view.stride[dim]):
        step = view.stride[dim] * view.itemsize
        if sizes[dim] > 1 and step:
            index[dim] = min(rest // step, sizes[dim] - 1)
            rest -= index[dim] * step
    order = [dim for dim in sorted(range(len(sizes)), key=lambda dim: -view.stride[dim]) if sizes[dim] > 1]
    page_offset = 0
    for dim in order:
        page_offset = page_offset * sizes[dim] + index[dim]
    kernel_block = index[view.block_dim]
    index[view.block_dim] += block * view.kernel_blocks_per_block
    letters = dim_letters(view)
    named = {letter: (index[dim], sizes[dim]) for dim, letter in enumerate(letters) if letter not in "?B"}
    token = head = None
    if "N" in named:
        token = kernel_block * named["N"][1] + named["N"][0]
    if "H" in named:
        head = named["H"][0]
    return Owner(
        layer=view.name,
        group=view.group,
        block=block,
        page_offset_bytes=page_offset * view.itemsize + rest,
        page_bytes=view.page_bytes,
        token=token,
        head=head,
        half="KV"[named["K"][0]] if "K" in named else "",
        element=named["C"][0] if "C" in named else None,
        byte_in_element=rest,
        index=tuple(index),
    )
