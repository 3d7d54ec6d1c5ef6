"""Statistics of results: means with intervals, paired differences, wins and losses, and rankings.

Every function takes a table of `load_results`, or the path of a results file, and does not change it. The turns of a
sample are averaged first. Refused cells have no score and are left out. The order of the rows does not matter. Tasks
and methods may have different numbers of samples, for example after several calls of `evaluate` on one file. All
functions raise InvalidInputError for missing columns, duplicate turns, several models, several configurations of a task
or of a method's label, or a score that is not finite.

A budget is a number of tokens; below 1, a share of the prompt; NaN for a method that ignores it ("full"). Where bytes
are held equal (column `hold`), it is a number of bytes per layer or a share of the full cache's bytes. A table must
have budgets of one kind: `of_hold` selects them. `attrs["hold"]` of the results says which.
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
BYTES = ["held_bytes", "read_bytes"]
TIE = 1e-9  # scores closer than this count as equal: means over the same turns may differ in their last bits


def summary(results: pd.DataFrame | str | os.PathLike[str], confidence: float = 0.95, seed: int = 0) -> pd.DataFrame:
    """Mean scores with confidence intervals, per task, placement, length, method and budget.

    Columns: task, placement, length, method, budget, mean, low, high, n, refused, budget_tokens, held_bytes,
    read_bytes, metric, higher_is_better. `low` to `high` is the percentile bootstrap interval of the mean over the `n`
    samples with a score, at `confidence`, from resamples drawn with `seed` (`metrics.bootstrap_interval`; zero width if
    all scores are equal or n is 1). `refused` counts the samples on which the method refused the budget. Without any
    score, mean, low, high and budget_tokens are NaN. If higher_is_better is False, the score is in nats per token:
    lower is better.

    `budget` is NaN for a method that ignores it; it has one row per setting. `budget_tokens` is the mean budget over
    samples, in tokens; for a method that ignores the budget, the length of the prompt. `held_bytes` and `read_bytes`
    are means over samples of what the ledger has at the end of the first turn (`Ledger`), for `plots.pareto`; NaN in
    results of earlier releases.
    """
    import pandas

    table = checked_rows("summary", results)
    rows = []
    for cell, samples in sample_scores(table).groupby(CELL, dropna=False):
        scored = samples.dropna(subset="score")
        rows.append({
            **named(CELL, cell), **_interval("mean", scored["score"], confidence, seed),
            "refused": int(samples["refused"].sum()), "budget_tokens": scored["budget_tokens"].mean(),
            **{name: scored[name].mean() for name in BYTES},
            **_about(samples),
        })  # fmt: skip
    return _with_attrs(pandas.DataFrame(rows), table, confidence=confidence)


def differences(
    results: pd.DataFrame | str | os.PathLike[str],
    reference: str = "full",
    confidence: float = 0.95,
    seed: int = 0,
) -> pd.DataFrame:
    """Mean differences of all methods to the method `reference`, with paired bootstrap intervals.

    One row per task, placement, length, method and budget with samples that both methods have a score for. Columns:
    difference, low, high, n (pairs), metric, higher_is_better. Above 0 is better than the reference: if lower scores
    are better (nats per token), the sign is reversed. The interval is that of the mean of the paired differences
    (`metrics.bootstrap_interval`), at `confidence`.

    `budget` is NaN for a method that ignores it. A reference that ignores the budget ("full") is paired with all
    methods and budgets; any other reference ("oracle") only with methods at the same budget.

    Raises UnknownNameError for a reference that is not in the results. Source: Efron and Tibshirani, "An Introduction
    to the Bootstrap" (1993), section 13.3.
    """
    import pandas

    table = checked_rows("differences", results)
    methods = set(table["method"])
    if reference not in methods:
        raise UnknownNameError("differences: reference", reference, methods)
    samples = sample_scores(table).dropna(subset="score")
    of_reference = samples["method"] == reference
    base, others = samples[of_reference], samples[~of_reference]
    on = [*SETTING, *SAMPLE, *([] if base["budget"].isna().all() else ["budget"])]
    pairs = others.merge(base[[*on, "score"]], on=on, suffixes=("", "_of_reference"))
    gain = (pairs["score"] - pairs["score_of_reference"]).where(
        pairs["higher_is_better"], pairs["score_of_reference"] - pairs["score"]
    )
    rows = [
        {**named(CELL, cell), **_interval("difference", paired["difference"], confidence, seed), **_about(paired)}
        for cell, paired in pairs.assign(difference=gain).groupby(CELL, dropna=False)
    ]  # fmt: skip
    result = pandas.DataFrame(rows, columns=[*CELL, "difference", "low", "high", "n", *ABOUT])
    return _with_attrs(result, table, confidence=confidence, reference=reference)


def wins(results: pd.DataFrame | str | os.PathLike[str], by: Sequence[str] = ()) -> pd.DataFrame:
    """Wins, ties and losses of each method against each other method at the same budget, counted in samples.

    One row per ordered pair and budget: method, other, budget, wins, ties, losses, over the samples that both have a
    score for; pairs without common samples have no row. If lower scores are better (nats per token), the lower score
    wins. `by` may name "task", "placement" and "length": these become columns and are counted separately. Otherwise all
    samples have equal weight, so that a task with more samples counts more.

    `budget` is NaN for pairs of methods that both ignore it. Raises UnknownNameError for another name in `by`.
    """
    import pandas

    for name in by:
        if name not in SETTING:
            raise UnknownNameError("wins: by", name, SETTING)
    samples = sample_scores(checked_rows("wins", results)).dropna(subset="score")
    gain = samples["score"].where(samples["higher_is_better"], -samples["score"])
    rows = []
    groups = [*by, "budget"]
    for group, members in samples.assign(gain=gain).groupby(groups, dropna=False):
        gains = members.pivot(index=[*SETTING, *SAMPLE], columns="method", values="gain")
        for method, other in itertools.permutations(gains.columns, 2):
            margin = (gains[method] - gains[other]).dropna().to_numpy(float)
            if len(margin):
                better, worse = int((margin > TIE).sum()), int((margin < -TIE).sum())
                counts = {"wins": better, "ties": len(margin) - better - worse, "losses": worse}
                rows.append({**named(groups, group), "method": method, "other": other, **counts})
    return pandas.DataFrame(rows, columns=[*by, "method", "other", "budget", "wins", "ties", "losses"])


def orderings(results: pd.DataFrame | str | os.PathLike[str]) -> pd.DataFrame:
    """Ranking of the methods at each budget, by the mean over their tasks' means.

    One row per budget and method: budget, rank (1 is best; equal means share a rank), method, mean, tasks (their
    number). A task's mean is taken over its placements and lengths, each a mean over the method's samples. Only tasks,
    placements and lengths count for which more than half of the methods have a score at the budget. A method that lacks
    one of them is left out, since its mean would not be comparable. Tasks where lower is better are left out too: nats
    are another unit.

    `budget` is NaN for the methods that ignore it; they are ranked separately.
    """
    import pandas

    samples = sample_scores(checked_rows("orderings", results)).dropna(subset="score")
    rows = []
    for budget, scored in samples[samples["higher_is_better"]].groupby("budget", dropna=False):
        means = scored.groupby(["method", *SETTING])["score"].mean().unstack("method")
        usual = means[means.notna().mean(axis="columns") > 0.5]
        complete = usual.dropna(axis="columns").groupby(level="task").mean()
        overall = complete.mean().dropna().round(12)  # so that equal means stay equal, whatever the order of summation
        ranks = overall.rank(ascending=False, method="min")
        rows += [
            {"budget": budget, "rank": int(rank), "method": method, "mean": float(mean), "tasks": len(complete)}
            for method, rank, mean in zip(overall.index, ranks, overall, strict=True)
        ]
    ranking = pandas.DataFrame(rows, columns=["budget", "rank", "method", "mean", "tasks"])
    return ranking.sort_values(["budget", "rank", "method"], ignore_index=True)


def perplexity_table(results: pd.DataFrame | str | os.PathLike[str], budget: float | None = None) -> pd.DataFrame:
    """Perplexity of every sample, for `plots.perplexity_by_length`: a table for one task scored in nats per token.

    Columns: method, budget, length, seed, sample, perplexity (the exponential of the score). With `budget`, only the
    rows at that budget and those of methods that ignore it (budget NaN), as the figure needs them. Raises
    InvalidInputError without scores in nats per token, for several such tasks (perplexities of different texts are not
    comparable), or for a budget that no method has.
    """
    table = checked_rows("perplexity_table", results)
    samples = sample_scores(table).dropna(subset="score")
    in_nats = samples[~samples["higher_is_better"]]
    if in_nats["task"].nunique() != 1:
        got = ", ".join(sorted(in_nats["task"].unique())) or "no score in nats per token"
        raise InvalidInputError("perplexity_table: task", got, "rows of one task where a lower score is better")
    if budget is not None:
        if budget not in set(in_nats["budget"]):
            got = f"{budget:g}, which no method has"
            raise InvalidInputError(
                "perplexity_table: budget", got, f"one of {sorted(set(in_nats['budget'].dropna()))}"
            )
        in_nats = in_nats[in_nats["budget"].isna() | (in_nats["budget"] == budget)]
    in_nats = in_nats.assign(perplexity=np.exp(in_nats["score"]))
    columns = ["method", "budget", "length", *SAMPLE, "perplexity"]
    return _with_attrs(in_nats[columns].reset_index(drop=True), table)


def holds_of(table: pd.DataFrame) -> list[str]:
    """What the table's budgets hold equal: "tokens", "bytes", both or, if all methods ignore them, none."""
    known = set(table["hold"]) if "hold" in table.columns else {"tokens"}
    return [hold for hold in ("tokens", "bytes") if hold in known]


