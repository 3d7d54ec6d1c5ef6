"""Ablations: a metric over the values of one field of a method."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import plotly.graph_objects as go
from numpy.typing import NDArray

from ..errors import InvalidInputError
from .labels import SEPARATOR, escape, set_title
from .panels import panels
from .score_curves import about, curve, error_bars, numbers, rows_of, spread_ticks
from .theme import ordered_tones, styles_of

if TYPE_CHECKING:
    import pandas as pd

# Printed names of fields and metrics; in other names, underscores are printed as spaces.
_WORDS = {
    "n_clusters": "clusters", "n_probes": "centroids probed", "n_partitions": "partitions", "n_bits": "bits per code",
    "max_iter": "maximum iterations", "page_size": "page size (tokens)", "chunk_size": "chunk size (tokens)",
    "tokens_per_cluster": "tokens per cluster", "metadata_bytes_a_token": "metadata (bytes per token)",
    "output_error": "output error (relative)",
}  # fmt: skip
_DASHES: tuple[str, ...] = ("solid", "dash", "dot", "dashdot", "longdash")
_SYMBOLS: tuple[str, ...] = ("circle", "square", "triangle-up", "diamond", "cross")


def ablation(
    table: pd.DataFrame,
    *,
    field: str,
    metric: str | Sequence[str] = "recall",
    series: Sequence[str] = ("method",),
    title: str | None = None,
    dark: bool = False,
) -> go.Figure:
    """A metric over the values of one field, one line per series: means, with bars from the lowest to the highest run.

    As in CTkvr fig. 10 and 13, tables 4, 14 and 15; CentroidKV (OpenReview T3EeupQhGj) tables 8 and 9; PQCache (arXiv
    2407.12820) fig. 10b and 12c. `table` has the columns field, metric and those of `series`. Each combination of the
    series' values is one line, in its method's colour if "method" is among them. Each metric has its own panel. Rows
    that agree in all of these columns (other seeds, other texts) become a mean with bars. Rows without a value are left
    out, so write a setting without a number as text ("none").

    Numbers get a numeric axis, logarithmic if it spaces them more evenly (10, 20, 40, 80). Text and booleans are placed
    side by side in the table's order, without a line. `title` as for `recall_by_budget`.

    Raises InvalidInputError for missing columns, no metric, or values of the metric that are not finite numbers.

    >>> import pandas as pd
    >>> rows = {"method": "clusterkv", "tokens_per_cluster": [20, 40, 80, 80], "recall": [0.64, 0.62, 0.53, 0.51]}
    >>> figure = ablation(pd.DataFrame(rows), field="tokens_per_cluster")
    >>> figure.layout.xaxis.type, figure.data[0].y.round(2).tolist()
    ('log', [0.64, 0.62, 0.52])
    """
    metrics = [metric] if isinstance(metric, str) else list(metric)
    if not metrics:
        raise InvalidInputError("ablation: metric", "no metric", "one or more column names")
    if field in series or field in metrics:
        raise InvalidInputError("ablation: field", field, "a column that is neither a metric nor in series")
    tables = {name: numbers("ablation", rows_of("ablation", table, [field, *series, name]), name) for name in metrics}
    numeric = all(rows[field].dtype.kind in "iuf" for rows in tables.values())
    figure, places = panels([""] * len(metrics), 1, 300 if len(metrics) == 1 else 190, dark)
    style_in = styles_of(table, dark)
    lines = list(dict.fromkeys(key for rows in tables.values() for key in _keys(rows, series)))
    most_runs = 0
    for name, place in zip(metrics, places, strict=True):
        rows = tables[name]
        keys = _keys(rows, series)
        for number, line in enumerate(lines):
            line_rows = rows[[key == line for key in keys]]
            if len(line_rows):
                style = _style(line, series, lines, dark, style_in)
                trace = _line(line_rows, field, name, numeric, style, SEPARATOR.join(_words(line, series)))
                figure.add_trace(trace.update(legendgroup=str(number), showlegend=place == places[0]), **place)
                most_runs = max(most_runs, int(line_rows.groupby(field).size().max()))
        figure.update_yaxes(title_text=escape(_printed(name)), **place)
    figure.update_xaxes(**_axis([rows[field].to_numpy() for rows in tables.values()], numeric))
    figure.update_xaxes(title_text=escape(_printed(field)), row=len(metrics), col=1)
    spread = f"mean of {most_runs} runs, bars: lowest to highest" if most_runs > 1 else ""
    short = [_printed(name).partition(" (")[0] for name in (*metrics, field)]
    what = f"{' and '.join(short[:-1])} by {short[-1]}"
    set_title(figure, about(table, title, what[:1].upper() + what[1:], spread))
    return figure


def _printed(name: str) -> str:
    """The printed name of a field or metric, with its unit."""
    return _WORDS.get(name, name.replace("_", " "))


def _keys(rows: pd.DataFrame, series: Sequence[str]) -> list[tuple[Any, ...]]:
    return list(rows[list(series)].itertuples(index=False, name=None)) if series else [()] * len(rows)


def _words(line: tuple[Any, ...], series: Sequence[str]) -> list[str]:
    """The escaped parts of a line's label: the method's name, and the other values after their field's name."""
    return [
        escape(str(value)) if name == "method" else escape(f"{_printed(name).partition(' (')[0]} {_text(value)}")
        for name, value in zip(series, line, strict=True)
    ]


