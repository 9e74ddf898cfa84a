"""Every rule that the package raises has a message, and every message is raised somewhere with the facts it names."""

from __future__ import annotations

import ast
import pickle
import string
from pathlib import Path

import pytest

import kvzero
from kvzero import errors

FAMILIES = {
    name: kind for name, kind in vars(errors).items() if isinstance(kind, type) and issubclass(kind, errors.KvzeroError)
}


def raised() -> list[tuple[str, str, set[str], bool]]:
    """(class, rule, names of the facts, whether all facts are spelled out) of each construction in the package."""
    found = []
    for file in Path(kvzero.__file__).parent.rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            if not isinstance(node, ast.Call):
                continue
            name = getattr(node.func, "attr", getattr(node.func, "id", ""))
            if name in FAMILIES and (node.args or node.keywords):
                rule = node.args[0].value if node.args else FAMILIES[name].rule
                facts = {keyword.arg for keyword in node.keywords if keyword.arg}
                found.append((name, rule, facts, all(keyword.arg for keyword in node.keywords)))
    return found


def test_what_is_raised_has_a_message_and_every_message_is_raised():
    calls = [call for call in raised() if call[1] != "kvzero"]
    for name, rule, facts, spelled_out in calls:
        named = {field for _, field, _, _ in string.Formatter().parse(FAMILIES[name].messages[rule]) if field}
        assert not spelled_out or named <= facts, (name, rule, named - facts)
    rules = {rule for kind in FAMILIES.values() for rule in kind.messages}
    assert rules == {rule for _, rule, _, _ in calls}
    families = [kind for kind in FAMILIES.values() if "messages" in vars(kind)]
    assert len(rules) == sum(len(kind.messages) for kind in families)


@pytest.mark.parametrize("kind", [errors.AmbiguousBlockDimError, errors.GeometryError])
def test_an_error_keeps_its_rule_and_facts_across_processes(kind):
    facts = {"where": "k", "candidates": [0, 1], "sizes": [4, 4], "shape": (4, 4), "num_blocks": 4}
    error = kind("ambiguous-block-dim", **facts)
    again = pickle.loads(pickle.dumps(error))
    assert (type(again), again.rule, again.facts, str(again)) == (kind, "ambiguous-block-dim", facts, str(error))
    assert again.candidates == [0, 1] and "State block_dim" in str(again)
