"""Long generations: what methods attend to, find on the device, keep and take, by generated token."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import plotly.graph_objects as go

from ..errors import InvalidInputError
from .axes import amounts, one_value, run_title
from .labels import escape, set_title
from .panels import name_panel, stack
from .score_curves import curve_of, rows_of
from .theme import styles_of, template_name

if TYPE_CHECKING:
    import pandas as pd

# Columns, names of their panels, and what their numbers are divided by.
_PANELS = {
    "attended": ("attended tokens per KV head and step", 1.0),
    "hit_rate": ("hit rate of copies on the device (share)", 1.0),
    "device_bytes": ("kept on the device (MiB)", float(2**20)),
    "ratio": ("time per token (share of full attention's)", 1.0),
}
_LEGEND_ROWS_FROM = 3  # methods in a row of the legend of a printed column


def long_generation(
    table: pd.DataFrame, *, hardware: str | None = None, title: str | None = None, dark: bool = False
) -> go.Figure:
    """Attended tokens, hit rate, bytes on the device and time per token by generated token: one curve per method.

    `table` has the columns method and step (the number of generated tokens), and one or more of attended, hit_rate (0
    to 1; missing values for methods without copies on the device), device_bytes and ratio (time per token against full
    attention's). Each of them has its own panel, in this order. Rows that repeat a method and step become their mean.
    With a budget per step that holds, attended tokens and bytes do not grow. In none of the papers. `hardware` as for
    `latency`.

    Raises InvalidInputError for missing columns, no rows, negative numbers, hit rates above 1 or several budgets.

    >>> import pandas as pd
    >>> rows = {"method": ["full", "full", "quest"], "step": [100, 200, 200], "attended": [612, 712, 256]}
    >>> [(line.name, line.y.tolist()) for line in long_generation(pd.DataFrame(rows)).data]
    [('full', [612.0, 712.0]), ('quest', [256.0])]
    """
    drawn = [column for column in _PANELS if column in table.columns]
    if not drawn:
        raise InvalidInputError("long_generation: columns", list(table.columns), f"one or more of {', '.join(_PANELS)}")
    one_value("long_generation", table, "budget")
    methods = list(rows_of("long_generation", table, ["method", "step"])["method"].unique())
    figure, inside = stack([120.0] * len(drawn), 34, shared_xaxes=True)
    style_in = styles_of(table, dark)
    explained: set[str] = set()
    for row, column in enumerate(drawn, start=1):
        rows = amounts("long_generation", table, ["method", "step"], column)
        if column == "hit_rate" and (rows[column] > 1).any():
            raise InvalidInputError("long_generation: hit_rate", rows[column].max(), "shares from 0 to 1")
        text, unit = _PANELS[column]
        for method in (name for name in methods if name in set(rows["method"])):
            means = rows[rows["method"] == method].groupby("step")[column].mean() / unit
            hover = f"%{{x:,}} tokens generated: %{{y:.4~g}}<br>{text}"
            figure.add_trace(
                curve_of(escape(str(method)), means, style_in(str(method)), hover, show_legend=method not in explained),
                row, 1,
            )  # fmt: skip
            explained.add(method)
        name_panel(figure, text, row, 1)
        figure.update_yaxes(rangemode="tozero", row=row, col=1)
    figure.update_traces(marker_size=5)
    figure.update_xaxes(title_text="generated tokens", tickformat=",", row=len(drawn), col=1)
    legend = 24 * int(np.ceil(len(methods) / _LEGEND_ROWS_FROM))
    figure.update_layout(template=template_name(dark), height=inside + 130 + legend, hovermode="closest")
    set_title(figure, run_title(table, title, "A long generation", hardware), panel_titles=True)
    return figure
