"""Category means against sums by hand, and their bootstrap against the formula of the standard error."""

from __future__ import annotations

import math

import numpy as np
import pytest

from kvviz.errors import InvalidInputError
from kvviz.evaluation import category_means
from kvviz.tasks.public.longbench import CATEGORIES, FORMS
from tests.evaluation.test_statistics import NAN, row, table_of

TWO = {"longbench_trec": [1.0, 0.0, 0.0], "longbench_samsum": [0.5]}


def scored(method, scores, budget=128.0):
    return [
        row(method, sample, score, budget=budget, task=task)
        for task, values in scores.items()
        for sample, score in enumerate(values)
    ]


def test_every_subset_of_longbench_has_one_of_six_categories():
    assert set(CATEGORIES) == {f"longbench_{subset}" for subset in FORMS}
    assert len(set(CATEGORIES.values())) == 6


def test_a_mean_of_tasks_not_of_samples():
    table = category_means(table_of(*scored("quest", TWO), *scored("full", TWO, NAN), row("quest", 0, 1.0, task="x")))
    assert table["category"].tolist() == ["few-shot learning"] * 2
    assert table["mean"].tolist() == pytest.approx([(1 / 3 + 0.5) / 2] * 2)
    assert table[["tasks", "n"]].to_numpy().tolist() == [[2, 4]] * 2
    by_method = table.set_index("method")["budget"]
    assert by_method["quest"] == 128
    assert math.isnan(by_method["full"])


def test_the_spread_is_that_of_independent_tasks():
    """Standard error of a mean of T task means: sqrt(sum of variance / n) / T, with the variance of the sample."""
    rng = np.random.default_rng(0)
    scores = {name: rng.random(count) for name, count in (("a", 50), ("b", 20), ("c", 1))}
    (found,) = category_means(
        table_of(*scored("quest", scores)), dict.fromkeys(scores, "all"), resamples=20_000
    ).to_dict("records")
    expected = math.sqrt(sum(values.var() / len(values) for values in scores.values())) / 3
    assert found["std"] == pytest.approx(expected, rel=0.03)
    assert found["high"] - found["low"] == pytest.approx(2 * 1.96 * expected, rel=0.05)
    assert found["low"] < found["mean"] < found["high"]


def test_a_cell_that_lacks_a_task_has_no_row():
    table = category_means(table_of(*scored("quest", TWO), *scored("snapkv", {"longbench_trec": [1.0]})))
    assert table["method"].tolist() == ["quest"]


@pytest.mark.parametrize(
    ("rows", "options"),
    [
        ([row("quest", 0, 1.0)], {}),
        (scored("quest", TWO), {"confidence": 1.0}),
        (scored("quest", TWO), {"resamples": 0}),
        ([row("quest", 0, 1.0, task="longbench_trec", nats=True)], {}),
    ],
)
def test_refusals(rows, options):
    with pytest.raises(InvalidInputError, match="category_means"):
        category_means(table_of(*rows), **options)
