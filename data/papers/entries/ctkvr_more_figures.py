"""CTkvr (arXiv 2512.15550): figures 9 to 14."""

from __future__ import annotations

import pandas as pd
import plotly.graph_objects as go
import sources

from entries import Finding, entry
from entries.ctkvr_numbers import by_value, found, layers_of, needles, of, on_tasks, settings, stored_run, varied
from kvviz import plots

NEAR = 0.02  # recall within which a curve has levelled off


@entry(
    "CTkvr", "fig. 9",
    headline="CTkvr is above ShadowKV on every task at every budget, and near full attention at 0.39 % of the tokens",
    claim="on every stored task CTkvr's mean score is at least ShadowKV's at each budget that CTkvr accepts",
    call='make results; kvviz.plots.score_by_budget(table)',
)  # fmt: skip
def score_by_budget() -> Finding:
    """Scores by budget of full attention, ShadowKV and CTkvr."""
    table = sources.scores()
    table = table[(table["metric"] != "nats per token") & (table["length"] == 1024) & (table["placement"] == "after")]
    shown = table[table["method"].isin(["full", "shadowkv", "ctkvr"])].dropna(subset=["score"])
    means = shown.dropna(subset=["budget"]).groupby(["task", "budget", "method"])["score"].mean().unstack("method")
    means = means.dropna(subset=["ctkvr", "shadowkv"])
    tasks = means.index.get_level_values("task").unique()
    below = means[means["ctkvr"] < means["shadowkv"]]
    largest = {"full": None, "shadowkv": means.index.get_level_values("budget").max()}
    largest["ctkvr"] = largest["shadowkv"]
    drawn = shown[shown["task"].isin(tasks)]
    return Finding(
        ours=f"CTkvr is at least ShadowKV in {len(means) - len(below)} of {len(means)} cells of task and budget; at "
        f"budget {largest['ctkvr']:.0f}: {on_tasks(largest)}",
        holds=below.empty,
        why="" if below.empty else "below ShadowKV on " + ", ".join(
            f"{task} at {budget:.0f} ({row['ctkvr']:.2f} against {row['shadowkv']:.2f})"
            for (task, budget), row in below.iterrows()
        ) + ". The question comes after the context was indexed here, so that the last queries, the centroids, are not "
        "the question's; of small budgets, 128 tokens are sinks and recent window",
        run=stored_run(),
        draw=lambda: plots.score_by_budget(drawn),
    )  # fmt: skip


@entry(
    "CTkvr", "fig. 10",
    headline="accuracy grows with C and C′, and levels off near C = 320 and C′ = 5",
    claim="on every text recall is highest at the largest C and C′, and within 0.02 of that from C = 256 and C′ = 4 on",
    call='kvviz.replay(trace, "ctkvr", n_centroids=C, n_probes=probes)',
)  # fmt: skip
def centroids_and_probes() -> Finding:
    """Accuracy by the number of maintained centroids C and of retrieved centroids C′."""
    counts, probes = settings("n_centroids"), settings("n_probes")
    curves = {"C": by_value(counts, "recall").sort_index(), "C′": by_value(probes, "recall").sort_index()}
    by_text = [rows.pivot_table(index="text", columns="value", values="recall") for rows in (counts, probes)]
    highest = all((wide[wide.columns.max()] >= wide.max(axis=1) - 1e-12).all() for wide in by_text)
    level = all(
        (wide[wide.columns.max()] - wide[value] <= NEAR).all() for wide, value in zip(by_text, (256, 4), strict=True)
    )
    answers = needles()
    return Finding(
        ours="; ".join(
            f"recall by {name}: " + ", ".join(f"{value:.0f}: {recall:.3f}" for value, recall in curve.items())
            for name, curve in curves.items()
        ) + f"; needles: {found(answers, *varied(answers, 'C'))}; by C′: "
        + found(answers, *varied(answers, "C'")),
        holds=highest and level,
        why=f"from C = 8 to C = 512 recall gains {curves['C'].iloc[-1] - curves['C'].iloc[0]:.3f}, from C′ = 1 to 16 "
        f"{curves['C′'].iloc[-1] - curves['C′'].iloc[0]:.3f}; the gain from C′ = 4 to 16 is "
        f"{curves['C′'].iloc[-1] - curves['C′'][4]:.3f}",
        run=sources.described(counts, layers_of(counts), "all KV heads; needles: " + sources.described(answers)),
        draw=lambda: _two_fields(counts, probes, "recall"),
    )  # fmt: skip


