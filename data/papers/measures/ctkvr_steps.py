"""The time of CTkvr's step by part, and with and without the rerank, by batch: one layer, production kernels."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any

import torch

from measures import Rows, measure, texts


def _layer(lm: Any, tokens: int, batch: int) -> tuple[Any, Any, Any, Any]:
    """The context of a middle layer, and its queries, keys and values, float32 [batch, heads, tokens, D]."""
    import kvviz
    from kvviz.generation.replaying import trace_context

    layer = lm.geometry.n_layers // 2
    traces = [kvviz.capture(lm, ids, layers=[layer]) for ids in texts(lm, tokens, batch)]
    stacked = [
        torch.stack([torch.from_numpy(part[layer].astype("float32")) for part in parts])
        for parts in zip(*((trace.queries, trace.keys, trace.values) for trace in traces), strict=True)
    ]
    return (trace_context(traces[0], layer), *stacked)


def _seconds(calls: dict[str, Callable[[], Any]]) -> dict[str, float]:
    times = {}
    for name, call in calls.items():
        started = time.perf_counter()
        call()
        times[name] = time.perf_counter() - started
    return times


@measure(tokens=120, steps=3, budget=48, centroids=16, warm_up=1)
@torch.no_grad()
def ctkvr_modules(
    lm: Any, tokens: int = 4096, steps: int = 48, budget: int = 544, centroids: int = 256, warm_up: int = 8
) -> Rows:
    """Per decode step: milliseconds of recall, rerank, and attention to the host's and to the device's part.

    The prompt's last queries play the steps. On a CPU host and device are the same processor.
    """
    import kvviz
    from kvviz.kernels import gather_attention, merge_attention, take_best

    context, queries, keys, values = _layer(lm, tokens, 1)
    prompt = tokens - steps
    method = kvviz.methods.create("ctkvr", budget=budget, n_centroids=centroids, update=None, sinks=16, recent=16)
    keys, values = keys[:, :, :prompt].contiguous(), values[:, :, :prompt].contiguous()
    state = method.build(context, queries[:, :, :prompt], keys, values)
    count, end = method.free_budget(state), method.recent_start(state)
    static = torch.cat([torch.arange(method.sinks), torch.arange(end, prompt)]).expand(1, keys.shape[1], -1)
    rows = []
    for step in range(steps):
        query, made = queries[:, :, prompt + step], {}

        def recall(query: Any = query, made: dict[str, Any] = made) -> None:
            made["union"] = method.probe(state, query).union.tokens

        def rerank(query: Any = query, made: dict[str, Any] = made) -> None:
            slots = take_best(state.exact_weights(query, made["union"], method.group), count)
            made["chosen"] = made["union"].gather(-1, slots)

        def attend(indices: Any, query: Any = query) -> Any:
            return gather_attention(query, keys, values, indices, scale=context.scale)

        times = _seconds({
            "recall_ms": recall, "rerank_ms": rerank,
            "host_attention_ms": lambda made=made, attend=attend: made.update(host=attend(made["chosen"])),
            "device_attention_ms": lambda made=made, attend=attend: made.update(device=attend(static)),
            "merge_ms": lambda made=made: merge_attention(*map(list, zip(made["host"], made["device"], strict=True))),
        })  # fmt: skip
        if step >= warm_up:
            rows.append({"step": step, "union": int(made["union"].shape[-1]), "chosen": count,
                         **{name: 1e3 * seconds for name, seconds in times.items()}})  # fmt: skip
    return rows


@measure(tokens=120, batches=(1, 2), steps=3, chosen=8, ratios=(2.5, 5.0), warm_up=1)
@torch.no_grad()
def ctkvr_rerank(
    lm: Any, tokens: int = 2048, batches: tuple[int, ...] = (1, 2, 4), steps: int = 24, chosen: int = 64,
    ratios: tuple[float, ...] = (1.25, 2.5, 5.0, 10.0), warm_up: int = 4,
) -> Rows:  # fmt: skip
    """Per batch and list ratio ρ/ρ': milliseconds of a layer's step with the rerank, and attending to the whole union.

    Both steps include the recall. `recall_ratio` is the union's tokens per chosen token, L_recall / L_rerank;
    `lost_with` and `lost_without` are the shares of the exact attention that are not attended to.
    """
    import kvviz
    from kvviz import metrics
    from kvviz.kernels import gather_attention

    context, queries, keys, values = _layer(lm, tokens, max(batches))
    prompt, windows = tokens - steps, {"sinks": 16, "recent": 16}
    rows = []
    for batch in batches:
        q, k, v = (part[:batch] for part in (queries, keys, values))
        prompt_keys, prompt_values = k[:, :, :prompt].contiguous(), v[:, :, :prompt].contiguous()
        for ratio in ratios:
            fields = {"budget": 32 + chosen, "list_ratio": ratio, "update": None, **windows}
            methods = {
                "with": kvviz.methods.create("ctkvr", **fields),
                "without": kvviz.methods.create("ctkvr", **fields, rerank=False, attends="union"),
            }
            states = {
                name: method.build(context, q[:, :, :prompt], prompt_keys, prompt_values)
                for name, method in methods.items()
            }
            times: dict[str, list[float]] = {name: [] for name in methods}
            lost: dict[str, list[float]] = {name: [] for name in methods}
            for step in range(steps):
                query = q[:, :, prompt + step].contiguous()
                for name, method in methods.items():
                    started = time.perf_counter()
                    selection = method.select(states[name], query)
                    gather_attention(query, prompt_keys, prompt_values, selection.indices, scale=context.scale)
                    times[name].append(time.perf_counter() - started)
                    if step >= warm_up:
                        lost[name].append(1 - _mass(metrics, query, prompt_keys, selection.indices, context.scale))
            entries = methods["with"].n_probes * states["with"].lists.shape[-1]
            union = statistics.fmean(states["with"].deduplication) * entries
            rows.append({
                "batch": batch, "list_ratio": ratio, "recall_ratio": union / chosen,
                **{f"{name}_ms": 1e3 * statistics.median(times[name][warm_up:]) for name in methods},
                **{f"lost_{name}": statistics.fmean(lost[name]) for name in methods},
            })  # fmt: skip
    return rows


def _mass(metrics: Any, query: Any, keys: Any, indices: Any, scale: float) -> float:
    """The mean share of the exact attention of queries [B, Q, D] on the tokens at indices [B, H, S]."""
    from kvviz.methods.attention import attention_weights

    weights = attention_weights(query, keys, scale).unflatten(1, (keys.shape[1], -1)).mean(2)  # [B, H, L]
    return float(metrics.attention_mass(weights.flatten(0, 1).numpy(), indices.flatten(0, 1).numpy()).mean())
