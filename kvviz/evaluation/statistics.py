"""What results say: means with intervals, paired differences, wins and losses, and rankings.

Every function takes the table of `load_results`, or the path of a results file, and changes neither. A sample is one
draw of a task: its turns are averaged first. Refused cells have no score and are left out. The order of the rows has no
effect. Tasks and methods may have different numbers of samples, as of several calls of `evaluate` on one file. All
raise InvalidInputError for missing columns, a turn that is there twice, rows of several models, several configurations
of one task or under one label of a method, and a score that is not a finite number.

A budget is tokens, a share of the prompt where it is below 1, or NaN for a method that ignores it ("full").
"""

from __future__ import annotations

import itertools
import json
import os
from collections.abc import Hashable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ..errors import InvalidInputError, UnknownNameError
from ..metrics import bootstrap_interval
from .results import load_results

if TYPE_CHECKING:
    import pandas as pd

SETTING = ["task", "placement", "length"]
CELL = [*SETTING, "method", "budget"]
SAMPLE = ["seed", "sample"]
ABOUT = ["metric", "higher_is_better"]
NEEDED = [
    *CELL, *SAMPLE, *ABOUT, "turn", "score", "refused", "budget_tokens", "task_config", "method_config", "model_hash",
]  # fmt: skip
TIE = 1e-9  # scores nearer than this are equal: means over the same turns may differ in their last bits


def summary(results: pd.DataFrame | str | os.PathLike[str], confidence: float = 0.95, seed: int = 0) -> pd.DataFrame:
    """The mean score of every method and budget in every task, placement and length, and how sure it is.

    One row each: task, placement, length, method, budget, mean, low, high, n, refused, budget_tokens, metric,
    higher_is_better. `low` to `high` is the percentile bootstrap interval of the mean over the `n` samples that have a
    score, at `confidence`, from resamples drawn with `seed` (`metrics.bootstrap_interval`: without width where all
    scores are equal, or n is 1). `refused` counts samples on which the method refused the budget. Without any score,
    mean, low, high and budget_tokens are NaN. Where higher_is_better is False the score is nats per token, less being
    better.

    `budget` is NaN for a method that ignores it, which has one row a setting. `budget_tokens` is the mean over samples
    of the budget in tokens: then all of the prompt's.
    """
    import pandas

    table = _table("summary", results)
    rows = []
    for place, own in _samples(table).groupby(CELL, dropna=False):
        scored = own.dropna(subset="score")
        rows.append({
            **_named(CELL, place), **_interval("mean", scored["score"], confidence, seed),
            "refused": int(own["refused"].sum()), "budget_tokens": scored["budget_tokens"].mean(), **_about(own),
        })  # fmt: skip
    return _with_attrs(pandas.DataFrame(rows), table, confidence=confidence)


def differences(
    results: pd.DataFrame | str | os.PathLike[str],
    reference: str = "full",
    confidence: float = 0.95,
    seed: int = 0,
) -> pd.DataFrame:
    """How much better than the method `reference` every other one is, on the samples that both have a score for.

    One row a task, placement, length, method and budget that has such samples: difference, low, high, n (pairs),
    metric, higher_is_better. Above 0 is better than the reference: where a lower score is better, as of nats per token,
    the sign is turned. The interval is the paired bootstrap's: samples are drawn, each with both its scores. That is
    the interval of the mean of their differences, which `metrics.bootstrap_interval` gives.

    `budget` is NaN for a method that ignores it. A reference that ignores it ("full") is paired with every budget and
    with these; any other ("oracle") with what has the same budget, so that these have no row.

    Raises UnknownNameError for a reference that is not in the results. Source: Efron and Tibshirani, "An Introduction
    to the Bootstrap" (1993), section 13.3.
    """
    import pandas

    table = _table("differences", results)
    methods = set(table["method"])
    if reference not in methods:
        raise UnknownNameError("differences: reference", reference, methods)
    samples = _samples(table).dropna(subset="score")
    theirs = samples["method"] == reference
    base, others = samples[theirs], samples[~theirs]
    on = [*SETTING, *SAMPLE, *([] if base["budget"].isna().all() else ["budget"])]
    pairs = others.merge(base[[*on, "score"]], on=on, suffixes=("", "_of_reference"))
    apart = (pairs["score"] - pairs["score_of_reference"]).where(
        pairs["higher_is_better"], pairs["score_of_reference"] - pairs["score"]
    )
    rows = [
        {**_named(CELL, place), **_interval("difference", own["difference"], confidence, seed), **_about(own)}
        for place, own in pairs.assign(difference=apart).groupby(CELL, dropna=False)
    ]  # fmt: skip
    found = pandas.DataFrame(rows, columns=[*CELL, "difference", "low", "high", "n", *ABOUT])
    return _with_attrs(found, table, confidence=confidence, reference=reference)


