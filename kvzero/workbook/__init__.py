"""What several notebooks share: figures, knobs, tables, verdicts, exercises, and the runner with its site.

Everything that a page draws with comes from here:

    from kvzero.workbook import bars, draw_map, knob, show, show_map, show_table, sweep, table_text, timeline

show_map(geometry, plan, audit=audit, blocks=[98], rows=range(96, 100), sentence="...")
    The memory map of a pool: who owns each byte, what a plan writes (`plan`), what a write did (`audit`), with its
    sentence and its text form. Any plan will do, also one from segments of your own; see `audit_plan`.
draw_map(...)
    The same as (figure, sentence, text), for a knob's function.
draw_byte(geometry, plan, storage, byte)
    What one byte is: its layer, block, token and head, and which segments write it; as (figure, sentence, text).
bars([("flat grid", 2_904_745_920), ...], sentence, unit="programs", limits=[Limit("CUDA", 2**31 - 1)], log=True)
    A figure of horizontal bars; one that is past a limit is hatched red and marked ✗.
sweep([("missed", [(x, y), ...]), ...], sentence, x_label=..., y_label=..., flips=[Limit("page", 37_376)], here=x)
    A figure of lines over what a knob turns, with the points where safe becomes unsafe, and where the knob stands.
timeline([Event("host", 0, 2, "ids [1]", "fill"), ...], sentence, unit="µs"), timeline_text(events)
    A figure of what ran when on each lane.
show(figure, sentence, text)
    Displays a figure (or a list of them) with its sentence and its text form.
show_table(header, rows, sentence), table_text(header, rows)
    A table, as a display or as text.
knob(draw, controls={...}, steps={...}, title="...")
    Controls over a picture: `draw(**state)` returns (figure, sentence, text). It works in JupyterLab, and on the
    static site, where the reader steps through `steps`.

The core never imports this package; it comes with the extra `workbook`.
"""

from .figures import Event, Limit, bars, draw_map, show, show_map, sweep, timeline, timeline_text
from .knob import knob
from .probe import draw_byte
from .tables import show_table, table_text

__all__ = [
    "Event", "Limit", "bars", "draw_byte", "draw_map", "knob", "show", "show_map", "show_table", "sweep", "table_text",
    "timeline", "timeline_text",
]  # fmt: skip
