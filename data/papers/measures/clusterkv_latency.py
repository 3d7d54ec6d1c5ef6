"""ClusterKV, figures 12 and 13, and "effectiveness of caching" (section V-C): times of prefill, build and decoding."""

from __future__ import annotations

import statistics
import time
from typing import Any

from measures import Rows, measure, texts

STEPS_A_TURN = 8


@measure(lengths=[96], budgets=[64], turns=1)
def clusterkv_latency(
    lm: Any, lengths: tuple[int, ...] = (1024, 2048, 4096, 8128), budgets: tuple[int, ...] = (256, 512, 1024),
    turns: int = 3,
) -> Rows:  # fmt: skip
    """Per length, method, budget and turn: median seconds of a decode step and of selecting in it, prefill and build.

    Methods decode the same tokens of the text in turns. The prefill with exact attention is timed once per length; each
    method then builds its state on it, one after the other, so that nothing overlaps.
    """
    import torch

    from kvviz.cache.attachment import attached
    from kvviz.cache.selective_cache import SelectiveCache
    from kvviz.generation.generating import fill

    rows = []
    for length in lengths:
        (ids,) = texts(lm, length + turns * STEPS_A_TURN, 1)
        with torch.no_grad(), attached(lm.model):
            base = SelectiveCache(lm.model, "full", retain_queries=True)
            started = time.perf_counter()
            fill(lm, base, ids[:, :length])
            prefill_s = time.perf_counter() - started
            caches = {key: _built(base, *key) for key in _methods(budgets)}
            for turn in range(turns):
                for (name, preset, budget), (cache, build_s) in caches.items():
                    step_s, select_s = _decoded(lm, cache, ids, length + turn * STEPS_A_TURN)
                    rows.append({
                        "length": length, "method": name, "preset": preset, "budget": budget, "turn": turn,
                        "prefill_s": prefill_s, "build_s": build_s, "step_s": step_s, "select_s": select_s,
                    })  # fmt: skip
    return rows


def _methods(budgets: tuple[int, ...]) -> list[tuple[str, str, int]]:
    """Name, preset and budget: `full`, ClusterKV at each budget, InfiniGen at the smallest, Quest at the largest."""
    least, most = min(budgets), max(budgets)
    compared = [("infinigen", "paper", least), ("infinigen", "top", least), ("quest", "paper", most)]
    return [("full", "paper", 0), *(("clusterkv", "paper", budget) for budget in budgets), *compared]


def _built(base: Any, name: str, preset: str, budget: int) -> tuple[Any, float]:
    """The cached prompt with a method's state, and the seconds to build it."""
    import kvviz
    from kvviz.generation.generating import wait_for_states

    fields = {"budget": budget} if budget else {}
    cache = base.fork(kvviz.methods.create(name, preset=preset, **fields))
    wait_for_states(cache)
    return cache, sum(layer.build_s for layer in cache.selective_layers)


class Selecting:
    """An observer that adds up the seconds in which layers select."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def __call__(self, layer: Any, queries: Any, selection: Any, output: Any, select_s: float) -> None:
        """Add the seconds of one layer."""
        self.seconds += select_s


def _decoded(lm: Any, cache: Any, ids: Any, first: int) -> tuple[float, float]:
    """Median seconds of a step and of selecting in it, over one turn; the first step, with cold caches, is left out."""
    from kvviz.generation.generating import next_logits, wait_for_states

    selecting = Selecting()
    for layer in cache.selective_layers:
        if not layer.dense:
            layer.observer = selecting
    steps, selects = [], []
    for position in range(first, first + STEPS_A_TURN):
        selecting.seconds, started = 0.0, time.perf_counter()
        next_logits(lm, cache, ids[:, position : position + 1])
        wait_for_states(cache)
        steps.append(time.perf_counter() - started)
        selects.append(selecting.seconds)
    return statistics.median(steps[1:]), statistics.median(selects[1:])


@measure(tokens=136, count=1, budget=64, recent_steps=[0, 1], steps=8)
def clusterkv_caching(
    lm: Any, tokens: int = 2048, count: int = 3, budget: int = 256, recent_steps: tuple[int, ...] = (0, 1, 2),
    steps: int = 32,
) -> Rows:  # fmt: skip
    """Per text and R (steps whose tokens stay on the device): hit rates, bytes and seconds per step, from host memory.

    The runs decode the last `steps` tokens of a text in turns of 8. `fetch_s` is the time of the fetches in a step on
    this machine; `fetches` counts them. R = 0 fetches every selected token in every step.
    """
    import torch

    import kvviz
    from kvviz.cache.attachment import attached
    from kvviz.cache.selective_cache import SelectiveCache
    from kvviz.generation.generating import fill, wait_for_states
    from kvviz.offload import KVStore, StepCache

    rows = []
    for text, ids in enumerate(texts(lm, tokens, count)):
        prompt = tokens - steps
        runs: dict[int, tuple[Any, Any, int, list[float]]] = {}
        with torch.no_grad(), attached(lm.model):
            for recent in recent_steps:
                timeline = kvviz.Timeline()
                method = kvviz.methods.create("clusterkv", budget=budget)
                cache = SelectiveCache(lm.model, method, KVStore("host", StepCache(recent)), timeline=timeline)
                fill(lm, cache, ids[:, :prompt])
                wait_for_states(cache)
                runs[recent] = cache, timeline, cache.ledger().moved_bytes, []
            for turn in range(steps // STEPS_A_TURN):
                for cache, _, _, times in runs.values():
                    times.append(_decoded(lm, cache, ids, prompt + turn * STEPS_A_TURN)[0])
        for recent, (cache, timeline, before, times) in runs.items():
            ledger = cache.ledger()
            fetches = sum(event.what == "fetch" and event.phase == "decode" for event in timeline.events)
            rows.append({
                "text": text, "recent_steps": recent, "hit_rate": ledger.hit_rate, "step_s": statistics.median(times),
                "moved_bytes": (ledger.moved_bytes - before) / steps, "fetches": fetches / steps,
                "fetch_s": timeline.seconds(what="fetch", phase="decode") / steps,
                "device_bytes": ledger.kept_bytes["device"],
            })  # fmt: skip
    return rows
