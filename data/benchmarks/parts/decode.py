"""Decode times: milliseconds per token on SmolLM2 at 8,192 tokens, with methods in turns, and their ratio to `full`.

"no attention" neither selects nor attends in any layer: what remains is the model's other work, which no method can
reduce. `beyond_weights` is what selecting and attending cost beyond it, as a share of what full attention costs beyond
it; it says more about a method than the ratio of whole steps, which depends on the model. It is also measured at
shorter lengths, in the first dtype. The share of selecting includes `extend` and `select`. On a CPU float32 (kvviz's
default) and bfloat16 (the model's published dtype) are measured, and float32 with plain torch's kernels instead of the
compiled ones. Since exact attention may be slow in bfloat16 on a CPU, times are also compared with the fastest `full`
of all dtypes.
"""

from __future__ import annotations

import statistics
import time
from typing import Any
from unittest.mock import patch

from .end_to_end import synchronize
from .inputs import MODEL, PROMPT_TOKENS, SYSTEMS, prose

BUDGET, STEPS, TURNS = 512, 9, 10
LENGTHS = (1024, 2048, 4096)  # in addition to the model's length
METHODS = (*SYSTEMS, "quest", "streaming_llm")
FLOOR = "no attention"


class Choosing:
    """An observer that adds up the seconds that layers take to select."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def __call__(self, layer: Any, queries: Any, selection: Any, output: Any, select_s: float) -> None:
        """Add the seconds of one layer."""
        self.seconds += select_s


def run() -> dict[str, Any]:
    """Medians by dtype. A ratio is the median over turns; the ratio to the fastest `full` is one of medians."""
    import torch

    cuda = torch.cuda.is_available()
    dtypes = (torch.bfloat16,) if cuda else (torch.float32, torch.bfloat16)
    device, longest = "cuda" if cuda else "cpu", PROMPT_TOKENS - STEPS * TURNS
    by_dtype = {str(dtype).removeprefix("torch."): _measured(device, dtype, longest) for dtype in dtypes}
    by_length = {str(tokens): _measured(device, dtypes[0], tokens)["beyond_weights"] for tokens in LENGTHS}
    by_length[str(longest)] = next(iter(by_dtype.values()))["beyond_weights"]
    plain = {} if cuda else {"beyond_weights_plain_torch": _with_plain_torch(device, dtypes[0], longest)}
    fastest = min(numbers["ms_a_token"]["full"] for numbers in by_dtype.values())
    for numbers in by_dtype.values():
        numbers["ratio_to_fastest_full"] = {name: ms / fastest for name, ms in numbers["ms_a_token"].items()}
    return {
        "prompt_tokens": longest,
        "budget": BUDGET,
        "steps_a_turn": STEPS - 1,
        "turns": TURNS,
        "dtypes": by_dtype,
        "beyond_weights_by_length": by_length,
        **plain,
    }


def _with_plain_torch(device: str, dtype: Any, tokens: int) -> dict[str, float]:
    """`beyond_weights` as without Numba, from steps of their own."""
    from kvviz_kernels import dispatch

    with patch.object(dispatch, "has_numba", lambda: False):
        beyond_weights: dict[str, float] = _measured(device, dtype, tokens)["beyond_weights"]
    return beyond_weights


def _measured(device: str, dtype: Any, tokens: int) -> dict[str, Any]:
    """Milliseconds, ratios and shares by method, after a prompt of so many tokens."""
    import torch

    import kvviz
    from kvviz.cache.attachment import attached
    from kvviz.cache.selective_cache import SelectiveCache
    from kvviz.generation.generating import fill, wait_for_states

    lm = kvviz.load(MODEL, device=device, dtype=dtype)
    ids = lm.encode(prose())[:, :tokens].to(lm.device)
    chosen = [kvviz.methods.create(name, budget=BUDGET) for name in METHODS if name in kvviz.methods.names()]
    with torch.no_grad(), attached(lm.model):
        retain_queries = any(method.needs_queries for method in chosen)
        base = SelectiveCache(lm.model, "full", retain_queries=retain_queries)
        fill(lm, base, ids)
        caches = {"full": base.fork("full"), FLOOR: without_attention(base)}
        caches |= {method.name: base.fork(method) for method in chosen}
        choosing = Choosing()
        for name, cache in caches.items():
            wait_for_states(cache)
            for layer in cache.selective_layers:
                if name != FLOOR and not layer.dense:
                    layer.observer = choosing
        turns, seconds = in_turns(lm, caches, ids, choosing)
    shares = {method.name: seconds[method.name] for method in chosen}
    ratios = {name: [ms / full for ms, full in zip(turns[name], turns["full"], strict=True)] for name in turns}
    return {
        "beyond_weights": beyond(turns),
        "ms_a_token": {name: 1e3 * statistics.median(values) for name, values in turns.items()},
        "ratio_to_full": {name: statistics.median(values) for name, values in ratios.items()},
        "choosing_share": {name: statistics.median(values) for name, values in shares.items()},
        "ratio_range": {name: [min(values), max(values)] for name, values in ratios.items()},
    }


def without_attention(base: Any) -> Any:
    """A fork of the prompt's cache whose layers neither select nor attend."""
    cache = base.fork("streaming_llm")
    for layer in cache.selective_layers:
        layer.decode = lambda queries: queries  # has the shape of an output
    return cache


