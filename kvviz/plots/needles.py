"""Needle in a haystack: the share of needles found with each method, by length and depth."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import plotly.graph_objects as go
from numpy.typing import NDArray

from ..errors import InvalidInputError
from .axes import one_value
from .labels import SEPARATOR, escape, set_title
from .panels import panels, tiles
from .score_curves import about, budget_text, hold_of, ignoring_budget, numbers, rows_of
from .theme import MAP, color_bar

if TYPE_CHECKING:
    import pandas as pd

_MOST_LENGTHS, _MOST_DEPTHS = 24, 10
_FEW_LENGTHS = 6  # fit a third of a printed column
_ROW, _LEAST_HEIGHT, _BETWEEN = 19, 76, 34  # pixels: a depth, a panel, from a panel to the one below
_SIDE = 0.04  # share of the width between panels, which share their depths
_SCALE = 30  # pixels for the scale of colours below
_MOST_WRITTEN = 12  # cells of at most so many samples show their counts


def needle_grid(
    table: pd.DataFrame,
    *,
    found: str = "found",
    levels: Collection[str] = ("full",),
    across: int | None = None,
    title: str | None = None,
    dark: bool = False,
) -> go.Figure:
    """The share of needles found by length and depth, one map per method, in cividis.

    As in PQCache (arXiv 2407.12820) fig. 9 and CTkvr fig. 5, 6 and 14, whatever the lengths. `table` has the columns
    method, length (tokens, at most 24 different), depth (0 is the beginning of the text, 1 its end) and `found`
    (booleans or shares: "correct" in `kvviz.compare`'s tables, "score" in those of `kvviz.load_results`). If it has a
    column budget, there is one panel per method and budget; methods in `levels`, and those whose budget is NaN in all
    rows, ignore the budget. Rows without a depth or a share are left out. More than 10 different depths are grouped
    into tenths. Cells with few samples show their counts; cells without samples stay empty. `across`: panels per
    row, by default three, or two if there are more than six lengths.

    Raises InvalidInputError for missing columns, depths or shares outside 0 to 1, more than 24 lengths, or several
    tasks or placements, if the table has these columns.

    >>> import pandas as pd
    >>> table = pd.DataFrame({"method": "quest", "length": [512, 512], "depth": [0.1, 0.1], "found": [True, False]})
    >>> figure = needle_grid(table)
    >>> figure.data[0].marker.color.tolist(), figure.data[0].text
    ([0.5], ('1/2',))
    """
    hold = hold_of("needle_grid", table)
    budget = ["budget"] if "budget" in table.columns else []
    fixed = [name for name in ("task", "placement") if name in table.columns]
    rows = rows_of("needle_grid", table, [*fixed, "method", *budget, "length", "depth", found], levels)
    one_value("needle_grid", rows, *fixed)
    rows = numbers("needle_grid", rows, "length", "depth", found)
    for name in ("depth", found):
        if not rows[name].between(0, 1).all():
            raise InvalidInputError(f"needle_grid: {name}", f"{rows[name].min():g} to {rows[name].max():g}", "0 to 1")
    lengths = np.unique(rows["length"])
    if len(lengths) > _MOST_LENGTHS:
        wanted = f"at most {_MOST_LENGTHS}: round them"
        raise InvalidInputError("needle_grid: length", f"{len(lengths)} lengths", wanted)
    rows, depths = _by_depth(rows)
    cells = _cells_of_needles(rows, budget, ignoring_budget(rows, levels) if budget else levels)
    budgets = {tokens for _, tokens in cells if tokens is not None}
    names = []
    for (method, tokens), samples in cells.items():
        budget_part = [f"budget {budget_text(tokens, hold)}"] if tokens is not None and len(budgets) > 1 else []
        names.append(SEPARATOR.join([escape(method), *budget_part, f"{samples[found].sum():.3g} of {len(samples)}"]))
    across = (3 if len(lengths) <= _FEW_LENGTHS else 2) if across is None else across
    figure, places = panels(names, across, max(_ROW * len(depths), _LEAST_HEIGHT), dark, _BETWEEN, _SIDE)
    for number, (samples, place) in enumerate(zip(cells.values(), places, strict=True)):
        figure.add_trace(_needle_map(samples, found, lengths, depths, dark), **place)
        lowest = number + across >= len(cells)
        figure.update_xaxes(title_text="length (tokens)" if lowest else None, showticklabels=lowest, **place)
        figure.update_yaxes(showticklabels=place["col"] == 1, **place)
    axes = {"showgrid": False, "ticks": ""}
    figure.update_xaxes(
        tickvals=list(range(len(lengths))), ticktext=[f"{length:,.0f}" for length in lengths],
        range=[-0.5, len(lengths) - 0.5], **axes,
    )  # fmt: skip
    figure.update_yaxes(
        tickvals=list(range(len(depths))), ticktext=list(depths.values()), range=[len(depths) - 0.5, -0.5], **axes
    )
    figure.update_yaxes(title_text="depth", col=1)
    figure.update_layout(barmode="overlay", coloraxis={
        "colorscale": MAP, "cmin": 0, "cmax": 1,
        "colorbar": color_bar("", orientation="h", x=0.5, len=0.7, yref="container", y=0, yanchor="bottom",
                              tickvals=[0, 0.5, 1], ticktext=["none found", "half", "all found"]),
    })  # fmt: skip
    one_budget = f"budget {budget_text(budgets.pop(), hold)}" if len(budgets) == 1 else ""
    figure.update_layout(height=figure.layout.height + _SCALE)
    set_title(figure, about(table, title, "Needles found", one_budget), panel_titles=True)
    return figure


def _by_depth(rows: pd.DataFrame) -> tuple[pd.DataFrame, dict[float, str]]:
    """The rows with their depths as drawn, and the label of each depth in ascending order."""
    if rows["depth"].nunique() <= _MOST_DEPTHS:
        return rows, {depth: f"{depth:.0%}" for depth in sorted(rows["depth"].unique())}
    tenth = np.minimum(rows["depth"] * 10 // 1, 9)
    return rows.assign(depth=tenth), {float(part): f"{part * 10}–{part * 10 + 10}%" for part in range(10)}


def _cells_of_needles(
    rows: pd.DataFrame, budget: list[str], levels: Collection[str]
) -> dict[tuple[str, float | None], pd.DataFrame]:
    """The rows of each panel, by method and budget (None if there is none, or if the method ignores it)."""
    parts: dict[tuple[str, float | None], pd.DataFrame] = {}
    for name, samples in rows.groupby("method", sort=False):
        if not budget or name in levels:
            parts[str(name), None] = samples
        else:
            parts |= {(str(name), float(part["budget"].iloc[0])): part for _, part in samples.groupby("budget")}
    return parts


def _needle_map(
    rows: pd.DataFrame, found: str, lengths: NDArray[np.float64], depths: Mapping[float, str], dark: bool
) -> go.Bar:
    """One panel: shares [depths, lengths], NaN without samples."""
    groups = rows.groupby(["depth", "length"])[found]

    def spread(values: pd.Series[Any], empty: float) -> NDArray[np.float64]:
        table = values.unstack("length").reindex(index=list(depths), columns=lengths)
        return table.fillna(empty).to_numpy(float)

    hits, totals = spread(groups.sum(), 0), spread(groups.count(), 0)
    share = np.divide(hits, totals, out=np.full_like(hits, np.nan), where=totals > 0)
    text = [
        [f"{hit:.3g}/{total:.0f}" if total else "" for hit, total in zip(*line, strict=True)]
        for line in zip(hits, totals, strict=True)
    ]
    few = totals.max() <= _MOST_WRITTEN
    return tiles(share, "found: %{marker.color:.0%}" + (", %{text}" if few else ""), dark, text if few else None)
