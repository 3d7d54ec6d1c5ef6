"""One layer with the shape of Llama-3.1-8B at 128k tokens on a GPU: attention of a step, and building each index.

The papers' claims for single layers: CentroidKV's attention at a quarter of the tokens, CTkvr's index in 0.43 ms. Keys
are random (see end_to_end.py); times are medians over synchronised runs.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Collection
from contextlib import nullcontext
from typing import Any

from .end_to_end import ROPE_THETA, Shape, contenders, drawn, synchronize

LENGTH, BATCHES, RUNS = 131_072, (1, 8), 20


def run(methods: Collection[str] | None = None) -> dict[str, Any]:
    """Rows by method and batch: milliseconds of a decode step's attention and of building, ratios to `full`."""
    import torch

    if not torch.cuda.is_available():
        raise SystemExit("long_layers: got no NVIDIA GPU; wanted one")
    return measure(Shape(), LENGTH, BATCHES, torch.device("cuda"), torch.bfloat16, methods)


def merged(old: dict[str, Any], new: dict[str, Any]) -> dict[str, Any]:
    """Old results with those of newly measured methods in place of the same methods' rows."""
    fresh = {row["name"] for row in new["rows"]}
    return old | {"rows": [*(row for row in old["rows"] if row["name"] not in fresh), *new["rows"]]}


def measure(
    shape: Shape,
    length: int,
    batches: tuple[int, ...],
    device: Any,
    dtype: Any,
    methods: Collection[str] | None = None,
) -> dict[str, Any]:
    """All rows, on any device."""
    rows = []
    for batch in batches:
        batch_rows = [measured(shape, name, length, batch, device, dtype) for name in contenders(methods)]
        full = next(row for row in batch_rows if row["name"] == "full")
        rows += [row | {"ratio_to_full": row["decode_ms"] / full["decode_ms"]} for row in batch_rows]
        print(*rows[-len(batch_rows) :], sep="\n", flush=True)
    return {"length": length, "shape": vars(shape), "runs": RUNS, "rows": rows}


class _Like:
    """The device and dtype of random tensors."""

    def __init__(self, device: Any, dtype: Any) -> None:
        self.device, self.dtype = device, dtype


def full_attention(queries: Any, keys: Any, values: Any) -> Any:
    """Exact attention of one token, by torch's FlashAttention on a GPU.

    PyTorch's own choice there, cuDNN, makes a plan for each new length, which takes 37 ms at every decode step, where
    FlashAttention takes 0.15 ms (131,072 tokens on an NVIDIA H200, torch 2.11).
    """
    from torch.nn.attention import SDPBackend, sdpa_kernel
    from torch.nn.functional import scaled_dot_product_attention

    with sdpa_kernel(SDPBackend.FLASH_ATTENTION) if queries.is_cuda else nullcontext():
        return scaled_dot_product_attention(queries, keys, values, enable_gqa=True)


def measured(shape: Shape, name: str, length: int, batch: int, device: Any, dtype: Any) -> dict[str, Any]:
    """Milliseconds of building and decoding one layer."""
    import torch

    import kvviz
    from kvviz.cache.layer_cache import LayerCache
    from kvviz.methods.base import LayerContext
    from kvviz.trace.rotation import Rotation

    method = kvviz.methods.create(name, **contenders((name,))[name])
    last = shape.layers - 1
    context = LayerContext(
        last, shape.layers, shape.heads, shape.kv_heads, shape.head_dim, shape.head_dim**-0.5,
        rotation=Rotation(tuple(ROPE_THETA ** (-2 * pair / shape.head_dim) for pair in range(shape.head_dim // 2))),
    )  # fmt: skip
    like, generator = _Like(device, dtype), torch.Generator(device).manual_seed(0)
    keys, values = (drawn(batch, shape.kv_heads, length + RUNS, shape.head_dim, like, generator) for _ in range(2))
    needed = length if method.needs_queries and not method.is_dense(last) else 0
    queries = drawn(batch, shape.heads, needed + RUNS, shape.head_dim, like, generator)
    with torch.no_grad():
        builds = []
        for _ in range(3):  # the first compiles kernels
            layer = LayerCache(context, method)
            layer.store.reserve(keys, values, length + RUNS)
            layer.store.append(keys[:, :, :length], values[:, :, :length])
            layer.keep_queries(queries[:, :, :needed])
            layer.build()
            _ = layer.states
            synchronize()
            builds.append(layer.build_s)

        def step(at: int) -> Callable[[], Any]:
            step_queries = queries[:, :, needed + at]
            if layer.dense:
                return lambda: full_attention(step_queries[:, :, None], layer.store.keys, layer.store.values)
            return lambda: layer.decode(step_queries)

        times = []
        for at in range(RUNS):
            layer.store.append(keys[:, :, length + at : length + at + 1], values[:, :, length + at : length + at + 1])
            synchronize()
            started = time.perf_counter()
            step(at)()
            synchronize()
            times.append(time.perf_counter() - started)
    return {
        "name": name, "batch": batch, "decode_ms": 1e3 * statistics.median(times[4:]),
        "build_ms": 1e3 * statistics.median(builds[1:]),
    }  # fmt: skip
