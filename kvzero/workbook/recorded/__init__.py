"""Measurements that a notebook quotes where it cannot repeat them: each file holds numbers and their conditions."""

from __future__ import annotations

import json
from importlib import resources
from typing import Any


def load(name: str) -> dict[str, Any]:
    """A recorded measurement by the name of its file, without the ending.

    Returns:
        `conditions` (device, versions, date, method) and `rows`, each with its units in the names.

    Example:
        >>> load("mixed_pages_h200")["conditions"]["device"]
        'one NVIDIA H200 (datasheet 4.8 TB/s)'
    """
    return json.loads(resources.files(__package__).joinpath(f"{name}.json").read_text(encoding="utf-8"))
