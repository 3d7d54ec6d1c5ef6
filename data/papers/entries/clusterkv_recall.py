"""ClusterKV (arXiv 2412.03213): recall of important tokens (figure 11), and outlier channels."""

from __future__ import annotations

from typing import Any

import pandas as pd
import plotly.graph_objects as go
import sources

from entries import Finding, entry
from kvviz import plots

DEFAULT = 80  # tokens per cluster: the paper's choice
OTHERS = {"l2": "L2", "ip": "inner product"}  # metrics, as the code and as the page name them


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
        f"With L/{DEFAULT} clusters, {_other_gains(metrics)}. {_outliers(metrics)}",
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
        "channels, and counts as many important tokens as it attends to: with its threshold, fewer than the budget. In "
        "the paper it attends to as many as the budget, as with the preset `top` here."
    )


def metric_gains(table: pd.DataFrame) -> dict[str, pd.DataFrame]:
    """By other metric: the recall of cosine minus its recall, with L/80 clusters; by text and budget, over seeds."""
    rows = table[(table["kind"] == "text") & (table["tokens_per_cluster"] == DEFAULT)]
    recall = rows.astype({"budget": int}).pivot_table("recall", ["text", "budget"], "metric")
    return {
        name: (recall["cosine"] - recall[metric]).rename("recall").reset_index() for metric, name in OTHERS.items()
    }  # fmt: skip


def _other_gains(table: pd.DataFrame) -> str:
    """Attention mass and output error of cosine minus those of the other metrics: means over budgets and seeds."""
    rows = table[(table["kind"] == "text") & (table["tokens_per_cluster"] == DEFAULT)]
    parts = []
    for quality in ("attention_mass", "output_error"):
        values = rows.pivot_table(quality, "text", "metric")
        gains = [
            f"{name} {sources.with_interval(values['cosine'] - values[metric], 4)}" for metric, name in OTHERS.items()
        ]
        parts.append(f"{quality.replace('_', ' ')} of cosine minus {', '.join(gains)}")
    return "; ".join(parts)


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
        parts.append(f"{name} at budget {', '.join(by_budget)}")
    return "; ".join(parts)


def outlier_gains(table: pd.DataFrame) -> pd.DataFrame:
    """Per text, layer and KV head: the outlier ratio of its keys, and cosine's recall minus each other metric's."""
    place = ["text", "layer", "head", "outlier_ratio"]
    recall = table[table["kind"] == "head"].pivot_table("recall", place, "metric")
    gains = {name: recall["cosine"] - recall[metric] for metric, name in OTHERS.items()}
    return pd.DataFrame(gains).reset_index()


def outlier_correlations(table: pd.DataFrame) -> dict[str, list[float]]:
    """By other metric: Spearman's correlation of a head's outlier ratio and what cosine gains there, per text."""
    by_text = [part.rank() for _, part in outlier_gains(table).groupby("text")]
    return {name: [float(part[name].corr(part["outlier_ratio"])) for part in by_text] for name in OTHERS.values()}


def outlier_quartiles(table: pd.DataFrame) -> pd.DataFrame:
    """What cosine gains in the quarters of heads with the weakest to the strongest outliers: one row per text."""
    gains = outlier_gains(table)
    quarter = pd.qcut(gains["outlier_ratio"], 4, labels=False)
    gains["outlier_ratio"] = gains.groupby(quarter)["outlier_ratio"].transform("median")
    means = gains.groupby(["outlier_ratio", "text"])[list(OTHERS.values())].mean().reset_index()
    rows = means.melt(["outlier_ratio", "text"], var_name="against", value_name="gain")
    rows.attrs = {"model": table.attrs["model"]}
    return rows


def _outliers(table: pd.DataFrame) -> str:
    correlations = outlier_correlations(table)
    ratios = table[(table["kind"] == "head") & (table["metric"] == "cosine")]["outlier_ratio"]
    return (
        f"Outlier channels: the largest channel is {ratios.min():.1f} to {ratios.max():.1f} times the median one "
        f"(median head {ratios.median():.1f}). Do heads with stronger outliers profit more from cosine? Rank "
        f"correlation over layers and heads, per text: against L2 {sources.with_interval(correlations['L2'])}, against "
        f"inner product {sources.with_interval(correlations['inner product'])}."
    )


def recall_figure(methods: pd.DataFrame, metrics: pd.DataFrame) -> go.Figure:
    """Recall by budget of the methods, of ClusterKV by clusters and metric, and cosine's gain by outlier channels."""
    gains = plots.ablation(outlier_quartiles(metrics), field="outlier_ratio", metric="gain", series=("against",))
    gains.update_xaxes(title_text="largest channel / median channel")
    gains.update_yaxes(title_text="gain of recall")
    return stacked({
        "(a) methods": plots.recall_by_budget(methods),
        "(b) ClusterKV by metric and clusters": plots.recall_by_budget(variants(metrics)),
        "cosine's gain, by outlier channels of heads": gains,
    })  # fmt: skip


def variants(table: pd.DataFrame) -> pd.DataFrame:
    """Rows of cosine with each number of clusters, and of the other metrics with L/80, as methods in a figure."""
    rows = table[table["kind"] == "text"].astype({"budget": int, "tokens_per_cluster": int})
    rows = rows[(rows["metric"] == "cosine") | (rows["tokens_per_cluster"] == DEFAULT)].copy()
    names = rows["metric"].map({"cosine": "cosine", **OTHERS})
    rows["method"] = names + ", L/" + rows["tokens_per_cluster"].astype(str)
    color = plots.method_style("clusterkv")["color"]
    dashes = {160: "dot", DEFAULT: "solid", 40: "dash", 20: "longdash"}
    looks = {f"cosine, L/{count}": (color, dash) for count, dash in dashes.items()}
    looks |= {f"L2, L/{DEFAULT}": ("#D55E00", "solid"), f"inner product, L/{DEFAULT}": ("#999999", "solid")}
    rows.attrs = {"model": table.attrs["model"], "styles": {
        name: {"color": color, "dash": dash, "symbol": "circle"} for name, (color, dash) in looks.items()
    }}  # fmt: skip
    return rows


def stacked(parts: dict[str, go.Figure]) -> go.Figure:
    """Figures of one panel below each other in one figure, each under its name."""
    from kvviz.plots.labels import escape
    from kvviz.plots.panels import name_panel, stack

    figure, inside = stack([190.0] * len(parts), 84)
    for row, (name, part) in enumerate(parts.items(), start=1):
        for trace in part.data:
            figure.add_trace(trace, row, 1)
        for update, axis in ((figure.update_xaxes, part.layout.xaxis), (figure.update_yaxes, part.layout.yaxis)):
            update(**{key: value for key, value in axis.to_plotly_json().items() if key not in ("anchor", "domain")},
                   row=row, col=1)  # fmt: skip
        if "recall (" in (part.layout.yaxis.title.text or ""):
            figure.update_yaxes(title_text="recall", row=row, col=1)
        name_panel(figure, escape(name), row, 1)
    first = next(iter(parts.values()))
    return figure.update_layout(template=first.layout.template, height=inside + 320, title_text="Recall by budget")
