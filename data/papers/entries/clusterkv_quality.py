"""ClusterKV (arXiv 2412.03213): scores, perplexity and recall (figures 9 to 11, table I)."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pandas as pd
import plotly.graph_objects as go
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
    claim="ClusterKV's perplexity is at most 0.5 above full attention's at every length, and by less than Quest's and "
    "InfiniGen's",
    call='make papers ARGS="--measure clusterkv_perplexity"; with the books: kvviz evaluate --task pg19:tokens=256 '
    "--method full --method clusterkv --method quest --method infinigen --budget 1024 --length 1024 --length 8192 "
    "--length 31744 --samples 20 --model MODEL",
)  # fmt: skip
def perplexity() -> Finding:
    """Perplexity of a text by length, with a budget of 1,024 tokens."""
    table = sources.measured("clusterkv_perplexity")
    above = deviations(table)
    worst = above.max()
    parts = [f"{name} {worst[name]:+.2f}" for name in above.columns]
    texts = _nats_above_full(table)
    rivals = ("quest", "infinigen")
    return Finding(
        ours=f"largest deviation from full over the lengths: {', '.join(parts)}; nats per token above full, means of "
        f"texts: {', '.join(f'{name} {sources.with_interval(texts[name], 3)}' for name in texts.columns)}",
        holds=bool(worst["clusterkv"] <= 0.5 and all((above["clusterkv"] < above[name]).all() for name in rivals)),
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


@entry(
    "ClusterKV", "fig. 11",
    headline="(a) recall of ClusterKV above InfiniGen's and Quest's at every budget from 256 to 2048; (b) cosine above "
    "L2 and inner product; little gain from more than 400 = L/80 clusters",
    claim="(a) ClusterKV's recall is above Quest's and InfiniGen's (with as many tokens) at every budget; (b) cosine's "
    "recall is above those of L2 and inner product at every budget, and L/80 to L/40 clusters gain less than L/160 to "
    "L/80",
    call='make papers ARGS="--measure clusterkv_recall --measure clusterkv_metrics"',
)  # fmt: skip
def recall_rates() -> Finding:
    """Recall of important tokens: (a) of different methods, (b) of ClusterKV by metric and number of clusters."""
    methods, metrics = sources.measured("clusterkv_recall"), sources.measured("clusterkv_metrics")
    means = methods.pivot_table("recall", "budget", "method")
    gains, clusters = metric_gains(metrics), cluster_gains(metrics)
    above = {name: bool((means["clusterkv"] > means[name]).all()) for name in means.columns if name != "clusterkv"}
    equal = {name: above[name] for name in ("quest", "infinigen, top")}  # with as many tokens as the budget
    cosine = all(bool((rows.groupby("budget")["recall"].mean() > 0).all()) for rows in gains.values())
    saturates = clusters["L/40"].mean() < clusters["L/80"].mean()
    return Finding(
        ours=f"{_by_budget(methods)}. (b) recall of cosine minus {_differences(gains)}; more clusters: L/160 to L/80 "
        f"{sources.with_interval(clusters['L/80'], 3)}, L/80 to L/40 {sources.with_interval(clusters['L/40'], 3)}",
        holds=bool(all(equal.values()) and cosine and saturates),
        run=f"(a) {sources.described(methods)}. (b) {sources.described(metrics, 'all layers')}; intervals over texts, "
        "which are the independent units (seeds are averaged first)",
        why=f"(a) ClusterKV above {_list(above)} at every budget. {_infinigen(methods)} (b) cosine above L2 and inner "
        f"product at every budget: {_yes(cosine)}; fewer gains beyond L/80: {_yes(bool(saturates))}. "
        f"{_outliers(metrics)}",
        draw=lambda: recall_figure(methods, metrics),
    )


def _yes(holds: bool) -> str:
    return "yes" if holds else "no"


def _list(above: dict[str, bool]) -> str:
    return ", ".join(f"{name}: {_yes(holds)}" for name, holds in above.items())


def _by_budget(table: pd.DataFrame) -> str:
    """Recall of every method at the smallest and the largest budget, with intervals over texts."""
    parts = []
    for budget in (table["budget"].min(), table["budget"].max()):
        rows = table[table["budget"] == budget]
        values = [f"{name} {sources.with_interval(part['recall'])}" for name, part in rows.groupby("method")]
        parts.append(f"budget {budget:,}: {', '.join(values)}")
    return f"(a) {'; '.join(parts)}"


def _infinigen(table: pd.DataFrame) -> str:
    attended = table.groupby("method")["attended_tokens"].mean()
    counts = ", ".join(f"{name} {count:,.0f}" for name, count in attended.items())
    return (
        f"Attended tokens, mean over the budgets: {counts}. InfiniGen scores every single token by a fifth of the "
        "channels; its threshold leaves most of the budget unused, and its recall is then that of fewer tokens. The "
        "paper's InfiniGen selects as many as the budget, and has lower recall."
    )


def metric_gains(table: pd.DataFrame) -> dict[str, pd.DataFrame]:
    """By other metric: the recall of cosine minus its recall, with L/80 clusters; by text and budget, over seeds."""
    rows = table[(table["kind"] == "text") & (table["tokens_per_cluster"] == 80)]
    recall = rows.pivot_table("recall", ["text", "budget"], "metric")
    return {
        name: (recall["cosine"] - recall[name]).rename("recall").reset_index() for name in ("l2", "ip")
    }  # fmt: skip


def cluster_gains(table: pd.DataFrame) -> dict[str, Any]:
    """The gain of recall by twice as many clusters, per text: means over seeds and budgets, cosine."""
    rows = table[(table["kind"] == "text") & (table["metric"] == "cosine")]
    recall = rows.pivot_table("recall", "text", "tokens_per_cluster")
    return {"L/80": recall[80] - recall[160], "L/40": recall[40] - recall[80], "L/20": recall[20] - recall[40]}


def _differences(gains: dict[str, pd.DataFrame]) -> str:
    parts = []
    for name, rows in gains.items():
        by_budget = [
            f"{budget:,}: {sources.with_interval(part['recall'], 3)}" for budget, part in rows.groupby("budget")
        ]
        parts.append(f"{ {'l2': 'L2', 'ip': 'inner product'}[name] } at budget {', '.join(by_budget)}")
    return "; ".join(parts)


def outlier_correlations(table: pd.DataFrame) -> dict[str, list[float]]:
    """By other metric: Spearman's correlation of a head's outlier ratio and what cosine gains there, per text."""
    heads = table[table["kind"] == "head"]
    wide = heads.pivot_table("recall", ["text", "layer", "head"], "metric").reset_index()
    ratio = heads.groupby(["text", "layer", "head"])["outlier_ratio"].first().reset_index()
    wide = wide.merge(ratio, on=["text", "layer", "head"])
    return {
        name: [
            float((part["cosine"] - part[name]).rank().corr(part["outlier_ratio"].rank()))
            for _, part in wide.groupby("text")
        ]
        for name in ("l2", "ip")
    }


def _outliers(table: pd.DataFrame) -> str:
    correlations = outlier_correlations(table)
    ratios = table[(table["kind"] == "head") & (table["metric"] == "cosine")]["outlier_ratio"]
    return (
        f"Outlier channels: the largest channel is {ratios.min():.1f} to {ratios.max():.1f} times the median one "
        f"(median head {ratios.median():.1f}). Do heads with stronger outliers profit more from cosine? Rank "
        f"correlation over layers and heads, per text: against L2 {sources.with_interval(correlations['l2'])}, against "
        f"inner product {sources.with_interval(correlations['ip'])}."
    )


def recall_figure(methods: pd.DataFrame, metrics: pd.DataFrame) -> go.Figure:
    """(a) above (b): recall by budget of the methods, and of ClusterKV by metric, with L/160 to L/20 clusters."""
    rows = metrics[metrics["kind"] == "text"]
    above = plots.recall_by_budget(methods)
    below = plots.ablation(rows, field="budget", series=("metric", "tokens_per_cluster"))
    return stacked(above, below)


def stacked(above: go.Figure, below: go.Figure) -> go.Figure:
    """Two figures with one panel each below each other, in one figure; the titles are above the panels."""
    from plotly.subplots import make_subplots

    names = [re.sub("<br>", " ", figure.layout.title.text or "").partition(" · ")[0] for figure in (above, below)]
    titles = [f"({letter}) {name}" for letter, name in zip("ab", names, strict=True)]
    figure = make_subplots(2, 1, vertical_spacing=0.16, subplot_titles=titles)
    for row, part in enumerate((above, below), start=1):
        for trace in part.data:
            figure.add_trace(trace.update(legendgroup=f"{row} {trace.legendgroup or trace.name}"), row, 1)
        for update, axis in ((figure.update_xaxes, part.layout.xaxis), (figure.update_yaxes, part.layout.yaxis)):
            kept = {key: value for key, value in axis.to_plotly_json().items() if key not in ("anchor", "domain")}
            update(**kept, row=row, col=1)
    return figure.update_layout(template=above.layout.template, height=760)
