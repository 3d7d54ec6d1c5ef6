"""How much a method keeps at each budget."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import plotly.graph_objects as go

from ..errors import InvalidInputError, UnknownNameError
from .labels import escape, set_title, wrap
from .labels import title as join
from .theme import method_style, template_name, translucent

if TYPE_CHECKING:
    import pandas as pd

_AXES = {
    "recall": "recall (share of the oracle's)",
    "attention_mass": "attention mass kept (share)",
    "output_error": "relative error of the attention output",
}
_BANDS = ("range", "std")
_MAX_TICKS = 8


def recall_by_budget(
    table: pd.DataFrame,
    *,
    metric: Literal["recall", "attention_mass", "output_error"] = "recall",
    band: Literal["range", "std"] | None = "range",
    kinds: Mapping[str, str] | None = None,
    title: str | None = None,
    dark: bool = False,
) -> go.Figure:
    """A curve a method: the mean of a metric against the budget, on a logarithmic axis (base 2).

    As in ClusterKV (arXiv 2412.03213) fig. 11. `table` has the columns method, budget and the metric, as
    `kvviz.compare` returns it; rows that repeat a method and budget (other prompts, other seeds) become a mean with a
    band from their minimum to their maximum ("range") or of one standard deviation either side ("std"). Rows without a
    value are left out. `budget` counts tokens a key/value head, or is a share of the prompt where all are below 1.

    `kinds` gives methods that kvviz does not know their tone: {"mymethod": "eviction"}. `title` says what was run; by
    default it is made from `table.attrs`, where "model", "prompt_length" and "seed" are looked for.

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
    missing = [name for name in ("method", "budget", metric) if name not in table.columns]
    if missing:
        raise InvalidInputError("recall_by_budget: columns", list(table.columns), f"also {', '.join(missing)}")
    rows = table[["method", "budget", metric]].dropna()
    if rows.empty:
        raise InvalidInputError("recall_by_budget", f"no row with a value of {metric}", "at least one")
    if not (rows["budget"] > 0).all():
        raise InvalidInputError("recall_by_budget: budget", rows["budget"].min(), "budgets above 0")
    figure = go.Figure()
    for method in rows["method"].unique():
        groups = rows[rows["method"] == method].groupby("budget")[metric]
        for trace in _curve(str(method), groups, band, (kinds or {}).get(str(method)), dark):
            figure.add_trace(trace)
    ticks = _ticks(np.unique(rows["budget"].to_numpy(float)))
    share = bool((rows["budget"] < 1).all())
    most = int(rows.groupby(["method", "budget"]).size().max())
    about = wrap(escape(title), 90) if title is not None else _about(table, metric, most, band)
    figure.update_layout(template=template_name(dark), height=420, hovermode="closest")
    set_title(figure, about)
    figure.update_xaxes(
        type="log", tickvals=ticks, ticktext=[f"{tick:.3g}" if share else f"{tick:,.0f}" for tick in ticks],
        title_text="budget (share of the prompt)" if share else "budget (tokens a KV head)",
    )  # fmt: skip
    figure.update_yaxes(title_text=_AXES[metric], range=None if metric == "output_error" else [0, 1.03])
    if metric == "output_error":
        figure.update_yaxes(rangemode="tozero")
    return figure


def _curve(method: str, groups: Any, band: str | None, kind: str | None, dark: bool) -> list[go.Scatter]:
    style = method_style(method, dark, kind)
    mean, count = groups.mean(), groups.size()
    budgets = mean.index.to_numpy(float)
    label, color = escape(method), style["color"]
    line = go.Scatter(
        x=budgets, y=mean.to_numpy(float), customdata=count.to_numpy(), mode="lines+markers",
        name=label, legendgroup=label, line={"color": color, "dash": style["dash"], "width": 2},
        marker={"color": color, "symbol": style["symbol"], "size": 7, "line": {"width": 1.2, "color": color}},
        hovertemplate="%{fullData.name}<br>budget %{x:,}: %{y:.3f}<br>runs: %{customdata}<extra></extra>",
    )  # fmt: skip
    if band is None or int(count.max()) < 2:
        return [line]
    if band == "range":
        low, high = groups.min(), groups.max()
    else:
        spread = groups.std().fillna(0.0)  # a single run has no deviation
        low, high = mean - spread, mean + spread
    area = go.Scatter(
        x=np.concatenate([budgets, budgets[::-1]]),
        y=np.concatenate([high.to_numpy(float), low.to_numpy(float)[::-1]]),
        mode="lines", line={"width": 0}, fill="toself", fillcolor=translucent(color, 0.16),
        name=f"{label}, band", legendgroup=label, showlegend=False, hoverinfo="skip",
    )  # fmt: skip
    return [area, line]


def _ticks(budgets: np.ndarray[Any, np.dtype[np.float64]]) -> list[float]:
    """The budgets themselves; where they crowd, only those far enough from the one before to be read."""
    if len(budgets) <= 1:
        return [float(budget) for budget in budgets]
    apart = np.log2(budgets[-1] / budgets[0]) / _MAX_TICKS
    ticks = [float(budgets[0])]
    for budget in budgets[1:]:
        if np.log2(budget / ticks[-1]) >= apart:
            ticks.append(float(budget))
    return ticks


def _about(table: pd.DataFrame, metric: str, runs: int, band: str | None) -> str:
    known = table.attrs
    spread = {"range": "band: lowest to highest", "std": "band: ± 1 standard deviation"}.get(band or "", "")
    return join([
        f"{metric.replace('_', ' ').capitalize()} by budget",
        str(known.get("model", "")),
        f"{known['prompt_length']:,} tokens" if "prompt_length" in known else "",
        f"seed {known['seed']}" if "seed" in known else "",
        f"mean of {runs} runs, {spread}" if runs > 1 and spread else "",
    ])  # fmt: skip
