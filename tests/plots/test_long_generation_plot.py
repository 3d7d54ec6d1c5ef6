"""The figure of a long generation shows the numbers of its table."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from kvviz import plots
from kvviz.errors import InvalidInputError
from tests.plots.test_plot_theme import assert_escaped, texts_of


def table():
    rows = [
        {"method": name, "step": step, "attended": attended + step * growth, "hit_rate": hits,
         "device_bytes": 2**20 * (step + 1), "ratio": ratio}
        for name, attended, growth, hits, ratio in (("full", 500, 1, np.nan, 1.0), ("clusterkv", 64, 0, 0.75, 0.5))
        for step in (100, 200, 200)
    ]  # fmt: skip
    made = pd.DataFrame(rows)
    made.attrs = {"model": "tiny", "prompt_length": 400, "budget": 64, "hardware": "a machine"}
    return made


def curves(figure):
    return {(trace.name, trace.yaxis): (trace.x.tolist(), trace.y.tolist()) for trace in figure.data}


def test_each_column_has_a_panel_with_a_curve_per_method():
    figure = plots.long_generation(table())
    steps = [100, 200]
    assert curves(figure) == {
        ("full", "y"): (steps, [600, 700]), ("clusterkv", "y"): (steps, [64, 64]),
        ("clusterkv", "y2"): (steps, [0.75, 0.75]),
        ("full", "y3"): (steps, [101, 201]), ("clusterkv", "y3"): (steps, [101, 201]),
        ("full", "y4"): (steps, [1, 1]), ("clusterkv", "y4"): (steps, [0.5, 0.5]),
    }  # fmt: skip
    named = [trace.name for trace in figure.data if trace.showlegend]
    assert sorted(named) == ["clusterkv", "full"]
    for known in ("tiny", "400 tokens", "budget 64", "a machine"):
        assert known in figure.layout.title.text


def test_a_method_that_is_first_in_a_later_panel_is_in_the_legend():
    made = table()
    made.loc[made["method"] == "clusterkv", "attended"] = np.nan
    named = [trace.name for trace in plots.long_generation(made).data if trace.showlegend]
    assert sorted(named) == ["clusterkv", "full"]


def test_texts_are_escaped():
    nasty = "<b>$x$</b>"
    made = table().replace({"method": {"full": nasty}})
    for dark in (False, True):
        assert_escaped(texts_of(plots.long_generation(made, title=nasty, hardware=nasty, dark=dark)))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda made: made[["method", "step"]], "one or more of attended"),
        (lambda made: made.drop(columns="step"), "step"),
        (lambda made: made.assign(attended=-1.0), "attended"),
        (lambda made: made.assign(hit_rate=1.5), "hit_rate"),
        (lambda made: made.assign(budget=range(len(made))), "budget"),
    ],
)
def test_bad_tables_are_refused(change, message):
    with pytest.raises(InvalidInputError, match=message):
        plots.long_generation(change(table()))
