"""Recall, attention mass and output error by budget."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal

import plotly.graph_objects as go

from ..errors import UnknownNameError
from .labels import escape, set_title
from .score_curves import about, budget_axis, check_positive, curve_of, hold_of, rows_of
from .score_curves import band as area
from .theme import styles_of, template_name
from .themed_figure import Figure

if TYPE_CHECKING:
    import pandas as pd

_AXES = {
    "recall": "recall (share of the oracle's tokens)",
    "attention_mass": "attention mass kept (share)",
    "output_error": "relative error of the attention output",
}
_BANDS = ("range", "std")


def recall_by_budget(
    table: pd.DataFrame,
    *,
    metric: Literal["recall", "attention_mass", "output_error"] = "recall",
    band: Literal["range", "std"] | None = "range",
    kinds: Mapping[str, str] | None = None,
    title: str | None = None,
    dark: bool = False,
) -> go.Figure:
    """The mean of a metric against the budget, one curve per method, on a logarithmic axis (base 2).

    As in ClusterKV (arXiv 2412.03213) fig. 11. `table` has the columns method, budget and the metric, as returned by
    `kvviz.compare`. Rows that repeat a method and budget (other prompts, other seeds) become a mean with a band: from
    minimum to maximum ("range"), or one standard deviation to either side ("std"). Rows without a value are left out.
    `budget` is in tokens per key/value head, or a share of the prompt if all budgets are below 1; if the table says
    that bytes are held equal, in bytes per layer, or shares of the full cache's bytes.

    Methods have the style of their classes (`Method.style`) or of `table.attrs["styles"]`: {"mymethod": {"color":
    "#0072B2", "dash": "dot", "symbol": "star"}}. `kinds` gives unknown methods the tone of a kind: {"mymethod":
    "eviction"}. `title` says what was run; by default it is made from "model", "prompt_length" and "seed" in
    `table.attrs`.

    Raises UnknownNameError for an unknown metric or band, InvalidInputError for missing columns, no rows, or budgets
    that are not positive.

    >>> import pandas as pd
    >>> table = pd.DataFrame({"method": ["quest", "quest"], "budget": [128, 256], "recall": [0.3, 0.4]})
    >>> recall_by_budget(table).data[0].y.tolist()
    [0.3, 0.4]
    """
    if metric not in _AXES:
        raise UnknownNameError("recall_by_budget: metric", str(metric), _AXES)
    if band is not None and band not in _BANDS:
        raise UnknownNameError("recall_by_budget: band", str(band), _BANDS)
    hold = hold_of("recall_by_budget", table)
    rows = rows_of("recall_by_budget", table, ["method", "budget", metric])
    check_positive("recall_by_budget: budget", rows["budget"], "budgets")
    figure, style_in = Figure(), styles_of(table, dark, kinds)
    for method in rows["method"].unique():
        groups = rows[rows["method"] == method].groupby("budget")[metric]
        figure.add_traces(_curve(str(method), groups, band, style_in(str(method))))
    most = int(rows.groupby(["method", "budget"]).size().max())
    spread = {"range": "band: lowest to highest", "std": "band: ± 1 standard deviation"}.get(band or "", "")
    what = f"{metric.replace('_', ' ').capitalize()} by budget"
    figure.update_layout(template=template_name(dark), height=420, hovermode="closest")
    set_title(figure, about(table, title, what, f"mean of {most} runs, {spread}" if most > 1 and spread else ""))
    figure.update_xaxes(**budget_axis(rows["budget"].to_numpy(float), hold))
    limits = {"rangemode": "tozero"} if metric == "output_error" else {"range": [0, 1.03]}
    return figure.update_yaxes(title_text=_AXES[metric], **limits)


def _curve(method: str, groups: Any, band: str | None, style: dict[str, str]) -> list[go.Scatter]:
    mean, count = groups.mean(), groups.size()
    hover = "budget %{x:,}: %{y:.3f}<br>runs: %{customdata}"
    line = curve_of(escape(method), mean, style, hover, count.to_numpy())
    if band is None or int(count.max()) < 2:
        return [line]
    if band == "range":
        low, high = groups.min(), groups.max()
    else:
        spread = groups.std().fillna(0.0)  # a single run has no deviation
        low, high = mean - spread, mean + spread
    return [area(line, low.to_numpy(float), high.to_numpy(float)), line]
