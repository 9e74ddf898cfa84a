"""The picture on the project's first page: a wipe in four steps, drawn from the same maps as the notebooks.

python -m kvzero.workbook.cover        # from the project's root: writes notebooks/images/wipe.svg
"""

from __future__ import annotations

from pathlib import Path

from kvzero.audit.audit import audit_plan
from kvzero.history import PLANNERS, named
from kvzero.plan.planner import plan_segments
from kvzero.workbook.figures import Figure, draw_map

PATH = Path("notebooks/images/wipe.svg")
SECONDS_PER_STEP = 4


def cover_steps() -> list[tuple[Figure, str, str]]:
    """What the picture shows in turn: a planner that takes the stride for the span, and one that does not."""
    geometry = named.geometry("packed-slab-51288")
    old, right = PLANNERS["page-per-segment"].plan(geometry), plan_segments(geometry)
    return [
        draw_map(geometry, rows=range(96, 100)),
        draw_map(geometry, old, audit_plan(old, geometry, [98]), rows=range(96, 100)),
        draw_map(geometry, old, audit_plan(old, geometry, [99]), rows=range(96, 101)),
        draw_map(geometry, right, audit_plan(right, geometry, [98]), rows=range(96, 100)),
    ]


def cover_svg() -> str:
    """The steps as one SVG that shows each for some seconds; without motion, the second stays: the wipe."""
    steps = cover_steps()
    whole = Figure(steps[0][0].width_inches, max(figure.height_inches for figure, *_ in steps))
    share = 100 / len(steps)
    css = (
        f".step {{ visibility: hidden; animation: turn {SECONDS_PER_STEP * len(steps)}s step-end infinite; }}"
        f"@keyframes turn {{ 0% {{ visibility: visible; }} {share:g}% {{ visibility: hidden; }} }}"
        + "".join(f"#step-{index} {{ animation-delay: {SECONDS_PER_STEP * index}s; }}" for index in range(len(steps)))
        + "@media (prefers-reduced-motion: reduce) { .step { animation: none; } #step-1 { visibility: visible; } }"
    )
    whole.parts.append(f"<style>{css}</style>")
    for index, (figure, _, _) in enumerate(steps):
        body = "".join(figure.parts).replace("hatch-", f"hatch-{index}-")
        whole.parts.append(f'<g class="step" id="step-{index}">{body}</g>')
    return whole.svg(" Then: ".join(sentence for _, sentence, _ in steps)) + "\n"


if __name__ == "__main__":
    PATH.parent.mkdir(parents=True, exist_ok=True)
    PATH.write_text(cover_svg(), encoding="utf-8")
