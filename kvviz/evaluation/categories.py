"""Mean scores of categories of tasks, such as LongBench's, with their spread."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from ..errors import InvalidInputError
from .statistics import checked_rows, named, sample_scores

if TYPE_CHECKING:
    import pandas as pd

GROUP = ["placement", "length", "method", "budget"]


def category_means(
    results: pd.DataFrame | str | os.PathLike[str],
    categories: Mapping[str, str] | None = None,
    *,
    confidence: float = 0.95,
    resamples: int = 2000,
    seed: int = 0,
) -> pd.DataFrame:
    """Mean scores per category of tasks, placement, length, method and budget, each the mean of its tasks' means.

    `categories` maps names of tasks to categories; by default the six categories of LongBench's English and code
    subsets. For the mean of a whole benchmark, map all of its tasks to one category. Other tasks in the results are
    left out, and so are tasks where lower is better.

    Columns: category, placement, length, method, budget, mean, std, low, high, tasks, n (samples of all tasks). `std`
    and `low` to `high` come from a bootstrap: in each of `resamples` turns, the samples of every task are drawn with
    replacement, and the mean is taken again. `std` is the standard deviation of these means, `low` to `high` the middle
    `confidence` of them. A task with one sample adds no spread.

    A category's tasks are all of them that occur in the results. A cell that lacks one has no row, since its mean would
    not be comparable. `budget` is NaN for a method that ignores it.

    Raises InvalidInputError if no task of the categories has a score, for a confidence outside 0 to 1 or no resamples,
    and the errors of `kvviz.evaluation.summary`.

    Source: macro-averages as in CentroidKV (OpenReview T3EeupQhGj), tables 4 and 5, categories of its appendix C, and
    the bootstrap "mean ± std" of its tables 15 to 18, which does not say whether tasks are resampled separately.
    """
    import pandas

    if not 0 < confidence < 1 or resamples < 1:
        got = f"confidence {confidence}, {resamples} resamples"
        raise InvalidInputError("category_means", got, "a confidence between 0 and 1, and at least 1 resample")
    if categories is None:
        from ..tasks.public.longbench import CATEGORIES

        categories = CATEGORIES
    samples = sample_scores(checked_rows("category_means", results)).dropna(subset="score")
    samples = samples[samples["higher_is_better"] & samples["task"].isin(list(categories))]
    if samples.empty:
        raise InvalidInputError("category_means: tasks", "none of them with a score", f"some of {sorted(categories)}")
    samples = samples.assign(category=samples["task"].map(dict(categories)))
    wanted = samples.groupby("category")["task"].nunique()
    rows: list[dict[str, Any]] = []
    for key, cell in samples.groupby(["category", *GROUP], dropna=False):
        by_task = [scores.to_numpy(float) for _, scores in cell.groupby("task")["score"]]
        if len(by_task) < wanted[cell["category"].iloc[0]]:
            continue
        rng = np.random.default_rng(seed)  # the same resamples for all cells with as many samples
        drawn = np.mean([_resampled(scores, resamples, rng) for scores in by_task], axis=0)
        low, high = np.quantile(drawn, (0.5 - confidence / 2, 0.5 + confidence / 2))
        rows.append({
            **named(["category", *GROUP], key), "mean": float(np.mean([scores.mean() for scores in by_task])),
            "std": float(drawn.std()), "low": float(low), "high": float(high), "tasks": len(by_task),
            "n": sum(map(len, by_task)),
        })  # fmt: skip
    columns = ["category", *GROUP, "mean", "std", "low", "high", "tasks", "n"]
    return pandas.DataFrame(rows, columns=columns)


def _resampled(scores: Any, resamples: int, rng: np.random.Generator) -> Any:
    """Means [resamples] of as many scores, drawn with replacement."""
    return scores[rng.integers(len(scores), size=(resamples, len(scores)))].mean(1)