def wins(results: pd.DataFrame | str | os.PathLike[str], by: Sequence[str] = ()) -> pd.DataFrame:
    """On how many samples each method did better, as well as and worse than each other one at the same budget.

    One row an ordered pair and budget: method, other, budget, wins, ties, losses, over the samples that both have a
    score for; a pair without any has no row. Where a lower score is better, as of nats per token, a win is a lower
    score. `by` may name "task", "placement" and "length", which are columns then and are counted apart; else all
    samples count alike, so that a task with more of them counts more.

    `budget` is NaN where both methods ignore it: they meet each other only. Raises UnknownNameError for another name in
    `by`.
    """
    import pandas

    for name in by:
        if name not in SETTING:
            raise UnknownNameError("wins: by", name, SETTING)
    samples = _samples(_table("wins", results)).dropna(subset="score")
    gain = samples["score"].where(samples["higher_is_better"], -samples["score"])
    rows = []
    groups = [*by, "budget"]
    for place, own in samples.assign(gain=gain).groupby(groups, dropna=False):
        gains = own.pivot(index=[*SETTING, *SAMPLE], columns="method", values="gain")
        for method, other in itertools.permutations(gains.columns, 2):
            apart = (gains[method] - gains[other]).dropna().to_numpy(float)
            if len(apart):
                better, worse = int((apart > TIE).sum()), int((apart < -TIE).sum())
                counts = {"wins": better, "ties": len(apart) - better - worse, "losses": worse}
                rows.append({**_named(groups, place), "method": method, "other": other, **counts})
    return pandas.DataFrame(rows, columns=[*by, "method", "other", "budget", "wins", "ties", "losses"])


def orderings(results: pd.DataFrame | str | os.PathLike[str]) -> pd.DataFrame:
    """The ranking of the methods at each budget, by the mean of their tasks' means.

    One row a budget and method: budget, rank (1 the best; equals share one), method, mean, tasks (how many). A task's
    mean is that of its placements and lengths, each a mean over the samples that the method has. Counted are those
    which more than half of the methods have a score for at the budget; a method that lacks one of them is left out,
    since its mean would be of other questions. So are tasks where a lower score is better: nats have another unit.

    `budget` is NaN for the ranking of the methods that ignore it, among themselves.
    """
    import pandas

    samples = _samples(_table("orderings", results)).dropna(subset="score")
    rows = []
    for budget, own in samples[samples["higher_is_better"]].groupby("budget", dropna=False):
        means = own.groupby(["method", *SETTING])["score"].mean().unstack("method")
        usual = means[means.notna().mean(axis="columns") > 0.5]
        complete = usual.dropna(axis="columns").groupby(level="task").mean()
        overall = complete.mean().round(12)  # so that equal means are equal, in whatever order they were summed
        ranks = overall.rank(ascending=False, method="min")
        rows += [
            {"budget": budget, "rank": int(rank), "method": method, "mean": float(mean), "tasks": len(complete)}
            for method, rank, mean in zip(overall.index, ranks, overall, strict=True)
        ]
    found = pandas.DataFrame(rows, columns=["budget", "rank", "method", "mean", "tasks"])
    return found.sort_values(["budget", "rank", "method"], ignore_index=True)


def perplexity_table(results: pd.DataFrame | str | os.PathLike[str], budget: float | None = None) -> pd.DataFrame:
    """Perplexities for `plots.perplexity_by_length`: of every sample of a task whose score is nats per token.

    Columns method, budget, length, seed, sample, perplexity: the exponential of the score. Such tasks are those where a
    lower score is better. With `budget`, the rows at that budget and of methods that ignore it, whose budget is NaN:
    what the figure takes. Raises InvalidInputError without a score of such a task, for several tasks, whose
    perplexities are of different texts, and for a budget that no method has there.
    """
    table = _table("perplexity_table", results)
    samples = _samples(table).dropna(subset="score")
    found = samples[~samples["higher_is_better"]]
    if found["task"].nunique() != 1:
        got = ", ".join(sorted(found["task"].unique())) or "no score in nats per token"
        raise InvalidInputError("perplexity_table: task", got, "rows of one task where a lower score is better")
    if budget is not None:
        if budget not in set(found["budget"]):
            got = f"{budget:g}, which no method has"
            raise InvalidInputError("perplexity_table: budget", got, f"one of {sorted(set(found['budget'].dropna()))}")
        found = found[found["budget"].isna() | (found["budget"] == budget)]
    found = found.assign(perplexity=np.exp(found["score"]))
    columns = ["method", "budget", "length", *SAMPLE, "perplexity"]
    return _with_attrs(found[columns].reset_index(drop=True), table)


