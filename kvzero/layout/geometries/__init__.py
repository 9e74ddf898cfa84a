"""Real cache layouts, dumped from the allocator and planner of vLLM 0.33.0 on CPU memory, with few blocks.

A file is named by a model-like configuration and a layout: LBNHC, LBHNC and LHBNC keep layers apart; BLHNC,
BLNHC and BHLNC keep all layers inside each block. Shapes are like the named model's, not read from a
checkpoint; the layout was forced for each file; `made_by` in each file says what was real and what stood in.
"""

from __future__ import annotations

import json
from importlib import resources

from kvzero.errors import GeometryError
from kvzero.layout.geometry import CacheGeometry


def names() -> list[str]:
    """The names that `load` takes, sorted."""
    entries = resources.files(__name__).iterdir()
    return sorted(entry.name.removesuffix(".json") for entry in entries if entry.name.endswith(".json"))


def load(name: str) -> CacheGeometry:
    """Read one of the dumps.

    Args:
        name: one of `names()`.

    Raises:
        GeometryError: there is no such dump.

    >>> load("dsv4_c4_mla_only__BLHNC").layers[1].byte_offset
    37440
    """
    if name not in names():
        raise GeometryError(
            "unknown-selection", where="kvzero.layout.geometries", kind="dump", name=name, known=names()
        )
    text = (resources.files(__name__) / f"{name}.json").read_text(encoding="utf-8")
    # Messages name the dump, not the folder where the package is installed.
    return CacheGeometry.from_dict(json.loads(text), source=f"{name}.json")