def _text(value: Any) -> str:
    """A value as text; a column with missing values holds integers as floats."""
    return f"{value:g}" if isinstance(value, float) else str(value)


def _style(
    line: tuple[Any, ...], series: Sequence[str], lines: list[tuple[Any, ...]], dark: bool,
    style_in: Callable[[str], dict[str, str]],
) -> dict[str, str]:  # fmt: skip
    """The method's style, with other dashes and symbols from its second line on; without a method, steps of cividis."""
    dashes, symbols = _DASHES, _SYMBOLS
    if "method" in series:
        place = list(series).index("method")
        style = style_in(str(line[place]))
        number = [key for key in lines if key[place] == line[place]].index(line)
        if number == 0:
            return style
        number -= 1
        dashes = tuple(dash for dash in _DASHES if dash != style["dash"])
        symbols = tuple(symbol for symbol in _SYMBOLS if symbol != style["symbol"])
    else:
        number = lines.index(line)
        style = {"color": ordered_tones(max(len(lines), 2), dark)[number]}
    return style | {"dash": dashes[number % len(dashes)], "symbol": symbols[number % len(symbols)]}


def _line(rows: pd.DataFrame, field: str, metric: str, numeric: bool, style: dict[str, str], label: str) -> go.Scatter:
    groups = rows.groupby(field, sort=numeric)[metric]
    mean, count = groups.mean(), groups.size().to_numpy()
    y, low, high = (part.to_numpy(float) for part in (mean, groups.min(), groups.max()))
    x = mean.index.to_numpy(float) if numeric else np.array([escape(str(value)) for value in mean.index])
    hover = f"{escape(field)} %{{x}}: %{{y:.3f}}<br>runs: %{{customdata}}"
    line = curve(label, x, y, style, hover, count, lines=numeric)
    return error_bars(line, low, high) if count.max() > 1 else line


def _axis(values: Sequence[NDArray[Any]], numeric: bool) -> dict[str, Any]:
    """Properties of the field's axis; `values` are those of the field in each metric's rows."""
    if not numeric:
        return {"type": "category"}
    distinct = np.unique(np.concatenate(values).astype(float))
    if not np.isfinite(distinct).all():
        raise InvalidInputError("ablation: values of the field", "an infinite number", "finite numbers, or text")
    if distinct[0] <= 0 or len(distinct) < 3 or _unevenness(np.log(distinct)) >= _unevenness(distinct):
        return {"type": "linear"}
    ticks = spread_ticks(distinct)
    return {"type": "log", "tickvals": ticks, "ticktext": [f"{tick:,.4g}" for tick in ticks]}


def _unevenness(values: NDArray[np.float64]) -> float:
    """Standard deviation of the steps between successive values, relative to their mean."""
    steps = np.diff(values)
    return float(steps.std() / steps.mean())
