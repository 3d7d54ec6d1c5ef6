"""PQCache (arXiv 2407.12820): figures 1 to 8."""

from __future__ import annotations

from typing import Any

import pandas as pd
import sources

from entries import Finding, entry
from entries.pqcache_pictures import product_quantization
from kvviz import Geometry, metrics, plots
from kvviz.clustering.iterations import ClusteringTime, ComputeTime, IterationModel, fit_iterations
from kvviz.offload import LinkModel
from kvviz.trace.timeline import Timeline

# The paper's bus: 250 MB/s per lane and direction, of PCI Express 1.0 (section 4.1.4: PCI-e 1.0, 16 lanes).
PCIE_1 = LinkModel("PCIe 1.0 ×16", 4e9)
SEVEN_B = Geometry(n_layers=32, n_heads=32, n_kv_heads=8, head_dim=128, max_positions=131_072)  # as Mistral-7B
THIRTEEN_B = Geometry(n_layers=40, n_heads=40, n_kv_heads=40, head_dim=128, max_positions=4096)  # as Llama-2-13B
FASTER = (10, 100)
COLORS = ("#D55E00", "#0072B2", "#009E73")


@entry(
    "PQCache", "fig. 1",
    headline="a 7B model with 128K tokens and a batch of 128 needs 1 TB of keys and values, more than the 640 GB of "
    "8 A100 GPUs",
    claim="the keys and values of such a model take more than 640 GB, and 1 TB within 10 %",
    call="kvviz.plots.kv_memory(models, lengths, (1, 16, 128), link=LinkModel.pcie(5), memory_bytes=640 * 10**9)",
)  # fmt: skip
def memory() -> Finding:
    """The size of keys and values by model, length and batch, and the time to move them over PCI Express 5."""
    grouped, each = (int(metrics.kv_bytes(32, heads, 128, 131_072, batch=128)) / 1e12 for heads in (8, 32))
    keys_only = grouped / 2
    models = {"7B, 8 KV heads": SEVEN_B, "13B, 40 KV heads": THIRTEEN_B}
    return Finding(
        ours=f"{grouped:.2f} TB for a 7B model with 8 KV heads, {each:.2f} TB with 32; keys alone, or 64 such texts: "
        f"{keys_only:.2f} TB",
        holds=bool(grouped > 0.64 and abs(grouped - 1) < 0.1),
        run="calculated, 2 bytes per number",
        why="the conclusion holds: more than 640 GB. The number differs by a factor of about 2: no 7B shape in use "
        "gives 1 TB; keys without values of a model with 8 KV heads do.",
        draw=lambda: plots.kv_memory(
            models, [2**power for power in range(10, 18)], (1, 16, 128), link=LinkModel.pcie(5),
            memory_bytes=640 * 10**9,
        ),
    )  # fmt: skip


@entry(
    "PQCache", "fig. 2", schematic=True,
    headline="LLM inference with selective attention is information retrieval: an index of keys, a query, the best "
    "tokens",
    call='kvviz.plots.selection_map(kvviz.replay(trace, "pqcache", queries=32, budget=128), 14)',
)  # fmt: skip
def retrieval() -> Finding:
    """Information retrieval beside selective attention: documents and tokens are found by the same steps."""
    import kvviz

    return Finding(
        ours="what PQCache retrieves at each of 24 steps of a recorded text (its index: codes of the keys), and what "
        "exact attention would",
        run="SmolLM2-135M, 2,048 tokens of prose, layer 14",
        draw=lambda: plots.selection_map(
            kvviz.replay(sources.runs().trace("prose"), "pqcache", queries=32, budget=128), 14, steps=(0, 24)
        ),
    )


@entry(
    "PQCache", "fig. 3", schematic=True,
    headline="the prompt's pass makes keys and values of all tokens, each later pass writes one token",
    call='kvviz.plots.timeline(kvviz.generate(lm, prompt, "pqcache", 256, store="host", timeline=True).timeline)',
)  # fmt: skip
def inference() -> Finding:
    """LLM inference: attention and FFN of every layer, a prefill pass and decode passes."""
    return Finding(
        ours="a measured run: one pass over 2,048 tokens, then 8 steps; vertical lines mark the passes",
        run=_timeline().description,
        draw=lambda: plots.timeline(_timeline()),
    )


@entry(
    "PQCache", "fig. 4", schematic=True,
    headline="keys are cut into m parts and each part is replaced by the number of its nearest codeword; a query's "
    "products with the codewords are looked up and added",
    call="kvviz.clustering.product_quantize(keys, n_partitions=2, n_bits=6).scores(query)",
)  # fmt: skip
def quantization() -> Finding:
    """Product quantization: codewords and codes of the keys, look-up table of a query, approximate scores."""
    return Finding(
        ours="a real key (upper panel), the look-up table of a real query with the key's two entries, and approximate "
        "against exact scores of all tokens. The two codes of a token take 1.5 bytes where they are packed (host "
        "memory and transfers), a byte each on the device",
        run="SmolLM2-135M, 2,012 tokens of prose, layer 14, KV head 1",
        draw=product_quantization,
    )


