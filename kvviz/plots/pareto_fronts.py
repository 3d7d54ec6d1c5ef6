"""Quality against bytes: which methods are better than all others with as few bytes."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import plotly.graph_objects as go

from .. import metrics
from ..errors import InvalidInputError
from ..metrics.memory import bytes_text
from .axes import one_value
from .labels import escape, set_title
from .panels import panels
from .score_curves import about, check_positive, curve, error_bars, hold_of, numbers, rows_of
from .theme import ink, legend_entry, styles_of

if TYPE_CHECKING:
    import pandas as pd

AXES = {"held_bytes": "bytes held", "read_bytes": "bytes read per step", "kept_bytes": "bytes of keys and values kept"}
LOWER = ("output_error", "perplexity")  # measures of which less is better
_KEY, _TICKS = ["method", "budget"], 6


def pareto(
    table: pd.DataFrame,
    *,
    x: str | Sequence[str] = ("held_bytes", "read_bytes"),
    y: str = "score",
    references: Collection[str] = ("oracle",),
    lower_is_better: bool | None = None,
    confidence: float = 0.95,
    seed: int = 0,
    kinds: Mapping[str, str] | None = None,
    title: str | None = None,
    dark: bool = False,
) -> go.Figure:
    """A measure `y` against bytes, one curve per method, one panel per column of `x`, and the frontier of each panel.

    On the frontier are the points than which no other is at least as good with at most as many bytes. Methods in
    `references`, which nobody could use, are drawn but never on it. `table` has the columns method, budget, `y` and
    those of `x`, as `kvviz.compare`, `kvviz.load_results` and `kvviz.evaluation.summary` return it (there `y` is
    "mean", and the bars are its columns low and high). Elsewhere rows that repeat a method and budget are samples: the
    point is their mean, and the bars are its bootstrap interval, which holds the share `confidence` of the resamples
    drawn with `seed`. Several rows of one sample, such as the turns of a conversation, are averaged first. Refused rows
    have no value and are left out. "held_bytes" are those that count by the rule of `kvviz.bytes`, and "read_bytes"
    what a step reads; both are sums over layers, on logarithmic axes.

    `lower_is_better`: by default that of the column higher_is_better, and True for output_error and perplexity. `kinds`
    and `title` as for `recall_by_budget`.

    Raises InvalidInputError for missing columns, no rows, bytes that are not positive, and rows of several tasks,
    lengths, placements or of budgets both in tokens and in bytes.

    >>> import pandas as pd
    >>> rows = {"method": ["quest", "h2o"], "budget": 256, "held_bytes": [10, 20], "score": [0.5, 0.4]}
    >>> [line.x.tolist() for line in pareto(pd.DataFrame(rows), x="held_bytes").data if line.name == "frontier"]
    [[10.0]]
    """
    columns = [x] if isinstance(x, str) else list(x)
    for name in columns:
        if name not in AXES:
            raise InvalidInputError("pareto: x", repr(name), f"one of {', '.join(AXES)}")
    hold = hold_of("pareto", table)
    one_value("pareto", table, "task", "length", "placement")
    if "higher_is_better" in table.columns and lower_is_better is None:
        lower_is_better = not bool(table["higher_is_better"].iloc[0])
    lower = y in LOWER if lower_is_better is None else lower_is_better
    points = _points(table, columns, y, confidence, seed)
    figure, places = panels([""] * len(columns), len(columns), 340, dark)
    style_in, explained = styles_of(table, dark, kinds), set[str]()
    for name, place in zip(columns, places, strict=True):
        front = _front(points[~points["method"].isin(references)], name, lower)
        figure.add_trace(_frontier(points.loc[front], name, lower, dark, show=not explained), **place)
        for method, rows in points.groupby("method", sort=False):
            figure.add_trace(_curve(str(method), rows.sort_values(name), name, style_in(str(method)),
                                    show=method not in explained), **place)  # fmt: skip
            explained.add(str(method))
        figure.update_xaxes(**_axis(points[name].to_numpy(float), AXES[name]), **place)
    words = f"{y.replace('_', ' ')}{', lower is better' if lower else ''}"
    figure.update_yaxes(title_text=escape(_unit(table, y) + words), col=1)
    most = int(points["samples"].max())
    spread = f"bars: {confidence:.0%} bootstrap interval" if points["low"].notna().any() else ""
    samples = f"mean of {most} samples" if most > 1 else ""
    held = "" if hold == "bytes" else "equal tokens"
    set_title(figure, about(table, title, f"{words.split(',')[0].capitalize()} against bytes", held, samples, spread))
    return figure


def _points(table: pd.DataFrame, columns: list[str], y: str, confidence: float, seed: int) -> pd.DataFrame:
    """One row per method and budget: its bytes, and the mean, low and high of `y`, NaN without an interval."""
    import pandas

    optional = [name for name in ("sample", "seed", "low", "high", "n") if name in table.columns]
    needed = [*columns, y]
    usable = table if set(needed) - set(table.columns) else table.dropna(subset=needed)
    budget = usable["budget"] if "budget" in usable.columns else np.nan
    rows = rows_of("pareto", usable.assign(budget=budget).fillna({"budget": 0.0}), [*_KEY, *optional, *needed])
    rows = numbers("pareto", rows, *needed)
    for name in columns:
        check_positive(f"pareto: {name}", rows[name], "bytes")
    points = []
    for (method, size), cell in rows.groupby(_KEY, sort=False):
        by_sample = [name for name in ("seed", "sample") if "sample" in cell and name in cell]
        values = (cell.groupby(by_sample)[y].mean() if by_sample else cell[y]).to_numpy(float)
        low, high, count = np.nan, np.nan, len(values)
        if y == "mean" and {"low", "high"} <= set(cell.columns):
            low, high = float(cell["low"].iloc[0]), float(cell["high"].iloc[0])
            count = int(cell["n"].iloc[0]) if "n" in cell else 1
        elif count > 1:
            low, high = metrics.bootstrap_interval(values, level=confidence, seed=seed)
        point = {"method": str(method), "budget": size, y: values.mean(), "low": low, "high": high, "samples": count}
        points.append(point | {name: cell[name].mean() for name in columns})
    return pandas.DataFrame(points).rename(columns={y: "y"})


def _front(points: pd.DataFrame, name: str, lower: bool) -> list[int]:
    """The rows of the frontier by ascending bytes: each is better than all with at most as many bytes."""
    gain = -points["y"] if lower else points["y"]
    order = points.assign(gain=gain).sort_values([name, "gain"], ascending=[True, False])
    best, front = -np.inf, []
    for index, value in order["gain"].items():
        if value > best:
            best = float(value)
            front.append(int(str(index)))
    return front


def _frontier(front: pd.DataFrame, name: str, lower: bool, dark: bool, *, show: bool) -> go.Scatter:
    line = legend_entry(
        "lines", "frontier", line={"color": ink(dark).muted, "width": 6, "shape": "hv"}, opacity=0.45, hoverinfo="skip"
    )
    return line.update(x=front[name].to_numpy(float), y=front["y"].to_numpy(float), showlegend=show)


def _curve(method: str, rows: pd.DataFrame, name: str, style: dict[str, str], *, show: bool) -> go.Scatter:
    sizes = np.array([bytes_text(size) for size in rows[name]], object)
    hover = f"%{{customdata}} {AXES[name].removeprefix('bytes ')}: %{{y:.3f}}"
    line = curve(
        escape(method), rows[name].to_numpy(float), rows["y"].to_numpy(float), style, hover, sizes, show_legend=show
    )
    return error_bars(
        line, rows["low"].fillna(rows["y"]).to_numpy(float), rows["high"].fillna(rows["y"]).to_numpy(float)
    )


def _axis(values: Any, text: str) -> dict[str, Any]:
    """A logarithmic axis of bytes with ticks at powers of 2."""
    first, last = np.floor(np.log2(values.min())), np.ceil(np.log2(values.max()))
    step = max(1, int(np.ceil((last - first) / _TICKS)))
    ticks = 2.0 ** np.arange(first, last + 1, step)
    return {"type": "log", "title_text": text, "tickvals": ticks, "ticktext": [bytes_text(tick) for tick in ticks]}


def _unit(table: pd.DataFrame, y: str) -> str:
    known = table["metric"].iloc[0] if "metric" in table.columns and y in ("score", "mean") else ""
    return f"{known}: " if known else ""
