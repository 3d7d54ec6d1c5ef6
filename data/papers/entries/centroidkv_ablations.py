"""CentroidKV (OpenReview T3EeupQhGj): its clustering beside others, table 1, and its ablations, tables 8 and 9."""

from __future__ import annotations

from typing import Any

import pandas as pd
import sources

from entries import Finding, centroidkv_published, entry
from kvviz import metrics, plots

PAPER: dict[str, Any] = {"chunk_size": "256", "initial_ratio": 0.8, "ratio_step": 0.2}


@entry(
    "CentroidKV", "table 1",
    headline="operations for the distances: mesh n²d, k-means i·n·k·d, bipartite soft matching (BSM) ¼n²d, chunked "
    "(CSM) ¼ncd",
    claim="at the longest prompt CSM takes the least time, BSM less than mesh and k-means; time grows with an exponent "
    "below 1.3 for CSM and above 1.5 for the others; and CSM's output error at as many centroids is at most 1.2 times "
    "BSM's",
    call='make papers ARGS="--measure centroidkv_clustering"',
)  # fmt: skip
def clusterings() -> Finding:
    """The computational complexity of the distance matrix in four ways to cluster keys."""
    table = sources.measured("centroidkv_clustering")
    longest = table[table["length"] == table["length"].max()]
    seconds, slopes = longest.groupby("clustering")["seconds"].mean(), growth(table, "clustering")
    errors = longest.groupby(["text", "clustering"])["output_error"].mean().unstack()
    names = ("Mesh", "K-means", "BSM", "CSM")
    ordered = seconds["CSM"] < seconds["BSM"] < min(seconds["Mesh"], seconds["K-means"])
    grows = slopes["CSM"] < 1.3 and min(slopes[name] for name in names[:3]) > 1.5
    return Finding(
        ours="; ".join(
            f"{name} {seconds[name] / seconds['CSM']:.1f} times CSM's time, exponent {slopes[name]:.1f}, error "
            f"{sources.with_interval(errors[name], 3)}"
            for name in names
        ),
        holds=bool(ordered and grows and errors["CSM"].mean() <= 1.2 * errors["BSM"].mean()),
        run=sources.described(table, "one round, as many centroids for all"),
        why="Times are of the whole clustering, the distances and the merging. The paper gives no score for the four. "
        "K-means has as many clusters as the others leave, 0.6 of the tokens, so that its k grows with n; it is made "
        "for far fewer.",
        draw=lambda: plots.index_build_time(
            unlabelled(table.rename(columns={"clustering": "index"})), title="Time to cluster one layer · SmolLM2-135M"
        ),
    )  # fmt: skip


def growth(table: pd.DataFrame, column: str) -> dict[str, float]:
    """The exponent of the growth of time with length, by the values of a column."""
    means = table.groupby([column, "length"])["seconds"].mean()
    return {
        name: float(metrics.growth_exponent(rows.index.get_level_values("length").to_numpy(), rows.to_numpy())[0])
        for name, rows in means.groupby(level=0)
    }


def unlabelled(table: pd.DataFrame) -> pd.DataFrame:
    """The table without its attrs, which a figure would read as those of one run."""
    copy = table.copy()
    copy.attrs.clear()
    return copy


def means_by(table: pd.DataFrame, *columns: str) -> pd.DataFrame:
    """Mean output errors, one row per combination of the columns' values."""
    means: pd.DataFrame = table.groupby(list(columns), sort=False)["output_error"].mean().reset_index()
    return means


def chosen(name: str, varied: list[str]) -> pd.DataFrame:
    """The rows of a measurement in which all fields but `varied` are as in the paper."""
    table = sources.measured(name)
    for field, value in PAPER.items():
        if field not in varied:
            table = table[table[field] == value]
    return table