def _two_fields(counts: pd.DataFrame, probes: pd.DataFrame, metric: str) -> go.Figure:
    """C and C′ on one axis, one line each, means of texts."""
    rows = pd.concat([
        rows.assign(varied=name, centroids=rows["value"].astype(int))[["varied", "centroids", metric, "text"]]
        for name, rows in (("C", counts), ("C′", probes))
    ])  # fmt: skip
    title = f"CTkvr by C and C′ · {counts.attrs['model']}"
    return plots.ablation(rows, field="centroids", metric=metric, series=["varied"], title=title)


@entry(
    "CTkvr", "fig. 11",
    headline="the rerank speeds a step up by more the larger the ratio of recalled to reranked tokens, up to 2×",
    claim="in every batch the speed-up at the largest ratio exceeds that at the smallest, and it reaches 2 somewhere",
    call='make papers ARGS="--measure ctkvr_rerank"',
)  # fmt: skip
def speed_of_the_rerank() -> Finding:
    """The speed-up of a step by the rerank, by the ratio of recalled to reranked tokens and by batch."""
    table = sources.measured("ctkvr_rerank")
    table = table.assign(speed_up=table["without_ms"] / table["with_ms"]).sort_values("recall_ratio")
    ends = table.groupby("batch")["speed_up"].agg(["first", "last"])
    drawn = table.rename(columns={"recall_ratio": "recalled per reranked token", "speed_up": "speed-up"})
    answers = needles()
    return Finding(
        ours="speed-up from the smallest to the largest ratio "
        f"({table['recall_ratio'].min():.1f} to {table['recall_ratio'].max():.1f}): "
        + ", ".join(f"batch {batch}: {row['first']:.2f} to {row['last']:.2f}" for batch, row in ends.iterrows())
        + f". Attention mass lost: {table['lost_with'].mean():.3f} with, {table['lost_without'].mean():.3f} without; "
        f"needles: {found(answers, 'ctkvr', 'without rerank')}, at "
        f"{of(answers, 'ctkvr', 'attended_tokens').mean():.0f} and "
        f"{of(answers, 'without rerank', 'attended_tokens').mean():.0f} attended tokens",
        holds=bool((ends["last"] > ends["first"]).all() and table["speed_up"].max() >= 2),
        why=f"the speed-up grows from the smallest to the largest ratio in {(ends['last'] > ends['first']).sum()} of "
        f"{len(ends)} batches, but the largest is {table['speed_up'].max():.2f}. Without the rerank a step attends to "
        "the whole union, beyond the budget, and loses less attention. The rerank saves the values of tokens that it "
        "leaves out, but reads all keys of the union, and sorts. Medians on a shared machine",
        run=sources.described(table, "one layer, medians of steps"),
        draw=lambda: plots.ablation(
            drawn.round({"recalled per reranked token": 1}), field="recalled per reranked token", metric="speed-up",
            series=["batch"], title=f"Speed-up by the rerank · {table.attrs['model']}",
        ),
    )  # fmt: skip


@entry(
    "CTkvr", "fig. 12",
    headline="1.5× the throughput of MagicPIG's fastest configuration (10, 150)",
    claim="a token takes less time with CTkvr than with MagicPIG in each of its three configurations, in the mean",
    call='make papers ARGS="--measure ctkvr_needles"; make bench ARGS="--only throughput"',
)  # fmt: skip
def throughput_of_magicpig() -> Finding:
    """Throughput of CTkvr and of three configurations of MagicPIG."""
    table = needles()
    labels = [label for label in table["label"].unique() if label.startswith("magicpig")]
    ratios = {label: of(table, label, "tpot_s") / of(table, "ctkvr", "tpot_s") for label in labels}
    rows = table[table["label"].isin(["ctkvr", *labels])]
    drawn = pd.DataFrame({"method": rows["label"], "part": "end to end", "seconds": rows["tpot_s"]})
    drawn.attrs = {"model": table.attrs["model"], "hardware": table.attrs["hardware"]}
    return Finding(
        ours="time per token relative to CTkvr's: "
        + ", ".join(f"{label} {sources.with_interval(ratio)}" for label, ratio in ratios.items())
        + f"; CTkvr {1e3 * of(table, 'ctkvr', 'tpot_s').mean():.0f} ms",
        holds=all(ratio.mean() > 1 for ratio in ratios.values()),
        why="ratios of whole steps, in which the model's own work is the same; one text at a time, recorded in one "
        "layer. Figure 7 has both by batch",
        run=sources.described(table, "means over samples"),
        draw=lambda: plots.latency(drawn, title="Time per token"),
    )


