"""CentroidKV (OpenReview T3EeupQhGj): figures 1 to 5."""

from __future__ import annotations

from typing import Any

import sources

from entries import Finding, centroidkv_published, entry
from entries.centroidkv_picture import chunks
from entries.centroidkv_scores import (
    LLAMA,
    MEANS,
    SOLVED,
    TESTED,
    behind,
    kinds_of_value,
    listed,
    longbench_command,
    ruler_means,
    ruler_scores,
    small_scores,
)
from kvviz import plots


@entry(
    "CentroidKV", "fig. 1",
    headline="chunks, alternating sides A and B, one link per token of A, pruning, merging",
    call="kvviz.clustering.chunked_soft_matching(keys, values, degree, chunk_size=12); notebooks/05_centroidkv.ipynb",
    schematic=True,
)  # fmt: skip
def overview() -> Finding:
    """An overview: the sequence is cut into chunks, tokens are matched in each, and linked tokens are merged."""
    table = sources.measured("centroidkv_chunk")
    links = table.dropna(subset="partner")
    return Finding(
        ours=f"one round on real keys: {len(links)} links of {len(table)} tokens, {int(links['kept'].sum())} kept, "
        f"{table['centroid'].nunique()} entries left, at most {int(table['degree'].max())} tokens in one",
        run=sources.described(table),
        draw=chunks,
    )


@entry(
    "CentroidKV", "fig. 2",
    headline="keys are similar along the sequence, most of all within local regions, in all layers and heads shown",
    claim="in at least 95 % of layers and KV heads, keys within 16 tokens are on average more similar than keys at "
    "least a quarter of the text apart, and the mean cosine of near keys is above 0.5 in at least 95 %",
    call="kvviz.plots.key_similarity(trace); notebooks/01_key_similarity.ipynb",
)  # fmt: skip
def similarity_maps() -> Finding:
    """Maps of the cosine of keys between all positions, for several layers and heads."""
    table = sources.measured("centroidkv_keys")
    heads = table[table["head"] >= 0]
    local, high = heads["near"] > heads["far"], heads["near"] > 0.5
    by_text = heads.groupby("text")[["near", "far"]].mean()
    return Finding(
        ours=f"cosine within 16 tokens {sources.with_interval(by_text['near'])}, a quarter of the text apart "
        f"{sources.with_interval(by_text['far'])}; higher when near in {_share(local)} of layers and heads, above 0.5 "
        f"in {_share(high)}",
        holds=bool(local.mean() >= 0.95 and high.mean() >= 0.95),
        run=sources.described(table, "all layers and KV heads"),
        draw=lambda: plots.key_similarity(sources.runs().trace("layers"), layers=[2, 20], size=64),
    )


@entry(
    "CentroidKV", "fig. 3",
    headline="as the distance grows to 256 tokens, similarity generally falls, along a convex curve",
    claim="in at least 90 % of the layers, the mean curve of the heads over distances 1 to 255 falls (rank correlation "
    "at most −0.9), and a convex, non-increasing curve explains at least 95 % of its variance",
    call="kvviz.plots.similarity_by_distance(trace, max_distance=255); notebooks/01_key_similarity.ipynb",
)  # fmt: skip
def similarity_by_distance() -> Finding:
    """The mean cosine of keys against the distance of their tokens, averaged over samples and heads."""
    table = sources.measured("centroidkv_keys")
    layers, heads = table[table["head"] < 0], table[table["head"] >= 0]
    falls, convex = layers["falling"] >= 0.9, layers["explained"] >= 0.95
    both = (falls & convex).mean()
    single = ((heads["falling"] >= 0.9) & (heads["explained"] >= 0.95)).mean()
    return Finding(
        ours=f"{100 * both:.0f} % of the layers' mean curves fall and are convex ({_share(falls)} fall, "
        f"{_share(convex)} are convex); of single KV heads, {100 * single:.0f} %",
        holds=bool(both >= 0.9),
        run=sources.described(table, f"{len(layers)} curves of layers"),
        why="Theorem A.1, which assumes such a curve, is checked by trying all splits of up to 12 tokens in "
        "tests/clustering/test_soft_matching.py and notebook 05.",
        draw=lambda: plots.similarity_by_distance(sources.runs().trace("layers"), max_distance=255),
    )


def _share(values: Any) -> str:
    """The share of the true values, in per cent."""
    return f"{100 * float(values.mean()):.0f} %"


@entry(
    "CentroidKV", "fig. 4",
    headline="RULER, average of 13 tasks: CentroidKV is above the eviction methods at 25, 50 and 75 % of the cache",
    claim="the mean over S-NIAH-2 and MK-NIAH-1, which full attention of SmolLM2 mostly solves, is higher for "
    "CentroidKV than for StreamingLLM, SnapKV and PyramidKV at 75, 50 and 25 % of the cache",
    call=f"make results; {MEANS}, {SOLVED})",
)  # fmt: skip
def ruler_by_budget() -> Finding:
    """The average score on RULER against the budget, for two models."""
    means = ruler_means()
    return Finding(
        ours=listed(means),
        holds=not behind(means),
        run="SmolLM2-135M-Instruct; prompts of 1,024 tokens; 256 tokens count as 25 %; the stored "
        "scores of make results",
        why=f"CentroidKV is not ahead at {behind(means)}. {kinds_of_value()}" if behind(means) else "",
        draw=lambda: plots.score_by_budget(ruler_scores(), across=1, title="Needles of RULER by share of the cache"),
        published=lambda: plots.score_by_budget(
            centroidkv_published.means("RULER, Llama-3.1-8B", "RULER, Mistral-7B"), across=1,
            title="RULER by share of the cache",
        ),
    )  # fmt: skip


@entry(
    "CentroidKV", "fig. 5",
    headline="LongBench, average of 16 datasets: CentroidKV is comparable to SnapKV and PyramidKV at 25 to 75 %",
    call=longbench_command(LLAMA),
    needs="a model or data",
    tested=TESTED,
)  # fmt: skip
def longbench_by_budget() -> Finding:
    """The average score on LongBench against the budget, for two models."""
    return Finding(
        ours=small_scores(),
        published=lambda: plots.score_by_budget(
            centroidkv_published.means("LongBench, Llama-3.1-8B", "LongBench, Mistral-7B"),
            across=1,
            title="LongBench by share of the cache",
        ),
    )
