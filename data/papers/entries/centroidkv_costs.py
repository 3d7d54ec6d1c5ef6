"""CentroidKV (OpenReview T3EeupQhGj): tables of latency, memory and throughput, 6, 7 and 12 to 14."""

from __future__ import annotations

import pandas as pd
import sources

from entries import Finding, centroidkv_published, entry
from kvviz import plots

EVICTION = ("streaming_llm", "snapkv", "pyramidkv")
MEASURE = 'make papers ARGS="--measure centroidkv_costs"'
PEAK = "1,000 tokens at peak throughput"
COSTS = ["ttft_s", "tpot_s", "bytes"]
UNIFORM = 512  # tokens, for prompts of 1k to 8k: the paper's 2,048 for 4k to 64k


def ratios(share: bool) -> pd.DataFrame:
    """Costs as ratios to full attention on the same sample: at a quarter of the prompt (`share`), or at 512 tokens.

    `bytes` are those of keys, values and metadata.
    """
    table = sources.measured("centroidkv_costs")
    table = table.assign(bytes=table["kept_bytes"] + table["metadata_bytes"])
    full = table[table["method"] == "full"].set_index(["length", "sample"])[COSTS]
    chosen = table[(table["budget"] < 1) if share else (table["budget"] == UNIFORM)]
    on = pd.MultiIndex.from_frame(chosen[["length", "sample"]])
    return pd.concat([chosen[["length", "sample", "method"]], chosen[COSTS] / full.loc[on].to_numpy()], axis="columns")


def by_length(table: pd.DataFrame, column: str, method: str) -> pd.Series:
    """The mean ratio of a method by length."""
    return table[table["method"] == method].groupby("length")[column].mean()


def listed(table: pd.DataFrame, column: str, method: str = "centroidkv") -> str:
    """The ratios of a method by length, such as "1,024: 1.02, 2,048: 0.97"."""
    return ", ".join(f"{length:,}: {ratio:.2f}" for length, ratio in by_length(table, column, method).items())


def decode_times(*methods: str, budget: float) -> pd.DataFrame:
    """Seconds per token of full attention and of methods at a budget, for `plots.latency`."""
    table = sources.measured("centroidkv_costs")
    chosen = table[table["method"].isin(methods) & (table["budget"] == budget) | (table["method"] == "full")]
    chosen = chosen.assign(part="a decode step", seconds=chosen["tpot_s"])[["method", "part", "length", "seconds"]]
    chosen.attrs.clear()
    return chosen


def run() -> str:
    """How the costs were measured."""
    return sources.described(sources.measured("centroidkv_costs"), "one thread")


@entry(
    "CentroidKV", "table 6",
    headline="Llama-3.1-8B, 32k to 128k: time per token 1.26 to 1.91 times faster than full, TTFT up to 6.5 % longer, "
    "cache of a quarter (4.03 GB for 15.75 GB)",
    claim="at the longest prompt a token takes less time than with full attention, and a smaller share of full's than "
    "at the shortest; TTFT is longer by at most 10 % at every length; the bytes are within 5 % of a quarter at the "
    "longest",
    call=MEASURE,
)  # fmt: skip
def latency_and_memory() -> Finding:
    """Time to the first token, time per token and memory by context length with 25 % of the cache, Llama-3.1-8B."""
    table = ratios(share=True)
    per_token, first = by_length(table, "tpot_s", "centroidkv"), by_length(table, "ttft_s", "centroidkv")
    size = by_length(table, "bytes", "centroidkv")
    faster = per_token.iloc[-1] < min(1.0, per_token.iloc[0])
    without = sources.benchmark("decode")["dtypes"]["float32"]["ratio_to_full"]["no attention"]
    return Finding(
        ours=f"ratios to full attention by length: time per token {listed(table, 'tpot_s')}; TTFT "
        f"{listed(table, 'ttft_s')}; bytes {listed(table, 'bytes')}",
        holds=bool(faster and (first <= 1.1).all() and abs(size.iloc[-1] / 0.25 - 1) <= 0.05),
        run=run(),
        why=f"On this CPU a step of SmolLM2 without any attention takes {without:.2f} of the time with full attention "
        "after 8,102 tokens, and more of it after fewer: no method can save the rest. The printed sizes are those of "
        "32,000, 64,000 and 128,000 tokens at 128 KiB each and 1,000 generated ones; CentroidKV's are a quarter of the "
        "prompt and all 1,000 generated tokens, to the last digit, as SnapKV's. The paper's cache thus ends at the "
        "budget, which whole rounds of algorithm 1 would miss (1.09, 2.04 and 3.96 GB; a test holds this), and merges "
        "nothing during 1,000 steps.",
        draw=lambda: plots.latency(
            decode_times(*EVICTION, "centroidkv", budget=0.25), title="Time per token · SmolLM2-135M · a quarter kept"
        ),
        published=lambda: plots.latency(
            centroidkv_published.time_per_token(centroidkv_published.LLAMA), title="Time per token · Llama-3.1-8B"
        ),
    )  # fmt: skip


