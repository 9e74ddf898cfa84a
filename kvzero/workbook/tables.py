"""A table shown as a figure and as text in one call."""

from __future__ import annotations

from collections.abc import Sequence

from .figures import show, table, table_text


def show_table(header: Sequence[str], rows: Sequence[Sequence[object]], sentence: str) -> None:
    """Display a small table with the sentence that says what to see; its text form is folded below it.

    Args:
        header: names of the columns.
        rows: their values; whole numbers get thousands separators, a cell beginning with ✗ is red.
        sentence: what to see.
    """
    show(table(header, rows, sentence), sentence, table_text(header, rows))
