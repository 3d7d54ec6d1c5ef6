"""What a diagnosis costs: seconds, forward passes and the process's peak memory, on one needle of 2,000 tokens."""

from __future__ import annotations

import resource
import time
from typing import Any

from .inputs import model, prose
from .needle import TOKENS

METHODS, BUDGET, NEEDLE_SEED = ("quest", "clusterkv", "centroidkv"), 256, 3


def run() -> dict[str, Any]:
    """One row per method; the evidence is found, not given. The peak is that of all diagnoses so far."""
    from kvviz.tasks import needle_sample

    sample = needle_sample(model(), prose(), tokens=TOKENS, seed=NEEDLE_SEED)
    return {"tokens": TOKENS, "budget": BUDGET, "seed": NEEDLE_SEED, "rows": [_row(sample, name) for name in METHODS]}


def _row(sample: Any, name: str) -> dict[str, Any]:
    import kvviz

    started = time.perf_counter()
    found = kvviz.diagnose(model(), sample.context, sample.answer, name, BUDGET, sample.question)
    return {
        "method": name, "seconds": time.perf_counter() - started, "passes": found.passes,
        "peak_gib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20,
    }  # fmt: skip


def lines(part: dict[str, Any]) -> list[list[str]]:
    """The summary's line."""
    what = f"`diagnose` on one needle of {part['tokens']:,} tokens, budget {part['budget']}"
    numbers = "; ".join(
        f"{row['method']} {row['seconds']:.0f} s, {row['passes']} forward passes" for row in part["rows"]
    )
    return [[what, f"{numbers}; peak memory {max(row['peak_gib'] for row in part['rows']):.1f} GiB"]]
