"""The budget explorer as a self-contained HTML file: a grid of selections, which needs no kernel."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

from ..errors import InvalidInputError
from . import explorer_budgets, unions
from .exploration import Exploration, Place
from .page import Embedded, blob, self_contained


def to_html(
    exploration: Exploration, shown: Place, page: Mapping[str, Any], path: str | os.PathLike[str] | None = None
) -> str:
    """The page as text; also written to `path`, atomically.

    `shown` is the place at which it opens, `page` the widget's trait of that name. The grid: every second budget of the
    slider, and the one shown, × the values of the main field. If the method refuses a pair, the page says why.
    """
    main = page["sliders"][:1]
    values: list[Any] = main[0]["values"] if main else [None]
    stops = sorted({*explorer_budgets.curve_budgets(page["budgets"]), int(shown.budget)})
    answers: list[tuple[dict[str, Any], dict[str, Any]]] = []
    for column, value in enumerate(values):
        changed = {main[0]["name"]: value} if main else {}
        places = [shown._replace(budget=budget, settings={**shown.settings, **changed}) for budget in stops]
        answers += [
            ({"budget": place.budget, "settings": changed}, _cell(exploration, place, f"{row}/{column}"))
            for row, place in enumerate(places)
        ]
        answers.append(({"settings": changed}, {"curve": _curve(exploration, places)}))
    alone = shown.union == unions.NONE
    embedded = {
        **page, "budgets": stops, "sliders": main, "layers": [shown.layer], "heads": [shown.head] if alone else [],
        "unions": [] if alone else [shown.union], "joined_heads": [shown.head],
    }  # fmt: skip
    embedded["elsewhere"] = "not in this page; BudgetExplorer(trace) in a notebook computes it"
    embedded["notes"] = [*page["notes"], _note(shown, page, stops, main)]
    title = f"{page['title']} · layer {shown.layer} · {page['model']} · {page['prompt_length']:,} tokens"
    return self_contained(title, [Embedded("explorer", {"page": embedded, **shown._asdict()}, answers)], path)


def _cell(exploration: Exploration, place: Place, key: str) -> dict[str, Any]:
    try:
        packed = blob(exploration.packed(place), key)
    except InvalidInputError as error:
        return {"numbers": {"refusal": str(error)}}
    return {"numbers": exploration.numbers(place) | {"refusal": ""}, "slice": packed}


def _curve(exploration: Exploration, places: Sequence[Place]) -> dict[str, Any]:
    points, oracle_points = [], []
    for place in places:
        try:
            point, oracle = exploration.curve(place)
        except InvalidInputError:  # the cell of the grid says why
            continue
        points.append(point)
        oracle_points.append(oracle)
    return {"points": points, "oracle": oracle_points, "done": True}


def _note(shown: Place, page: Mapping[str, Any], stops: list[int], main: list[dict[str, Any]]) -> str:
    grid = f"{len(stops)} budgets from {stops[0]:,} to {stops[-1]:,}"
    if main:
        grid += f" × {main[0]['label']} {', '.join(map(str, main[0]['values']))}"
    others = {name: value for name, value in shown.settings.items() if not main or name != main[0]["name"]}
    fixed = "".join(f", {name} {value}" for name, value in others.items())
    heads = unions.name(page["head_name"], shown.head, shown.union, page["per_kv_head"])
    place = f"layer {shown.layer}, {heads}{fixed}"
    return f"This page holds {grid} for {place}. BudgetExplorer(trace) in a notebook computes all others."
