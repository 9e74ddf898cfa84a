"""Tables: numbers to the right, refusals marked, the sentence as the caption, and the same as text."""

from __future__ import annotations

import re

from kvzero.workbook.tables import show_table, table_html, table_text

HEADER = ["who", "times", "share", "size", "change", "shape", "outcome", "launches"]
ROWS = [["kvzero", "1.02 x", "0.533%", "8.4 KiB", "1,234", "64 x 1", "3 misses", 2],
        ["old", "17.77 x", "✗ 12%", "900 B", "-0.5", "16 x 8", "none", "✗ refused"]]  # fmt: skip
SIDES = ["left", "right", "right", "right", "right", "left", "left", "right"]


def test_numbers_with_a_unit_stand_to_the_right():
    said = table_html(HEADER, ROWS, "…")
    assert re.findall(r"<th scope=col class='\w+' style='text-align:(\w+)", said) == SIDES
    assert re.findall(r"<td class='[\w ]+' style='text-align:(\w+)", said) == SIDES * 2


def test_what_is_wrong_is_marked_and_what_is_written_is_escaped():
    said = table_html(["<name>"], [["✗ a & b"], [1_234]], "One < two.")
    assert re.findall(r"bold'>([^<]*)<", said) == ["✗ a &amp; b"]
    assert "&lt;name&gt;" in said and ">1,234<" in said and ">One &lt; two.</caption>" in said
    assert "caption" not in table_html(["a"], [[1]], "")


def test_numbers_stand_to_the_right_as_text_too():
    said = table_text(
        ["who", "bytes", "ok", "launches"], [["old", 37_376, True, "✗ refused"], ["kvzero", "-", False, 2]]
    )
    assert said.splitlines() == [
        "who      bytes  ok      launches",
        "old     37,376  True   ✗ refused",
        "kvzero       -  False          2",
    ]


def test_a_front_end_without_html_shows_the_text(monkeypatch):
    shown = []
    monkeypatch.setattr("IPython.display.display", lambda data, **options: shown.append((data, options)))
    show_table(["a"], [[1]], "One.")
    ((data, options),) = shown
    assert data["text/plain"] == "One.\na\n1" and "<table" in data["text/html"] and options == {"raw": True}
