"""Short names for layers, so that a column of a map can carry one."""

from __future__ import annotations

import re
from collections.abc import Sequence


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