def _table(operation: str, results: pd.DataFrame | str | os.PathLike[str]) -> pd.DataFrame:
    """The rows, checked and sorted, so that sums are the same for any order of them."""
    table = load_results(results) if isinstance(results, str | os.PathLike) else results
    missing = [name for name in NEEDED if name not in table.columns]
    if missing:
        raise InvalidInputError(f"{operation}: columns", list(table.columns), f"also {', '.join(missing)}")
    if table.empty:
        raise InvalidInputError(operation, "no row", "at least one")
    ordered = table.sort_values([*CELL, *SAMPLE, "turn"], ignore_index=True)
    again = ordered[ordered.duplicated([*CELL, *SAMPLE, "turn"])]
    if len(again):
        got = f"{again['task'].iloc[0]} by {again['method'].iloc[0]} twice, on the same sample and at the same budget"
        raise InvalidInputError(operation, got, "every turn once: the rows of one model and configuration")
    ran = ordered[ordered["refused"] == ""]
    _check_alike(operation, "models", ran["model_hash"])
    for place, configs in ran.groupby(["task", "placement"])["task_config"]:
        _check_alike(operation, f"configurations of {_words(place)}", configs)
    for label, configs in ran.groupby("method")["method_config"]:
        _check_alike(operation, f"configurations under {label!r}", configs.drop_duplicates().map(without_budget))
    scores = ran["score"].to_numpy(float)
    if not np.isfinite(scores).all():
        row = ran[~np.isfinite(scores)].iloc[0]
        raise InvalidInputError(f"{operation}: score of {row['method']} in {row['task']}", row["score"], "a number")
    return ordered


def _check_alike(operation: str, what: str, values: pd.Series[Any]) -> None:
    if values.nunique() > 1:
        raise InvalidInputError(operation, f"{values.nunique()} {what}", "one: select the rows of one first")


def without_budget(config: str) -> str:
    """A method's configuration as JSON, less its budget."""
    return json.dumps({name: value for name, value in json.loads(config).items() if name != "budget"}, sort_keys=True)


def _samples(table: pd.DataFrame) -> pd.DataFrame:
    """A row a cell and sample: its mean score over turns, NaN where `refused`, and what the cell's rows share."""
    groups = table.assign(refused=table["refused"] != "").groupby([*CELL, *SAMPLE], dropna=False)
    shared = {name: (name, "first") for name in ("refused", "budget_tokens", *ABOUT)}
    found: pd.DataFrame = groups.agg(score=("score", "mean"), **shared).reset_index()
    return found.assign(score=found["score"].mask(found["refused"]))


def _interval(name: str, values: pd.Series[Any], confidence: float, seed: int) -> dict[str, float | int]:
    found: NDArray[np.float64] = values.to_numpy(float)
    ends = bootstrap_interval(found, level=confidence, seed=seed) if len(found) else (np.nan, np.nan)
    mean = float(found.mean()) if len(found) else np.nan
    return {name: mean, "low": ends[0], "high": ends[1], "n": len(found)}


def _about(rows: pd.DataFrame) -> dict[str, Any]:
    return {"metric": rows["metric"].iloc[0], "higher_is_better": bool(rows["higher_is_better"].iloc[0])}


def _named(names: Sequence[str], place: Hashable) -> dict[str, Any]:
    return dict(zip(names, place if isinstance(place, tuple) else (place,), strict=True))


def _words(place: Hashable) -> str:
    return ", ".join(map(str, place)) if isinstance(place, tuple) else str(place)


def _with_attrs(found: pd.DataFrame, table: pd.DataFrame, **more: Any) -> pd.DataFrame:
    found.attrs = dict(table.attrs) | more
    return found
