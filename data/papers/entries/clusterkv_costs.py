"""ClusterKV (arXiv 2412.03213): the figures on time (7, 12 and 13)."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import sources

from entries import Finding, entry
from kvviz import plots

DECODED = (256, 512, 1024)  # the paper's numbers of decoded tokens
BUILD_SHARE = 0.08  # the largest share of clustering in the prefill, section V-C
CLOSE = 0.05  # the largest deviation from Quest, section V-C
BLOCK_SIZE, PARTITIONS = 512, (16, 32, 64, 128)
ON_GPU = "On a GPU, with the shape of Llama-3.1-8B, 8k to 131k tokens: `make bench-gpu`."


def total(rows: pd.DataFrame, decoded: int) -> pd.Series:
    """Seconds of prefill, build and so many decode steps, with the median step of each turn."""
    return rows["prefill_s"] + rows["build_s"] + decoded * rows["step_s"]


def cell(table: pd.DataFrame, length: int, method: str, budget: int = 0, preset: str = "paper") -> pd.DataFrame:
    """The turns of one method, budget and preset at one length, by turn."""
    same = (table["length"] == length) & (table["method"] == method) & (table["preset"] == preset)
    rows = table[same & (table["budget"] == budget)].set_index("turn")
    assert len(rows), f"{method}:{preset}, budget {budget}, {length} tokens: not measured"
    return rows


def ratio(table: pd.DataFrame, length: int, decoded: int, slow: tuple[Any, ...], fast: tuple[Any, ...]) -> pd.Series:
    """How many times faster `fast` is than `slow`, per turn; each is a method, budget and preset."""
    return total(cell(table, length, *slow), decoded) / total(cell(table, length, *fast), decoded)


def _by_length(values: dict[int, pd.Series]) -> str:
    return ", ".join(f"{length:,} tokens {_range(ratios)}" for length, ratios in values.items())


def _range(values: pd.Series) -> str:
    return f"{values.median():.2f} ({values.min():.2f}–{values.max():.2f})"


@entry(
    "ClusterKV", "fig. 12",
    headline="speed-up over full KV of up to 2 × in latency (32k prompt, 1,024 decoded tokens, budget 1,024), up to "
    "2.5 × in decoding throughput; clustering takes 6 to 8 % of the prefill",
    claim="at the longest prompt ClusterKV is faster than full attention with every budget and every number of decoded "
    "tokens, its speed-up grows from the shortest to the longest prompt, and clustering takes at most 8 % of the "
    "prefill at every length",
    call='make papers ARGS="--measure clusterkv_latency"; on a GPU: make bench-gpu',
)  # fmt: skip
def latency_against_full() -> Finding:
    """Inference latency of ClusterKV against full KV by prompt length, decoded tokens and budget."""
    table = sources.measured("clusterkv_latency")
    lengths = sorted(table["length"].unique())
    budgets = sorted(table.loc[table["method"] == "clusterkv", "budget"].unique())
    full, most = ("full",), DECODED[-1]
    speedups = {
        (length, budget, decoded): ratio(table, length, decoded, full, ("clusterkv", budget))
        for length in lengths for budget in budgets for decoded in DECODED
    }  # fmt: skip
    longest = [values.median() for (length, _, _), values in speedups.items() if length == lengths[-1]]
    grows = all(
        speedups[lengths[-1], budget, most].median() > speedups[lengths[0], budget, most].median() for budget in budgets
    )
    shares = {length: _build_share(table, length) for length in lengths}
    parts = [
        f"budget {budget:,}: " + _by_length({length: speedups[length, budget, most] for length in lengths})
        for budget in budgets
    ]
    throughput = {budget: _throughput(table, lengths[-1], budget) for budget in budgets}
    builds = ", ".join(f"{length:,} tokens {100 * share:.0f} %" for length, share in shares.items())
    return Finding(
        ours=f"speed-up in latency, {most:,} decoded tokens, median (range) over turns: {'; '.join(parts)}. Throughput "
        f"at {lengths[-1]:,} tokens: {', '.join(f'budget {b:,} × {_range(v)}' for b, v in throughput.items())}. "
        f"Clustering against the prefill: {builds}",
        holds=bool(min(longest) > 1 and grows and max(shares.values()) <= BUILD_SHARE),
        run=sources.described(table, "float32; decoded tokens beyond the measured steps at the median step's time"),
        why=f"Faster at the longest prompt in every setting: {_yes(min(longest) > 1)}; more so than at the shortest: "
        f"{_yes(grows)}; clustering at most {100 * BUILD_SHARE:.0f} %: {_yes(max(shares.values()) <= BUILD_SHARE)}. "
        f"{_other_work()} {ON_GPU}",
        draw=lambda: plots.latency(_bars(table, lengths[-1], budgets), over="method"),
    )  # fmt: skip


def _yes(holds: bool) -> str:
    return "yes" if holds else "no"


def _other_work() -> str:
    """How much of a step no method can reduce, from the decode benchmark."""
    part = sources.benchmark("decode")
    share = part["dtypes"]["float32"]["ratio_to_full"]["no attention"]
    return (
        f"Of a step of full attention after {part['prompt_tokens']:,} tokens, {100 * share:.0f} % is the model's other "
        "work on this CPU, which no method reduces."
    )


def _build_share(table: pd.DataFrame, length: int) -> float:
    """The time of clustering as a share of the prefill's, at one length; the largest budget's state is the same."""
    rows = table[(table["length"] == length) & (table["method"] == "clusterkv")]
    return float((rows["build_s"] / rows["prefill_s"]).median())


def _throughput(table: pd.DataFrame, length: int, budget: int) -> pd.Series:
    """Tokens per second of decoding against full attention's, per turn."""
    return cell(table, length, "full")["step_s"] / cell(table, length, "clusterkv", budget)["step_s"]


