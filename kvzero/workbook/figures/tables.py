"""Small tables, as a figure and as text."""

from __future__ import annotations

import re
from collections.abc import Sequence

from matplotlib.figure import Figure

from .charts import number_text
from .style import BODY_POINTS, HAIR, INK, WIDTH_INCHES, Sheet, Sign, text_width, title_lines

MARGIN, LEAST_WIDTH = 0.15, 6.5


# A number as words: a sign, digits, and a unit that a column of numbers carries.
NUMBER = re.compile(
    r"(✗ )?[-+−]?(\d[\d,]*(\.\d+)?(e[-+]?\d+)?|inf|nan) ?(%|x|×|[KMGT]i?B|B|[mµn]?s|[GT]B/s)?", re.IGNORECASE
)


def table(header: Sequence[str], rows: Sequence[Sequence[object]], sentence: str) -> Figure:
    """Draw a small table: numbers (a unit may follow) to the right, words to the left, a cell beginning with ✗ in red.

    Args:
        header: names of the columns.
        rows: their values; whole numbers get thousands separators.
        sentence: what to see, on top.
    """
    cells = [[_cell(value) for value in row] for row in rows]
    heads, widths = _fitted(header, cells)
    right = MARGIN + sum(widths)
    sheet_width = max(right + MARGIN, LEAST_WIDTH)
    title = title_lines(sentence, sheet_width - 2 * MARGIN)
    most = max(map(len, heads))
    first = 0.3 + 0.19 * len(title) + 0.17 * (most - 1)
    sheet = Sheet(first + 0.28 * (len(cells) + 1) + 0.1, sheet_width)
    sheet.title(title)
    for index, row in enumerate([[lines[-1] for lines in heads], *cells]):
        y, x = first + 0.28 * index + 0.14, MARGIN
        if index % 2 == 0 and index:
            sheet.box(MARGIN, y - 0.14, right - MARGIN, 0.28, Sign("", "", "#f4f6f8"))
        for column, words in enumerate(row):
            numeric = _is_numeric([source[column] for source in rows])
            at, align = (x + widths[column] - 0.15, "right") if numeric else (x + 0.08, "left")
            colour = "#a63c00" if words.startswith("✗") else INK
            bold = index == 0 or words.startswith("✗")
            sheet.text(at, y, words, BODY_POINTS, colour, align, bold)
            for above, more in enumerate(heads[column][-2::-1] if index == 0 else [], start=1):
                sheet.text(at, y - 0.17 * above, more, BODY_POINTS, align=align, bold=True)
            x += widths[column]
    for y, colour in ((first + 0.28, INK), (first + 0.28 * (len(cells) + 1), HAIR)):
        sheet.stroke([(MARGIN, y), (right, y)], colour, 1)
    return sheet.finish()


def _fitted(header: Sequence[str], cells: Sequence[Sequence[str]]) -> tuple[list[list[str]], list[float]]:
    """The lines of each heading and the width of each column; headings break where the table is too wide else."""

    def wide(texts) -> float:
        return max((text_width(words, BODY_POINTS, True) for words in texts), default=0.0)

    lines = [[name] for name in header]
    columns = list(zip(*cells, strict=True)) or [()] * len(header)
    for padding, broken in ((0.3, False), (0.3, True), (0.24, True)):
        if broken:
            lines = [
                [name] if wide([name]) <= wide(column) else min(_halves(name), key=wide)
                for name, column in zip(header, columns, strict=True)
            ]
        widths = [wide([*heads, *column]) + padding for heads, column in zip(lines, columns, strict=True)]
        if sum(widths) <= WIDTH_INCHES - 2 * MARGIN:
            break
    return lines, widths


def _halves(words: str) -> list[list[str]]:
    """Every way to break some words into two lines, and the one line."""
    parts = words.split()
    return [[words], *([" ".join(parts[:at]), " ".join(parts[at:])] for at in range(1, len(parts)))]


def table_text(header: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """The same table as text: numbers to the right, words to the left.

    >>> print(table_text(["layer", "bytes", "right"], [["a", 37376, "yes"], ["bc", 64, "no"]]))
    layer   bytes  right
    a      37,376  yes
    bc         64  no
    """
    cells = [list(header), *([_cell(value) for value in row] for row in rows)]
    widths = [max(len(row[i]) for row in cells) for i in range(len(header))]
    sides = [str.rjust if _is_numeric([row[i] for row in rows]) else str.ljust for i in range(len(header))]
    return "\n".join(
        "  ".join(side(word, width) for side, word, width in zip(sides, row, widths, strict=True)).rstrip()
        for row in cells
    )


def _is_numeric(values: Sequence[object]) -> bool:
    """Whether a column holds numbers; where one is refused, a ✗ may stand for it, where none is, a dash."""
    numbers = [bool(NUMBER.fullmatch(_cell(value))) for value in values]
    rest = [str(value) for value, number in zip(values, numbers, strict=True) if not number]
    return any(numbers) and all(words.startswith("✗") or words == "-" for words in rest)


def _cell(value: object) -> str:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return str(value)
    return number_text(value) if isinstance(value, float) else f"{value:,}"
