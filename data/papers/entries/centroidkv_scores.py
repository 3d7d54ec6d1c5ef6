"""CentroidKV (OpenReview T3EeupQhGj): tables of scores on RULER and LongBench, 2 to 5, 10, 11 and 15 to 18."""

from __future__ import annotations

import pandas as pd
import sources

from entries import Finding, centroidkv_published, entry
from kvviz import plots
from kvviz.evaluation import category_means, summary
from kvviz.tasks.public.longbench import CATEGORIES

LLAMA, MISTRAL = "meta-llama/Llama-3.1-8B-Instruct", "mistralai/Mistral-7B-Instruct-v0.2"
EVICTION = ("streaming_llm", "snapkv", "pyramidkv")
METHODS = ("full", *EVICTION, "centroidkv")
RULER = (
    "cwe", "fwe", "niah_multikey_1", "niah_multikey_2", "niah_multikey_3", "niah_multiquery", "niah_multivalue",
    "niah_single_1", "niah_single_2", "niah_single_3", "qa_1", "qa_2", "vt",
)  # fmt: skip
SOLVED = {"niah_single_2": "RULER", "niah_multikey_1": "RULER"}  # by SmolLM2 with full attention, mostly
SHARES = {0.75: 0.75, 0.5: 0.5, 256: 0.25}  # budgets of the stored scores, at 1,024 tokens
LENGTH = 1024
TESTED = "tests/tasks/test_public_task_use.py::test_a_grid_scores_the_models_answers"
TESTED_RULER = "tests/evaluation/test_command.py::test_the_command_gives_the_same_as_the_function"
BY_CATEGORY = "tests/evaluation/test_categories.py::test_a_mean_of_tasks_not_of_samples"
SPREAD = "tests/evaluation/test_categories.py::test_the_spread_is_that_of_independent_tasks"
MEANS = 'kvviz.evaluation.category_means("results.parquet"'


def longbench_command(model: str, *more: str) -> str:
    """The command that scores the methods on all subsets of LongBench."""
    names = [f"longbench:subset={name.removeprefix('longbench_')}" for name in CATEGORIES]
    return _command(model, names, 32_000, more)


def ruler_command(model: str, *more: str) -> str:
    """The command that scores the methods on all tasks of RULER."""
    return _command(model, RULER, 4096, more)


def _command(model: str, tasks: list[str] | tuple[str, ...], length: int, more: tuple[str, ...]) -> str:
    parts = [
        f"kvviz evaluate --model {model}", *(f"--task {name}" for name in tasks),
        *(f"--method {name}" for name in METHODS), *(f"--budget {share}" for share in ("75%", "50%", "25%")),
        f"--length {length} --samples 200",
    ]  # fmt: skip
    return "; ".join([" ".join(parts), *more])


def ruler_scores() -> pd.DataFrame:
    """The stored scores on RULER's needles, with the budget as a share of the prompt."""
    table = sources.scores()
    chosen = table[
        table["task"].isin(list(SOLVED)) & table["method"].isin(METHODS) & (table["length"] == LENGTH)
        & (table["budget"].isin(list(SHARES)) | table["budget"].isna())
    ]  # fmt: skip
    return chosen.assign(budget=chosen["budget"].map(SHARES))


def ruler_means() -> pd.DataFrame:
    """Means over the needles, one row per share of the cache and method, without full attention."""
    means = category_means(ruler_scores(), SOLVED).dropna(subset="budget").rename(columns={"budget": "share"})
    order = {method: place for place, method in enumerate(METHODS)}
    return means.sort_values(
        ["share", "method"], key=lambda column: column.map(order) if column.name == "method" else -column
    ).set_index("method")


def listed(means: pd.DataFrame) -> str:
    """Mean ± bootstrap standard deviation of every method, by share of the cache."""
    return "; ".join(
        f"{100 * share:.0f} % of the cache (n = {cells['n'].min():.0f}): "
        + ", ".join(f"{method} {row['mean']:.2f} ± {row['std']:.2f}" for method, row in cells.iterrows())
        for share, cells in means.groupby("share", sort=False)
    )  # fmt: skip


def behind(means: pd.DataFrame) -> str:
    """The shares of the cache at which CentroidKV's mean is not above every other method's; empty if it always is."""
    shares = []
    for share, cells in means.groupby("share", sort=False):
        if cells["mean"].drop("centroidkv").max() >= cells.loc["centroidkv", "mean"]:
            shares.append(f"{100 * share:.0f} %")
    return ", ".join(shares)


