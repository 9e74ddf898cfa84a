"""What must hold for every picture, read from its SVG: no label lies on another, and harm that is said is drawn."""

from __future__ import annotations

import re
from itertools import combinations
from xml.etree import ElementTree

from kvzero.workbook.figures import SIGNS

SVG = "{http://www.w3.org/2000/svg}"
# Words of a sentence that count harmed bytes, and the sign that such a picture must show.
SAID = {
    "stomped": r"(?:wipes|stomps) [\d,]+|[\d,]+ (?:live )?bytes (?:are )?stomped",
    "missed": r"leaves [\d,]+ of|misses [\d,]+|[\d,]+ (?:needed )?bytes[^.;]* (?:stay|left) dirty|[\d,]+ bytes missed",
    "overrun": r"[\d,]+ bytes[^.;]* outside the storage|overruns [\d,]+",
}


def labels(drawing: ElementTree.Element) -> list[tuple[float, float, float, float, str]]:
    """(left, top, right, bottom, words) of each line of words, in pixels; glyphs are none."""
    found = []

    def walk(part: ElementTree.Element, down: float) -> None:
        shift = re.fullmatch(r"translate\(0 ([\d.]+)\)", part.get("transform", ""))
        down += float(shift.group(1)) if shift else 0.0
        for child in part:
            if child.tag == f"{SVG}text" and child.get("textLength"):
                x, y, width = (float(child.get(name)) for name in ("x", "y", "textLength"))
                size = float(part.get("font-size"))
                found.append((x, y + down - 0.7 * size, x + width, y + down, child.text or ""))
            walk(child, down)

    walk(drawing, 0.0)
    return found


def picture_problems(svg: str, sentence: str = "") -> list[str]:
    """What is wrong with a picture.

    Args:
        svg: the drawing.
        sentence: what stands beside it; its own description if empty.
    """
    drawing = ElementTree.fromstring(svg)
    sentence = sentence or drawing.get("aria-label", "")
    width, height = (float(drawing.get(name)) for name in ("width", "height"))
    placed, problems = labels(drawing), []
    for left, top, right, bottom, words in placed:
        if left < 0 or top < 0 or right > width + 0.5 or bottom > height:
            problems.append(f"{sentence[:40]}: {words!r} is cut off")
    for (l0, t0, r0, b0, one), (l1, t1, r1, b1, other) in combinations(placed, 2):
        if min(r0, r1) - max(l0, l1) > 0.5 and min(b0, b1) - max(t0, t1) > 0.5:
            problems.append(f"{sentence[:40]}: {one!r} lies on {other!r}")
    on_a_map = SIGNS["cleared"].fill in svg
    for kind, words in SAID.items():
        said = re.findall(words, sentence)
        counted = any(re.search(r"[1-9]", each) for each in said)
        if on_a_map and counted and SIGNS[kind].fill not in svg:
            problems.append(f"{sentence[:40]}: says {kind} bytes and draws none")
    return problems
