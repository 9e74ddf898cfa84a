"""Random cache layouts for hypothesis: engine-like ones that must plan, and wild ones that may be refused."""

from __future__ import annotations

from math import prod

from hypothesis import assume
from hypothesis import strategies as st

from kvzero.layout.geometry import CacheGeometry

LAYOUTS = ("LBNHC", "LBHNC", "LHBNC", "BLHNC", "BLNHC", "BHLNC", "KBNHC", "BKNHC")


@st.composite
def engine_layouts(draw, max_blocks: int = 6) -> CacheGeometry:
    """A pool as engines lay them out: any order of layer, block, K/V, head and token, padded, overlaid by groups."""
    order = draw(st.sampled_from(LAYOUTS))
    num_blocks = draw(st.integers(1, max_blocks))
    itemsize = draw(st.sampled_from([1, 2, 4]))
    sizes = {
        "L": draw(st.integers(1, 4)),
        "B": num_blocks,
        "K": 2,
        "H": draw(st.integers(1, 3)),
        "N": draw(st.integers(1, 4)),
        "C": draw(st.integers(1, 9)),
    }
    # Lay the dimensions out from the innermost, leaving some pad after each: strides in elements.
    strides, extent = {}, 1
    for letter in reversed(order):
        strides[letter] = extent
        extent *= sizes[letter]
        extent += draw(st.integers(0, 3)) if letter in "LHK" else 0
    offset = draw(st.integers(0, 9))
    groups = draw(st.integers(1, 2))
    layers = []
    for index in range(sizes["L"] if "L" in order else 1):
        for group in range(groups):
            inner = [letter for letter in order if letter not in "LB"]
            tokens = draw(st.integers(1, sizes["N"])) if group else sizes["N"]
            shape = [num_blocks] + [tokens if letter == "N" else sizes[letter] for letter in inner]
            stride = [strides["B"]] + [strides[letter] for letter in inner]
            layers.append(
                {
                    "name": f"layer.{index}.{group}",
                    "storage": "pool",
                    "byte_offset": offset + index * strides.get("L", 0) * itemsize,
                    "shape": shape,
                    "stride": stride,
                    "itemsize": itemsize,
                    "block_dim": 0,
                    "group": group,
                    "zeroed_by_engine": True if group == 0 else draw(st.booleans()),
                }
            )
    nbytes = offset + extent * itemsize + draw(st.integers(0, 9))
    return CacheGeometry.from_dict(
        {"name": order, "num_blocks": num_blocks, "storages": [{"id": "pool", "nbytes": nbytes}], "layers": layers}
    )


@st.composite
def wild_views(draw) -> CacheGeometry:
    """A few views of arbitrary small strides over one storage: often two blocks share a byte."""
    num_blocks = draw(st.integers(1, 4))
    layers = []
    for index in range(draw(st.integers(1, 3))):
        dims = draw(st.integers(1, 3))
        block_dim = draw(st.integers(0, dims - 1))
        ratio = draw(st.sampled_from([1, 1, 2]))
        shape = [draw(st.integers(1, 4)) for _ in range(dims)]
        shape[block_dim] = num_blocks * ratio
        layers.append(
            {
                "name": f"layer.{index}",
                "storage": 0,
                "byte_offset": draw(st.integers(0, 60)),
                "shape": shape,
                "stride": [draw(st.integers(1, 30)) for _ in range(dims)],
                "itemsize": draw(st.sampled_from([1, 2, 4])),
                "block_dim": block_dim,
                "kernel_blocks_per_block": ratio,
                "zeroed_by_engine": draw(st.booleans()),
            }
        )
    layers[0]["zeroed_by_engine"] = True
    ends = []
    for layer in layers:
        reach = sum((size - 1) * step for size, step in zip(layer["shape"], layer["stride"], strict=True)) + 1
        block_dim, ratio = layer["block_dim"], layer["kernel_blocks_per_block"]
        page_reach = reach - (num_blocks - 1) * ratio * layer["stride"][block_dim]
        assume(prod(layer["shape"]) // num_blocks <= page_reach)  # reading refuses elements that share bytes
        ends.append(layer["byte_offset"] + reach * layer["itemsize"])
    nbytes = max(ends) + draw(st.integers(0, 5))
    return CacheGeometry.from_dict(
        {"name": "wild", "num_blocks": num_blocks, "storages": [{"id": 0, "nbytes": nbytes}], "layers": layers}
    )
