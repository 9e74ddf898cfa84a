"""The frame of every explorer: native controls, a picture with its sentence, and errors that cannot hide.

An explorer is three layers: a pure function (state in, plain data out), a figure of that data, and this thin
widget, which only connects controls to the two. A callback that fails is recorded, shown in the widget, and
raised again, so that neither a reader nor a test run misses it.
"""

from __future__ import annotations

import gc
import html
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import ipywidgets as widgets

from kvzero.workbook.figures.sheet import Figure, Sheet
from kvzero.workbook.figures.show import bundle, figure_html
from kvzero.workbook.figures.style import WIDTH_INCHES, wrap

OWN = "your own values"
_KEYS = "Keyboard: Tab to move on; arrows on a slider; Space, arrows, Enter in a menu."
_PAGE = {"width": "100%", "max_width": "880px"}
_FULL = {"width": "auto", "margin": "2px"}
_GRID = {"grid_template_columns": "repeat(auto-fit, minmax(320px, 1fr))"}  # one column on a phone
_DESCRIPTION = {"description_width": "9.5em"}


@dataclass(frozen=True)
class View:
    """What an explorer shows for one state.

    Args:
        figure: the picture.
        sentence: what to see in it.
        text: the same as text, a table or a map.
        code: Python that gives the same data.
        table: numbers to stand under the picture, as text; may be empty.
    """

    figure: Figure
    sentence: str
    text: str
    code: str
    table: str = ""


