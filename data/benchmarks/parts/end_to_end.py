"""Decode and prefill of a model with the shape of Llama-3.1-8B and random weights, on a GPU, with every method.

Keys and values of long prompts are random (clusters with noise), not prefilled: a decode step costs the same, and to
prefill batches of 96k tokens would take minutes each. The prefill itself is timed at one length. Batches double until
memory is full or an index takes over a minute to build; each is tried for a few steps, and the fastest is then measured
for all. Among these are the rare ones that cluster, merge or free tokens: a batch's tokens per second are over the mean
of its steps, while `ms_a_step` is the median.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

from .inputs import configurations

# ClusterKV clusters once in 320 generated tokens; CentroidKV merges and PQCache codes once in 64.
STEPS, TRIED_STEPS, WARM_UP = 320, 16, 4
LONGEST_BUILD_MS = 60_000
LENGTHS = (8_192, 32_768, 98_304, 131_072)
ROPE_THETA = 500_000.0
BUDGET, BUDGETS = 1024, {"centroidkv": 0.25}  # a quarter of the prompt, as in CentroidKV's paper
FIELDS = {"kvzip": {"preset": "prompt"}}  # there is no text to repeat
# The methods whose papers keep tokens in host memory.
OFFLOADED = ("clusterkv", "pqcache", "ctkvr", "infinigen", "infllm", "magicpig", "retrieval_attention", "shadowkv")
OFFLOAD_LENGTH, PREFILL_LENGTH = 98_304, 32_768


def contenders(methods: Collection[str] | None = None) -> dict[str, dict[str, Any]]:
    """The fields of every method, or of `methods`, by name; full attention, the reference, comes first.

    A method whose package is not installed is left out, which is printed: a machine with a GPU may have no network.
    """
    import kvviz
    from kvviz.errors import MissingDependencyError

    names = None if methods is None else {"full", *methods}
    fields = {
        row.name: {"budget": BUDGETS.get(row.name, BUDGET), **FIELDS.get(row.name, {})}
        for row in configurations((), names)
    }
    for name, values in list(fields.items()):
        try:
            kvviz.methods.create(name, **values)
        except MissingDependencyError as error:
            print(f"left out: {error}", flush=True)
            del fields[name]
    return fields


@dataclass(frozen=True)
class Shape:
    """The sizes of a Llama model."""

    layers: int = 32
    heads: int = 32
    kv_heads: int = 8
    head_dim: int = 128
    hidden: int = 4096
    intermediate: int = 14_336
    vocabulary: int = 128_256
    positions: int = 131_072 + 4_096

    def model(self, device: Any, dtype: Any, seed: int = 0) -> Any:
        """The model, with random weights on the device."""
        import torch
        from transformers import LlamaConfig, LlamaForCausalLM

        config = LlamaConfig(
            vocab_size=self.vocabulary, hidden_size=self.hidden, intermediate_size=self.intermediate,
            num_hidden_layers=self.layers, num_attention_heads=self.heads, num_key_value_heads=self.kv_heads,
            head_dim=self.head_dim, max_position_embeddings=self.positions, rope_theta=ROPE_THETA,
        )  # fmt: skip
        torch.manual_seed(seed)
        default_dtype = torch.get_default_dtype()
        torch.set_default_dtype(dtype)
        try:
            with torch.device(device):
                return LlamaForCausalLM(config).eval()
        finally:
            torch.set_default_dtype(default_dtype)


def run(methods: Collection[str] | None = None) -> dict[str, Any]:
    """Milliseconds and tokens per second by method, length, batch and tier; build shares of a real prefill."""
    import torch

    import kvviz

    if not torch.cuda.is_available():
        raise SystemExit("end_to_end: got no NVIDIA GPU; wanted one, since the model takes 16 GB in bfloat16")
    shape = Shape()
    model = shape.model("cuda", torch.bfloat16)
    kvviz.attach(model)
    return measure(model, shape, LENGTHS, OFFLOAD_LENGTH, PREFILL_LENGTH, methods=methods)


def merged(old: dict[str, Any], new: dict[str, Any]) -> dict[str, Any]:
    """Old results with those of newly measured methods in place of the same methods' rows."""
    fresh = {row["name"] for row in new["rows"]}
    both = {
        table: [*(row for row in old[table] if row["name"] not in fresh), *new[table]] for table in ("rows", "prefill")
    }
    return old | both | {"offload": throughput(both["rows"], new["offload_length"])}


def measure(
    model: Any,
    shape: Shape,
    lengths: tuple[int, ...],
    offload_length: int,
    prefill_length: int,
    most: int = 512,
    methods: Collection[str] | None = None,
) -> dict[str, Any]:
    """All rows, on the model's device, with batches up to `most`."""
    fields = contenders(methods)
    tiers = [(name, "device", length) for length in lengths for name in fields]
    tiers += [(name, "host", offload_length) for name in OFFLOADED if name in fields]
    rows = [row for tier in tiers for row in batches(model, shape, *tier, most)]
    return {
        "shape": vars(shape) | {"dtype": str(model.dtype)},
        "steps": STEPS,
        "rows": rows,
        "offload_length": offload_length,
        "offload": throughput(rows, offload_length),
        "prefill": [prefilled(model, name, prefill_length) for name in fields],
    }


def throughput(rows: list[dict[str, Any]], length: int) -> list[dict[str, Any]]:
    """The fastest batch of every method and tier at a length, and its speed as a multiple of the full cache's."""
    best = {(row["name"], row["store"]): row for row in rows if row["length"] == length and row["steps"] == STEPS}
    full = best.get(("full", "device"), {}).get("tokens_a_second", float("nan"))
    return [
        {"name": name, "store": store, "batch": row["batch"], "ratio_to_full": row["tokens_a_second"] / full}
        for (name, store), row in best.items()
    ]


