"""ClusterKV (arXiv 2412.03213): scores and perplexity (figures 9 and 10, table I)."""

from __future__ import annotations

import numpy as np
import pandas as pd
import sources

from entries import Finding, entry
from kvviz import plots

SUBSETS = (
    "2wikimqa", "triviaqa", "hotpotqa", "multifieldqa_en", "musique", "narrativeqa", "qasper", "gov_report",
)  # fmt: skip
COMMAND = (
    "kvviz evaluate --model THUDM/glm-4-9b-chat-hf "
    + " ".join(f"--task longbench:subset={name},placement=last" for name in SUBSETS)
    + " --method full --method clusterkv --method quest --method infinigen:top --budget 256 --budget 512 --budget 1024 "
    "--budget 2048 --length 31500 --samples 200 --out longbench.parquet"
)
TABLE_I = {
    "quest": (35.63, 40.83, 43.23, 45.59), "infinigen": (43.69, 45.04, 45.13, 45.14),
    "clusterkv": (46.69, 48.02, 48.34, 48.7),
}  # fmt: skip
BUDGETS_OF_TABLE_I, FULL_OF_TABLE_I = (256, 512, 1024, 2048), 49.01
TASKS, OUR_BUDGET, OUR_LENGTH = ("needle", "niah_single_2", "niah_multikey_1"), 256, 1024
OURS = ("quest", "clusterkv", "infinigen", "infinigen:top")  # as far as the results have them


def _retrieval(budgets: tuple[int, ...]) -> pd.DataFrame:
    """The rows of the compared methods and of `full` on our retrieval tasks, at these budgets."""
    table = sources.scores()
    chosen = table[
        table["method"].isin([*OURS, "full"]) & (table["budget"].isin(budgets) | table["budget"].isna())
        & table["task"].isin(TASKS) & (table["length"] == OUR_LENGTH) & (table["placement"] == "after")
    ].copy()  # fmt: skip
    chosen.attrs = table.attrs
    return chosen


def _order_of_ours() -> tuple[str, str, str]:
    """The order of the methods on our tasks, how they were measured, and what to know about it."""
    rows = _retrieval((OUR_BUDGET,))
    rows = rows[rows["method"] != "full"]
    scores = rows.pivot_table("score", ["task", "seed", "sample"], "method").dropna()  # the samples that all have
    order = scores.mean().sort_values(ascending=False).index
    parts = [f"{name} {sources.with_interval(scores[name])}" for name in order]
    attended = rows.groupby("method")["attended_tokens"].mean()
    run = (
        f"{rows.attrs['model']}; {', '.join(TASKS)}; {OUR_LENGTH:,} tokens, budget {OUR_BUDGET}; {len(scores)} "
        f"samples; commit {', '.join(sorted(set(rows['commit'])))}; {', '.join(sorted(set(rows['hardware'])))}"
    )
    known = (
        f"Tokens attended to in the last step: {', '.join(f'{name} {attended[name]:.0f}' for name in order)}."
        if attended.notna().all()
        else "These scores are older than a step's fixed budget: each generated token came on top, InfiniGen used its "
        "threshold, and how many tokens were attended to was not stored."
    )
    why = (
        f"{known} The order on LongBench can differ: to retrieve a hidden sentence is one ability of many, and the "
        "model is small."
    )
    return f"on our retrieval tasks with SmolLM2: {', '.join(parts)}", run, why


@entry(
    "ClusterKV", "fig. 9",
    headline="ClusterKV is above Quest and InfiniGen in most of eight LongBench tasks, and near full KV with 1k to 2k "
    "tokens",
    call=COMMAND,
    needs="a model or data",
    tested="tests/tasks/test_public_tasks.py::test_every_subset_has_prompts_and_scores",
)  # fmt: skip
def longbench() -> Finding:
    """Scores of Quest, InfiniGen, ClusterKV and full KV on eight LongBench datasets, by budget."""
    ours, run, why = _order_of_ours()
    drawn = _retrieval((128, 256, 512))
    return Finding(ours=ours, run=run, why=why, draw=lambda: plots.score_by_budget(drawn))