@entry(
    "PQCache", "fig. 5", schematic=True,
    headline="keys and values lie in host memory, codes are fetched for each step, and the best tokens of a step come "
    "from the host or from a cache on the device",
    call='kvviz.plots.budget_ledger({"pqcache": kvviz.generate(lm, prompt, "pqcache", 256, store="host").ledger})',
)  # fmt: skip
def overview() -> Finding:
    """An overview of PQCache: what is offloaded, compressed, and fetched on demand, for one layer."""
    ledgers = sources.runs().table("ledgers")
    row = ledgers[ledgers["method"] == "pqcache"].iloc[0]
    per_step = row["moved_bytes"] / ledgers.attrs["steps"] / len(ledgers.attrs["layers"]) / 1024
    return Finding(
        ours=f"where tokens and bytes of a run are: sinks and window on the device, everything on the host, and "
        f"{per_step:,.0f} KiB moved per step and layer",
        run="SmolLM2-135M, 2,048 tokens of prose, layers 5, 15 and 25, budget 256",
        draw=lambda: plots.budget_ledger(ledgers[ledgers["method"] == "pqcache"]),
    )


@entry(
    "PQCache", "fig. 6",
    headline="attention scores generally follow power laws: a small part of the tokens is more important than most",
    claim="a power law explains at least 90 % of the variance over ranks 1 to 256 in the median query head, and 90 % "
    "of the attention lies on at most a tenth of the tokens in the median head",
    call='kvviz.plots.attention_distribution(trace, 14, ranks=(1, 256)); make papers ARGS="--measure '
    'attention_power_law"',
)  # fmt: skip
def power_law() -> Finding:
    """Attention weights by rank at several positions, both axes logarithmic."""
    table = sources.measured("attention_power_law")
    by_text = table.groupby("text")[["exponent", "r_squared", "share_90"]].median()
    fits = (table["r_squared"] >= 0.9).mean()
    return Finding(
        ours=f"R² of the median head {sources.with_interval(by_text['r_squared'])}, exponent "
        f"{sources.with_interval(by_text['exponent'])}; {100 * fits:.0f} % of all heads and layers have R² of at least "
        f"0.9; 90 % of the attention lies on {100 * by_text['share_90'].mean():.0f} % of the tokens",
        holds=bool(table["r_squared"].median() >= 0.9 and table["share_90"].median() <= 0.1),
        run=sources.described(table, "all layers and query heads; intervals over texts"),
        draw=lambda: plots.attention_distribution(sources.runs().trace("prose"), 14, ranks=(1, 256)),
    )


@entry(
    "PQCache", "fig. 7",
    headline="computation, offloading and clustering run at the same time, and codes are fetched ahead: shorter than "
    "sequential scheduling",
    claim="the prompt's work is finished sooner when overlapped than when sequential, at every length",
    call='make papers ARGS="--measure pqcache_schedules"',
)  # fmt: skip
def scheduling() -> Finding:
    """PQCache's scheduling against sequential scheduling, for the prompt and for a step."""
    table = sources.measured("pqcache_schedules")
    parts = table[(table["kind"] == "part") & (table["part"] == "end to end")]
    whole = parts.groupby(["phase", "tokens", "schedule"])["seconds"].mean().unstack("schedule")
    ratio = whole["overlapped"] / whole["sequential"]
    rounds = parts[parts["phase"] == "prefill"].pivot_table("seconds", ["round", "tokens"], "schedule")
    load = parts["load"].mean()
    beside = table[(table["kind"] == "part") & (table["schedule"] == "overlapped")]
    shares = beside.groupby(["phase", "part"])["overlap"].mean()
    lengths = ", ".join(f"{ratio['prefill', tokens]:.2f} at {tokens:,}" for tokens in ratio["prefill"].index)
    return Finding(
        ours=f"overlapped against sequential: prefill {lengths} tokens; steps {ratio['decode'].mean():.2f}. Beside "
        f"the computation ran {100 * shares['prefill', 'clustering']:.0f} % of the clustering, "
        f"{100 * shares['prefill', 'transfer']:.0f} % of offloading, and {100 * shares['decode', 'transfer']:.0f} % of "
        "the transfers of the steps",
        holds=bool(
            (rounds["overlapped"].groupby("tokens").mean() < rounds["sequential"].groupby("tokens").mean()).all()
        ),
        run=sources.described(table),
        why=f"the model has one thread and the clustering wants another processor: with a load of {load:.1f} on the "
        "machine's 2, as in this run, little is free. "
        "On a CPU, copies of a step below 8 MiB are made in line, because a worker thread would cost more than it "
        "hides; on a GPU they have a stream of their own.",
        draw=lambda: plots.timeline(scheduled("overlapped"), phase="prefill"),
    )


