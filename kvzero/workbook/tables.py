"""Small tables, for pages (HTML) and for terminals (text)."""

from __future__ import annotations

import html
import re
from collections.abc import Sequence

from .figures.charts import number_text

# A number as words: a sign, digits, and a unit that a column of numbers carries.
NUMBER = re.compile(
    r"(✗ )?[-+−]?(\d[\d,]*(\.\d+)?(e[-+]?\d+)?|inf|nan) ?(%|x|×|[KMGT]i?B|B|[mµn]?s|[GT]B/s)?", re.IGNORECASE
)
# A cell of so many letters stays on one line.
MOST_UNBROKEN = 20
# Dark enough for a white page, light enough for a dark one; the ✗ carries the meaning.
WRONG = "color:#c2500f;font-weight:bold"


def show_table(header: Sequence[str], rows: Sequence[Sequence[object]], sentence: str = "") -> None:
    """Display a table; a front end without HTML shows it as text.

    Args:
        header: names of the columns.
        rows: their values, as for `table_text`.
        sentence: what to see, above the table; empty where the page has just said it.

    Example:
        show_table(["planner", "missed (bytes)"], [["kvzero", 0], ["uniform-page", "✗ 448"]], "One misses bytes.")
    """
    from IPython.display import display

    plain = f"{sentence}\n{table_text(header, rows)}".lstrip("\n")
    display({"text/html": table_html(header, rows, sentence), "text/plain": plain}, raw=True)


def table_html(header: Sequence[str], rows: Sequence[Sequence[object]], sentence: str) -> str:
    """A table as HTML: columns of numbers to the right, words to the left, a cell beginning with ✗ marked.

    Args:
        header: names of the columns.
        rows: their values, as for `table_text`.
        sentence: the caption, if any.

    >>> table_html(["layer", "bytes"], [["a", 37376]], "One.").count("text-align:right")
    2
    """
    sides = ["right" if numeric else "left" for numeric in _numeric_columns(header, rows)]

    def cells(tag: str, words: Sequence[str]) -> str:
        parts = []
        for side, word in zip(sides, words, strict=True):
            style = f"text-align:{side};" + "white-space:nowrap;" * (tag == "td" and len(word) <= MOST_UNBROKEN)
            style += WRONG * word.startswith("✗")
            # The site has a style sheet of its own, and no style in attributes.
            look = f"class='{side}{' failed' * word.startswith('✗')}' style='{style}'"
            parts.append(f"<{tag}{' scope=col' * (tag == 'th')} {look}>{html.escape(word)}</{tag}>")
        return f"<tr>{''.join(parts)}</tr>"

    body = "".join(cells("td", [_cell(value) for value in row]) for row in rows)
    caption = f"<caption style='caption-side:top;text-align:left'>{html.escape(sentence)}</caption>" * bool(sentence)
    return (
        f"<table class='kvzero-table'>{caption}<thead>{cells('th', header)}</thead><tbody>{body}</tbody></table>"
    )


def table_text(header: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """A table as text: numbers to the right, words to the left.

    Args:
        header: names of the columns.
        rows: their values; whole numbers get thousands separators.

    >>> print(table_text(["layer", "bytes", "right"], [["a", 37376, "yes"], ["bc", 64, "no"]]))
    layer   bytes  right
    a      37,376  yes
    bc         64  no
    """
    cells = [list(header), *([_cell(value) for value in row] for row in rows)]
    widths = [max(len(row[i]) for row in cells) for i in range(len(header))]
    sides = [str.rjust if numeric else str.ljust for numeric in _numeric_columns(header, rows)]
    return "\n".join(
        "  ".join(side(word, width) for side, word, width in zip(sides, row, widths, strict=True)).rstrip()
        for row in cells
    )


def _numeric_columns(header: Sequence[str], rows: Sequence[Sequence[object]]) -> list[bool]:
    """Which columns hold numbers; where one is refused, a ✗ may stand for it, where none is, a dash."""
    answers = []
    for column in range(len(header)):
        words = [_cell(row[column]) for row in rows]
        rest = [word for word in words if not NUMBER.fullmatch(word)]
        answers.append(len(rest) < len(words) and all(word.startswith("✗") or word == "-" for word in rest))
    return answers


def _cell(value: object) -> str:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return str(value)
    return number_text(value) if isinstance(value, float) else f"{value:,}"
