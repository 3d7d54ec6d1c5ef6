"""Base class of all widgets, with the bundle; raises an error that says how to install anywidget if it is missing."""

from __future__ import annotations

import inspect
import uuid
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import traitlets
from IPython import get_ipython
from ipywidgets import Box, Output, Widget

from ..errors import MissingDependencyError
from . import assets, captured
from .snapshot import Snapshot, bundle

try:
    from anywidget import AnyWidget
except ImportError as error:
    raise MissingDependencyError("kvviz.widgets", "anywidget") from error


class LiveWidget(AnyWidget):
    """A widget that is drawn by one of the views in js/kvviz.js.

    A cell shows it as two outputs: the widget, and its snapshot, which is hidden beside the widget. A notebook that is
    opened again, or on a page without a kernel, shows the snapshot. The same is true of a box of ipywidgets (HBox,
    VBox, Tab, ...) or an Output with such widgets in it: its cell shows the box, and then the snapshots of all of them.
    What an Output shows only later, in another cell, has its snapshot in that other cell.

    With ANYWIDGET_HMR=1 it is drawn again whenever the bundle changes (`make js-watch`).
    """

    _esm = assets.SCRIPT
    _css = assets.STYLE
    _kvviz_view = traitlets.Unicode().tag(sync=True)
    _kvviz_key = traitlets.Unicode().tag(sync=True)

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        if "__init__" in cls.__dict__:  # traitlets' __new__ takes anything, and hides the signature from help and site
            _, *parameters = inspect.signature(cls.__init__).parameters.values()
            cls.__signature__ = inspect.Signature(parameters)

    def __init__(self, *arguments: Any, **traits: Any) -> None:
        super().__init__(*arguments, **traits)
        _show_snapshots_of_containers()
        self.on_msg(self._send_page)

    @traitlets.default("_kvviz_key")
    def _new_key(self) -> str:
        return uuid.uuid4().hex

    def snapshot(self) -> Snapshot:
        """What the widget shows now, as a picture and words: `snapshot().picture()` is SVG.

        Each widget of kvviz defines it; that of other subclasses has only the widget's name.
        """
        return Snapshot(type(self).__name__, "")

    def _send_page(self, _: Any, message: Mapping[str, Any], buffers: Any) -> None:
        """Answer "Save as HTML" with the page of `to_html`, or with why there is none."""
        if message.get("kind") != "page":
            return
        try:
            page: str = self.to_html()  # every widget with this menu has it
        except Exception as error:
            self.send({"kind": "page", "refusal": str(error)}, buffers=[])
            raise
        self.send({"kind": "page"}, buffers=[page.encode("utf-8")])

    def __repr__(self) -> str:
        return f"<kvviz.widgets.{type(self).__name__}>"  # viewers without widgets print it above the snapshot

    def _ipython_display_(self, **_: Any) -> None:
        """Show the widget, then its snapshot; IPython calls this in place of `_repr_mimebundle_`."""
        _display(self, [self])
        captured.capture(self, lambda: _display_snapshots([self]))


def _display(shown: Widget, inside: Sequence[LiveWidget]) -> None:
    from IPython.display import display

    described = shown._repr_mimebundle_()
    if described is not None:
        data, metadata = described if isinstance(described, tuple) else (described, {})
        display(data, metadata=metadata, raw=True)  # type: ignore[no-untyped-call]  # IPython has no types
    _display_snapshots(inside)


def _display_snapshots(widgets: Sequence[LiveWidget]) -> None:
    from IPython.display import display

    snapshots = bundle({widget._kvviz_key: widget.snapshot() for widget in widgets})
    display(snapshots, raw=True)  # type: ignore[no-untyped-call]  # likewise


def _show_snapshots_of_containers() -> None:
    """Tell IPython how to display boxes and Outputs, in the registry that it has for that, unless somebody else did."""
    shell = get_ipython()
    if shell is not None:
        formatter = shell.display_formatter.ipython_display_formatter
        for container in (Box, Output):
            if container not in formatter.type_printers:
                formatter.for_type(container, _display_container)


def _display_container(container: Box | Output) -> None:
    inside = list(dict.fromkeys(_inside(container)))
    if not inside:
        raise NotImplementedError  # IPython then displays the container as it does without this function
    _display(container, inside)


def _inside(widget: Widget) -> Iterator[LiveWidget]:
    """The widgets of kvviz in a widget that is about to be displayed."""
    if isinstance(widget, LiveWidget):
        yield widget
    elif isinstance(widget, Box):
        for child in widget.children:
            yield from _inside(child)
    elif isinstance(widget, Output):
        captured.note_displayed(widget)
        yield from captured.held_by(widget)


_show_snapshots_of_containers()  # a cell may display an Output before it makes the first widget