@entry(
    "CTkvr", "fig. 13",
    headline="α is below 0.5 in most configurations of ρ, C and C′",
    claim="α is below 0.5 at the defaults and in most of the tested configurations",
    call='kvviz.replay(trace, "ctkvr", …); layer.cache.states[0].deduplication',
)  # fmt: skip
def deduplication() -> Finding:
    """The deduplication coefficient α over ρ, C and C′."""
    table = sources.measured("ctkvr_fields")
    fields = {"n_centroids": "C", "n_probes": "C′", "list_ratio": "ρ/ρ′"}
    rows = table[table["field"].isin(fields)]
    means = rows.groupby(["field", "value"], sort=False)["alpha"].mean()
    default = rows[(rows["field"] == "n_probes") & (rows["value"] == "4")]["alpha"]
    below = (means < 0.5).sum()
    probed = settings("n_probes")
    return Finding(
        ours=f"α {sources.with_interval(default)} at C′ = 4; "
        + "; ".join(
            f"by {name}: " + ", ".join(f"{float(value):g}: {means[field, value]:.2f}" for value in means[field].index)
            for field, name in fields.items()
        )
        + f"; below 0.5 in {below} of {len(means)} configurations",
        holds=bool(default.mean() < 0.5 and below > len(means) / 2),
        why="at C′ = 1 there is one list, and α is 1 by definition",
        run=sources.described(table, layers_of(table), "all KV heads, means of steps"),
        draw=lambda: _two_fields(settings("n_centroids"), probed, "alpha"),
    )


@entry(
    "CTkvr", "fig. 14",
    headline="SnapKV fails as the text grows; ShadowKV, exact KNN, MagicPIG and Quest find nearly all needles",
    claim="at the largest budget SnapKV finds fewer needles than ShadowKV, exact KNN (oracle), MagicPIG, Quest and "
    "CTkvr, and these find as many as full attention",
    call="make results; kvviz.plots.needle_grid(table)",
)  # fmt: skip
def needles_of_all_methods() -> Finding:
    """Needle in a haystack for all methods."""
    table = sources.scores()
    rows = table[(table["task"] == "needle") & (table["placement"] == "last") & (table["length"] == 1024)]
    rows = rows[rows["score"].notna() & ~rows["method"].str.endswith("(C)")]  # those have larger budgets
    budget = rows["budget"].max()
    rows = rows[rows["budget"].isna() | (rows["budget"] == budget)]
    shares = rows.groupby("method")["score"].mean()
    others = ["shadowkv", "oracle", "magicpig", "quest", "ctkvr"]
    below = [name for name in others if shares[name] < shares["full"]]
    shown = ["full", "snapkv", *others]  # the paper's
    return Finding(
        ours=f"budget {budget:.0f}: "
        + ", ".join(
            f"{name} {sources.with_interval(rows[rows['method'] == name]['score'])}"
            for name in ["snapkv", *others, "full"]
        )
        + "; all others: "
        + ", ".join(f"{name} {share:.2f}" for name, share in shares.items() if name not in ["snapkv", *others, "full"]),
        holds=bool((shares[others] > shares["snapkv"]).all() and not below),
        why=f"below full attention: {', '.join(below) or 'none'}; one length, 1,024 tokens; "
        "the question is at the end of the prompt, as in the paper",
        run=stored_run(),
        draw=lambda: plots.needle_grid(rows[rows["method"].isin(shown)], found="score"),
    )
