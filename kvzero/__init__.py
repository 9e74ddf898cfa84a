"""Zero freshly allocated KV-cache blocks, and prove byte by byte that nothing else was touched.

    >>> from kvzero import geometries, plan_segments
    >>> plan = plan_segments(geometries.load("dsv4_c4_mla_only__BLHNC"))
    >>> plan.bytes_per_block == plan.needed_bytes_per_block
    True

The names below are loaded on first use, so that ``import kvzero`` and ``kvzero --help`` start no torch.
"""

from __future__ import annotations

import importlib

__version__ = "0.1.0"

_HOME = {
    "Arena": "arena",
    "Audit": "audit",
    "BlockZeroer": "zeroer",
    "CacheGeometry": "geometry",
    "KvzeroError": "errors",
    "LayerView": "views",
    "Plan": "plan",
    "Segment": "views",
    "Storage": "views",
    "audit_bytes": "audit",
    "audit_plan": "audit",
    "launch_for": "launch",
    "plan_segments": "plan",
    "with_num_blocks": "resize",
}

__all__ = ["__version__", *_HOME]


def __getattr__(name: str):
    if name not in _HOME:
        raise AttributeError(f"module 'kvzero' has no attribute {name!r}")
    return getattr(importlib.import_module(f"kvzero.{_HOME[name]}"), name)


def __dir__() -> list[str]:
    return sorted(__all__)