def scheduled(schedule: str) -> Timeline:
    """The measured timeline of a schedule."""
    table = sources.measured("pqcache_schedules")
    events = table[(table["kind"] == "event") & (table["schedule"] == schedule)]
    return Timeline.from_frame(events, f"pqcache, {schedule}, {int(events['tokens'].iloc[0]):,} tokens")


@entry(
    "PQCache", "fig. 8",
    headline="with the length, one layer's computation grows faster than offloading and clustering, and covers both; "
    "for short prompts clustering takes longer",
    claim="the computation's time grows with a larger exponent than clustering's and offloading's, and is the largest "
    "of the three at the longest length",
    call='make papers ARGS="--measure pqcache_layer_times"; kvviz.plots.iteration_fit(fit_iterations(clustering, '
    "compute))",
)  # fmt: skip
def layer_times() -> Finding:
    """Time of one layer's computation, of offloading its keys and values, and of clustering, by length."""
    table = sources.measured("pqcache_layer_times")
    curves = layer_curves(table)
    long = curves[curves["length"] >= curves["length"].max() / 8]
    grown = {name: metrics.growth_exponent(rows["length"], rows["seconds"])[0] for name, rows in long.groupby("method")}
    last = curves[curves["length"] == curves["length"].max()].set_index("method")["seconds"]
    compute = "one layer"
    fit = layer_fit()
    chosen = {factor: layer_fit(factor) for factor in FASTER}
    lengths = sorted(set(curves["length"]))
    clipped = "; ".join(
        f"{label}: T = {model.max_iterations(lengths[0])} at {lengths[0]:,.0f} tokens, "
        f"{model.max_iterations(lengths[-1])} at {lengths[-1]:,.0f}"
        for label, model in {"this CPU": fit, **{f"{n} times as fast": model for n, model in chosen.items()}}.items()
    )
    return Finding(
        ours="exponents over the last three doublings: "
        + ", ".join(f"{name} {value:.2f}" for name, value in grown.items())
        + f". T_max clipped to 3 to 300: {clipped}",
        holds=bool(
            grown[compute] > max(value for name, value in grown.items() if name != compute)
            and last[compute] == last.max()
        ),
        run=sources.described(table, "offloading in float32 without a bus, and as PCIe 1.0 would take in float16"),
        why=f"{_hidden(curves)}. A CPU computes a layer slowly, so that many iterations fit; with the layer's time "
        "divided by 10 or 100, as if by a faster processor, few do, and the lower limit of 3 binds where T = 3.",
        draw=lambda: plots.latency(curves, over="length", title="One layer's prefill, offloading and clustering"),
    )


def _hidden(curves: pd.DataFrame) -> str:
    """At how many lengths the layer takes longer than clustering with 10 iterations."""
    seconds = curves.pivot_table("seconds", "length", "method")
    longer = seconds["one layer"] > seconds["clustering, T ≤ 10"]
    return f"the layer takes longer than clustering with 10 iterations at {longer.sum()} of {len(longer)} lengths"


def layer_curves(table: pd.DataFrame) -> pd.DataFrame:
    """Seconds by length of one layer's computation, offloading and clustering, for `plots.latency`."""
    rows: list[dict[str, Any]] = []
    for row in table.to_dict("records"):
        known = {"part": "end to end", "length": row["tokens"], "seconds": row["seconds"]}
        if row["work"] == "compute":
            rows.append({"method": "one layer"} | known)
        elif row["work"] == "clustering":
            rows.append({"method": f"clustering, T ≤ {row['limit']:.0f}"} | known)
        else:
            rows.append({"method": "offloading, copy"} | known)
            seconds = float(PCIE_1.seconds(row["bytes"] / 2))
            rows.append({"method": "offloading, PCIe 1.0"} | known | {"seconds": seconds})
    curves = pd.DataFrame(rows)
    colors = dict(zip(("one layer", "offloading", "clustering"), COLORS, strict=True))
    marks = ("circle", "square", "diamond")
    curves.attrs["styles"] = {
        name: {"color": colors[name.partition(",")[0]], "dash": "solid", "symbol": marks[number % 3]}
        for number, name in enumerate(curves["method"].unique())
    }
    return curves


def layer_fit(faster: float = 1) -> IterationModel:
    """The fit of the measured times, the layer's divided by `faster`."""
    table = sources.measured("pqcache_layer_times")
    clustering = table[table["work"] == "clustering"]
    compute = table[table["work"] == "compute"]
    return fit_iterations(
        [ClusteringTime(int(row.tokens), int(row.iterations), row.seconds) for row in clustering.itertuples()],
        [ComputeTime(int(row.tokens), row.seconds / faster) for row in compute.itertuples()],
    )


def _timeline() -> Timeline:
    timeline: Timeline = sources.runs().timelines("overlap")["pqcache"]
    return timeline
