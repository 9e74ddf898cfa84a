"""One display for a figure: a picture, its description and its text form, which read well without a kernel.

The HTML carries the picture with a text alternative, the sentence as visible words, and the text map folded
away; the plain text carries the sentence and the text map. A front end takes what it can show.
"""

from __future__ import annotations

import base64
import html
import io

import numpy as np
from matplotlib.figure import Figure
from PIL import Image

DPI = 192  # two dots for each of a screen's
COLOURS = 128  # flat fills and the edges of letters need no more


def png_bytes(figure: Figure, dpi: int = DPI) -> bytes:
    """The figure as a PNG file with a palette: a third of the size, and no eye sees the difference."""
    figure.set_dpi(dpi)
    figure.canvas.draw()
    picture = Image.fromarray(np.asarray(figure.canvas.buffer_rgba())[..., :3])
    buffer = io.BytesIO()
    flat = picture.quantize(COLOURS, method=Image.Quantize.FASTOCTREE, dither=Image.Dither.NONE)
    palette, paper = flat.getpalette(), 3 * flat.getpixel((0, 0))
    palette[paper : paper + 3] = [255] * 3  # the mean of its shades is a tint that shows on a white page
    flat.putpalette(palette)
    flat.save(buffer, format="PNG")
    return buffer.getvalue()


def figure_html(picture: bytes, width_inches: float, sentence: str, text: str | None = None) -> str:
    """The picture as HTML: no wider than the page, described, with its text form under it.

    Args:
        picture: a PNG file.
        width_inches: the width at which type has its stated size.
        sentence: what to see; the text alternative and the caption.
        text: the text form, folded away behind a line that opens it.

    >>> '<img alt="Four pages."' in figure_html(b"", 9, "Four pages.")
    True
    """
    data = base64.b64encode(picture).decode("ascii")
    words = html.escape(sentence)
    style = f"width:{width_inches * 96:.0f}px;max-width:100%;height:auto;background:#fff"
    folded = ""
    if text:
        folded = (
            "<details><summary>The same as text</summary>"
            f'<pre style="overflow-x:auto;line-height:1.2">{html.escape(text)}</pre></details>'
        )
    return (
        '<figure class="kvzero-figure" style="margin:0">'
        f'<img alt="{words}" style="{style}" src="data:image/png;base64,{data}">'
        f"<figcaption>{words}</figcaption>{folded}</figure>"
    )


def picture_html(figure: Figure | list[Figure], sentence: str) -> str:
    """The figure, or each of a list of figures below each other, as HTML with the sentence as text alternative."""
    figures = figure if isinstance(figure, (list, tuple)) else [figure]
    return "".join(figure_html(png_bytes(one, 120), one.get_size_inches()[0], sentence) for one in figures)


def bundle(figure: Figure | list[Figure], sentence: str, text: str | None = None) -> tuple[dict, dict]:
    """The display of a figure as (data, metadata) by MIME type; see `show`."""
    if isinstance(figure, (list, tuple)):
        data, metadata = bundle(figure[0], sentence, text)
        rest = [figure_html(png_bytes(one), one.get_size_inches()[0], sentence) for one in figure[1:]]
        return {**data, "text/html": data["text/html"] + "".join(rest)}, metadata
    picture = png_bytes(figure)
    width, height = figure.get_size_inches()
    plain = sentence if not text or text.startswith(sentence) else f"{sentence}\n{text}"
    data = {
        "text/html": figure_html(picture, width, sentence, text),
        "image/png": base64.b64encode(picture).decode("ascii"),
        "text/plain": text if text and text.startswith(sentence) else plain,
    }
    size = {"alt": sentence, "width": round(width * 96), "height": round(height * 96)}
    return data, {"image/png": size}


def show(figure: Figure, sentence: str, text: str | None = None) -> None:
    """Display a figure with its description, once.

    Args:
        figure: a figure of this package.
        sentence: what to see, in a sentence; it is read out for the picture and stands under it.
        text: the text form (`map_text`, or a table as text), for pages and readers without pictures.

    Example:
        data = memory_map_data(geometry, audit=audit)
        show(draw_memory_map(data), data.sentence, map_text(data))
    """
    from IPython.display import display

    data, metadata = bundle(figure, sentence, text)
    display(data, metadata=metadata, raw=True)


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
