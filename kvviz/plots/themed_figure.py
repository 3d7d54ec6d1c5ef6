"""The figures of kvviz in a notebook: in the theme of the page, and without plotly's mode bar over their title."""

from __future__ import annotations

import plotly.graph_objects as go
import plotly.io as pio

from .dark_page import style_sheet

# Without it, dragging zooms and a double click resets; plots.save writes files.
_CONFIGURATION = {"displayModeBar": False}


class Figure(go.Figure):  # type: ignore[misc]  # plotly ships no type information
    """A plotly figure that follows the theme of the page which shows it, if it was drawn in the light one.

    It differs from `plotly.graph_objects.Figure` only where a notebook displays it.
    """

    def _ipython_display_(self) -> None:
        """Display the figure as plotly does, after the rules of CSS for a dark page."""
        from IPython.display import display

        if not (pio.renderers.render_on_display and pio.renderers.default):
            print(repr(self))
            return
        if "plotly_mimetype" in pio.renderers.default:  # not in a browser's tab of its own
            rules = {"text/html": f"<style>\n{style_sheet(self)}</style>"}
            display(rules, raw=True)  # type: ignore[no-untyped-call]  # IPython has no types
        pio.show(self, config=_CONFIGURATION)
