"""The geometries that old planners and tests name: small ones built here, and the packaged dumps."""

from __future__ import annotations

from collections.abc import Callable

from kvzero.layout import geometries
from kvzero.layout.geometry import CacheGeometry


def packed_slab() -> CacheGeometry:
    """Four latent layers packed side by side in one slab, as in #50276 and in the test of #51288."""
    layers = [
        {
            "name": f"layer.{index}", "storage": "slab", "byte_offset": 37_440 * index, "shape": [100, 64,
            584], "stride": [149_760, 584, 1], "itemsize": 1, "dtype": "uint8", "spec_kind": "mla_attention",
        }
        for index in range(4)
    ]  # fmt: skip
    return _geometry("packed-slab-51288", 100, {"slab": 14_976_000}, layers)


def launch_overflow() -> CacheGeometry:
    """DeepSeek-V4 after #51749: 91 segments of 9,344 words and 90 of 292, 6,870 blocks, 24 GB (#52058)."""
    blocks = 6_870
    pages_words = [9_344] * 91 + [292] * 90
    layers = [
        {
            "name": f"layer.{index}", "storage": index, "byte_offset": 0, "shape": [blocks, words],
            "stride": [words, 1], "itemsize": 4, "dtype": "int32", "spec_kind": "mla_attention",
        }
        for index, words in enumerate(pages_words)
    ]  # fmt: skip
    sizes = {index: blocks * words * 4 for index, words in enumerate(pages_words)}
    return _geometry("launch-overflow-52058", blocks, sizes, layers)


def blocks_outermost() -> CacheGeometry:
    """Two layers (blocks, K/V, tokens, heads, dim) in bf16: what the first planner was made for (#35219)."""
    layers = [_attention(f"layer.{i}", i, (8, 2, 16, 8, 128), block_dim=0) for i in range(2)]
    return _geometry("blocks-outermost", 8, {0: 524_288, 1: 524_288}, layers)


def kv_outermost() -> CacheGeometry:
    """One layer (K/V, blocks, tokens, heads, dim) in bf16: two ranges per block, half a tensor apart."""
    return _geometry("kv-outermost", 8, {0: 524_288}, [_attention("layer.0", 0, (2, 8, 16, 8, 128), block_dim=1)])


def kv_outermost_one_block() -> CacheGeometry:
    """The same with a single block: the K/V stride equals the block stride."""
    layers = [_attention("layer.0", 0, (2, 1, 16, 8, 128), block_dim=1)]
    return _geometry("kv-outermost-one-block", 1, {0: 65_536}, layers)


def overlaid() -> CacheGeometry:
    """Three specs of two groups that start at one address in each block; the widest comes last."""
    sizes = {"g1.big": 32_768, "g1.small": 8_192, "g2.huge": 65_536}
    layers = [
        {
            "name": name, "storage": 0, "byte_offset": 0, "shape": [4, page], "stride": [65_536, 1],
            "itemsize": 1, "dtype": "uint8", "group": int(name[1]), "spec_kind": "mla_attention",
        }
        for name, page in sizes.items()
    ]  # fmt: skip
    return _geometry("overlaid", 4, {0: 262_144}, layers)


def odd_page() -> CacheGeometry:
    """A page of 1,026 bytes: not a whole number of 4-byte words."""
    layer = {
        "name": "layer.0", "storage": 0, "byte_offset": 0, "shape": [4, 18, 57], "stride": [1026, 57, 1],
        "itemsize": 1, "dtype": "uint8", "spec_kind": "full_attention",
    }  # fmt: skip
    return _geometry("odd-page", 4, {0: 4_104}, [layer])


def odd_kernel_blocks() -> CacheGeometry:
    """Two kernel blocks of 1,026 bytes per block: a block is a whole number of 4-byte words, a kernel block is not."""
    layer = {
        "name": "layer.0", "storage": 0, "byte_offset": 0, "shape": [8, 18, 57], "stride": [1026, 57, 1],
        "itemsize": 1, "dtype": "uint8", "spec_kind": "full_attention", "kernel_blocks_per_block": 2,
    }  # fmt: skip
    return _geometry("odd-kernel-blocks", 4, {0: 8_208}, [layer])


def _attention(name: str, storage: int, shape: tuple[int, ...], block_dim: int) -> dict:
    stride = [1]
    for size in reversed(shape[1:]):
        stride.insert(0, stride[0] * size)
    return {
        "name": name, "storage": storage, "byte_offset": 0, "shape": list(shape), "stride": stride,
        "itemsize": 2, "dtype": "bfloat16", "block_dim": block_dim, "spec_kind": "full_attention",
    }  # fmt: skip


def _geometry(name: str, num_blocks: int, sizes: dict, layers: list[dict]) -> CacheGeometry:
    storages = [{"id": key, "nbytes": nbytes} for key, nbytes in sizes.items()]
    return CacheGeometry.from_dict({"name": name, "num_blocks": num_blocks, "storages": storages, "layers": layers})


NAMED: dict[str, Callable[[], CacheGeometry]] = {
    "packed-slab-51288": packed_slab,
    "launch-overflow-52058": launch_overflow,
    "blocks-outermost": blocks_outermost,
    "kv-outermost": kv_outermost,
    "kv-outermost-one-block": kv_outermost_one_block,
    "overlaid": overlaid,
    "odd-page": odd_page,
    "odd-kernel-blocks": odd_kernel_blocks,
}


def geometry(name: str) -> CacheGeometry:
    """A geometry by name: one of `NAMED`, else a packaged dump of `kvzero.layout.geometries`.

    Example:
        >>> geometry("packed-slab-51288").num_blocks
        100
    """
    return NAMED[name]() if name in NAMED else geometries.load(name)