class Explorer(widgets.VBox):
    """Controls over a picture.

    Args:
        title: what the explorer explores.
        controls: name to a control with a `value`; the state is name to value.
        draw: state to `View`.
        presets: name to the values that it sets; the first one is the starting state.
        adapt: called with the controls before each drawing, to fit one control's range to another's value.

    `presets` holds the named states, `state` the present values, `errors` what callbacks raised, and `draws` how
    many pictures were drawn.
    """

    def __init__(
        self,
        title: str,
        controls: Mapping[str, widgets.ValueWidget],
        draw: Callable[[dict[str, Any]], View],
        presets: Mapping[str, Mapping[str, Any]],
        adapt: Callable[[Mapping[str, widgets.ValueWidget]], None] | None = None,
    ):
        self.errors: list[Exception] = []
        self.draws = 0
        self.controls = dict(controls)
        self.presets = dict(presets)
        self._draw, self._adapt = draw, adapt
        self._quiet = False
        self.view: View | None = None
        self.preset = widgets.Dropdown(options=[*presets, OWN], description="preset", layout=_FULL, style=_DESCRIPTION)
        self.reset = widgets.Button(description="reset", tooltip="Back to the first preset", icon="undo")
        self.reset.on_click(lambda _: self._guarded(self._to_first_preset))
        self.preset.observe(lambda change: self._guarded(lambda: self._apply(change["new"])), "value")
        for control in self.controls.values():
            control.layout, control.style = _FULL, _DESCRIPTION
            control.observe(lambda _: self._guarded(self._changed), "value")
        self._picture, self._error, self._table = (widgets.HTML(layout=_FULL) for _ in range(3))
        self._text, self._code = widgets.HTML(layout=_FULL), widgets.HTML(layout=_FULL)
        folded = widgets.Accordion([self._text, self._code], selected_index=None, layout=_FULL)
        folded.titles = ("The same as text", "This state as code")
        heading = widgets.HTML(f"<b>{html.escape(title)}</b> <small>{_KEYS}</small>")
        grid = widgets.GridBox(list(self.controls.values()), layout=_GRID)
        self._title = title
        super().__init__(
            [heading, self.preset, grid, self.reset, self._error, self._picture, self._table, folded], layout=_PAGE
        )
        self.add_class("kvzero-explorer")
        self._guarded(lambda: self._apply(next(iter(self.presets))))

    @property
    def state(self) -> dict[str, Any]:
        """Name to value of every control."""
        return {name: control.value for name, control in self.controls.items()}

    def set(self, **values: Any) -> None:
        """Set several controls and draw once, as a hand on them would.

        Raises:
            KeyError: there is no such control.
            Exception: whatever the drawing raised.
        """
        self._guarded(lambda: self._set(values))

    def _to_first_preset(self) -> None:
        first = next(iter(self.presets))
        self._quiet = True
        try:
            self.preset.value = first
        finally:
            self._quiet = False
        self._apply(first)

    def _apply(self, name: str) -> None:
        if not self._quiet and name != OWN:
            self._set(self.presets[name])

    def _set(self, values: Mapping[str, Any]) -> None:
        self._quiet = True
        try:
            # A range that depends on another control is fitted between: twice is enough for one such step.
            for _ in range(2):
                for name, value in values.items():
                    control = self.controls[name]
                    if hasattr(control, "max") and isinstance(value, int):
                        value = min(max(value, control.min), control.max)
                    control.value = value
                self._fit()
        finally:
            self._quiet = False
        self._redraw()

    def _changed(self) -> None:
        if not self._quiet:
            self._quiet = True
            try:
                self.preset.value = OWN  # so that choosing the same preset again is a change
                self._fit()
            finally:
                self._quiet = False
            self._redraw()

    def _fit(self) -> None:
        if self._adapt is not None:
            self._adapt(self.controls)

    def _redraw(self) -> None:
        with _no_collection():
            self.view = view = self._draw(self.state)
            self._picture.value = _picture_html(view)
        self._table.value = _pre(view.table) if view.table else ""
        self._text.value, self._code.value = _pre(view.text), _pre(view.code)
        self._error.value = ""
        self.draws += 1

    def _guarded(self, work: Callable[[], None]) -> None:
        """Run a callback; record, show and raise again what it raises."""
        try:
            work()
        except Exception as error:
            self.errors.append(error)
            message = html.escape(f"{type(error).__name__}: {error}")
            self._error.value = (
                '<div role="alert" style="border:2px solid #a63c00;padding:4px;white-space:pre-wrap">'
                f"<b>This picture is out of date.</b> {message}</div>"
            )
            raise

    def _repr_mimebundle_(self, **options: Any) -> Any:
        """The widget; for pages without a kernel, a line with its present picture folded behind it."""
        data = super()._repr_mimebundle_(**options)
        if self.view is not None:
            still = bundle(self.view.figure, self.view.sentence, self.view.text)
            note = f"Explorer: {self._title} Its controls need a running notebook; here is where it starts."
            data["text/html"] = f"<details><summary>{html.escape(note)}</summary>{still['text/html']}</details>"
            data["text/plain"] = f"{note}\n{still['text/plain']}"
        return data


@contextmanager
def _no_collection() -> Iterator[None]:
    """Let the garbage collector wait until a picture is out: its full run takes longer than the picture."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


def _pre(text: str) -> str:
    return f'<pre style="line-height:1.25;overflow-x:auto;user-select:text">{html.escape(text)}</pre>'


def _picture_html(view: View) -> str:
    words = html.escape(view.sentence)
    return (
        f"{figure_html(view.figure, view.sentence)}"
        f'<div role="status" aria-live="polite" style="line-height:1.4">{words}</div>'
    )


def note_figure(sentence: str, lines: Sequence[str] = ()) -> Figure:
    """A figure of words only, for a state that has no picture (a refusal)."""
    wrapped = [piece for line in (sentence, *lines) for piece in wrap(line, WIDTH_INCHES - 0.4, 10)]
    sheet = Sheet(0.3 + 0.22 * len(wrapped))
    for index, line in enumerate(wrapped):
        sheet.text(0.2, 0.25 + 0.22 * index, line, 10)
    return sheet.finish()


def call_text(name: str, state: Mapping[str, Any]) -> str:
    """A call with keyword arguments, as code.

    >>> call_text("f", {"a": 1, "b": "x"})
    "f(a=1, b='x')"
    """
    return f"{name}({', '.join(f'{key}={value!r}' for key, value in state.items())})"