def batches(model: Any, shape: Shape, name: str, store: str, length: int, most: int) -> list[dict[str, Any]]:
    """Rows of batch 1, 2, 4 … until memory is full or building is slow; the fastest that fits is measured in full."""
    tried, batch = [], 1
    while batch <= most:
        row = decoded_if_it_fits(model, shape, name, store, length, batch, TRIED_STEPS)
        if row is None:
            break
        tried.append(row)
        if row["build_ms"] > LONGEST_BUILD_MS:
            break
        batch *= 2
    for best in sorted(tried, key=lambda row: row["tokens_a_second"], reverse=True):
        row = decoded_if_it_fits(model, shape, name, store, length, best["batch"], STEPS)
        if row is not None:
            return [*(other for other in tried if other is not best), row]
    return tried


def decoded_if_it_fits(
    model: Any, shape: Shape, name: str, store: str, length: int, batch: int, steps: int
) -> dict[str, Any] | None:
    """The row of `decoded`; None if the device or the host has too little memory."""
    import torch

    import kvviz

    try:
        row = decoded(model, shape, name, store, length, batch, steps)
    except (torch.cuda.OutOfMemoryError, kvviz.OutOfSpaceError) as error:
        print(f"{name}, {store}, {length:,} tokens, batch {batch}: {type(error).__name__}", flush=True)
        return None
    finally:
        if torch.cuda.is_available():
            torch.cuda.empty_cache()
    print(row, flush=True)
    return row


def decoded(model: Any, shape: Shape, name: str, store: str, length: int, batch: int, steps: int) -> dict[str, Any]:
    """Milliseconds of a decode step, median and mean over `steps`."""
    import torch

    cache = filled(model, shape, name, store, length, batch)
    times = []
    with torch.no_grad():
        for step in range(WARM_UP + steps):
            token = torch.full((batch, 1), 3 + step % (shape.vocabulary - 3), device=model.device)
            started = time.perf_counter()
            model(token, past_key_values=cache, use_cache=True, logits_to_keep=1)
            synchronize()
            times.append(time.perf_counter() - started)
    ledger, counted = cache.ledger(), times[WARM_UP:]
    return {
        "name": name, "store": store, "length": length, "batch": batch, "steps": steps,
        "ms_a_step": 1e3 * statistics.median(counted), "mean_ms_a_step": 1e3 * statistics.mean(counted),
        "tokens_a_second": batch / statistics.mean(counted), "attended": ledger.attended,
        "kept_bytes": ledger.kept_bytes, "moved_bytes_a_step": ledger.moved_bytes / len(times),
        "build_ms": 1e3 * sum(layer.build_s for layer in cache.selective_layers),
    }  # fmt: skip


def filled(model: Any, shape: Shape, name: str, store: str, length: int, batch: int) -> Any:
    """An indexed cache with `length` random tokens per sequence."""
    import torch

    import kvviz

    cache = kvviz.SelectiveCache(model, kvviz.methods.create(name, **contenders((name,))[name]), store)
    generator = torch.Generator(model.device).manual_seed(0)
    with torch.no_grad():
        for layer, selective in zip(cache.selective_layers, cache.layers, strict=True):
            keys, values = (drawn(batch, shape.kv_heads, length, shape.head_dim, model, generator) for _ in range(2))
            layer.store.reserve(keys, values, length + STEPS + WARM_UP)
            layer.store.append(keys, values)
            selective.is_initialized = True
            if layer.method.needs_queries and not layer.dense:
                layer.keep_queries(drawn(batch, shape.heads, length, shape.head_dim, model, generator))
            del keys, values
            layer.build()
        cache.wait()
        synchronize()
    return cache


def drawn(batch: int, heads: int, length: int, dim: int, model: Any, generator: Any) -> Any:
    """Random vectors [B, H, L, D]: 64 centres per head, with noise."""
    import torch

    fields = {"device": model.device, "dtype": model.dtype, "generator": generator}
    centres = torch.randn(heads, 64, dim, **fields)
    which = torch.randint(64, (length,), device=model.device, generator=generator)
    return torch.randn(batch, heads, length, dim, **fields).mul_(0.5).add_(centres[:, which])


def prefilled(model: Any, name: str, length: int) -> dict[str, Any]:
    """Seconds of a real prefill of `length` random tokens, and the share of building (paper: 6-8 %)."""
    import torch

    import kvviz
    from kvviz.generation.generating import PREFILL_CHUNK

    ids = torch.randint(3, 100, (1, length), generator=torch.Generator().manual_seed(0)).to(model.device)
    times = []
    for _ in range(2):  # the first compiles kernels
        cache = kvviz.SelectiveCache(model, kvviz.methods.create(name, **contenders((name,))[name]))
        cache.expect(length)
        synchronize()
        started = time.perf_counter()
        with torch.no_grad():
            for chunk in ids.split(PREFILL_CHUNK, dim=1):
                model(chunk, past_key_values=cache, use_cache=True, logits_to_keep=1)
            cache.wait()
        synchronize()
        times.append(time.perf_counter() - started)
    build_s = sum(layer.build_s for layer in cache.selective_layers)
    return {
        "name": name, "length": length, "prefill_s": times[-1], "build_s": build_s,
        "build_share": build_s / times[-1],
    }  # fmt: skip


def synchronize() -> None:
    """Wait for the GPU, if there is one."""
    import torch

    if torch.cuda.is_available():
        torch.cuda.synchronize()