def _bars(table: pd.DataFrame, length: int, budgets: list[int]) -> pd.DataFrame:
    """Seconds by part, for full attention and each budget, and by decoded tokens."""
    rows = []
    for decoded in DECODED:
        for name, budget in (("full", 0), *(("clusterkv", budget) for budget in budgets)):
            medians = cell(table, length, name, budget).median(numeric_only=True)
            select = decoded * medians["select_s"]
            parts = {
                "prefill": medians["prefill_s"], "build": medians["build_s"], "select": select,
                "rest": decoded * medians["step_s"] - select,
            }  # fmt: skip
            label = f"{name}{f', budget {budget:,}' if budget else ''}, {decoded:,} decoded"
            rows += [{"method": label, "part": part, "seconds": seconds} for part, seconds in parts.items()]
    bars = pd.DataFrame(rows)
    bars.attrs = {"model": table.attrs["model"], "prompt_length": length, "hardware": table.attrs["hardware"]}
    return bars


@entry(
    "ClusterKV", "fig. 13",
    headline="(a) 2.3 × faster than InfiniGen on average (budget 256), whose latency is near full KV's; (b) within 5 % "
    "of Quest's latency (budget 1k); selecting takes about 5 % of decoding",
    claim="(a) with a budget of 256, ClusterKV's latency is below InfiniGen's at every prompt length; (b) with 1,024, "
    "it is at most 5 % above Quest's at every prompt length",
    call='make papers ARGS="--measure clusterkv_latency"; on a GPU: make bench-gpu',
)  # fmt: skip
def latency_against_others() -> Finding:
    """Inference latency: (a) ClusterKV against InfiniGen, budget 256; (b) ClusterKV against Quest, budget 1k."""
    table = sources.measured("clusterkv_latency")
    lengths, decoded = sorted(table["length"].unique()), DECODED[0]
    least, most = (int(table.loc[table["method"] == name, "budget"].max()) for name in ("infinigen", "quest"))
    presets = ("paper", "top")
    infinigen = {
        (preset, length): ratio(table, length, decoded, ("infinigen", least, preset), ("clusterkv", least))
        for preset in presets for length in lengths
    }  # fmt: skip
    quest = {length: ratio(table, length, decoded, ("clusterkv", most), ("quest", most)) for length in lengths}
    steps = {
        preset: [
            (cell(table, length, "infinigen", least, preset)["step_s"] / cell(table, length, "full")["step_s"]).median()
            for length in lengths
        ]
        for preset in presets
    }
    share = (
        cell(table, lengths[-1], "clusterkv", most)["select_s"] / cell(table, lengths[-1], "clusterkv", most)["step_s"]
    )
    above = "; ".join(
        f"InfiniGen{', top' if preset == 'top' else ''} / ClusterKV: "
        + _by_length({length: infinigen[preset, length] for length in lengths})
        for preset in presets
    )
    ours_a = all(values.median() > 1 for values in infinigen.values())
    ours_b = all(values.median() <= 1 + CLOSE for values in quest.values())
    return Finding(
        ours=f"(a) {above}. (b) ClusterKV / Quest: {_by_length(quest)}. Selecting takes "
        f"{100 * share.median():.0f} % of a ClusterKV step at {lengths[-1]:,} tokens",
        holds=bool(ours_a and ours_b),
        run=sources.described(table, f"float32; prefill, build and {decoded} steps; median (range) over turns"),
        why=f"(a) {_yes(ours_a)}; (b) {_yes(ours_b)}. A step of InfiniGen takes "
        f"{', '.join(f'{100 * value:.0f} %' for value in steps['top'])} of full attention's with as many tokens as the "
        f"budget (by length), {', '.join(f'{100 * value:.0f} %' for value in steps['paper'])} with its threshold; it "
        f"speculates inside the model and moves nothing here, where FlexGen offloads. {ON_GPU}",
        draw=lambda: plots.latency(_curves(table, least, most, decoded), over="length"),
    )  # fmt: skip


