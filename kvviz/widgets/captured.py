"""Widgets that an ipywidgets.Output shows. A saved notebook holds an Output's name only, and nothing that it showed."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any
from weakref import WeakKeyDictionary, WeakSet

from IPython import get_ipython
from ipywidgets import Output, Widget
from ipywidgets.widgets import widget as registry

_held: WeakKeyDictionary[Output, list[Widget]] = WeakKeyDictionary()
_displayed: WeakSet[Output] = WeakSet()


def held_by(output: Output) -> tuple[Widget, ...]:
    """The widgets that were displayed in `output`, without those that are cleared."""
    return tuple(_held.get(output, ()))


def note_displayed(output: Output) -> None:
    """Remember that a cell shows `output`: what it captures later is not seen by that cell."""
    _displayed.add(output)


def capture(widget: Widget, show_beside: Callable[[], None]) -> None:
    """Remember that `widget` is displayed in the Output whose `with` block runs, if there is one.

    If a cell shows the Output already, `show_beside` is called after the block, outside of the Output.
    """
    output = _open_output()
    if output is None:
        return
    if output not in _held:
        _held[output] = []
        output.observe(_forget_cleared, "outputs")
    _held[output].append(widget)
    if output not in _displayed or not _in_a_cell():
        return

    def leave(change: Mapping[str, Any]) -> None:
        if not change["new"]:
            output.unobserve(leave, "msg_id")
            show_beside()

    output.observe(leave, "msg_id")


def _open_output() -> Output | None:
    # ipywidgets keeps all widgets by their id, under a name that is private since 8.0
    widgets: Mapping[str, Widget] = getattr(registry, "_instances", {})
    return next((each for each in widgets.values() if isinstance(each, Output) and each.msg_id), None)


def _in_a_cell() -> bool:
    """Whether a cell runs. What a callback publishes has no place in the notebook."""
    parent = getattr(get_ipython(), "parent_header", {})
    return bool(parent.get("header", {}).get("msg_type") == "execute_request")


def _forget_cleared(change: Mapping[str, Any]) -> None:
    cleared = _models(change["old"]) - _models(change["new"])
    output = change["owner"]
    _held[output] = [widget for widget in _held[output] if widget.model_id not in cleared]


def _models(outputs: Iterable[Mapping[str, Any]]) -> set[str]:
    views = (output.get("data", {}).get("application/vnd.jupyter.widget-view+json", {}) for output in outputs)
    return {view["model_id"] for view in views if view}
