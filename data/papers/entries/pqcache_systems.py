"""PQCache (arXiv 2407.12820): figures 11 and 12, its times and its cache."""

from __future__ import annotations

import pandas as pd
import sources

from entries import Finding, entry
from entries.pqcache_figures import PCIE_1, layer_fit, scheduled
from kvviz import plots

DROPPING = ("snapkv", "pyramidkv")


@entry(
    "PQCache", "fig. 11",
    headline="(a) TT2T nearly the lowest; (b) TPOT nearly constant over the length, SparQ's grows; (c) a block cache "
    "of 4,096 or 8,192 tokens lowers TPOT by 26.3 % or 32.8 %; (d) hit rate about 0.5 to 0.6, LRU like LFU",
    claim="(c) a block cache lowers the bytes that a step waits for, and a larger one more; (d) LRU and LFU differ by "
    "at most 0.03, and the hit rate rises with the blocks per step",
    call='make papers ARGS="--measure pqcache_cache_sizes"; make bench ARGS="--only cache"; on a GPU, for (a) and (b): '
    'make papers ARGS="--measure pqcache_latency_gpu"',
)  # fmt: skip
def latency_and_cache() -> Finding:
    """Time to the second token, time per token, cache sizes and policies."""
    table, sizes = sources.measured("pqcache_latency"), sources.measured("pqcache_cache_sizes")
    mean = table.groupby(["tokens", "method"])[["tt2t_s", "tpot_s"]].mean()
    longest = mean.loc[table["tokens"].max()]
    tt2t = longest["tt2t_s"]
    growth = mean["tpot_s"].unstack("method")
    grown = growth.iloc[-1] / growth.iloc[0]
    cached = sizes.groupby("cache", sort=False)[["hit_rate", "waiting_bytes", "moved_bytes", "tpot_s"]].mean()
    blocks = cached[cached.index.str.match(r"[\d,]+ tokens")]
    none = cached.loc["no cache"]
    rates = hit_rates()
    policies = rates.pivot_table("hit_rate", ["capacity_tokens", "blocks_a_step"], "policy")
    apart = float((policies["lru"] - policies["lfu"]).abs().max())
    rises = bool((policies["lru"].unstack("blocks_a_step").diff(axis=1).iloc[:, 1:] >= -0.001).all(axis=None))
    saved = ", ".join(
        f"{1 - waited / none['waiting_bytes']:.0%} at {name}" for name, waited in blocks["waiting_bytes"].items()
    )
    predicted = 1e3 * PCIE_1.seconds(none["waiting_bytes"] / 2)
    return Finding(
        ours=f"(a) on a CPU, {table['tokens'].max():,} tokens: TT2T {tt2t['pqcache']:.1f} s, full attention "
        f"{tt2t['full']:.1f} s, SnapKV {tt2t['snapkv']:.1f} s, H2O {tt2t['h2o']:.1f} s; (b) TPOT at the longest "
        f"against the shortest length: PQCache {grown['pqcache']:.2f}, SparQ {grown['sparq:pqcache']:.2f}, full "
        f"attention {grown['full']:.2f}; (c) fewer bytes to wait for than without a cache: {saved} (without one, "
        f"{predicted:.1f} ms per step on PCIe 1.0); (d) hit rate {policies['lru'].min():.2f} to "
        f"{policies['lru'].max():.2f}, LRU and LFU at most {apart:.3f} apart",
        holds=bool(
            (blocks["waiting_bytes"] < none["waiting_bytes"]).all()
            and blocks["waiting_bytes"].is_monotonic_decreasing
            and apart <= 0.03
            and rises
        ),
        run=sources.described(sizes, "the last in (d): 8,192 tokens, layers 3, 15 and 28"),
        why="(a) and (b) need a GPU and a bus, and so do the times of (c): here host and device are one memory. The "
        "command for a GPU is tested at a small size by tests/repository/test_papers.py. Where the paper's hit rate "
        "falls when more blocks are taken in than fit, kvviz's stays level: it takes in no more than fit. All bytes "
        "moved, block fills included: " + ", ".join(
            f"{moved / none['moved_bytes']:.2f} of those without a cache at {name}"
            for name, moved in cached["moved_bytes"].drop("no cache").items()
        ) + ".",
        draw=lambda: plots.hit_rate(rates),
    )  # fmt: skip


