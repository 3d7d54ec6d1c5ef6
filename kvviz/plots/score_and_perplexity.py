"""Scores of tasks and perplexity, by method."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import plotly.graph_objects as go
from numpy.typing import NDArray

from .. import metrics
from ..errors import InvalidInputError
from .axes import one_value
from .labels import escape, set_title
from .panels import panels
from .score_curves import (
    about,
    band,
    budget_axis,
    check_positive,
    curve,
    curve_of,
    error_bars,
    hold_of,
    ignoring_budget,
    numbers,
    rows_of,
    spread_aside,
)
from .theme import styles_of, template_name
from .themed_figure import Figure

if TYPE_CHECKING:
    import pandas as pd

_POINTS = 200  # per curve of perplexity by position
_FIRST = 32  # tokens in its first point, since fewer say little


def score_by_budget(
    table: pd.DataFrame,
    *,
    score: str = "score",
    levels: Collection[str] = ("full",),
    confidence: float = 0.95,
    seed: int = 0,
    across: int = 2,
    kinds: Mapping[str, str] | None = None,
    title: str | None = None,
    dark: bool = False,
) -> go.Figure:
    """Mean score against the budget with bootstrap intervals: one curve per method, one panel per task.

    As in ClusterKV (arXiv 2412.03213) fig. 9, CentroidKV (OpenReview T3EeupQhGj) fig. 4 and 5, CTkvr fig. 9 and PQCache
    (arXiv 2407.12820) fig. 10a and 10c. `table` has the columns method, budget and `score` (numbers; booleans become a
    share), and may have task and sample. The bars are bootstrap intervals of the mean over samples: they hold the share
    `confidence` of the resamples drawn with `seed` (`metrics.bootstrap_interval`). Several rows of one sample (other
    seeds of a method) are averaged first. Without a column sample, every row is a sample. Rows without a value are left
    out. The table of `kvviz.load_results` has this form. A sample's seeds, lengths, placements and turns are averaged;
    to see only one of them, pass its rows. Tasks of likelihood have nats per token as their score: lower is better.

    Methods in `levels`, and those whose budget is NaN in all rows, ignore the budget: each is a horizontal line at its
    mean in the task. `budget` is in tokens per key/value head, or a share of the prompt if all budgets are below 1; if
    the table says that bytes are held equal, in bytes per layer, or shares of the full cache's bytes.
    Points are shifted slightly, so that bars do not overlap. `across`: panels per row. `kinds` and `title` as for
    `recall_by_budget`.

    Raises InvalidInputError for missing columns, scores that are not finite numbers, no method with budgets, or budgets
    that are not positive or mix tokens and shares.

    >>> import pandas as pd
    >>> table = pd.DataFrame({"method": ["full", "quest", "quest"], "budget": [900, 128, 256], "score": [1, 0.3, 0.4]})
    >>> [trace.y.tolist() for trace in score_by_budget(table).data]
    [[0.3, 0.4], [1.0, 1.0]]
    """
    hold = hold_of("score_by_budget", table)
    optional = [name for name in ("task", "sample") if name in table.columns]
    columns = [*optional, "method", "budget", score]
    rows = numbers("score_by_budget", rows_of("score_by_budget", table, columns, levels), score)
    levels = ignoring_budget(rows, levels)
    with_budget = rows[~rows["method"].isin(levels)]
    if with_budget.empty:
        raise InvalidInputError("score_by_budget: method", sorted(set(rows["method"])), "at least one not in levels")
    check_positive("score_by_budget: budget", with_budget["budget"], "budgets")
    budgets = with_budget["budget"].to_numpy(float)
    if (budgets < 1).any() and (budgets >= 1).any():
        raise InvalidInputError("score_by_budget: budget", "tokens and shares of the prompt", "only one of them")
    tasks = list(rows["task"].unique()) if "task" in rows else [""]
    figure, places = panels([escape(str(task)) for task in tasks], across, 260 if len(tasks) > 1 else 300, dark)
    methods = sorted(rows["method"].unique(), key=lambda method: method in levels)  # levels are drawn over the others
    shifts = dict(zip(methods, spread_aside(len(set(with_budget["method"]))), strict=False))
    explained: set[str] = set()
    style_in = styles_of(table, dark, kinds)
    most_samples = 0
    for task, place in zip(tasks, places, strict=True):
        task_rows = rows[rows["task"] == task] if "task" in rows else rows
        for method in (name for name in methods if name in set(task_rows["method"])):
            style, show = style_in(str(method)), method not in explained
            samples = _samples(task_rows[task_rows["method"] == method], score, [] if method in levels else ["budget"])
            if method in levels:
                trace = _level(str(method), float(samples.mean()), budgets, style, show)
            else:
                most_samples = max(most_samples, int(samples.groupby("budget").size().max()))
                trace = _score_curve(str(method), samples, shifts[method], style, confidence, seed, show)
            figure.add_trace(trace, **place)
            explained.add(method)
    share = bool(rows[score].isin([0, 1]).all())
    for number, place in enumerate(places):
        axis = budget_axis(budgets, hold)
        figure.update_xaxes(**axis if number + across >= len(places) else axis | {"title_text": None}, **place)
    score_name = score.replace("_", " ")
    figure.update_yaxes(title_text=escape(score_name) + (" (share of samples)" if share else ""), col=1)
    if share:
        figure.update_yaxes(range=[-0.03, 1.05])
    spread = f"mean of {most_samples} samples, bars: {confidence:.0%} bootstrap interval" if most_samples > 1 else ""
    text = about(table, title, f"{score_name.capitalize()} by budget", spread)
    set_title(figure, text, panel_titles=tasks != [""])
    return figure


def perplexity_by_length(
    table: pd.DataFrame,
    *,
    kinds: Mapping[str, str] | None = None,
    title: str | None = None,
    dark: bool = False,
) -> go.Figure:
    """Perplexity against the length of the text, or up to each position against the position: one curve per method.

    As in ClusterKV (arXiv 2412.03213) fig. 10. `table` has the columns method and perplexity, and one of two. `length`
    (tokens): the perplexity of a text of that length; texts of one length become their geometric mean, with a band from
    the lowest to the highest. `position`: the perplexity of the one token there, the exponential of its negative log
    likelihood. The curve shows the geometric mean over all tokens up to there, from the 32nd token on. The axis of
    perplexity is logarithmic if the values span more than a decade. If "full" is among the methods, the legend gives
    the difference to it: the largest over the lengths, or that at the last position. `kinds` and `title` as for
    `recall_by_budget`.

    Raises InvalidInputError for missing columns, both length and position, a perplexity that is not above 0, or several
    budgets other than NaN in a column budget.

    >>> import pandas as pd
    >>> table = pd.DataFrame({"method": ["full", "quest"], "length": [512, 512], "perplexity": [10.0, 10.5]})
    >>> [trace.name for trace in perplexity_by_length(table).data]
    ['full', 'quest (up to +0.50 against full)']
    """
    axes = [name for name in ("length", "position") if name in table.columns]
    if len(axes) == 2:
        raise InvalidInputError("perplexity_by_length: columns", "both length and position", "one of the two")
    one_value("perplexity_by_length", table, "budget")
    by = axes[0] if axes else "length"
    rows = rows_of("perplexity_by_length", table, ["method", by, "perplexity"])
    rows = numbers("perplexity_by_length", rows, "perplexity", by)
    check_positive("perplexity_by_length: perplexity", rows["perplexity"], "numbers")
    logs = {str(name): np.log(part.set_index(by)["perplexity"]) for name, part in rows.groupby("method", sort=False)}
    groups = {method: log.groupby(level=0) for method, log in logs.items()}
    log_means = {method: group.mean() for method, group in groups.items()}
    means = {method: np.exp(log if by == "length" else _so_far(log)) for method, log in log_means.items()}
    figure, style_in = Figure(), styles_of(table, dark, kinds)
    for method, mean in means.items():
        label = escape(method) + _above_full(means, method, by)
        line = curve_of(label, mean, style_in(method), by + " %{x:,}: %{y:.3f}", markers=by == "length")
        if by == "length" and int(groups[method].size().max()) > 1:
            low, high = (np.exp(ends.to_numpy(float)) for ends in (groups[method].min(), groups[method].max()))
            figure.add_trace(band(line, low, high))
        figure.add_trace(line)
    values = np.concatenate([mean.to_numpy(float) for mean in means.values()])
    wide = bool(values.max() > 10 * values.min())
    figure.update_layout(template=template_name(dark), height=420, hovermode="closest")
    x_name = {"length": "length of the text (tokens)", "position": "position (tokens)"}[by]
    figure.update_xaxes(title_text=x_name, tickformat=",", nticks=8)
    y_name = "perplexity" if by == "length" else "perplexity so far"
    figure.update_yaxes(title_text=y_name, type="log" if wide else "linear", dtick="D2" if wide else None)
    texts = max(int(group.size().max()) for group in groups.values())
    spread = f"geometric mean of {texts} texts" + (", band: lowest to highest" if by == "length" else "")
    set_title(figure, about(table, title, f"Perplexity by {by}", spread if texts > 1 else ""))
    return figure


def _samples(rows: pd.DataFrame, score: str, keys: list[str]) -> pd.Series[Any]:
    """One score per sample, indexed by `keys` first."""
    if "sample" in rows:
        means: pd.Series[Any] = rows.groupby([*keys, "sample"])[score].mean()
        return means
    return rows.set_index(keys)[score] if keys else rows[score]


def _level(
    method: str, mean: float, budgets: NDArray[np.float64], style: dict[str, str], show_legend: bool
) -> go.Scatter:
    ends = np.array([budgets.min(), budgets.max()])
    ends = ends * [0.9, 1.1] if ends[0] == ends[1] else ends  # a line needs two different ends
    hover = "at any budget: %{y:.3f}"
    return curve(escape(method), ends, np.full(2, mean), style, hover, markers=False, show_legend=show_legend)


def _score_curve(
    method: str, samples: pd.Series[Any], shift: float, style: dict[str, str], confidence: float, seed: int,
    show_legend: bool,
) -> go.Scatter:  # fmt: skip
    groups = samples.groupby("budget")
    mean, count = groups.mean(), groups.size().to_numpy()
    y, budgets = mean.to_numpy(float), mean.index.to_numpy(float)
    line = curve(
        escape(method), budgets * shift, y, style, "budget %{customdata[0]:,}: %{y:.3f}<br>"
        "%{customdata[1]} samples, %{customdata[2]:.3f} to %{customdata[3]:.3f}", show_legend=show_legend,
    )  # fmt: skip
    ends = [metrics.bootstrap_interval(group.to_numpy(float), level=confidence, seed=seed) for _, group in groups]
    low, high = np.array(ends).T
    line.customdata = np.stack([budgets, count, low, high], -1)
    return error_bars(line, low, high) if count.max() > 1 else line


def _so_far(logs: pd.Series[Any]) -> pd.Series[Any]:
    """The mean up to each position, at evenly spaced positions."""
    running = logs.expanding().mean()
    first = min(_FIRST, len(running)) - 1
    shown = np.unique(np.linspace(first, len(running) - 1, _POINTS).astype(int))
    return running.iloc[shown]


def _above_full(means: Mapping[str, pd.Series[Any]], method: str, by: str) -> str:
    if method == "full" or "full" not in means:
        return ""
    gap = (means[method] - means["full"]).dropna()  # at lengths or positions that both have
    if gap.empty:
        return ""
    return f" (up to {gap.max():+.2f} against full)" if by == "length" else f" ({gap.iloc[-1]:+.2f} against full)"
