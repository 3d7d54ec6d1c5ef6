"""What a decode step of PQCache and CTkvr costs at least: its kernels alone, in the model, in the place of a step.

Each layer calls the kernels with the state, queries and tokens of one real step, and attends to that step's tokens,
after 8,102 tokens with SmolLM2 in float32. Nothing else of a step is counted: no new code or list, no window, no
selection object, no ledger. `beyond_weights` is as in the decode benchmark, so that the two compare: a method whose
kernels alone exceed a limit can't keep it without faster kernels.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any

from .decode import BUDGET, FLOOR, STEPS, TURNS, Choosing, beyond, in_turns, without_attention
from .inputs import MODEL, PROMPT_TOKENS, prose


def run() -> dict[str, Any]:
    """The share of full attention's cost by method, and the median microseconds per layer by method and kernel."""
    import kvviz

    lm = kvviz.load(MODEL)
    tokens = PROMPT_TOKENS - STEPS * TURNS - 1
    found = measured(lm, lm.encode(prose())[:, : tokens + 1])
    return {"prompt_tokens": tokens, "budget": BUDGET, "turns": TURNS, **found}


def measured(lm: Any, ids: Any) -> dict[str, Any]:
    """Shares and microseconds after a prompt of all `ids` [1, L] but the last, which is decoded first."""
    import torch

    import kvviz
    from kvviz.cache.attachment import attached
    from kvviz.cache.selective_cache import SelectiveCache
    from kvviz.generation.generating import fill

    ids = ids.to(lm.device)
    with torch.no_grad(), attached(lm.model):
        base = SelectiveCache(lm.model, "full", retain_queries=True)
        fill(lm, base, ids[:, :-1])
        caches = {"full": base.fork("full"), FLOOR: without_attention(base)}
        times: dict[str, dict[str, list[float]]] = {}
        for name, kernels in KERNELS.items():
            caches[name] = base.fork(kvviz.methods.create(name, budget=BUDGET))
            layers = stepped(lm, caches[name], ids[:, -1:])
            times[name] = _only(layers, kernels(layers))
        turns, _ = in_turns(lm, caches, ids, Choosing())
    return {
        "beyond_weights": beyond(turns),
        "ms_a_token": {name: 1e3 * statistics.median(values) for name, values in turns.items()},
        "us_a_layer": {
            name: {kernel: 1e6 * statistics.median(values) for kernel, values in of_kernels.items()}
            for name, of_kernels in times.items()
        },
    }


def _only(layers: list[tuple[Any, Any, Any]], kernels: dict[str, list[Callable[[], Any]]]) -> dict[str, list[float]]:
    """Let each layer call its kernels in the place of a step; the seconds of their calls are added to the result."""
    times: dict[str, list[float]] = {kernel: [] for kernel in kernels}

    def decode(calls: list[tuple[str, Callable[[], Any]]]) -> Any:
        for kernel, call in calls:
            started = time.perf_counter()
            result = call()
            times[kernel].append(time.perf_counter() - started)
        return result[0]  # attention comes last: output and log-sum-exp

    for at, (layer, _, _) in enumerate(layers):
        calls = [(kernel, of_layers[at]) for kernel, of_layers in kernels.items()]
        layer.decode = lambda queries, calls=calls: decode(calls)
    return times


def stepped(lm: Any, cache: Any, token: Any) -> list[tuple[Any, Any, Any]]:
    """Layer, queries and selection of each layer in which the method chooses, after a step that feeds this token."""
    from kvviz.generation.generating import wait_for_states

    found = []
    wait_for_states(cache)
    for layer in cache.selective_layers:
        layer.observer = lambda layer, queries, selection, output, seconds: found.append((layer, queries, selection))
    lm.model(token, past_key_values=cache, use_cache=True, logits_to_keep=1)
    return found


