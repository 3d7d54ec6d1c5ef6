"""Paired timings: implementations take turns within one run; a ratio is the median over rounds of ours / theirs."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any

import torch
from kvviz_kernels import Impl, has_triton

ROUNDS = 9
Row = dict[str, Any]
Call = Callable[[], Any]


def forms(device: torch.device) -> list[Impl]:
    """The forms of our kernels that run on this device; the last one is the fastest."""
    return ["naive", "fused"] if device.type == "cuda" and has_triton() else ["naive"]


def alternate(calls: dict[str, Call], rounds: int = ROUNDS, before: Call | None = None) -> dict[str, list[float]]:
    """Seconds of each implementation in each round; a round runs all of them, with `before`, not timed, before each."""
    times: dict[str, list[float]] = {name: [] for name in calls}
    for run in calls.values():
        run()
    for _ in range(rounds):
        for name, run in calls.items():
            if before is not None:
                before()
            start = time.perf_counter()
            run()
            times[name].append(time.perf_counter() - start)
    return times


def paired_ratio(ours: list[float], theirs: list[float]) -> float:
    """Median over rounds of ours / theirs in the same round."""
    return statistics.median(our_s / their_s for our_s, their_s in zip(ours, theirs, strict=True))


def row_of(name: str, times: dict[str, list[float]], ours: str, *, unit: str = "us", calls: int = 1) -> Row:
    """A row of results from `alternate`: medians per call, of `calls` calls, and the ratio of `ours` to each other."""
    ratios = {f"ratio_to_{impl}": paired_ratio(times[ours], s) for impl, s in times.items() if impl != ours}
    return {"name": name, **medians(times, unit, calls), **ratios}


def medians(times: dict[str, list[float]], unit: str = "us", calls: int = 1) -> Row:
    """Columns with the median of each implementation per call, of `calls` calls."""
    factor = {"us": 1e6, "ms": 1e3}[unit] / calls
    return {f"{impl}_{unit}": factor * statistics.median(seconds) for impl, seconds in times.items()}


def show(row: Row) -> Row:
    """Print the row, and return it."""
    print(row["name"])
    for name, value in row.items():
        if name != "name":
            print(f"  {name}: {value:.3f}" if isinstance(value, float) else f"  {name}: {value}", flush=True)
    return row


def waiting(calls: dict[str, Call], device: torch.device) -> dict[str, Call]:
    """The calls, each followed by a wait for the GPU if they run on one."""
    return {name: synchronized(call) for name, call in calls.items()} if device.type == "cuda" else calls


def synchronized(call: Call) -> Call:
    """The call, followed by a wait for the GPU."""

    def run() -> None:
        call()
        torch.cuda.synchronize()

    return run


def captured(call: Call) -> Call:
    """The call as a CUDA graph, without host time between its launches, followed by a wait for the GPU."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(2):  # compile, and fill caches that cannot be filled while capturing
            call()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        call()
    return synchronized(graph.replay)


def copy_bandwidth(device: torch.device) -> float:
    """Bytes per second that a copy of 1 GiB on this GPU reads and writes."""
    source = torch.empty(2**30, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    times = alternate({"copy": synchronized(lambda: target.copy_(source))})
    return 2 * source.numel() / statistics.median(times["copy"])
