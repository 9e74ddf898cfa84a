"""One way to make a knob: controls over a picture that a plain function draws.

In JupyterLab the controls redraw the picture. On the static site, which has no kernel, the reader steps through a
short list of states; they are drawn by the same function when the site is made.
"""

from __future__ import annotations

import html
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from .figures.show import bundle

MIMETYPE = "application/vnd.kvzero.knob+json"
# Set to "steps" by `kvzero run --html`: they are drawn only where a site is made of them. A test sets it to "extremes",
# and gets the states at the ends of the controls as well.
STEPS_VARIABLE = "KVZERO_KNOB_STEPS"
# A notebook that is opened again has the last picture but no controls; JupyterLab's own words for that help nobody.
_WITHOUT_KERNEL = """<style>
.jp-OutputArea-child:has(+ * .kvzero-knob) > .jupyter-widgets:not(:has(*)) { font-size: 0; }
.jp-OutputArea-child:has(+ * .kvzero-knob) > .jupyter-widgets:not(:has(*))::after {
  content: "Run this cell to get the controls back."; font-size: 13px; }
</style>"""


class Knob:
    """Controls over a picture; see `knob`.

    `state` holds the present values, `sentence` what the picture says, `errors` what drawing raised.
    """

    def __init__(
        self,
        draw: Callable[..., Sequence[Any]],
        controls: Mapping[str, Sequence[Any] | Mapping[str, Any]],
        steps: Mapping[str, Mapping[str, Any]],
        title: str,
        boundary: str | None,
    ):
        self._draw, self._title, self._values, self.steps = draw, title, controls, steps
        self._boundary = boundary or list(steps)[-1]
        self.state = dict(next(iter(steps.values())))
        self.errors: list[Exception] = []
        self.sentence = ""
        self._display: Any = None
        self._bundle: dict[str, Any] = {}
        self._quiet = False
        self._make_controls(controls)
        self._redraw()

    def set(self, **values: Any) -> None:
        """Set several controls and draw once.

        Raises:
            KeyError: there is no such control.
            Exception: what the drawing raised.
        """
        self._quiet = True
        try:
            for name, value in values.items():
                self.controls[name].value = value
        finally:
            self._quiet = False
        self._changed()

    def _make_controls(self, controls: Mapping[str, Sequence[Any] | Mapping[str, Any]]) -> None:
        import ipywidgets as widgets

        wide = {"layout": {"width": "auto"}, "style": {"description_width": "initial"}}
        self.controls = {
            name: _control(name, values, self.state[name]) for name, values in controls.items()
        }
        self._step = widgets.Dropdown(
            options=[("your own values", None), *((label, label) for label in self.steps)],
            value=next(iter(self.steps)), description="step", **wide,
        )  # fmt: skip
        self._words = widgets.HTML()
        for control in self.controls.values():
            control.observe(lambda _: self._changed(), "value")
        self._step.observe(lambda change: self._stepped(change["new"]), "value")
        row = widgets.HBox([self._step, *self.controls.values()], layout={"flex_flow": "row wrap"})
        self._box = widgets.VBox([widgets.HTML(f"<b>{html.escape(self._title)}</b>"), row, self._words])
        self._box.add_class("kvzero-knob-controls")

    def _stepped(self, label: str | None) -> None:
        if not self._quiet and label is not None:
            self.set(**self.steps[label])

    def _changed(self) -> None:
        if self._quiet:
            return
        self.state = {name: control.value for name, control in self.controls.items()}
        self._quiet = True
        try:
            self._step.value = next((label for label, state in self.steps.items() if state == self.state), None)
        finally:
            self._quiet = False
        self._redraw()

    def _redraw(self) -> None:
        """Draw the present state; record, show and raise again what that raises."""
        try:
            figure, sentence, text = drawn(self._draw, self.state)
        except Exception as error:
            self.errors.append(error)
            message = html.escape(f"{type(error).__name__}: {error}")
            self._words.value = f"<div role='alert'><b>The picture is out of date.</b> {message}</div>"
            raise
        self.sentence = sentence
        self._words.value = f"<div role='status' style='line-height:1.4'>{html.escape(sentence)}</div>"
        self._bundle = bundle(figure, sentence, text)
        code = html.escape(state_code(self._draw, self.state))
        picture = self._bundle["text/html"].replace(f"<figcaption>{html.escape(sentence)}</figcaption>", "")
        folded = f"<details><summary>This state as code</summary><pre>{code}</pre></details>"
        self._bundle["text/html"] = f"<div class='kvzero-knob'>{picture}{folded}</div>{_WITHOUT_KERNEL}"
        del self._bundle["image/svg+xml"]  # the HTML carries the picture, and it is sent at each turn of the knob
        if self._display is not None:
            self._display.update(self._bundle, raw=True)

    def _ipython_display_(self) -> None:
        from IPython.display import display

        data = dict(self._bundle)
        wanted = os.environ.get(STEPS_VARIABLE)
        if wanted:
            data[MIMETYPE] = self.drawn_steps(self.steps if wanted == "steps" else {**self.steps, **self._extremes()})
        display(self._box)
        self._display = display(data, raw=True, display_id=True)

    def _extremes(self) -> dict[str, dict[str, Any]]:
        """The states with one control at an end of its values, and with all of them."""
        first = next(iter(self.steps.values()))
        every = {name: _values(control) for name, control in self._values.items()}
        ends = {name: (values[0], values[-1]) for name, values in every.items()}
        states = [{**first, name: end} for name, both in ends.items() for end in both]
        states += [{name: both[side] for name, both in ends.items()} for side in (0, 1)]
        return {str(state): state for state in states}

    def drawn_steps(self, states: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
        """The output of type `MIMETYPE` from which the static site makes its knob: states by label, drawn."""
        steps = []
        for label, state in states.items():
            figure, sentence, text = drawn(self._draw, state)
            steps.append({
                "label": label, "sentence": sentence, "text": text, "code": state_code(self._draw, state),
                "picture": bundle(figure, sentence)["image/svg+xml"],
            })  # fmt: skip
        return {"title": self._title, "boundary": list(self.steps).index(self._boundary), "steps": steps}


def knob(
    draw: Callable[..., Sequence[Any]],
    *,
    controls: Mapping[str, Sequence[Any] | Mapping[str, Any]],
    steps: Mapping[str, Mapping[str, Any]],
    title: str,
    boundary: str | None = None,
) -> Knob:
    """Make a knob; as the last expression of a cell it shows itself.

    Args:
        draw: a function of the controls' values, by name, that returns (figure, sentence) or (figure, sentence,
            text): a figure of this package, or a list of figures to stand below each other; what to see, in one
            sentence; and the same as text (a text map, a table), if there is more to say than the sentence.
        controls: name to values. A `range` becomes a number box, a list a menu, a mapping of labels to values a menu
            of the labels.
        steps: label to state. The first step is where the knob starts, and names every control; a later one names
            what differs from the first. The static site steps through these states, JupyterLab offers them in a menu.
        title: what can be found out by turning the knob, as a question or a short phrase.
        boundary: label of the step just past the boundary; without scripts the site shows the first step and this
            one. The last step if None.

    Returns:
        The knob. Its controls are native number boxes and menus: a slider of ipywidgets has no name that a screen
        reader could tell.

    Raises:
        ValueError: a step has a name that is not a control, lacks one, or has a value outside its control.

    >>> def double(pages):
    ...     return bars([("pages", pages), ("twice", 2 * pages)], f"{2 * pages} pages."), f"{2 * pages} pages."
    >>> from kvzero.workbook import bars
    >>> turned = knob(double, controls={"pages": range(1, 9)}, steps={"one": {"pages": 1}}, title="How many?")
    >>> turned.set(pages=4)
    >>> turned.sentence
    '8 pages.'
    """
    return Knob(draw, controls, _checked_steps(controls, steps), title, boundary)


def drawn(draw: Callable[..., Sequence[Any]], state: Mapping[str, Any]) -> tuple[Any, str, str | None]:
    """What a knob's function returns for a state: the figure, its sentence, and its text form or None."""
    figure, sentence, *rest = draw(**state)
    return figure, sentence, rest[0] if rest else None


def state_code(draw: Callable[..., Any], state: Mapping[str, Any]) -> str:
    """A call that shows a state, to be pasted into a cell of the notebook.

    >>> print(state_code(sum, {"start": 3, "block": "last"}))
    from builtins import sum
    show(*sum(start=3, block='last'))
    """
    call = f"show(*{draw.__name__}({', '.join(f'{name}={value!r}' for name, value in state.items())}))"
    return call if draw.__module__ == "__main__" else f"from {draw.__module__} import {draw.__name__}\n{call}"


def _checked_steps(controls: Mapping[str, Any], steps: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    """The steps with every control in each, or ValueError."""
    if not steps:
        raise ValueError("a knob needs at least one step: the state in which it starts")
    first = next(iter(steps.values()))
    full = {label: {**first, **state} for label, state in steps.items()}
    for label, state in full.items():
        if state.keys() != controls.keys():
            raise ValueError(f"step {label!r} has {sorted(state)}, and the controls are {sorted(controls)}")
        for name, value in state.items():
            if value not in _values(controls[name]):
                raise ValueError(f"step {label!r}: {name} = {value!r} is not among the control's values")
    return full


def _values(control: Sequence[Any] | Mapping[str, Any]) -> Sequence[Any]:
    return list(control.values()) if isinstance(control, Mapping) else control


def _control(name: str, values: Sequence[Any] | Mapping[str, Any], start: Any) -> Any:
    import ipywidgets as widgets

    style = {"description": name.replace("_", " "), "style": {"description_width": "initial"}}
    if isinstance(values, range):
        return widgets.BoundedIntText(
            start, min=values[0], max=values[-1], step=values.step, layout={"width": "16em"}, **style
        )
    options = list(values.items()) if isinstance(values, Mapping) else [(str(value), value) for value in values]
    return widgets.Dropdown(options=options, value=start, layout={"width": "auto"}, **style)