def _curves(table: pd.DataFrame, least: int, most: int, decoded: int) -> pd.DataFrame:
    """Seconds of prefill, build and `decoded` steps by length: full attention and the compared methods."""
    shown = {
        "full": ("full", 0, "paper"), f"clusterkv, budget {least:,}": ("clusterkv", least, "paper"),
        f"infinigen:top, budget {least:,}": ("infinigen", least, "top"),
        f"clusterkv, budget {most:,}": ("clusterkv", most, "paper"),
        f"quest, budget {most:,}": ("quest", most, "paper"),
    }  # fmt: skip
    rows = [
        {
            "method": label, "part": f"prefill, build and {decoded} steps", "length": length,
            "seconds": total(cell(table, length, *key), decoded).median(),
        }
        for label, key in shown.items() for length in sorted(table["length"].unique())
    ]  # fmt: skip
    curves = pd.DataFrame(rows)
    styles = {}
    for label, (name, budget, _) in shown.items():
        styles[label] = plots.method_style(name) | ({"dash": "dot"} if budget == most else {})
    curves.attrs = {"model": table.attrs["model"], "hardware": table.attrs["hardware"], "styles": styles}
    return curves


@entry(
    "ClusterKV", "fig. 7",
    headline="threads are strided along the sequence, channels divided into P partitions; with BlockSize 512 and 128 "
    "channels, P = 16 or 32 is fastest",
    claim="with BlockSize 512 and 128 channels, P = 16 or 32 is the fastest at every length",
    call='make papers ARGS="--measure clusterkv_update_kernel"',
    needs="a GPU",
    tested="tests/repository/test_papers.py::test_every_measurement_runs_at_a_small_size[clusterkv_update_kernel]",
)  # fmt: skip
def update_kernel() -> Finding:
    """The centroid update kernel: which thread adds which channels of which keys, and the choice of P."""
    conflicts, swept = _conflicts(), _swept()
    means = conflicts.groupby(["threads", "P"])["conflicts"].mean()
    strided, consecutive = (100 * means[name, PARTITIONS[0]] for name in ("strided", "consecutive"))
    ours = (
        "the paper's kernel in Triton, with atomic additions, gives the same sums as kvviz's kernel for every P in "
        "Triton's interpreter. kvviz's kernel sorts tokens by label and adds without atomics, "
        f"and has no P. Write conflicts (keys added at the same time to the same cluster), BlockSize {BLOCK_SIZE}, "
        f"P = {PARTITIONS[0]}: strided threads {strided:.0f} % of the keys, consecutive ones {consecutive:.0f} %"
    )
    run = (
        f"{sources.runs().trace('prose').model}, 2,016 tokens of prose, layer 14, all KV heads, a cluster per 80 tokens"
    )
    holds, why = None, ""
    if swept is not None:
        best = swept.loc[swept.groupby(["tokens", "block_size"])["ms"].idxmin()]
        times = [
            f"{row.tokens:,} tokens, BlockSize {row.block_size}: fastest with P = {row.P}, {row.ms:.2f} ms; kvviz's "
            f"kernel {row.kvviz_ms:.2f} ms" for row in best.itertuples()
        ]  # fmt: skip
        ours, run = f"{'; '.join(times)}. {ours}", f"{sources.described(swept)}; conflicts: {run}"
        holds = bool(best.loc[best["block_size"] == BLOCK_SIZE, "P"].isin((16, 32)).all())
        why = (
            "In Triton the compiler decides which thread adds which channels; in the paper's CUDA kernel, P decides it."
        )
    else:
        ours += "; the kernel's times need a GPU"
    return Finding(
        ours=ours,
        run=run,
        holds=holds,
        why=why,
        draw=lambda: plots.ablation(conflicts, field="P", metric="conflicts", series=("threads",)),
    )


def _swept() -> pd.DataFrame | None:
    """The sweep of P, if it was measured on a GPU."""
    name = "clusterkv_update_kernel"
    return sources.measured(name) if sources.path_of(name).exists() else None


def _conflicts() -> pd.DataFrame:
    """The share of keys that are added at the same time as another key of their cluster, by P and order of threads."""
    from kvviz.generation.explore.clusters import cluster_keys

    trace, rows = sources.runs().trace("prose"), []
    for head in range(trace.geometry.n_kv_heads):
        labels = cluster_keys(trace, 14, head).labels
        labels = labels[labels >= 0]
        for parts in PARTITIONS:
            at_once = BLOCK_SIZE // parts
            steps = len(labels) // at_once
            consecutive = labels[: steps * at_once].reshape(steps, at_once)  # each row is added at the same time
            strided = labels[: steps * at_once].reshape(at_once, steps).T
            for name, order in (("strided", strided), ("consecutive", consecutive)):
                distinct = np.mean([len(np.unique(row)) for row in order])
                rows.append({"head": head, "threads": name, "P": parts, "conflicts": 1 - distinct / at_once})
    table = pd.DataFrame(rows)
    table.attrs["model"] = trace.model
    return table
