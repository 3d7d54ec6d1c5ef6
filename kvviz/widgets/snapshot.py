"""Snapshot: what a widget showed when its cell ran, as a picture and words that need neither kernel nor script."""

from __future__ import annotations

import html
from base64 import b64encode
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from .snapshot_panels import Panel, stacked, svg

AGAIN = "The widget as it was when its cell ran. Run the cell again to use it."

# JupyterLab shows "Error displaying widget: model not found" for a widget of an earlier session, whatever else its
# output holds. So the snapshot is an output of its own, after the widget's. These rules hide it beside a widget that is
# drawn or loading, and hide the widget's output if that is only JupyterLab's error.
_STYLE = """
:root:has([data-kvviz-live="KEY"]) [data-kvviz-snapshot="KEY"],
.jp-OutputArea-child:has(> .jp-OutputArea-output.lm-Panel:not(.jupyter-widgets))
  + .jp-OutputArea-child:has([data-kvviz-snapshot]),
.jp-OutputArea-child:has(> .jp-OutputArea-output.lm-Panel.jupyter-widgets):has(
  + .jp-OutputArea-child [data-kvviz-snapshot]) { display: none; }
"""


@dataclass(frozen=True)
class Snapshot:
    """What a widget shows: its `title`, `place` (layer, head, step), numbers by name, and `panels` below them."""

    title: str
    place: str
    numbers: Sequence[tuple[str, str]] = ()
    panels: Sequence[Panel] = ()

    @property
    def alternative(self) -> str:
        """The snapshot in words, for readers who do not see the picture."""
        numbers = ", ".join(f"{name} {value}" for name, value in self.numbers)
        panels = [panel.alternative for panel in self.panels if panel.alternative]
        return ". ".join(part for part in (self.title, self.place, numbers, *panels) if part) + "."

    def picture(self) -> str:
        """The picture as SVG, with the words of `alternative`; it has a white ground."""
        return svg(self.title, self.place, self.numbers, self.panels, self.alternative)

    def bundle(self, key: str) -> dict[str, str]:
        """The picture by MIME type; as HTML it is hidden while the widget with this `key` is drawn."""
        return bundle({key: self})


def bundle(snapshots: Mapping[str, Snapshot]) -> dict[str, str]:
    """The pictures of widgets in one output, one below the other, by MIME type; the keys are those of the widgets.

    As HTML, each is hidden while its widget is drawn.
    """
    figures = []
    for key, snapshot in snapshots.items():
        source = f"data:image/svg+xml;base64,{b64encode(snapshot.picture().encode()).decode('ascii')}"
        figures.append(
            f'<figure class="kvviz-snapshot" data-kvviz-snapshot="{key}" style="margin: 0">'
            f"<style>{_STYLE.replace('KEY', key)}</style>"
            f'<img src="{source}" alt="{html.escape(snapshot.alternative)}" style="max-width: 100%">'
            f"<figcaption>{AGAIN}</figcaption></figure>"
        )
    words = "\n".join(snapshot.alternative for snapshot in snapshots.values())
    pictures = stacked([snapshot.picture() for snapshot in snapshots.values()])
    return {"text/html": "".join(figures), "image/svg+xml": pictures, "text/plain": f"{words}\n{AGAIN}"}
