"""What an old planner must do on a named geometry; the tests hold every planner to its list."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from kvzero.errors import KvzeroError


@dataclass(frozen=True)
class MustDo:
    """One obligation of an old planner.

    Args:
        geometry: a name that `kvzero.history.named.geometry` knows.
        blocks: the block ids that are zeroed.
        audit: fields of the `Audit` and the values that both the arithmetic and the byte check must give.
        num_ids: block ids of the launch, where `launch` or a launch error is stated.
        launch: fields of the `Launch` and the values they must have.
        raises: what planning, or launching if `num_ids` is given, must raise instead.
        facts: numbers that the exception must carry.
        source: the upstream thread with the number, or "derived".
    """

    geometry: str
    blocks: tuple[int, ...] = ()
    audit: Mapping[str, int] = field(default_factory=dict)
    num_ids: int | None = None
    launch: Mapping[str, object] = field(default_factory=dict)
    raises: type[KvzeroError] | None = None
    facts: Mapping[str, object] = field(default_factory=dict)
    source: str = "derived"


def clean(needed_bytes: int) -> dict[str, int]:
    """The audit fields of a write that does exactly what is needed, once."""
    return {
        "missed_bytes": 0, "stomped_bytes": 0, "pad_bytes": 0, "overrun_bytes": 0,
        "needed_bytes": needed_bytes, "written_bytes": needed_bytes,
    }  # fmt: skip