def _attention(layers: list[tuple[Any, Any, Any]]) -> list[Callable[[], Any]]:
    """Attention of every layer over the tokens that its step chose."""
    from kvviz.kernels import gather_attention

    def work(layer: Any, queries: Any, selection: Any) -> Callable[[], Any]:
        keys, values, scale = layer.store.keys, layer.store.values, layer.context.scale
        indices = selection.indices
        return lambda: gather_attention(queries, keys, values, indices, scale=scale, padded=False)

    return [work(*found) for found in layers]


def _pqcache(layers: list[tuple[Any, Any, Any]]) -> dict[str, list[Callable[[], Any]]]:
    """Scores of the codes, the best tokens among them, and attention over the step's tokens."""
    from kvviz.kernels import pq_scores, take_best

    def work(layer: Any, queries: Any, selection: Any) -> tuple[Callable[[], Any], Callable[[], Any]]:
        (state,), method = layer.states, layer.method
        (book,), middle = state.books, method.recent_start(state) - method.sinks
        codes, scale, counts = book.codes[:, :, :middle], layer.context.scale, book.pair_counts(middle)
        count = method.free_budget(state)

        def score() -> Any:
            return pq_scores(queries, book.centroids, codes, group=method.group, scale=scale, counts=counts)

        scores = score()
        return score, lambda: take_best(scores, count)

    scoring, best = zip(*(work(*found) for found in layers), strict=True)
    return {"scores": list(scoring), "best tokens": list(best), "attention": _attention(layers)}


def _ctkvr(layers: list[tuple[Any, Any, Any]]) -> dict[str, list[Callable[[], Any]]]:
    """The nearest centroids, their lists' union, its exact weights, the best of them, and attention over these.

    The best tokens are taken once: the second ranking, for the list that the step adds to the index, is left out.
    """
    import torch

    from kvviz.kernels import ivf_union, take_best
    from kvviz.methods.selection import reduce_group

    def work(layer: Any, queries: Any, selection: Any) -> tuple[Callable[[], Any], ...]:
        (state,), method = layer.states, layer.method
        batch, rows, centroids, width = state.lists.shape
        lists, end, count = state.lists.view(-1, width), method.recent_start(state), method.free_budget(state)
        matrices = state.centroids.flatten(0, 1).mT

        def nearest() -> Any:
            directions = queries / torch.linalg.vector_norm(queries, dim=-1, keepdim=True)
            cosines = torch.bmm(directions.flatten(0, 1)[:, None], matrices).view(batch, -1, centroids)
            return reduce_group(cosines, rows, method.group).topk(method.n_probes).indices

        starts = torch.arange(0, batch * rows * centroids, centroids).view(batch, rows, 1)
        slots = (nearest() + starts).flatten()

        def union() -> Any:
            entries = lists.index_select(0, slots).view(batch, rows, -1)
            return ivf_union(entries, end, places=False)[0]

        tokens = union()

        def weights() -> Any:
            return state.exact_weights(queries, tokens, method.group)

        scores = weights()
        return nearest, union, weights, lambda: take_best(scores, count)

    parts = [list(part) for part in zip(*(work(*found) for found in layers), strict=True)]
    names = ("nearest centroids", "union", "exact weights", "best tokens")
    return dict(zip(names, parts, strict=True)) | {"attention": _attention(layers)}


KERNELS = {"pqcache": _pqcache, "ctkvr": _ctkvr}


def lines(part: dict[str, Any]) -> list[list[str]]:
    """The summary's lines: the cost of the kernels as a share of full attention's, and their times."""
    where = f"after {part['prompt_tokens']:,} tokens, budget {part['budget']}, float32"
    shares = ", ".join(f"{name} {share:.2f}" for name, share in part["beyond_weights"].items())
    numbers = "; ".join(
        f"{name}: {', '.join(f'{kernel} {us:.0f}' for kernel, us in kernels.items())}"
        for name, kernels in part["us_a_layer"].items()
    )
    return [
        [f"the kernels alone, {where}, beyond the model's other work, as a share of `full`'s", shares],
        ["these kernels, microseconds per layer in the model", numbers],
    ]
