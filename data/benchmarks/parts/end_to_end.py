"""Decode and prefill of a model with the shape of Llama-3.1-8B and random weights, on a GPU.

Keys and values of long prompts are random (clusters with noise), not prefilled: a decode step costs the same, and to
prefill batches of 96k tokens would take minutes each. The prefill itself is timed at one length. Batches double until
memory is full; the last one that fits counts.
"""

from __future__ import annotations

import statistics
import time
from dataclasses import dataclass
from typing import Any

STEPS, WARM_UP = 16, 4
LENGTHS = (8_192, 32_768, 98_304, 131_072)
CONTENDERS: dict[str, dict[str, Any]] = {
    "full": {},
    "clusterkv": {"budget": 1024},
    "pqcache": {"budget": 1024},
    "quest": {"budget": 1024},
    "ctkvr": {"budget": 1024},
    "centroidkv": {"budget": 0.25},
}
OFFLOADED = ("clusterkv", "pqcache", "ctkvr")
OFFLOAD_LENGTH, PREFILL_LENGTH = 98_304, 32_768


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
            head_dim=self.head_dim, max_position_embeddings=self.positions, rope_theta=500_000.0,
        )  # fmt: skip
        torch.manual_seed(seed)
        default_dtype = torch.get_default_dtype()
        torch.set_default_dtype(dtype)
        try:
            with torch.device(device):
                return LlamaForCausalLM(config).eval()
        finally:
            torch.set_default_dtype(default_dtype)


def run() -> dict[str, Any]:
    """Milliseconds and tokens per second by method, length, batch and tier; build shares of a real prefill."""
    import torch

    import kvviz

    if not torch.cuda.is_available():
        raise SystemExit("end_to_end: got no NVIDIA GPU; wanted one, since the model takes 16 GB in bfloat16")
    shape = Shape()
    model = shape.model("cuda", torch.bfloat16)
    kvviz.attach(model)
    return measure(model, shape, LENGTHS, OFFLOAD_LENGTH, PREFILL_LENGTH)


def measure(
    model: Any, shape: Shape, lengths: tuple[int, ...], offload_length: int, prefill_length: int, most: int = 512
) -> dict[str, Any]:
    """All rows, on the model's device, with batches up to `most`."""
    rows = []
    for length in lengths:
        for name in CONTENDERS:
            rows += batches(model, shape, name, "device", length, most)
    for name in OFFLOADED:
        rows += batches(model, shape, name, "host", offload_length, most)
    return {
        "shape": vars(shape) | {"dtype": str(model.dtype)},
        "steps": STEPS,
        "rows": rows,
        "offload": throughput(rows, offload_length),
        "prefill": [prefilled(model, name, prefill_length) for name in CONTENDERS],
    }


def throughput(rows: list[dict[str, Any]], length: int) -> list[dict[str, Any]]:
    """The highest tokens per second of every method and tier at a length, as a multiple of the full cache's."""
    best: dict[tuple[str, str], dict[str, Any]] = {}
    for row in rows:
        key = row["name"], row["store"]
        if (
            row["length"] == length
            and row["tokens_a_second"] > best.get(key, {"tokens_a_second": 0})["tokens_a_second"]
        ):
            best[key] = row
    full = best.get(("full", "device"), {}).get("tokens_a_second", float("nan"))
    return [
        {"name": name, "store": store, "batch": row["batch"], "ratio_to_full": row["tokens_a_second"] / full}
        for (name, store), row in best.items()
    ]


def batches(model: Any, shape: Shape, name: str, store: str, length: int, most: int) -> list[dict[str, Any]]:
    """Rows of batch 1, 2, 4 … until memory is full."""
    import torch

    import kvviz

    rows, batch = [], 1
    while batch <= most:
        try:
            rows.append(decoded(model, shape, name, store, length, batch))
        except (torch.cuda.OutOfMemoryError, kvviz.OutOfSpaceError) as error:
            print(f"{name}, {store}, {length:,} tokens, batch {batch}: {type(error).__name__}", flush=True)
            break
        finally:
            if torch.cuda.is_available():
                torch.cuda.empty_cache()
        print(rows[-1], flush=True)
        batch *= 2
    return rows


def decoded(model: Any, shape: Shape, name: str, store: str, length: int, batch: int) -> dict[str, Any]:
    """Median milliseconds of a decode step."""
    import torch

    cache = filled(model, shape, name, store, length, batch)
    times = []
    with torch.no_grad():
        for step in range(WARM_UP + STEPS):
            token = torch.full((batch, 1), 3 + step, device=model.device)
            started = time.perf_counter()
            model(token, past_key_values=cache, use_cache=True, logits_to_keep=1)
            synchronize()
            times.append(time.perf_counter() - started)
    ledger = cache.ledger()
    seconds = statistics.median(times[WARM_UP:])
    return {
        "name": name, "store": store, "length": length, "batch": batch, "ms_a_step": 1e3 * seconds,
        "tokens_a_second": batch / seconds, "attended": ledger.attended, "kept_bytes": ledger.kept_bytes,
        "moved_bytes_a_step": ledger.moved_bytes / (WARM_UP + STEPS),
        "build_ms": 1e3 * sum(layer.build_s for layer in cache.selective_layers),
    }  # fmt: skip


def filled(model: Any, shape: Shape, name: str, store: str, length: int, batch: int) -> Any:
    """An indexed cache with `length` random tokens per sequence."""
    import torch

    import kvviz

    cache = kvviz.SelectiveCache(model, kvviz.methods.create(name, **CONTENDERS[name]), store)
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
        cache = kvviz.SelectiveCache(model, kvviz.methods.create(name, **CONTENDERS[name]))
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