def needles() -> pd.DataFrame:
    """Mean scores by haystack, kind of value, share of the cache and method."""
    table = sources.measured("centroidkv_needles")
    return table.groupby(["haystack", "value", "budget", "method"])["score"].mean().unstack("method")


def kinds_of_value() -> str:
    """What the kind of the hidden value does to the score, as a sentence."""
    means = needles().loc["prose"].groupby("value").mean()
    full = sources.measured("centroidkv_needles").query("method == 'full' and haystack == 'prose'")
    by_kind = full.groupby("value")["score"].mean()
    return "Mean score of CentroidKV by kind of hidden value, over two budgets (full attention in brackets): " + (
        ", ".join(f"{kind} {means.loc[kind, 'centroidkv']:.2f} ({by_kind[kind]:.2f})" for kind in means.index) + "."
    )


def small_scores() -> str:
    """What the small model's needles and perplexity show at a quarter of the cache, for tables that need more."""
    table = sources.scores()
    chosen = table[
        table["task"].isin(["needle", "perplexity"]) & table["method"].isin(METHODS) & (table["length"] == LENGTH)
        & (table["placement"] != "last") & ((table["budget"] == 256) | table["budget"].isna())
    ]  # fmt: skip
    means = summary(chosen)
    by_task = {
        task: ", ".join(f"{row['method']} {row['mean']:.2f}" for row in rows.to_dict("records"))
        for task, rows in means.groupby("task")
    }
    return (
        f"not comparable: SmolLM2-135M, {LENGTH:,} tokens, 256 of them kept: needles found {by_task['needle']}; nats "
        f"per token of prose {by_task['perplexity']}"
    )


@entry(
    "CentroidKV", "table 2",
    headline="Llama-3.1-8B: CentroidKV is best or near the best on most tasks, and degrades on UUIDs (S-NIAH-3)",
    claim="at 75 and 50 % of the cache CentroidKV's mean score is at least StreamingLLM's and SnapKV's on S-NIAH-1 "
    "(numbers in noise) and S-NIAH-2 (numbers in prose), and it is lower on S-NIAH-3 (UUIDs in prose) than on S-NIAH-1",
    call='make papers ARGS="--measure centroidkv_needles"; all tasks on the larger model: ' + ruler_command(LLAMA),
)  # fmt: skip
def ruler_by_task() -> Finding:
    """Scores on the 13 tasks of RULER at 75, 50 and 25 % of the cache, Llama-3.1-8B."""
    table, cells = sources.measured("centroidkv_needles"), needles()
    large = cells[cells.index.get_level_values("budget") >= 0.5]
    numbers = large.xs("numbers", level="value")
    best = numbers["centroidkv"] >= numbers[["streaming_llm", "snapkv"]].max(axis="columns")
    means = large["centroidkv"].groupby(["haystack", "value"]).mean()
    samples = table["sample"].nunique()
    return Finding(
        ours="; ".join(
            f"{value} in {haystack}: "
            + ", ".join(f"{method} {score:.2f}" for method, score in row.items() if method != "full")
            for (haystack, value), row in large.groupby(["haystack", "value"]).mean().iterrows()
        )
        + f" (means of 75 and 50 %, n = {2 * samples})",
        holds=bool(best.all() and means["prose", "uuids"] < means["noise", "numbers"]),
        run=sources.described(table),
        why=f"{kinds_of_value()} The paper explains the loss of UUIDs by keys that resemble one another and are "
        "averaged; SmolLM2 makes one token of each digit, so that numbers are as hard for it.",
        draw=lambda: plots.score_by_budget(
            table[table["method"] != "full"].assign(task=table["value"] + " in " + table["haystack"]),
            across=1, title=f"Needles by kind of value · SmolLM2-135M · {LENGTH:,} tokens",
        ),
    )  # fmt: skip


@entry(
    "CentroidKV", "table 3",
    headline="Mistral-7B: as table 2, with larger losses at 25 %",
    call=ruler_command(MISTRAL),
    needs="a model or data",
    tested=TESTED_RULER,
)  # fmt: skip
def ruler_by_task_of_mistral() -> Finding:
    """Scores on the 13 tasks of RULER at 75, 50 and 25 % of the cache, Mistral-7B."""
    return Finding(ours=f"SmolLM2-135M on two of the tasks: {listed(ruler_means())}; table 2 has more kinds of needle")


def _by_category(model: str, item: str, headline: str) -> None:
    """Table 4 or 5: the same task averages for another model."""

    def categories() -> Finding:
        return Finding(ours=small_scores())

    categories.__doc__ = f"Average scores on LongBench's six categories at 75, 50 and 25 % of the cache, {model}."
    call = longbench_command(model, f"{MEANS})")
    entry("CentroidKV", item, headline=headline, call=call, needs="a model or data", tested=BY_CATEGORY)(categories)


