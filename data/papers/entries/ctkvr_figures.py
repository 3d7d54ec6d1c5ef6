"""CTkvr (arXiv 2512.15550): figures 1 to 8."""

from __future__ import annotations

import pandas as pd
import plotly.graph_objects as go
import sources

from entries import Finding, entry
from entries.ctkvr_numbers import RESUMING_TEST, layers_of, needles, of
from kvviz import plots


@entry(
    "CTkvr", "fig. 1",
    headline="eviction loses tokens, blocks bring irrelevant ones, token-level indexes are slow",
    call='kvviz.plots.selection_map([ctkvr, quest, streaming_llm], layer=21)',
    schematic=True,
)  # fmt: skip
def kinds_of_compression() -> Finding:
    """Which tokens full attention, eviction, block-level and token-level indexing attend to."""
    runs = sources.runs().recordings("needle")
    shown = [runs[name] for name in ("ctkvr", "quest", "streaming_llm")]
    recalls = ", ".join(f"{run.title} {run.summary()['recall']:.2f}" for run in shown)
    return Finding(
        ours="recorded decode steps: tokens that each method attends to, misses and wastes, beside those with the "
        f"largest exact attention; recall {recalls}",
        run=f"{shown[0].description.partition(' · ')[2]}, one prompt, recorded by `make data`",
        draw=lambda: plots.selection_map(shown, layer=21, head=0),
    )


@entry(
    "CTkvr", "fig. 2",
    headline="(a) the cosine of two queries within 1,000 tokens exceeds 0.8 on most data; (b) the overlap of their "
    "top-k keys grows with it, as Theorem 1 says",
    claim="the mean cosine of two queries 1,024 tokens apart exceeds 0.8, and in the mean over layers cosine and "
    "overlap correlate above 0.5 on every text",
    call="kvviz.metrics.similarity_by_distance(trace.queries[layer]); kvviz.plots.query_overlap(trace, layer, k=64)",
)  # fmt: skip
def neighbouring_queries() -> Finding:
    """How similar two queries are by their distance, and how many of their top-k keys they share."""
    table = sources.measured("ctkvr_queries")
    by_text = table.groupby("text").mean(numeric_only=True)
    far, near = by_text["cosine_1024"], by_text["cosine_1"]
    return Finding(
        ours=f"(a) mean cosine {sources.with_interval(near)} at a distance of 1, "
        f"{sources.with_interval(by_text['cosine_64'])} at 64, {sources.with_interval(far)} at 1,024; (b) correlation "
        f"{sources.with_interval(by_text['correlation'])}: the most similar quarter of the pairs shares "
        f"{sources.with_interval(by_text['similar'])} of its keys, the least similar "
        f"{sources.with_interval(by_text['different'])}, unrelated choices {by_text['unrelated'].mean():.2f}. Theorem "
        f"1 promises an overlap above 0 for {100 * table['bound'].mean():.1f} % of the pairs, our sharper bound for "
        f"{100 * table['sharper_bound'].mean():.1f} %; {100 * table['broken'].mean():.1f} % are below a bound",
        holds=bool(far.mean() > 0.8 and (by_text["correlation"] > 0.5).all()),
        why=f"(a) the direction is the paper's, the level is not: the cosine falls with the distance in "
        f"{100 * (table['cosine_1'] > table['cosine_1024']).mean():.0f} % of the layers and texts, but exceeds 0.8 at "
        f"1,024 tokens in {100 * (table['cosine_1024'] > 0.8).mean():.0f} % of them. (b) the growth of the "
        f"overlap is there: the correlation is positive in {100 * (table['correlation'] > 0).mean():.0f} % of them. "
        "The paper's models have heads of 128 dimensions, ours of 64",
        run=sources.described(table, layers_of(table), "all query heads"),
        draw=lambda: plots.query_overlap(sources.runs().trace("prose"), 14, k=64, pairs=800),
    )


@entry(
    "CTkvr", "fig. 3",
    headline="(a) query-centroid index, (b) recall, (c) rerank, (d) dynamic update",
    call='kvviz.replay(trace, "ctkvr"); kvviz.widgets.MechanismStepper(trace, "ctkvr")',
    schematic=True,
)  # fmt: skip
def components() -> Finding:
    """The parts of CTkvr: the index of query centroids, its search, and its update."""
    run = sources.runs().recordings("needle")["ctkvr"]
    return Finding(
        ours="a recorded decode: each attended token in the hue of the query centroid whose list it came from; "
        "notebook 07 goes through the parts one by one",
        run=f"{run.description}, recorded by `make data`",
        draw=lambda: plots.selection_map(run, layer=21, head=0, color="group", positions=(1440, 1568)),
    )