@entry(
    "CentroidKV", "table 7",
    headline="Mistral-7B: as table 6, up to 1.92 times faster; all methods at the same budget are about as fast",
    claim="at every length, the mean time per token of CentroidKV is within 10 % of the mean of StreamingLLM, SnapKV "
    "and PyramidKV, and so are the bytes",
    call=MEASURE,
)  # fmt: skip
def latency_beside_eviction() -> Finding:
    """Time to the first token, time per token and memory by context length with 25 % of the cache, Mistral-7B."""
    table = ratios(share=True)
    others = table[table["method"].isin(EVICTION)].groupby("length")[COSTS].mean()
    own = table[table["method"] == "centroidkv"].groupby("length")[COSTS].mean()
    against = own / others
    close = (against[["tpot_s", "bytes"]] - 1).abs() <= 0.1
    words = {name: ", ".join(f"{length:,}: {value:.2f}" for length, value in against[name].items()) for name in COSTS}
    return Finding(
        ours=f"as ratios to the mean of three eviction methods, by length: time per token {words['tpot_s']}; bytes "
        f"{words['bytes']}; TTFT {words['ttft_s']}",
        holds=bool(close.all(axis=None)),
        run=run(),
        why="CentroidKV attends with the logarithm of each degree as a bias, and reads its centroids and its raw "
        "tokens from two places; the eviction methods need neither. PyramidKV and SnapKV keep generated tokens on "
        "top of the budget, as in their papers; CentroidKV merges them.",
        draw=lambda: plots.latency(
            decode_times(*EVICTION, "centroidkv", budget=0.25), title="Time per token · SmolLM2-135M · a quarter kept"
        ),
        published=lambda: plots.latency(
            centroidkv_published.time_per_token(centroidkv_published.MISTRAL), title="Time per token · Mistral-7B"
        ),
    )  # fmt: skip


@entry(
    "CentroidKV", "table 12",
    headline="in vLLM, 25 % of the cache: 2.3 to 4.0 times the throughput of full, from more requests that fit",
    claim="under one limit of memory, CentroidKV's largest batch that fits is at least twice full attention's, and its "
    "best throughput at least 1.5 times full's",
    call='make bench ARGS="--only throughput"; kvviz.plots.throughput_by_batch(table)',
)  # fmt: skip
def throughput() -> Finding:
    """Time per token and peak throughput in vLLM, Llama-3.1-8B."""
    part = sources.benchmark("throughput")
    table = pd.DataFrame(part["rows"])
    table = table[table["method"].isin(["full", "centroidkv"])]
    best = table.dropna(subset="tokens_per_s").groupby("method").agg({"tokens_per_s": "max", "batch": "max"})
    gain = best.loc["centroidkv"] / best.loc["full"]
    return Finding(
        ours=f"{gain['tokens_per_s']:.2f} times full's throughput, at {gain['batch']:.0f} times the batch "
        f"({best.loc['centroidkv', 'batch']:.0f} was the largest tried)",
        holds=bool(gain["batch"] >= 2 and gain["tokens_per_s"] >= 1.5),
        run=f"{part['model']}, {part['dtype']}, {part['prompt_tokens']:,} tokens, budget {part['budget']}, "
        f"{part['limit_bytes'] / 2**30:g} GiB for keys and values, medians of {part['turns']} turns; "
        f"{part['machine']['hardware']}",
        why="kvviz has no integration with vLLM: this is its own decoding loop, on a CPU, with one limit of memory for "
        "all methods. The budget is 13 % of the prompt, the paper's 25 %.",
        draw=lambda: plots.throughput_by_batch(
            table[["method", "batch", "tokens_per_s"]],
            title=f"Throughput · SmolLM2-135M · {part['prompt_tokens']:,} tokens",
        ),
        published=lambda: plots.latency(
            pd.DataFrame([
                {"method": method, "part": PEAK, "length": 1000 * length, "seconds": 1e3 / rate}
                for length, full, own in centroidkv_published.VLLM
                for method, rate in (("full", full), ("centroidkv", own))
            ]),
            title="Time per 1,000 tokens at peak throughput · vLLM · Llama-3.1-8B",
        ),
    )  # fmt: skip


