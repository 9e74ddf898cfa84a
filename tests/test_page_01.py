"""The cells of page 01, taken from the notebook and held to arithmetic that shares nothing with them."""

from __future__ import annotations

import json
import math
from collections import deque
from pathlib import Path

import pytest
import torch

PAGE = Path(__file__).parents[1] / "notebooks" / "01_why_zero.ipynb"


@pytest.fixture(scope="module")
def page():
    """The names that the page's cells define: its attention, its server, its remedies."""
    cells = {cell["id"]: "".join(cell["source"]) for cell in json.loads(PAGE.read_text())["cells"]}
    names = {"torch": torch, "deque": deque, "device": "cpu", "seed": 5, "num_requests": 90}
    for cell in ("code-attend", "code-serve"):
        exec(cells[cell], names)
    exec(cells["fix-run"].split("fixed = ")[0], names)
    exec(cells["fix-rivals"].split("rivals = ")[0], names)
    return names


def test_attention_is_that_of_the_existing_tokens(page):
    random = torch.Generator().manual_seed(3)
    query, keys, values = (torch.randn(*shape, generator=random) for shape in ((128,), (6, 128), (6, 128)))
    row, p = page["attend"](query, keys, values, 4)
    weights = [math.exp(float(key @ query) / math.sqrt(128)) for key in keys[:4]]
    expected = sum(weight * value for weight, value in zip(weights, values[:4], strict=True)) / sum(weights)
    torch.testing.assert_close(row, expected)
    assert p[4:].tolist() == [0, 0]


def test_only_a_pool_that_runs_short_answers_wrongly_and_each_remedy_cures_it(page):
    serve = page["serve"]
    right, wrong = serve(4 * 90), serve(24)
    assert {given for given, true in zip(wrong, right, strict=True) if given != true} == {0}
    assert wrong[: 24 // 4] == right[: 24 // 4]
    assert serve(24, take=page["take_zeroed"]) == right
    for remedy in ("attend_cleared", "attend_existing"):
        assert serve(24, attend=page[remedy]) == right


def test_the_symptom_runs_the_code_that_the_page_shows():
    cells = {cell["id"]: "".join(cell["source"]) for cell in json.loads(PAGE.read_text())["cells"]}
    shown = [line for name in ("code-attend", "code-serve") for line in cells[name].splitlines() if line]
    assert [line for line in cells["symptom-server"].splitlines() if line] == shown