@entry(
    "CentroidKV", "table 8",
    headline="RULER score 59.76, 59.06, 59.87 with chunks of 64, 128, 256 tokens, 60.62 without; TTFT without chunks "
    "is longer by 28 % at 64k, out of memory at 128k",
    claim="at a quarter of the cache, the output error without chunks is lower than with any, that of 256 the lowest "
    "of the three sizes and within 10 % of it; the time to compress grows with an exponent above 1.5 without chunks "
    "and below 1.3 with 256",
    call='make papers ARGS="--measure centroidkv_settings --measure centroidkv_build"',
)  # fmt: skip
def chunk_sizes() -> Finding:
    """The ablation of chunks: average RULER score, and time to the first token by context length."""
    table = chosen("centroidkv_settings", ["chunk_size"])
    by_text = table.groupby(["text", "chunk_size"])["output_error"].mean().unstack()
    means, build = by_text.mean(), chosen("centroidkv_build", ["chunk_size"])
    slopes = growth(build, "chunk_size")
    longest = build[build["length"] == build["length"].max()].set_index("chunk_size")["seconds"]
    sizes = ("64", "128", "256")
    order = means["none"] < means["256"] == min(means[size] for size in sizes) and means["256"] <= 1.1 * means["none"]
    return Finding(
        ours="output error "
        + ", ".join(f"{size} {sources.with_interval(by_text[size], 3)}" for size in (*sizes, "none"))
        + f"; compressing takes {longest['none'] / longest['256']:.1f} times as long without chunks at "
        f"{build['length'].max():,} tokens, exponents {slopes['none']:.1f} and {slopes['256']:.1f} (256)",
        holds=bool(order and slopes["none"] > 1.5 and slopes["256"] < 1.3),
        run=sources.described(sources.measured("centroidkv_settings"), "all layers"),
        why="The error of attention stands for the paper's score, which SmolLM2 cannot reach at a quarter of the cache "
        "(table 15). The intervals are over three texts.",
        draw=lambda: plots.ablation(
            unlabelled(means_by(table, "method", "chunk_size", "text")),
            field="chunk_size", metric="output_error",
            title="CentroidKV · output error by chunk size · a quarter kept",
        ),
        published=lambda: plots.ablation(
            pd.DataFrame({
                "method": "centroidkv", "chunk_size": list(centroidkv_published.CHUNKS),
                "score": list(centroidkv_published.CHUNKS.values()),
            }),
            field="chunk_size", metric="score", title="RULER score by chunk size · Llama-3.1-8B",
        ),
    )  # fmt: skip


@entry(
    "CentroidKV", "table 9",
    headline="r_init = 1 without decay scores 19.22 on RULER, 0.8 with a decay of 0.2 the best, 60.46; decay helps at "
    "each r_init",
    claim="at a quarter of the cache, r_init = 1 without decay has the largest output error of the twelve schedules, "
    "0.8 with a decay of 0.2 the smallest, and at each r_init a decay of 0.2 has a smaller error than none",
    call='make papers ARGS="--measure centroidkv_settings"; notebooks/05_centroidkv.ipynb',
)  # fmt: skip
def schedules() -> Finding:
    """The ablation of the schedule of the compression ratio: average RULER score, and time to the first token."""
    fields = ["initial_ratio", "ratio_step"]
    table = chosen("centroidkv_settings", fields)
    by_text = table.groupby(["text", *fields])["output_error"].mean().unstack(fields)
    means = by_text.mean()
    best, worst = means.idxmin(), means.idxmax()
    helps = all(means[first, 0.2] < means[first, 0.0] for first in (1.0, 0.9, 0.8))
    named = {
        "r_init 1 without decay": (1.0, 0.0), "0.8 without decay": (0.8, 0.0), "0.8 with 0.2": (0.8, 0.2),
        f"the best, {best[0]} with {best[1]}": best, f"the worst, {worst[0]} with {worst[1]}": worst,
    }  # fmt: skip
    return Finding(
        ours="output error: "
        + "; ".join(f"{words} {sources.with_interval(by_text[setting], 3)}" for words, setting in named.items()),
        holds=bool(worst == (1.0, 0.0) and best == (0.8, 0.2) and helps),
        run=sources.described(table, "all layers"),
        why="The error of attention stands for the paper's score, over three texts. With 0.8 and 0.2 the ratio would "
        "reach 0 at 30 % of the cache; kvviz goes on at 0.2, in small steps, which the paper does not describe.",
        draw=lambda: plots.ablation(
            unlabelled(means_by(table, *fields, "text")),
            field="ratio_step", metric="output_error", series=("initial_ratio",),
            title="CentroidKV · output error by schedule · a quarter kept",
        ),
        published=lambda: plots.ablation(
            pd.DataFrame([
                {"initial_ratio": first, "ratio_step": step, "score": score}
                for first, scores in centroidkv_published.SCHEDULES.items()
                for step, score in zip(centroidkv_published.STEPS, scores, strict=True)
            ]),
            field="ratio_step", metric="score", series=("initial_ratio",),
            title="RULER score by schedule · Llama-3.1-8B",
        ),
    )  # fmt: skip
