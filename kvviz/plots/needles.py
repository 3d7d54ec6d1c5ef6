"""Which needles a model found with each method, by length and depth."""

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
from .score_curves import about, budget_text, ignoring_budget, numbers, rows_of
from .theme import MAP

if TYPE_CHECKING:
    import pandas as pd

_MOST_LENGTHS, _MOST_DEPTHS = 24, 10
_MOST_WRITTEN = 12  # samples in a cell whose numbers are written into it


def needle_grid(
    table: pd.DataFrame,
    *,
    found: str = "found",
    levels: Collection[str] = ("full",),
    across: int = 2,
    title: str | None = None,
    dark: bool = False,
) -> go.Figure:
    """A map of length × depth a method: the share of needles found, in cividis.

    As in PQCache (arXiv 2407.12820) fig. 9 and CTkvr fig. 5, 6 and 14. `table` has the columns method, length (tokens,
    at most 24 different), depth (0 the beginning of the text, 1 its end) and `found` (booleans or shares: "correct" in
    `kvviz.compare`'s tables, "score" in those of `kvviz.load_results`), and may have budget: then each method and
    budget has a panel of its own, except for methods in `levels` and those whose budget is NaN in all rows, which
    ignore it. Rows without a depth or a share are left out. More than 10 different depths are put into tenths. Cells of
    few samples have their numbers written in; places without a sample stay empty. `across` panels stand in a row.

    Raises InvalidInputError for missing columns, depths or shares outside 0 to 1, more than 24 lengths, or needles of
    several tasks or placements, where the table has these columns.

    >>> import pandas as pd
    >>> table = pd.DataFrame({"method": "quest", "length": [512, 512], "depth": [0.1, 0.1], "found": [True, False]})
    >>> figure = needle_grid(table)
    >>> figure.data[0].marker.color.tolist(), figure.data[0].text
    ([0.5], ('1/2',))
    """
    budget = ["budget"] if "budget" in table.columns else []
    one = [name for name in ("task", "placement") if name in table.columns]
    rows = rows_of("needle_grid", table, [*one, "method", *budget, "length", "depth", found], levels)
    one_value("needle_grid", rows, *one)
    for name in ("length", "depth", found):
        rows = numbers("needle_grid", rows, name)
        if name != "length" and not rows[name].between(0, 1).all():
            raise InvalidInputError(f"needle_grid: {name}", f"{rows[name].min():g} to {rows[name].max():g}", "0 to 1")
    lengths = np.unique(rows["length"])
    if len(lengths) > _MOST_LENGTHS:
        raise InvalidInputError(
            "needle_grid: length", f"{len(lengths)} lengths", f"at most {_MOST_LENGTHS}: round them"
        )
    rows, depths = _by_depth(rows)
    cells = _cells_of_needles(rows, budget, ignoring_budget(rows, levels) if budget else levels)
    budgets = {tokens for _, tokens in cells if tokens is not None}
    names = []
    for (method, tokens), own in cells.items():
        told = [f"budget {budget_text(tokens)}"] if tokens is not None and len(budgets) > 1 else []
        names.append(SEPARATOR.join([escape(method), *told, f"{own[found].sum():.3g} of {len(own)}"]))
    figure, places = panels(names, across, max(26 * len(depths), 110), dark)
    for number, (own, place) in enumerate(zip(cells.values(), places, strict=True)):
        figure.add_trace(_needle_map(own, found, lengths, depths, dark), **place)
        figure.update_xaxes(title_text="length (tokens)" if number + across >= len(cells) else None, **place)
        figure.update_yaxes(showticklabels=place["col"] == 1, **place)
    axes = {"showgrid": False, "ticks": ""}
    figure.update_xaxes(
        tickvals=list(range(len(lengths))), ticktext=[f"{length:,.0f}" for length in lengths],
        range=[-0.5, len(lengths) - 0.5], **axes,
    )  # fmt: skip
    figure.update_yaxes(
        tickvals=list(range(len(depths))), ticktext=list(depths.values()), range=[len(depths) - 0.5, -0.5], **axes
    )
    figure.update_yaxes(title_text="depth of the needle", col=1)
    figure.update_layout(barmode="overlay", coloraxis={
        "colorscale": MAP, "cmin": 0, "cmax": 1,
        "colorbar": {"title": {"text": "share found", "side": "right"}, "thickness": 10, "outlinewidth": 0, "xpad": 12},
    })  # fmt: skip
    same = f"budget {budget_text(budgets.pop())}" if len(budgets) == 1 else ""
    set_title(figure, about(table, title, "Needles found", same), panel_titles=True)
    return figure


def _by_depth(rows: pd.DataFrame) -> tuple[pd.DataFrame, dict[float, str]]:
    """The rows with their depths as drawn, and the label of each depth, from the beginning of the text."""
    if rows["depth"].nunique() <= _MOST_DEPTHS:
        return rows, {depth: f"{depth:.0%}" for depth in sorted(rows["depth"].unique())}
    tenth = np.minimum(rows["depth"] * 10 // 1, 9)
    return rows.assign(depth=tenth), {float(part): f"{part * 10}–{part * 10 + 10}%" for part in range(10)}


def _cells_of_needles(
    rows: pd.DataFrame, budget: list[str], levels: Collection[str]
) -> dict[tuple[str, float | None], pd.DataFrame]:
    """The rows of each panel, by method and budget (None where there is none, or where it is ignored)."""
    parts: dict[tuple[str, float | None], pd.DataFrame] = {}
    for name, own in rows.groupby("method", sort=False):
        if not budget or name in levels:
            parts[str(name), None] = own
        else:
            parts |= {(str(name), float(part["budget"].iloc[0])): part for _, part in own.groupby("budget")}
    return parts


def _needle_map(
    rows: pd.DataFrame, found: str, lengths: NDArray[np.float64], depths: Mapping[float, str], dark: bool
) -> go.Bar:
    """One panel: shares [depths, lengths], NaN where there is no sample."""
    groups = rows.groupby(["depth", "length"])[found]

    def spread(values: pd.Series[Any], empty: float) -> NDArray[np.float64]:
        table = values.unstack("length").reindex(index=list(depths), columns=lengths)
        return table.fillna(empty).to_numpy(float)

    hits, of = spread(groups.sum(), 0), spread(groups.count(), 0)
    share = np.divide(hits, of, out=np.full_like(hits, np.nan), where=of > 0)
    text = [
        [f"{hit:.3g}/{many:.0f}" if many else "" for hit, many in zip(*line, strict=True)]
        for line in zip(hits, of, strict=True)
    ]
    few = of.max() <= _MOST_WRITTEN
    return tiles(share, "found: %{marker.color:.0%}" + (", %{text}" if few else ""), dark, text if few else None)