_by_category(MISTRAL, "table 4", "best or near the best in QA and summaries, behind in synthetic tasks (19.13 at 25 %)")
_by_category(LLAMA, "table 5", "best or near the best in most categories and budgets; few-shot 57.57 at 50 %")


def _by_dataset(model: str, item: str, headline: str) -> None:
    """Table 10 or 11: the same datasets for another model."""

    def datasets() -> Finding:
        return Finding(ours=small_scores())

    datasets.__doc__ = f"Scores on the 16 datasets of LongBench with 25 % of the cache, {model}."
    call = longbench_command(model, 'kvviz.evaluation.summary("results.parquet")')
    entry("CentroidKV", item, headline=headline, call=call, needs="a model or data", tested=TESTED)(datasets)


_by_dataset(LLAMA, "table 10", "2WikiMQA 33.18 (SnapKV 42.44), PassageRetrieval 92.00 (90.00), QMSum 23.42 (22.41)")
_by_dataset(MISTRAL, "table 11", "HotpotQA 25.98 (SnapKV 23.96), PassageRetrieval 35.32 (68.81), TREC 23.50 (41.75)")


@entry(
    "CentroidKV", "table 15",
    headline="Llama-3.1-8B at 25 %: CentroidKV 60.26 ± 0.78, next SnapKV 41.78 ± 0.94; the intervals do not overlap",
    claim="at 25 % of the cache, the 95 % interval of CentroidKV's mean lies above those of StreamingLLM, SnapKV and "
    "PyramidKV",
    call=f"make results; {MEANS}, {SOLVED})",
)  # fmt: skip
def spread_on_ruler() -> Finding:
    """Bootstrap mean and standard deviation of the average score on RULER, Llama-3.1-8B."""
    means = ruler_means()
    quarter = means[means["share"] == 0.25]
    above = quarter.loc["centroidkv", "low"] > quarter["high"].drop("centroidkv").max()
    return Finding(
        ours=listed(means),
        holds=bool(above),
        run="SmolLM2-135M-Instruct, S-NIAH-2 and MK-NIAH-1, prompts of 1,024 tokens; tasks are resampled separately; "
        "the stored scores of make results",
        why="" if above else f"At 25 % SmolLM2 finds few needles with any method that drops or merges before the "
        f"question. {kinds_of_value()}",
        draw=lambda: plots.score_by_budget(ruler_scores(), across=1, title="Needles of RULER by share of the cache"),
        published=lambda: plots.score_by_budget(
            centroidkv_published.means("RULER, Llama-3.1-8B"), title="RULER by share of the cache"
        ),
    )  # fmt: skip


def _spread(benchmark: str, item: str, headline: str, command: str, mapping: str) -> None:
    """Table 16, 17 or 18: mean and standard deviation, from a larger model or LongBench."""

    def spread() -> Finding:
        note = listed(ruler_means()) if benchmark.startswith("RULER") else small_scores()
        return Finding(
            ours=note if note.startswith("not") else f"SmolLM2-135M on two of the tasks: {note}",
            published=lambda: plots.score_by_budget(
                centroidkv_published.means(benchmark), title="Mean score by share of the cache"
            ),
        )

    spread.__doc__ = f"Bootstrap mean and standard deviation of the average score, {benchmark}."
    call = f"{command}; {MEANS}, {mapping})"
    entry("CentroidKV", item, headline=headline, call=call, needs="a model or data", tested=SPREAD)(spread)


ALL = 'dict.fromkeys({}, "all")'
ONE = ALL.format("kvviz.tasks.public.longbench.CATEGORIES")
_spread(
    "RULER, Mistral-7B", "table 16", "CentroidKV 82.60 ± 0.84 at 75 %, 38.02 ± 0.78 at 25 %",
    ruler_command(MISTRAL), ALL.format(list(RULER)),
)  # fmt: skip
_spread(
    "LongBench, Llama-3.1-8B", "table 17", "at 25 % CentroidKV 40.82 ± 0.53, SnapKV 41.64 ± 0.54: not significant",
    longbench_command(LLAMA), ONE,
)  # fmt: skip
_spread(
    "LongBench, Mistral-7B", "table 18", "at 25 % CentroidKV 28.56 ± 0.45, SnapKV 32.55 ± 0.45: worse",
    longbench_command(MISTRAL), ONE,
)  # fmt: skip