def hit_rates() -> pd.DataFrame:
    """Hit rates of PQCache's block cache by policy, size and blocks per step, from `make bench`."""
    part = sources.benchmark("cache")
    table = pd.DataFrame(part["blocks"]["rows"]).assign(cache="pqcache")
    table.attrs = {"model": "SmolLM2-135M", "prompt_length": part["blocks"]["tokens"]}
    return table


@entry(
    "PQCache", "fig. 12",
    headline="(a) the prompt takes about as long as its computation alone, as clustering and offloading are hidden; "
    "(b) a step takes less than the sum of its parts; (c) more iterations score higher and delay the second token",
    claim="(a) end to end takes less than the sum of the parts at every length; (c) recall rises and the output error "
    "falls from 1 to 30 iterations, and the second token comes later with the most iterations than with the fewest",
    call='make papers ARGS="--measure pqcache_schedules --measure pqcache_settings --measure '
    'pqcache_tt2t_by_iterations"',
)  # fmt: skip
def decomposition() -> Finding:
    """Times of the prompt and of a step by part, and the quality by iterations of clustering."""
    table = sources.measured("pqcache_schedules")
    parts = table[(table["kind"] == "part") & (table["schedule"] == "overlapped")]
    seconds = parts.groupby(["phase", "tokens", "part"])["seconds"].mean().unstack("part")
    share = seconds["end to end"] / seconds[["compute", "clustering", "transfer"]].sum(axis=1)
    quality = iterations()
    first, last = quality.loc[1], quality.loc[30]
    wait = sources.measured("pqcache_tt2t_by_iterations").groupby("iterations")[["tt2t_s", "build_s"]].mean()
    answers = sources.measured("pqcache_answers_by_setting").groupby("method")["score"].mean()
    found = ", ".join(f"{name} {answers[name]:.2f}" for name in answers.index if name.startswith("T="))
    hidden = ", ".join(f"{share['prefill', tokens]:.2f} at {tokens:,}" for tokens in share["prefill"].index)
    delays = ", ".join(f"{row.tt2t_s:.2f} s at T ≤ {count}" for count, row in wait.iterrows())
    return Finding(
        ours=f"end to end as a share of the sum of the parts: (a) {hidden} tokens; (b) a step "
        f"{share['decode'].mean():.2f}; (c) T from 1 to 30: recall {first['recall']:.3f} to {last['recall']:.3f}, "
        f"output error {first['output_error']:.3f} to {last['output_error']:.3f}, at T = 3 "
        f"{quality.loc[3, 'recall']:.3f} and {quality.loc[3, 'output_error']:.3f}; answers found: {found}; TT2T "
        f"{delays}; the fit of figure 8 would choose T = {layer_fit().max_iterations(2048)} at 2,048 tokens",
        holds=bool(
            (share["prefill"] < 1).all()
            and last["recall"] > first["recall"]
            and last["output_error"] < first["output_error"]
            and wait["tt2t_s"].iloc[-1] > wait["tt2t_s"].iloc[0]
        ),
        run=sources.described(table, "(c): 2,048 tokens, layers 3, 15 and 27, a tenth of the tokens"),
        why="clustering and the model share one processor; the paper's clustering has two of its own. (b) is above "
        "1 where the parts leave out work of the step; on a CPU a step's transfers are made in line (figure 7).",
        draw=lambda: plots.latency(
            {"overlapped": scheduled("overlapped"), "sequential": scheduled("sequential")}, phase="prefill"
        ),
    )


def iterations() -> pd.DataFrame:
    """Means over texts of recall, attention mass and output error, by the most iterations of k-means."""
    table = sources.measured("pqcache_settings")
    rows = table[table["varied"] == "iterations"]
    return (
        rows.assign(value=rows["value"].astype(int))
        .groupby("value")[["recall", "attention_mass", "output_error"]]
        .mean()
    )