def of_hold(results: pd.DataFrame | str | os.PathLike[str], hold: str) -> pd.DataFrame:
    """The rows whose budgets hold "tokens" or "bytes" equal, and those of methods that ignore the budget.

    Raises UnknownNameError for another `hold`.
    """
    if hold not in ("tokens", "bytes"):
        raise UnknownNameError("of_hold: hold", hold, ("tokens", "bytes"))
    table = load_results(results) if isinstance(results, str | os.PathLike) else results
    if "hold" not in table.columns:
        return table if hold == "tokens" else table[table["budget"].isna()]
    return table[table["hold"].isin([hold, ""])]


def checked_rows(operation: str, results: pd.DataFrame | str | os.PathLike[str]) -> pd.DataFrame:
    """The rows, checked, and sorted so that sums do not depend on their order."""
    table = load_results(results) if isinstance(results, str | os.PathLike) else results
    missing = [name for name in NEEDED if name not in table.columns]
    if missing:
        raise InvalidInputError(f"{operation}: columns", list(table.columns), f"also {', '.join(missing)}")
    if table.empty:
        raise InvalidInputError(operation, "no row", "at least one")
    if len(holds_of(table)) > 1:
        wanted = 'one of them: kvviz.evaluation.of_hold(table, "bytes") or "tokens"'
        raise InvalidInputError(f"{operation}: hold", "budgets in tokens and in bytes", wanted)
    ordered = table.sort_values([*CELL, *SAMPLE, "turn"], ignore_index=True)
    duplicates = ordered[ordered.duplicated([*CELL, *SAMPLE, "turn"])]
    if len(duplicates):
        task, method = duplicates["task"].iloc[0], duplicates["method"].iloc[0]
        got = f"{task} by {method} twice, on the same sample and at the same budget"
        raise InvalidInputError(operation, got, "every turn once: the rows of one model and configuration")
    ran = ordered[ordered["refused"] == ""]
    _check_alike(operation, "models", ran["model_hash"])
    for setting, configs in ran.groupby(["task", "placement"])["task_config"]:
        _check_alike(operation, f"configurations of {_words(setting)}", configs)
    for label, configs in ran.groupby("method")["method_config"]:
        _check_alike(operation, f"configurations under {label!r}", configs.drop_duplicates().map(without_budget))
    scores = ran["score"].to_numpy(float)
    if not np.isfinite(scores).all():
        row = ran[~np.isfinite(scores)].iloc[0]
        raise InvalidInputError(f"{operation}: score of {row['method']} in {row['task']}", row["score"], "a number")
    return ordered