@entry(
    "CentroidKV", "table 13",
    headline="CentroidKV at a budget of 2,048, 4k to 64k: TTFT longer (5 to 23 %), time per token shorter from 16k on "
    "(0.60 of full's at 64k), memory saved at every length, more at longer ones",
    claim="at a budget of 512 and 1k to 8k tokens: TTFT at least full's at every length, time per token below full's "
    "at the longest and a falling share of it from the shortest to the longest, fewer bytes at every length, and a "
    "smaller share of them at each longer one",
    call=MEASURE,
)  # fmt: skip
def uniform_budget() -> Finding:
    """CentroidKV against full attention at one budget for all context lengths."""
    table = ratios(share=False)
    first, per_token = by_length(table, "ttft_s", "centroidkv"), by_length(table, "tpot_s", "centroidkv")
    size = by_length(table, "bytes", "centroidkv")
    saved = (size < 1).all() and size.is_monotonic_decreasing
    return Finding(
        ours=f"ratios to full attention by length: TTFT {listed(table, 'ttft_s')}; time per token "
        f"{listed(table, 'tpot_s')}; bytes {listed(table, 'bytes')}",
        holds=bool((first >= 1).all() and per_token.iloc[-1] < min(1.0, per_token.iloc[0]) and saved),
        run=run(),
        why="The paper's memory includes the model's weights; ours is that of keys, values and metadata alone.",
        draw=lambda: plots.latency(
            decode_times("centroidkv", budget=UNIFORM), title=f"Time per token · SmolLM2-135M · budget {UNIFORM}"
        ),
        published=lambda: plots.latency(
            centroidkv_published.uniform("centroidkv"), title="Time per token · Llama-3.1-8B · budget 2,048"
        ),
    )  # fmt: skip


@entry(
    "CentroidKV", "table 14",
    headline="ClusterKV at a budget of 2,048, 4k to 32k: TTFT longer by 23 to 27 %, time per token by 5 to 18 %, no "
    "memory saved",
    claim="at a budget of 512 and 1k to 8k tokens, ClusterKV's TTFT, time per token and bytes are at least full's at "
    "every length",
    call=MEASURE,
)  # fmt: skip
def uniform_budget_of_clusterkv() -> Finding:
    """ClusterKV against full attention at one budget for all context lengths, in ClusterKV's own code."""
    table = ratios(share=False)
    own = table[table["method"] == "clusterkv"].groupby("length")[COSTS].mean()
    return Finding(
        ours="ratios to full attention by length: "
        + "; ".join(
            f"{words} {listed(table, column, 'clusterkv')}"
            for column, words in (("ttft_s", "TTFT"), ("tpot_s", "time per token"), ("bytes", "bytes"))
        ),
        holds=bool((own >= 1).all(axis=None)),
        run=run(),
        why="All keys and values stay, so that no memory is saved. Where a token takes less time here, it is because "
        "on a CPU attention over all tokens is a larger part of a step than on the paper's GPU, where ClusterKV's "
        "official kernels were slower than dense attention up to 32k tokens.",
        draw=lambda: plots.latency(
            decode_times("clusterkv", budget=UNIFORM), title=f"Time per token · SmolLM2-135M · budget {UNIFORM}"
        ),
        published=lambda: plots.latency(
            centroidkv_published.uniform("clusterkv"), title="Time per token · Llama-3.1-8B · budget 2,048"
        ),
    )  # fmt: skip
