"""One rule says which device is used."""

from __future__ import annotations

import pytest
import torch
from refusals import raises_rule

from kvzero.device import pick_device


@pytest.mark.parametrize(
    ("has_gpu", "wanted", "expected"),
    [
        (True, "auto", "cuda"), (True, "cuda", "cuda"), (True, "cpu", "cpu"), (False, "auto", "cpu"),
        (False, "cpu", "cpu"),
    ],
)  # fmt: skip
def test_what_is_there_is_picked(monkeypatch, has_gpu, wanted, expected):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: has_gpu)
    assert pick_device(wanted) == expected


@pytest.mark.parametrize(
    ("has_gpu", "wanted", "available"),
    [
        (False, "cuda", ("auto", "cpu")), (False, "tpu", ("auto", "cpu")), (True, "cuda:1", ("auto", "cpu", "cuda")),
    ],
)  # fmt: skip
def test_what_is_not_there_is_refused(monkeypatch, has_gpu, wanted, available):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: has_gpu)
    with raises_rule("device-not-available") as caught:
        pick_device(wanted)
    assert (caught.value.device, caught.value.available) == (wanted, available)
