"""Small geometries made to measure: the same arithmetic as an engine's allocator, with any sizes.

The letters of an order name its dimensions from the outermost in: L layers, B blocks, N tokens, H heads,
C content of one head and token, K the two halves of a cache that keeps keys and values apart.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

from kvzero.errors import KvzeroError
from kvzero.layout.geometry import CacheGeometry

ITEMSIZE = {"uint8": 1, "float8_e4m3fn": 1, "int8": 1, "bfloat16": 2, "float16": 2, "float32": 4}

ORDERS = {
    "LBNHC": "layers apart, heads inside a token",
    "LBHNC": "layers apart, tokens inside a head",
    "LHBNC": "layers apart, heads outside the block",
    "LKBNHC": "layers apart, keys and values in two halves (K/V outermost)",
    "BLHNC": "packed: all layers side by side in each block, tokens inside a head",
    "BLNHC": "packed: all layers side by side in each block, heads inside a token",
    "BHLNC": "packed: all layers in each block, heads outside the layers",
}


class ToyOptionError(KvzeroError):
    """A made-to-measure geometry was asked for with a size or a name that does not exist."""

    rule = "toy-option"
    messages = {"toy-option": "{option} = {value!r} is not possible: {need}."}


def make_geometry(
    *,
    layers: int = 4,
    num_blocks: int = 4,
    tokens: int = 4,
    heads: int = 2,
    content: int | Sequence[int] = 8,
    dtype: str = "uint8",
    order: str = "LBNHC",
    pad_bytes: int = 0,
    kernel_blocks: int = 1,
    groups: int = 1,
    name: str = "",
) -> CacheGeometry:
    """Lay out a cache as an engine would and describe it.

    Args:
        layers: attention layers.
        num_blocks: blocks in the pool.
        tokens: tokens in one block, a multiple of `kernel_blocks`.
        heads: KV heads.
        content: elements of one head and token, keys and values together; a sequence gives each layer its own, in turn.
        dtype: element type, one of `ITEMSIZE`.
        order: the memory order, one of `ORDERS`.
        pad_bytes: bytes that belong to no layer after each contiguous part of a page; a multiple of the element size.
        kernel_blocks: kernel blocks in a block: the view's block dimension then counts those.
        groups: cache groups; layer i is of group i % groups, and the layers of different groups overlay each other.
        name: name of the geometry; made from the order if empty.

    Returns:
        A geometry with one storage, whose layers carry `extra["dims"]`, the letters of their dimensions.

    Raises:
        ToyOptionError: a size that does not fit, with the option, its value and what it needs.

    Example:
        >>> slab = make_geometry(layers=4, num_blocks=100, tokens=64, heads=1, content=584, order="BLNHC", pad_bytes=64)
        >>> slab.layer("layer.3").byte_offset, slab.layer("layer.3").block_stride_bytes, slab.storages[0].nbytes
        (112320, 149760, 14976000)
    """
    widths = [content] if isinstance(content, int) else list(content)
    _check(layers, num_blocks, tokens, heads, widths, dtype, order, pad_bytes, kernel_blocks, groups)
    itemsize = ITEMSIZE[dtype]
    positions = -(-layers // groups)
    # A position is a place in the block; the layers of different groups at one position share its bytes.
    width_at = [widths[position % len(widths)] for position in range(positions)]
    inner = order[order.index("B") + 1 :] if order[0] == "L" else order[order.index("L") + 1 :]
    views = []
    for layer in range(layers):
        position = layer // groups
        place = _place(order, inner, position, width_at, num_blocks, tokens, heads, itemsize, pad_bytes)
        views.append(_view(layer, layer % groups, place, tokens, kernel_blocks, dtype, itemsize))
    nbytes = sum(_chunks(order, inner, width_at, tokens, heads, itemsize, pad_bytes)) * num_blocks
    nbytes *= 1 if "H" in inner else heads
    data: dict[str, Any] = {
        "name": name or f"toy {order}",
        "layout": order,
        "num_blocks": num_blocks,
        "storages": [{"id": 0, "nbytes": nbytes}],
        "layers": views,
    }
    return CacheGeometry.from_dict(data, source="make_geometry")


def _check(layers, num_blocks, tokens, heads, widths, dtype, order, pad_bytes, kernel_blocks, groups) -> None:
    counts = dict(layers=layers, num_blocks=num_blocks, tokens=tokens, heads=heads, kernel_blocks=kernel_blocks)
    for option, value in {**counts, "groups": groups}.items():
        if value < 1:
            raise ToyOptionError(option=option, value=value, need="at least 1")
    if not widths or min(widths) < 1:
        raise ToyOptionError(option="content", value=tuple(widths), need="at least one width, each at least 1")
    if order not in ORDERS:
        raise ToyOptionError(option="order", value=order, need="one of " + ", ".join(ORDERS))
    if dtype not in ITEMSIZE:
        raise ToyOptionError(option="dtype", value=dtype, need="one of " + ", ".join(ITEMSIZE))
    if pad_bytes < 0 or pad_bytes % ITEMSIZE[dtype]:
        need = f"a multiple of the element's {ITEMSIZE[dtype]} bytes, and not negative"
        raise ToyOptionError(option="pad_bytes", value=pad_bytes, need=need)
    if tokens % kernel_blocks:
        raise ToyOptionError(option="kernel_blocks", value=kernel_blocks, need=f"a divisor of tokens = {tokens}")
    if kernel_blocks > 1 and not order.endswith(("BNHC", "BLNHC")):
        # Only where tokens are outermost in a page do its kernel blocks follow each other at one stride.
        raise ToyOptionError(
            option="order", value=order, need=f"tokens outermost in a page for {kernel_blocks} kernel blocks"
        )
    if kernel_blocks > 1 and (pad_bytes or order.startswith("B")):
        need = "1 where pages do not abut (pad, or a packed order): kernel blocks need one stride"
        raise ToyOptionError(option="kernel_blocks", value=kernel_blocks, need=need)
    if order == "LKBNHC" and any(width % 2 for width in widths):
        raise ToyOptionError(option="content", value=tuple(widths), need="even, to halve it into keys and values")


def _sizes(inner: str, width: int, tokens: int, heads: int) -> list[int]:
    return [{"N": tokens, "H": heads, "C": width}[letter] for letter in inner]


def _chunks(order, inner, width_at, tokens, heads, itemsize, pad_bytes) -> list[int]:
    """Bytes from one layer's contiguous part to the next, for each position; keys and values have a pad each."""
    halves = 2 if "K" in order else 1
    return [halves * (prod(_sizes(inner, width // halves, tokens, heads)) * itemsize + pad_bytes) for width in width_at]


def _place(order, inner, position, width_at, num_blocks, tokens, heads, itemsize, pad_bytes):
    """Byte offset and dimensions [(letter, size, byte stride)], outermost first as the view shows them."""
    halves = 2 if "K" in order else 1
    width = width_at[position] // halves
    chunks = _chunks(order, inner, width_at, tokens, heads, itemsize, pad_bytes)
    chunk = chunks[position] // halves
    before, per_block = sum(chunks[:position]), sum(chunks)
    parts = 1 if "H" in inner else heads
    if order.startswith("L"):
        offset = before * parts * num_blocks
        outer = {"LB": [("B", num_blocks, chunk)]}.get(order[:2])
        if order[1] == "H":
            outer = [("B", num_blocks, chunk), ("H", heads, chunk * num_blocks)]
        if order[1] == "K":
            outer = [("K", 2, chunk * num_blocks), ("B", num_blocks, chunk)]
    else:
        offset = before
        outer = [("B", num_blocks, per_block * parts)]
        if order[1] == "H":
            outer.append(("H", heads, per_block))
    step, inside = itemsize, []
    for letter, size in reversed(list(zip(inner, _sizes(inner, width, tokens, heads), strict=True))):
        inside.insert(0, (letter, size, step))
        step *= size
    return offset, outer + inside


def _view(layer, group, place, tokens, kernel_blocks, dtype, itemsize) -> dict[str, Any]:
    offset, dims = place
    if kernel_blocks > 1:
        dims = [
            (letter, size * kernel_blocks, step // kernel_blocks)
            if letter == "B"
            else (letter, size // kernel_blocks if letter == "N" else size, step)
            for letter, size, step in dims
        ]
    letters = "".join(letter for letter, _, _ in dims)
    return {
        "name": f"layer.{layer}",
        "group": group,
        "storage": 0,
        "byte_offset": offset,
        "shape": [size for _, size, _ in dims],
        "stride": [step // itemsize for _, _, step in dims],
        "block_dim": letters.index("B"),
        "kernel_blocks_per_block": kernel_blocks,
        "dtype": dtype,
        "itemsize": itemsize,
        "spec_kind": "full_attention",
        "zeroed_by_engine": True,
        "dims": letters,
        "manager_block_tokens": tokens,
    }