@entry(
    "CTkvr", "fig. 4",
    headline="recall and static attention on the GPU, rerank and sparse attention on the CPU, merged",
    call='kvviz.generate(lm, prompt, method="ctkvr", store="host", timeline=True); kvviz.plots.timeline(...)',
    schematic=True,
)  # fmt: skip
def co_execution() -> Finding:
    """What runs on the GPU and what on the CPU in a step."""
    table = sources.measured("ctkvr_modules")
    names = {"recall_ms": "recall", "rerank_ms": "rerank", "host_attention_ms": "attention on the host",
             "device_attention_ms": "attention on the device", "merge_ms": "merge"}  # fmt: skip
    medians = table[list(names)].median()
    drawn = list(names)[:-1]  # the merge is too small to see
    parts = pd.DataFrame(
        {"method": "ctkvr", "part": [names[name] for name in drawn], "seconds": [medians[name] / 1e3 for name in drawn]}
    )
    parts.attrs = {"model": table.attrs["model"], "hardware": table.attrs["hardware"]}
    return Finding(
        ours="the parts of one layer's step: "
        + ", ".join(f"{part} {medians[name]:.2f} ms" for name, part in names.items())
        + ". Device and host are one processor here; `host_part` of the selection names what the host attends to, and "
        "merge_attention joins both by log-sum-exp",
        run=sources.described(table, "one layer, medians of steps"),
        draw=lambda: plots.latency(parts, title="Parts of CTkvr's step in one layer"),
    )


@entry(
    "CTkvr", "fig. 5",
    headline="CTkvr finds the needle at every length (16K to 200K) and depth, like full attention",
    claim="CTkvr finds the needle in every cell in which full attention finds it",
    call='make papers ARGS="--measure ctkvr_needle_grid"',
)  # fmt: skip
def needles_of_full_and_ctkvr() -> Finding:
    """Needle in a haystack, full attention and CTkvr, and here all methods, by length and depth."""
    table = sources.measured("ctkvr_needle_grid")
    wide = table.pivot_table(index=["length", "depth"], columns="method", values="score")
    lost = wide[wide["full"] > wide["ctkvr"]]
    return Finding(
        ours=f"full {wide['full'].sum():.0f} and CTkvr {wide['ctkvr'].sum():.0f} of {len(wide)} cells; CTkvr misses "
        f"{len(lost)} that full attention finds. All methods: {_found(table)}",
        holds=bool((wide["ctkvr"] >= wide["full"]).all()),
        why="" if lost.empty else "missed at " + ", ".join(f"{length:,} tokens, depth {depth:.0%}"
                                                            for length, depth in lost.index)
        + f". With as many tokens, the oracle misses {(lost['oracle'] == 0).sum()} of these {len(lost)} too",
        run=sources.described(table, "question at the end of the prompt, one sample per cell"),
        draw=lambda: plots.needle_grid(table, found="score"),
    )  # fmt: skip


def _found(table: pd.DataFrame) -> str:
    """The needles that each method found, of how many, the most first."""
    found = table.groupby("method")["score"].agg(["sum", "size"]).sort_values("sum", ascending=False, kind="stable")
    return ", ".join(f"{name} {row['sum']:.0f} of {row['size']:.0f}" for name, row in found.iterrows())


@entry(
    "CTkvr", "fig. 6",
    headline="Llama-3-8B-1M: every needle found from 200K to 1M tokens",
    needs="a model or data",
    call="kvviz evaluate --model gradientai/Llama-3-8B-Instruct-Gradient-1048k --task needle:depths=10,placement=last "
    "--method all --budget 640 --length 200000 --length 400000 --length 600000 --length 800000 --length 1000000 "
    "--samples 10 --out needles.parquet",
    tested=RESUMING_TEST,
)  # fmt: skip
def very_long_needles() -> Finding:
    """Needle in a haystack up to one million tokens."""
    table = sources.measured("ctkvr_needle_grid")
    longest = table[table["length"] == table["length"].max()]
    return Finding(
        ours=f"needles found at the longest that was measured here, {longest['length'].max():,} tokens: "
        + _found(longest),
        run=sources.described(table, "the command resumes where it was stopped"),
    )


