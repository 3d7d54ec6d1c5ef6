"""CentroidKV's ablations, tables 8 and 9: chunks, and the schedule of the compression ratio."""

from __future__ import annotations

import statistics
import time
from dataclasses import replace
from typing import Any

from measures import Rows, measure, texts

CHUNKS: tuple[int | None, ...] = (64, 128, 256, None)
FIRST, STEP = (1.0, 0.9, 0.8), (0.0, 0.1, 0.2, 0.3)  # r_init and δ_r of table 9
EVICTION = ("snapkv", "streaming_llm")
PAPER = {"chunk_size": 256, "initial_ratio": 0.8, "ratio_step": 0.2}


def settings() -> list[dict[str, Any]]:
    """The paper's settings, each chunk size beside them, and each schedule."""
    chunks = [{**PAPER, "chunk_size": size} for size in CHUNKS]
    schedules = [{**PAPER, "initial_ratio": first, "ratio_step": step} for first in FIRST for step in STEP]
    return [PAPER, *(each for each in [*chunks, *schedules] if each != PAPER)]


@measure(tokens=128, count=1, steps=1, budget=0.75, fields={"sinks": 4, "recent": 8})
def centroidkv_settings(
    lm: Any, tokens: int = 1024, count: int = 3, steps: int = 16, budget: float = 0.25,
    fields: dict[str, Any] | None = None,
) -> Rows:  # fmt: skip
    """Per text, setting and layer: output error with a share of the cache left, and that of two eviction methods.

    `fields` are for CentroidKV; the other methods run as in their papers, without their settings in the rows.
    """
    import kvviz

    methods = [({"method": "centroidkv", **each}, {**each, **(fields or {})}) for each in settings()]
    methods += [({"method": name}, {"dense_layers": 0}) for name in EVICTION]
    rows = []
    for text, ids in enumerate(texts(lm, tokens, count)):
        trace = kvviz.capture(lm, ids)
        for about, chosen in methods:
            method = kvviz.methods.create(about["method"], budget=budget, **chosen)
            recording = kvviz.replay(trace, method, queries=steps)
            for layer in recording.layers:
                error = float(recording.events[layer].output_error.mean())
                rows.append({"text": text, **_stored(about), "layer": layer, "output_error": error})
        print(f"text {text}", flush=True)
    return rows


def _stored(setting: dict[str, Any]) -> dict[str, Any]:
    """A setting whose chunk size is text."""
    return {name: str(value or "none") if name == "chunk_size" else value for name, value in setting.items()}


@measure(lengths=[64], layer=2, runs=1, budget=0.4, fields={"sinks": 4, "recent": 8})
def centroidkv_build(
    lm: Any, lengths: tuple[int, ...] = (1024, 2048, 4096, 8000), layer: int = 14, runs: int = 5, budget: float = 0.25,
    fields: dict[str, Any] | None = None,
) -> Rows:  # fmt: skip
    """Per setting and length: seconds to compress one layer after the prompt, a median of `runs`, in turns."""
    import torch

    import kvviz
    from kvviz.generation.replaying import trace_context

    (ids,) = texts(lm, max(lengths), 1)
    trace = kvviz.capture(lm, ids, layers=(layer,))
    stored = [torch.from_numpy(part[layer].astype("float32"))[None] for part in (trace.keys, trace.values)]
    context = replace(trace_context(trace, layer), details=False)
    seconds: dict[tuple[int, int], list[float]] = {}
    for run in range(runs + 1):
        for length in lengths:
            keys, values = (part[:, :, :length].contiguous() for part in stored)
            for place, setting in enumerate(settings()):
                method = kvviz.methods.create("centroidkv", budget=budget, **setting, **(fields or {}))
                started = time.perf_counter()
                with torch.no_grad():
                    method.build(context, keys, keys, values)  # the method does not read queries
                if run:
                    seconds.setdefault((place, length), []).append(time.perf_counter() - started)
    return [
        {**_stored(setting), "length": length, "seconds": statistics.median(seconds[place, length])}
        for place, setting in enumerate(settings()) for length in lengths
    ]  # fmt: skip
