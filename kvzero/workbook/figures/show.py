"""One display for a figure: a picture, its description and its text form, which read well without a kernel.

The HTML carries the picture with a text alternative, the sentence as visible words, and the text map folded
away; the plain text carries the sentence and the text map. A front end takes what it can show.
"""

from __future__ import annotations

import base64
import html
from collections.abc import Sequence

from .sheet import Figure, stacked


def figure_html(figure: Figure, sentence: str) -> str:
    """The picture as HTML: no wider than the page, and described.

    As an image, it is also shown in a notebook that the reader has not yet declared to be trusted.
    """
    data = base64.b64encode(figure.svg(sentence).encode()).decode("ascii")
    style = f"width:{figure.width_pixels}px;max-width:100%;height:auto;background:#fff"
    return f'<img alt="{html.escape(sentence)}" style="{style}" src="data:image/svg+xml;base64,{data}">'


def bundle(figure: Figure | Sequence[Figure], sentence: str, text: str | None = None) -> dict[str, str]:
    """The display of a figure by MIME type; see `show`."""
    whole = stacked([figure] if isinstance(figure, Figure) else figure)
    folded = ""
    if text:
        folded = (
            "<details><summary>The same as text</summary>"
            f'<pre style="overflow-x:auto;line-height:1.2">{html.escape(text)}</pre></details>'
        )
    plain = sentence if not text or text.startswith(sentence) else f"{sentence}\n{text}"
    return {
        "text/html": (
            f'<figure class="kvzero-figure" style="margin:0">{figure_html(whole, sentence)}'
            f"<figcaption>{html.escape(sentence)}</figcaption>{folded}</figure>"
        ),
        "image/svg+xml": whole.svg(sentence, telling=True),
        "text/plain": text if text and text.startswith(sentence) else plain,
    }


def show(figure: Figure | Sequence[Figure], sentence: str, text: str | None = None) -> None:
    """Display a figure with its description, once.

    Args:
        figure: a figure of this package, or several to stand below each other.
        sentence: what to see, in a sentence; it is read out for the picture and stands under it.
        text: the text form (`map_text`, or a table as text), for pages and readers without pictures.

    Example:
        show(bars(values, sentence), sentence, table_text(header, rows))
    """
    from IPython.display import display

    display(bundle(figure, sentence, text), raw=True)


def draw_map(*arguments, **options) -> tuple[Figure, str, str]:
    """A memory map as (figure, sentence, text), for `show` and for a knob's function.

    Args:
        arguments, options: those of `memory_map`.
    """
    from .map_data import memory_map_data
    from .map_text import map_text
    from .memory_map import draw_memory_map

    data = memory_map_data(*arguments, **options)
    return draw_memory_map(data), data.sentence, map_text(data)


def show_map(*arguments, **options) -> None:
    """Display a memory map with its sentence and its text form.

    Args:
        arguments, options: those of `memory_map`.
    """
    show(*draw_map(*arguments, **options))