@entry(
    "CTkvr", "fig. 7",
    headline="batches up to 10× and 20× as large as full attention's, throughput 3× and 4×; the rerank up to 2×",
    claim="within the same device memory CTkvr runs a larger batch than full attention, its best throughput is above "
    "full attention's and MagicPIG's, and the rerank makes it faster",
    call='make bench ARGS="--only throughput"; kvviz.plots.throughput_by_batch(table)',
)  # fmt: skip
def throughput_by_batch() -> Finding:
    """Throughput by batch until memory runs out: full attention, MagicPIG, CTkvr with and without the rerank."""
    part = sources.benchmark("throughput")
    table = pd.DataFrame(part["rows"])
    names = ("full", "magicpig", "ctkvr", "ctkvr, without rerank")
    if not set(names) <= set(table["method"]):
        return _one_text_at_a_time()
    best = table.dropna(subset=["tokens_per_s"]).groupby("method").agg({"tokens_per_s": "max", "batch": "max"})
    speed, batch = best["tokens_per_s"], best["batch"]
    per_text = table[table["batch"] == 1].set_index("method")["device_bytes"]
    rerank = speed["ctkvr"] / speed["ctkvr, without rerank"]
    fits = part["limit_bytes"] // per_text  # texts that the device holds, in proportion to one
    shown = table[table["method"].isin(names)].drop(columns=["device_bytes", "range", "store"])
    shown.attrs = {"model": part["model"], "prompt_length": part["prompt_tokens"], "budget": part["budget"],
                   "hardware": part["machine"]["hardware"]}  # fmt: skip
    return Finding(
        ours="; ".join(
            f"{name}: {speed[name]:.1f} tokens/s at batch {batch[name]}, {per_text[name] / 1e6:.0f} MB per text on the "
            f"device, where {fits[name]:.0f} fit" for name in names
        ),
        holds=bool(
            fits["ctkvr"] > fits["full"] and speed["ctkvr"] > speed["full"] and speed["ctkvr"] > speed["magicpig"]
            and rerank > 1
        ),
        why=f"throughput relative to full attention's best: CTkvr {speed['ctkvr'] / speed['full']:.2f}, MagicPIG "
        f"{speed['magicpig'] / speed['full']:.2f}; with the rerank {rerank:.2f} of without. At "
        f"{part['prompt_tokens']:,} tokens attention is a small part of a step, and host and device are one memory "
        "here, whose limit is set by the benchmark",
        run=f"{part['model']}, {part['prompt_tokens']:,} tokens, budget {part['budget']}, medians of {part['turns']} "
        f"turns, {part['machine']['hardware']}",
        draw=lambda: plots.throughput_by_batch(shown),
    )  # fmt: skip


def _one_text_at_a_time() -> Finding:
    """What is known while the stored benchmark has no rows of CTkvr and MagicPIG: batches of one text."""
    table = needles()
    labels = ("full", "ctkvr", "without rerank", "magicpig (9, 120)")
    speed = {label: 1 / of(table, label, "tpot_s").mean() for label in labels}
    return Finding(
        ours="one text at a time: " + ", ".join(f"{label} {rate:.1f} tokens/s" for label, rate in speed.items()),
        holds=bool(speed["ctkvr"] > max(speed["full"], speed["magicpig (9, 120)"], speed["without rerank"])),
        why="larger batches are not in the stored results of `make bench`, which were measured before CTkvr and "
        "MagicPIG were added to its part throughput",
        run=sources.described(table),
    )


@entry(
    "CTkvr", "fig. 8",
    headline="query centroids are built up to 50×, 1,000× and 10,000× faster than faiss's HNSW, IVF and k-means",
    claim="at every length query centroids are built in less time than faiss's HNSW, IVF and k-means",
    call='make papers ARGS="--measure ctkvr_index_building"; kvviz.plots.index_build_time(table)',
)  # fmt: skip
def building_an_index() -> Finding:
    """The time to build an index of the keys by length: query centroids, IVF, HNSW and k-means."""
    table = sources.measured("ctkvr_index_building")
    times = table.groupby(["length", "index"])["seconds"].mean().unstack("index")
    factors = times.div(times["ctkvr"], axis=0).drop(columns="ctkvr")
    faiss = [name for name in factors if name.startswith("faiss")]
    longest = table[table["length"] == table["length"].max()].dropna(subset=["recall"])
    quality = longest.groupby("index")[["recall", "scored"]].mean()
    slowest = ", ".join(
        f"{name} {factors[name].iloc[-1]:.1f}× ({factors[name].min():.1f}–{factors[name].max():.1f} over lengths)"
        for name in factors
    )
    recalls = ", ".join(
        f"{name} {sources.with_interval(of_index['recall'])} of {100 * quality['scored'][name]:.0f} % scored"
        for name, of_index in longest.groupby("index")
    )
    return Finding(
        ours=f"time relative to query centroids at {times.index[-1]:,} tokens: {slowest}. Recall at equally many "
        f"attended tokens there: {recalls}",
        holds=bool((factors[faiss] > 1).all(axis=None)),
        why="IVF's and k-means' times are near those of query centroids at some "
        "lengths, and all factors are far below the paper's, whose query centroids run on a GPU. faiss stops k-means "
        "once it no longer improves, after far fewer than 300 iterations, and "
        "short texts need few. Shortest and longest times of query centroids: "
        f"{1e3 * times['ctkvr'].min():.2f} and {1e3 * times['ctkvr'].max():.1f} ms",
        run=sources.described(table, "one layer, all KV heads, L/16 cells or centroids, medians of runs"),
        draw=lambda: _build_figure(table),
    )


def _build_figure(table: pd.DataFrame) -> go.Figure:
    shown = table.groupby(["index", "length"], sort=False, as_index=False)["seconds"].mean()
    shown.attrs = {"model": table.attrs["model"], "hardware": table.attrs["hardware"]}
    return plots.index_build_time(shown)
