"""The picture on the project's first page, drawn from the same figures as the notebooks.

python -m kvzero.workbook.cover        # from the project's root: writes notebooks/images/packed_stride.png
"""

from __future__ import annotations

import io
from pathlib import Path

from kvzero.audit import audit_plan
from kvzero.specimens import PLANNERS, named
from kvzero.workbook.figures import MemoryMapData, draw_memory_map, map_text, memory_map_data, png_bytes

PATH = Path("notebooks/images/packed_stride.png")
DPI = 110
COLOURS = 128


def cover_data() -> MemoryMapData:
    """What the picture shows: a planner that takes the stride for the span, asked to zero block 98."""
    geometry = named.geometry("packed-slab-51288")
    plan = PLANNERS["page-per-segment"].plan(geometry)
    return memory_map_data(geometry, plan, audit_plan(plan, geometry, [98]), rows=range(96, 100))


def write_cover(path: Path = PATH) -> None:
    """Draws the picture; its text form goes into the file, so that a test can tell whether it is current.

    Args:
        path: the PNG file to write.
    """
    from PIL import Image
    from PIL.PngImagePlugin import PngInfo

    data = cover_data()
    picture = Image.open(io.BytesIO(png_bytes(draw_memory_map(data), DPI))).convert("RGB").quantize(COLOURS)
    text = PngInfo()
    text.add_itxt("Description", map_text(data))
    path.parent.mkdir(parents=True, exist_ok=True)
    picture.save(path, optimize=True, pnginfo=text)


if __name__ == "__main__":
    write_cover()
