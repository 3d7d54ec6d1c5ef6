"""The recipes of tables. They replay stored queries, keys and values, so that only the capture needs a model."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from .recipes import SEED, TABLE_BUDGET, TABLE_LAYERS, TABLE_STEPS, create, manual, recipe, table_of
from .recipes import table_trace as trace_of

if TYPE_CHECKING:
    import pandas as pd

    from kvviz.models import LanguageModel

BUDGETS = (128, 256, 512, 1024)
BUDGET_METHODS = ("oracle", "clusterkv", "pqcache", "ctkvr", "centroidkv", "quest", "snapkv", "streaming_llm")
BYTES_SHARES, BYTES_METHODS = (1 / 16, 1 / 8, 1 / 4), (*BUDGET_METHODS, "h2o", "infllm", "shadowkv", "sparq")
ABLATION_SEEDS: Mapping[str, tuple[int, ...]] = {"clusterkv": (0, 1, 2), "pqcache": (0, 1, 2)}  # others have no seed
# By method and varied field: its values. A name with two fields varies both together.
ABLATIONS: Mapping[str, Mapping[str, list[dict[str, Any]]]] = {
    "clusterkv": {
        "n_clusters": [{"n_clusters": count} for count in (25, 50, 100, 200, 400)],
        "metric": [{"metric": name} for name in ("cosine", "l2", "ip")],
    },
    "quest": {"page_size": [{"page_size": size} for size in (4, 8, 16, 32, 64)]},
    "pqcache": {
        "n_partitions, n_bits": [
            {"n_partitions": parts, "n_bits": bits} for parts, bits in ((2, 4), (2, 6), (2, 8), (4, 4), (4, 6), (4, 8))
        ],
        "max_iter": [{"max_iter": count} for count in (1, 3, 10, 30)],
    },
    "ctkvr": {"n_probes": [{"n_probes": count} for count in (1, 2, 4, 8, 16)]},
    "centroidkv": {"chunk_size": [{"chunk_size": size} for size in (64, 128, 256, 512)]},
}
OFFLOAD_TOKENS, OFFLOAD_STEPS, RECENT_STEPS = 4096, 64, (0, 1, 2)
CLUSTER_BUDGETS, BLOCK_BUDGET = (256, 512), 0.1
CAPACITIES, BLOCKS_A_STEP = (1024, 2048), (2, 4, 8, 16)  # blocks of 128 tokens
# ClusterKV (arXiv 2412.03213), section V-C: 32k tokens of NarrativeQA, another model.
HIT_RATES_OF_THE_PAPER = {1: 0.63, 2: 0.74}
LEDGER_METHODS = ("clusterkv", "pqcache", "ctkvr", "centroidkv", "quest", "snapkv", "h2o", "streaming_llm")
LAYER_TOKENS, LAYER_METHODS = 1024, ("pyramidkv", "snapkv", "centroidkv", "clusterkv")


@recipe("table")
def budgets(lm: LanguageModel) -> pd.DataFrame:
    """Recall, attention mass and output error of eight methods at budgets 128 to 1,024, means of layers 5, 15, 25.

    CentroidKV's merged tokens count in recall and attention mass by their `metrics.merged_share`.
    """
    from kvviz.generation.replaying import replay

    trace = trace_of(lm)
    rows = [
        {"method": name, "budget": budget, **replay(trace, create(name, budget=budget), TABLE_STEPS).summary()}
        for name in BUDGET_METHODS
        for budget in BUDGETS
        if budget >= create(name).reserved  # CTkvr's sinks and window need more than 128
    ]
    return table_of(rows, lm, prompt_length=len(trace) - TABLE_STEPS, steps=TABLE_STEPS, layers=list(TABLE_LAYERS))


@recipe("table")
def equal_bytes(lm: LanguageModel) -> pd.DataFrame:
    """Quality and bytes of twelve methods at 1/16, 1/8 and 1/4 of the full cache's bytes, means of layers 5, 15, 25.

    `held_bytes` and `read_bytes` are sums over the layers. A method that does not fit into the bytes has no row.
    """
    from kvviz.errors import BudgetTooSmallError
    from kvviz.generation.replaying import replay
    from kvviz.metrics.byte_budgets import Bytes

    trace = trace_of(lm)
    rows: list[dict[str, Any]] = []
    for name in BYTES_METHODS:
        for share in BYTES_SHARES:
            try:
                recording = replay(trace, create(name, budget=Bytes(share)), TABLE_STEPS)
            except BudgetTooSmallError:
                continue
            ledgers = recording.ledgers.values()
            held = {key: sum(getattr(ledger, key) for ledger in ledgers) for key in ("held_bytes", "read_bytes")}
            summary = {key: value for key, value in recording.summary().items() if key != "moved_bytes"}
            rows.append({"method": name, "budget": share, "budget_tokens": recording.budget, **held, **summary})
    attrs = {"prompt_length": len(trace) - TABLE_STEPS, "steps": TABLE_STEPS, "layers": list(TABLE_LAYERS)}
    return table_of(rows, lm, hold="bytes", **attrs)


@recipe("table")
def ablations(lm: LanguageModel) -> pd.DataFrame:
    """One setting of a method varied at a time (clusters, page size, m×b, chunks), over seeds if they matter.

    `varied` names the fields; each field has a column, empty in rows that vary another field.
    """
    from kvviz.generation.replaying import replay

    trace = trace_of(lm)
    rows = []
    for name, choices in ABLATIONS.items():
        for varied, settings in choices.items():
            for fields in settings:
                for seed in ABLATION_SEEDS.get(name, (SEED,)):
                    seeded = {"seed": seed} if name in ABLATION_SEEDS else {}
                    method = create(name, budget=TABLE_BUDGET, **fields, **seeded)
                    recording = replay(trace, method, TABLE_STEPS)
                    summary, ledgers = recording.summary(), recording.ledgers
                    metadata = sum(ledger.metadata_bytes for ledger in ledgers.values())
                    rows.append({
                        "method": name, "varied": varied, **fields, "seed": seed, "budget": TABLE_BUDGET,
                        **{key: summary[key] for key in ("recall", "attention_mass", "output_error")},
                        "metadata_bytes_a_token": metadata / len(ledgers) / len(trace),
                    })  # fmt: skip
    attrs = {"prompt_length": len(trace) - TABLE_STEPS, "steps": TABLE_STEPS, "layers": list(TABLE_LAYERS)}
    table = table_of(rows, lm, budget=TABLE_BUDGET, **attrs)
    table.attrs["seed"] = "0 to 2"
    return table


@recipe("table")
def offload(lm: LanguageModel) -> pd.DataFrame:
    """Hit rates and bytes moved from host memory: ClusterKV with R = 0, 1, 2 and PQCache with its block cache.

    Bytes are sums over three layers and 64 steps, hit rates are means. `paper` is the number in ClusterKV's paper.
    """
    from kvviz.offload import BlockCache, StepCache

    trace = trace_of(lm, OFFLOAD_TOKENS)
    cases: list[tuple[str, int | float, StepCache | BlockCache]] = [
        ("clusterkv", budget, StepCache(steps)) for budget in CLUSTER_BUDGETS for steps in RECENT_STEPS
    ]
    cases += [("pqcache", BLOCK_BUDGET, StepCache(steps)) for steps in RECENT_STEPS]
    cases += [
        ("pqcache", BLOCK_BUDGET, BlockCache(blocks_a_step=blocks, capacity_tokens=capacity, policy=policy))
        for policy in ("lru", "lfu")
        for capacity in CAPACITIES
        for blocks in BLOCKS_A_STEP
    ]
    rows = []
    for name, budget, cache in cases:
        method = create(name, budget=budget)
        numbers = _played(trace, method, OFFLOAD_STEPS, cache)
        rows.append({
            "method": name, "budget": (tokens := method.budget_tokens(len(trace) - OFFLOAD_STEPS)),
            "cache": f"{name}, budget {tokens}", **_cache_columns(cache),
            **{key: numbers[key] for key in TRANSFERS},
            "device_bytes": numbers["kept_bytes"]["device"], "host_bytes": numbers["kept_bytes"]["host"],
            "paper": HIT_RATES_OF_THE_PAPER.get(getattr(cache, "recent_steps", 0)) if name == "clusterkv" else None,
        })  # fmt: skip
    table = table_of(rows, lm, prompt_length=len(trace) - OFFLOAD_STEPS, steps=OFFLOAD_STEPS, layers=list(TABLE_LAYERS))
    table["paper"] = table["paper"].astype(float)
    return table


@recipe("table")
def ledgers(lm: LanguageModel) -> pd.DataFrame:
    """Where the tokens and bytes of eight methods go at a budget of 256, keys and values in host memory.

    Tokens are counts per KV head at the last step, averaged over three layers; bytes are sums over the layers, and
    `kept_bytes` maps tiers to bytes, as `plots.budget_ledger` expects. Methods that drop tokens stay on the device.
    """
    trace = trace_of(lm)
    rows = [
        {"method": name, "budget": TABLE_BUDGET, **_played(trace, create(name, budget=TABLE_BUDGET), TABLE_STEPS)}
        for name in LEDGER_METHODS
    ]
    return table_of(rows, lm, prompt_length=len(trace) - TABLE_STEPS, steps=TABLE_STEPS, layers=list(TABLE_LAYERS))


@recipe("table")
def layer_budgets(lm: LanguageModel) -> pd.DataFrame:
    """Tokens that each layer and KV head attends to in the first step after 1,023 tokens, four methods, budget 256."""
    from kvviz.generation.capturing import capture
    from kvviz.generation.replaying import replay

    trace = capture(lm, manual(), max_tokens=LAYER_TOKENS)
    rows = []
    for name in LAYER_METHODS:
        recording = replay(trace, create(name, budget=TABLE_BUDGET), 1)
        for layer in recording.layers:
            attended = recording.attended_tokens(0, layer).tolist()
            rows += [
                {"method": name, "layer": layer, "head": head, "attended_tokens": count}
                for head, count in enumerate(attended)
            ]
    return table_of(rows, lm, prompt_length=LAYER_TOKENS - 1, budget=TABLE_BUDGET)


TRANSFERS = (
    "hit_rate", "group_hit_rate", "moved_bytes", "filled_bytes", "prefetched_bytes", "metadata_bytes",
    "host_metadata_bytes",
)  # fmt: skip
_TOKENS = ("sinks", "recent", "selected", "merged", "generated")
_BYTES = (
    "metadata_bytes", "auxiliary_bytes", "extra_bytes", "host_metadata_bytes", "moved_bytes", "filled_bytes",
    "prefetched_bytes",
)  # fmt: skip


def _played(trace: Any, method: Any, steps: int, cache: Any = None) -> dict[str, Any]:
    """Ledger and quality of one replay from host memory; tokens, rates and quality are means over the layers."""
    from kvviz.generation.replaying import replay
    from kvviz.offload import KVStore

    store = KVStore("device" if method.drops_tokens else "host", cache)
    recording = replay(trace, method, steps, store=store)
    ledgers = list(recording.ledgers.values())
    means = {name: float(np.mean([getattr(ledger, name) for ledger in ledgers])) for name in _TOKENS}
    rates = {
        name: float(np.mean([getattr(ledger, name) for ledger in ledgers])) for name in ("hit_rate", "group_hit_rate")
    }
    sums = {name: sum(int(getattr(ledger, name)) for ledger in ledgers) for name in _BYTES}
    kept = {tier: sum(ledger.kept_bytes.get(tier, 0) for ledger in ledgers) for tier in ("device", "host")}
    quality = {name: value for name, value in recording.summary().items() if name != "moved_bytes"}
    return {**means, **sums, "kept_bytes": kept, **rates, **quality}


def _cache_columns(cache: Any) -> dict[str, Any]:
    """The columns that identify a cache; those that do not apply are empty."""
    steps = getattr(cache, "recent_steps", None)
    if steps is not None:
        return {"policy": "", "recent_steps": float(steps)}
    return {
        "policy": cache.policy, "capacity_tokens": float(cache.capacity_tokens),
        "blocks_a_step": float(cache.blocks_a_step),
    }  # fmt: skip