@entry(
    "ClusterKV", "table I",
    headline="averages at 256 tokens: Quest 35.63, InfiniGen 43.69, ClusterKV 46.69; full KV 49.01",
    call=COMMAND,
    needs="a model or data",
    tested="tests/tasks/test_public_task_use.py::test_a_grid_scores_the_models_answers",
)  # fmt: skip
def longbench_averages() -> Finding:
    """Average scores on eight LongBench datasets, by method and budget."""
    ours, run, why = _order_of_ours()
    rows = [
        {"method": name, "budget": budget, "score": score}
        for name, scores in TABLE_I.items()
        for budget, score in zip(BUDGETS_OF_TABLE_I, scores, strict=True)
    ]
    rows.append({"method": "full", "budget": np.nan, "score": FULL_OF_TABLE_I})
    published = pd.DataFrame(rows)
    title = "Average of eight LongBench datasets by budget · GLM4-9B-Chat · as the paper reports"
    return Finding(ours=ours, run=run, why=why, published=lambda: plots.score_by_budget(published, title=title))


@entry(
    "ClusterKV", "fig. 10",
    headline="perplexity within 0.5 of full KV for ClusterKV; Quest and InfiniGen deviate by about 4 and 2 (PG19, "
    "budget 1024, up to 32,000 tokens)",
    claim="ClusterKV's perplexity is within 0.5 of full attention's at every length, and nearer to it than Quest's and "
    "InfiniGen's with as many tokens",
    call='make papers ARGS="--measure clusterkv_perplexity"; with the books: kvviz evaluate --task pg19:tokens=256 '
    "--method full --method clusterkv --method quest --method infinigen --budget 1024 --length 1024 --length 8192 "
    "--length 31744 --samples 20 --model MODEL",
)  # fmt: skip
def perplexity() -> Finding:
    """Perplexity of a text by length, with a budget of 1,024 tokens."""
    table = sources.measured("clusterkv_perplexity")
    above = deviations(table)
    worst = above.abs().max()
    parts = [f"{name} {worst[name]:.2f}" for name in above.columns]
    texts = _nats_above_full(table)
    rivals = above[["quest", "infinigen, top"]].abs()  # with as many tokens as the budget
    return Finding(
        ours=f"largest deviation from full over the lengths: {', '.join(parts)}; nats per token above full, means of "
        f"texts and lengths: {', '.join(f'{name} {sources.with_interval(texts[name], 3)}' for name in texts.columns)}",
        holds=bool(worst["clusterkv"] <= 0.5 and rivals.gt(above["clusterkv"].abs(), axis=0).all(axis=None)),
        run=sources.described(table, "prose of Python's reference, the same tokens for every method"),
        why=_why_perplexity(above),
        draw=lambda: plots.perplexity_by_length(table),
    )


def deviations(table: pd.DataFrame) -> pd.DataFrame:
    """Perplexity above full attention's by length and method: geometric means over texts."""
    logs = np.log(table["perplexity"]).groupby([table["length"], table["method"]]).mean()
    means = np.exp(logs).unstack()
    return means.drop(columns="full").sub(means["full"], axis=0)


def _nats_above_full(table: pd.DataFrame) -> pd.DataFrame:
    """Nats per token above full attention, one row per text and length: these do not overlap, so n counts both."""
    nats = np.log(table.pivot_table("perplexity", ["length", "text"], "method"))
    return nats.drop(columns="full").sub(nats["full"], axis=0)


def _why_perplexity(above: pd.DataFrame) -> str:
    by_length = "; ".join(
        f"{length:,} tokens: " + ", ".join(f"{name} {value:+.2f}" for name, value in row.items())
        for length, row in above.iterrows()
    )
    return (
        f"Deviations by length: {by_length}. InfiniGen with its threshold attends to fewer tokens than the budget; "
        "the preset `top` fills it."
    )
