"""The budget explorer as one HTML file: a grid of selections that needs no kernel."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from ..errors import InvalidInputError
from . import explorer_budgets, explorer_data
from .page import blob, self_contained

if TYPE_CHECKING:
    from .budget_explorer import BudgetExplorer


def to_html(explorer: BudgetExplorer, path: str | os.PathLike[str] | None = None) -> str:
    """The page as text; also written to `path`, whole or not at all.

    Its grid: every second budget of the slider and the one shown × the values of the main field. A pair that the method
    does not accept has no selection, and the page says why.
    """
    main = explorer.page["sliders"][:1]
    values: list[Any] = main[0]["values"] if main else [None]
    stops = sorted({*explorer_budgets.curve_budgets(explorer.page["budgets"]), explorer.budget})
    cells: dict[str, dict[str, Any]] = {}
    blobs: list[str] = []
    curves = []
    for column, value in enumerate(values):
        settings = explorer.settings | ({main[0]["name"]: value} if main else {})
        for row, budget in enumerate(stops):
            key = f"{row}/{column}"
            cells[key], packed = _cell(explorer, budget, settings)
            if packed is not None:
                blobs.append(blob(packed, key))
        curves.append(_curve(explorer, stops, settings))
    page = explorer.page | {"budgets": stops, "sliders": main, "layers": [explorer.layer], "heads": [explorer.head]}
    page["notes"] = [*explorer.page["notes"], _note(explorer, stops, main)]
    data = {"page": page, "cells": cells, "curves": curves}
    data |= {"place": {"budget": explorer.budget, "layer": explorer.layer, "head": explorer.head,
                       "settings": dict(explorer.settings)}}  # fmt: skip
    title = f"{page['title']} · layer {explorer.layer} · {page['model']} · {page['prompt_length']:,} tokens"
    return self_contained(title, "explorer_page.js", data, blobs, styles=["explorer.css"], path=path)


def _cell(explorer: BudgetExplorer, budget: int, settings: dict[str, Any]) -> tuple[dict[str, Any], bytes | None]:
    place = (budget, explorer.layer, explorer.head, settings)
    try:
        explored = explorer.explored_at(*place)
    except InvalidInputError as error:
        return {"refusal": str(error)}, None
    return explorer.numbers_at(*place) | {"refusal": ""}, explorer_data.pack(explored, explorer.head)


def _curve(explorer: BudgetExplorer, stops: list[int], settings: dict[str, Any]) -> dict[str, Any]:
    points, oracle = [], []
    for budget in stops:
        try:
            own, best = explorer.curve_at(budget, **settings)
        except InvalidInputError:  # the cell says why
            continue
        points.append(explorer_data.curve_point(own, explorer.head))
        oracle.append(explorer_data.curve_point(best, explorer.head))
    return {"points": points, "oracle": oracle, "done": True}


def _note(explorer: BudgetExplorer, stops: list[int], main: list[dict[str, Any]]) -> str:
    held = f"{len(stops)} budgets from {stops[0]:,} to {stops[-1]:,}"
    if main:
        held += f" × {main[0]['label']} {', '.join(map(str, main[0]['values']))}"
    others = {name: value for name, value in explorer.settings.items() if not main or name != main[0]["name"]}
    fixed = "".join(f", {name} {value}" for name, value in others.items())
    where = f"layer {explorer.layer}, {explorer.page['head_name']} {explorer.head}{fixed}"
    return f"This page holds {held}, of {where}. BudgetExplorer(trace) in a notebook computes any other."
