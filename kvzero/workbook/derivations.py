"""Where page sizes come from: from what one token keeps, through pages and pads, to block sizes and slabs.

Every number here is computed from a model's shape; the dumps of `kvzero.layout.geometries` are the witnesses.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

from kvzero.layout import geometries
from kvzero.layout.geometry import CacheGeometry

SLAB_ALIGNMENT_BYTES = 576  # DeepSeek-V4's slab: each page is padded to a multiple of this


def padded(size_bytes: int, alignment_bytes: int) -> int:
    """The next multiple of an alignment.

    >>> padded(37_376, 576)
    37440
    """
    return -(-size_bytes // alignment_bytes) * alignment_bytes


def block_tokens(state_bytes: int, token_bytes: int, kernel_tokens: int) -> int:
    """Tokens in a block of a hybrid model: the fewest whole kernel blocks of attention that hold one state.

    Args:
        state_bytes: one layer's recurrent state of one request.
        token_bytes: what one token keeps in one attention layer.
        kernel_tokens: tokens of a kernel block.

    Example:
        >>> block_tokens(1_073_152, 2_048, 16)
        528
    """
    kernel_block_bytes = kernel_tokens * token_bytes
    return kernel_tokens * -(-state_bytes // kernel_block_bytes)


@dataclass(frozen=True, slots=True)
class Row:
    """What one token (and head) keeps in one layer.

    Args:
        name: of the row.
        parts: (what, elements, bytes of an element) in the order in which they lie, an element may be half a byte.
    """

    name: str
    parts: tuple[tuple[str, int, float], ...]

    @property
    def nbytes(self) -> int:
        """Bytes of the row."""
        return int(sum(count * size for _, count, size in self.parts))

    @property
    def formula(self) -> str:
        """The sum in words.

        >>> ROWS["indexer fp8"].formula
        '128 x 1 B key + 1 x 4 B scale'
        """
        return " + ".join(f"{count} x {size:g} B {what}" for what, count, size in self.parts)


ROWS: dict[str, Row] = {
    row.name: row
    for row in (
        Row("bf16 K and V, head 128", (("key", 128, 2), ("value", 128, 2))),
        Row("bf16 K and V, head 64", (("key", 64, 2), ("value", 64, 2))),
        Row("latent bf16", (("latent", 512, 2), ("RoPE", 64, 2))),
        Row("latent fp8_ds_mla", (("latent", 512, 1), ("scale", 4, 4), ("RoPE", 64, 2))),
        Row("latent of DeepSeek-V4", (("latent", 448, 1), ("RoPE", 64, 2), ("exponent scale", 7, 1), ("pad", 1, 1))),
        Row("indexer fp8", (("key", 128, 1), ("scale", 1, 4))),
        Row("indexer mxfp4", (("key", 128, 0.5), ("scale", 4, 1))),
        Row("nvfp4, K or V, head 128", (("data", 128, 0.5), ("scale", 8, 1))),
        Row("int8 K and V, head 128", (("key", 128, 1), ("value", 128, 1), ("scale", 2, 4))),
        Row("int4 K and V, head 128", (("key", 128, 0.5), ("value", 128, 0.5), ("scale", 2, 4))),
    )
}
"""The rows of the dumps, by name."""


@dataclass(frozen=True, slots=True)
class Page:
    """A page, derived, and the layer of a real dump that must agree.

    Args:
        row: a key of `ROWS`.
        tokens, heads: rows of the page (for nvfp4 keys and values count as heads of their own).
        dump: a name of `geometries.names()`.
        layer: part of the name of the layer meant.
    """

    row: str
    tokens: int
    heads: int
    dump: str
    layer: str = ""

    @property
    def nbytes(self) -> int:
        """Bytes of the page, derived."""
        return ROWS[self.row].nbytes * self.tokens * self.heads

    def measured_bytes(self) -> tuple[int, ...]:
        """The distinct page sizes that the dump gives to such layers; one if all agree."""
        geometry = geometries.load(self.dump)
        found = {view.page_bytes for view in geometry.layers if self.layer in view.name and self._fits(view.shape)}
        return tuple(sorted(found))

    def _fits(self, shape: Sequence[int]) -> bool:
        # A layer name can stand for several kinds of page; the number of rows tells them apart, not their bytes.
        return prod(shape[1:-1]) == self.tokens * self.heads


PAGES: tuple[Page, ...] = (
    Page("bf16 K and V, head 128", 16, 8, "llama3_8b_bf16__LBNHC"),
    Page("bf16 K and V, head 64", 16, 8, "gptoss_18sw_18full__LBNHC"),
    Page("latent bf16", 64, 1, "dsv32_bf16_mla_indexer__LBNHC", "self_attn.attn"),
    Page("latent fp8_ds_mla", 64, 1, "glm52_fp8_dsmla_indexer__LBNHC", "self_attn.attn"),
    Page("indexer fp8", 64, 1, "glm52_fp8_dsmla_indexer__LBNHC", "indexer"),
    Page("latent of DeepSeek-V4", 64, 1, "dsv4_mixed_ratio__BLHNC", "mla_attn"),
    Page("latent of DeepSeek-V4", 2, 1, "dsv4_mixed_ratio__BLHNC", "mla_attn"),
    Page("indexer fp8", 64, 1, "dsv4_mixed_ratio__BLHNC", "indexer.k_cache"),
    Page("nvfp4, K or V, head 128", 16, 16, "nvfp4__LBNHC"),
    Page("int8 K and V, head 128", 16, 8, "int8_per_token_head__LBNHC"),
    Page("int4 K and V, head 128", 16, 8, "int4_per_token_head__LBNHC"),
)
"""Pages with a dump each."""


def slab_stride_bytes(c4_layers: int, c128_layers: int, *, indexer: str = "indexer fp8") -> int:
    """The block stride of a DeepSeek-V4 slab: the padded pages of all its layers, side by side.

    Args:
        c4_layers: layers that compress four tokens into one state; each has an indexer.
        c128_layers: layers that compress 128 tokens into one state.
        indexer: the indexer's row, a key of `ROWS`.

    Example:
        >>> slab_stride_bytes(21, 20), slab_stride_bytes(30, 31)
        (1002240, 1435968)
    """
    latent, key = ROWS["latent of DeepSeek-V4"].nbytes, ROWS[indexer].nbytes
    c4 = padded(64 * latent, SLAB_ALIGNMENT_BYTES) + padded(64 * key, SLAB_ALIGNMENT_BYTES)
    return c4_layers * c4 + c128_layers * padded(2 * latent, SLAB_ALIGNMENT_BYTES)


def state_bytes(geometry: CacheGeometry) -> int:
    """The recurrent state that the largest such layer of a dump keeps in a block."""
    return max(view.page_bytes for view in geometry.layers if view.spec_kind == "mamba")
