"""Expect an error by the rule that it names."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from kvzero.errors import KvzeroError


@contextmanager
def raises_rule(rule: str, match: str | None = None) -> Iterator[pytest.ExceptionInfo[KvzeroError]]:
    """Expect a `KvzeroError` of this rule, as `pytest.raises` expects one of a class."""
    with pytest.raises(KvzeroError, match=match) as caught:
        yield caught
    assert caught.value.rule == rule
