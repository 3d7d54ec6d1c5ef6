"""Paired timings: contestants take turns inside one run, and a ratio is the median over rounds of ours / theirs."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any

import torch

ROUNDS = 9
Row = dict[str, Any]


def alternate(contestants: dict[str, Callable[[], Any]], rounds: int = ROUNDS) -> dict[str, list[float]]:
    """Seconds of each contestant in each round; every round runs all of them."""
    times: dict[str, list[float]] = {name: [] for name in contestants}
    for run in contestants.values():
        run()
    for _ in range(rounds):
        for name, run in contestants.items():
            start = time.perf_counter()
            run()
            times[name].append(time.perf_counter() - start)
    return times


def paired_ratio(ours: list[float], theirs: list[float]) -> float:
    """Median over rounds of ours / theirs of the same round."""
    return statistics.median(mine / other for mine, other in zip(ours, theirs, strict=True))


def show(row: Row) -> Row:
    """The row, printed."""
    print(row["name"])
    print(*(f"  {name}: {value:.3f}" for name, value in row.items() if name != "name"), sep="\n")
    return row


def synchronized(call: Callable[[], Any]) -> Callable[[], None]:
    """The call, and the wait for the GPU to finish it."""

    def run() -> None:
        call()
        torch.cuda.synchronize()

    return run
