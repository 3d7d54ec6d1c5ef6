"""Paired timings: implementations take turns within one run; a ratio is the median over rounds of ours / theirs."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any

import torch

ROUNDS = 9
Row = dict[str, Any]


def alternate(
    calls: dict[str, Callable[[], Any]], rounds: int = ROUNDS, before: Callable[[], Any] | None = None
) -> dict[str, list[float]]:
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
    factor = {"us": 1e6, "ms": 1e3}[unit] / calls
    row: Row = {"name": name} | {f"{impl}_{unit}": factor * statistics.median(s) for impl, s in times.items()}
    return row | {f"ratio_to_{impl}": paired_ratio(times[ours], s) for impl, s in times.items() if impl != ours}


def show(row: Row) -> Row:
    """Print the row, and return it."""
    print(row["name"])
    for name, value in row.items():
        if name != "name":
            print(f"  {name}: {value:.3f}" if isinstance(value, float) else f"  {name}: {value}", flush=True)
    return row


def synchronized(call: Callable[[], Any]) -> Callable[[], None]:
    """The call, followed by a wait for the GPU."""

    def run() -> None:
        call()
        torch.cuda.synchronize()

    return run


def captured(call: Callable[[], Any]) -> Callable[[], None]:
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