def _check_alike(operation: str, what: str, values: pd.Series[Any]) -> None:
    if values.nunique() > 1:
        raise InvalidInputError(operation, f"{values.nunique()} {what}", "one: first select the rows of one")


def without_budget(config: str) -> str:
    """A method's configuration as JSON, without its budget."""
    return json.dumps({name: value for name, value in json.loads(config).items() if name != "budget"}, sort_keys=True)


def sample_scores(table: pd.DataFrame) -> pd.DataFrame:
    """One row per cell and sample: the mean score over turns, NaN if `refused`, and the columns that turns share."""
    missing = {name: np.nan for name in BYTES if name not in table.columns}
    groups = table.assign(refused=table["refused"] != "", **missing).groupby([*CELL, *SAMPLE], dropna=False)
    shared = {name: (name, "first") for name in ("refused", "budget_tokens", *BYTES, *ABOUT)}
    samples: pd.DataFrame = groups.agg(score=("score", "mean"), **shared).reset_index()
    return samples.assign(score=samples["score"].mask(samples["refused"]))


def _interval(name: str, values: pd.Series[Any], confidence: float, seed: int) -> dict[str, float | int]:
    scores: NDArray[np.float64] = values.to_numpy(float)
    ends = bootstrap_interval(scores, level=confidence, seed=seed) if len(scores) else (np.nan, np.nan)
    mean = float(scores.mean()) if len(scores) else np.nan
    return {name: mean, "low": ends[0], "high": ends[1], "n": len(scores)}


def _about(rows: pd.DataFrame) -> dict[str, Any]:
    return {"metric": rows["metric"].iloc[0], "higher_is_better": bool(rows["higher_is_better"].iloc[0])}


def named(names: Sequence[str], key: Hashable) -> dict[str, Any]:
    """The key of a group, which is no tuple for a single name, as a row."""
    return dict(zip(names, key if isinstance(key, tuple) else (key,), strict=True))


def _words(key: Hashable) -> str:
    return ", ".join(map(str, key)) if isinstance(key, tuple) else str(key)


def _with_attrs(result: pd.DataFrame, table: pd.DataFrame, **more: Any) -> pd.DataFrame:
    held = holds_of(table)
    result.attrs = dict(table.attrs) | ({"hold": held[0]} if held else {}) | more
    return result