def in_turns(
    lm: Any, caches: dict[str, Any], ids: Any, choosing: Choosing
) -> tuple[dict[str, list[float]], dict[str, list[float]]]:
    """By cache, the median seconds of each turn's decode steps, and the median share that `choosing` noted of them."""
    turns: dict[str, list[float]] = {name: [] for name in caches}
    shares: dict[str, list[float]] = {name: [] for name in caches}
    for turn in range(TURNS):
        for name, cache in caches.items():
            times, shares_of_steps = [], []
            for step in range(turn * STEPS, (turn + 1) * STEPS):
                choosing.seconds, started = 0.0, time.perf_counter()
                lm.model(ids[:, step : step + 1], past_key_values=cache, use_cache=True, logits_to_keep=1)
                synchronize()
                times.append(time.perf_counter() - started)
                shares_of_steps.append(choosing.seconds / times[-1])
            shares[name].append(statistics.median(shares_of_steps[1:]))
            turns[name].append(statistics.median(times[1:]))  # at the first, caches hold another method's data
    return turns, shares


def beyond(turns: dict[str, list[float]]) -> dict[str, float]:
    """What each cache's steps cost beyond FLOOR, as a share of what those of `full` do: medians over turns."""
    costs = {name: [ms - floor for ms, floor in zip(turns[name], turns[FLOOR], strict=True)] for name in turns}
    return {
        name: statistics.median(ms / full for ms, full in zip(costs[name], costs["full"], strict=True))
        for name in turns if name not in ("full", FLOOR)
    }  # fmt: skip


def lines(part: dict[str, Any]) -> list[list[str]]:
    """The lines of docs/measured.md: ratios and shares by method."""
    asked = f"time per token after {part['prompt_tokens']:,} tokens, budget {part['budget']}, {{}}, as a share of {{}}"
    fastest = min(part["dtypes"], key=lambda dtype: part["dtypes"][dtype]["ms_a_token"]["full"])
    found_lines = []
    for dtype, found in part["dtypes"].items():
        found_lines.append([asked.format(dtype, "`full`"), _numbers(found["ratio_to_full"])])
        if dtype != fastest:
            against = f"`full` in {fastest}, where that is faster"
            found_lines.append([asked.format(dtype, against), _numbers(found["ratio_to_fastest_full"], "full")])
        if "beyond_weights" in found:
            what = f"selecting and attending then, beyond the model's other work, as a share of `full`'s, {dtype}"
            found_lines.append([what, _numbers(found["beyond_weights"])])
        found_lines.append([f"selecting tokens, as a share of such a step, {dtype}", _numbers(found["choosing_share"])])
    if "beyond_weights_plain_torch" in part:
        what = "the same share, float32, with plain torch's kernels instead of the compiled ones (`kvviz[cpu]`)"
        found_lines.append([what, _numbers(part["beyond_weights_plain_torch"])])
    for tokens, shares in part.get("beyond_weights_by_length", {}).items():
        found_lines.append([f"the same share beyond the other work, after {int(tokens):,} tokens", _numbers(shares)])
    return found_lines


def _numbers(by_name: dict[str, float], *others: str) -> str:
    """The methods' numbers, without that of `full` unless it is one of the `others`."""
    return ", ".join(f"{name} {number:.2f}" for name, number in by_name.items() if name != "full" or name in others)
