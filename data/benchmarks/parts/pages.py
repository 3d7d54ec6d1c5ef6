"""The stepper in a browser, and the quickstart notebook."""

from __future__ import annotations

import statistics
import sys
from typing import Any

from .inputs import PROMPT_TOKENS, ROOT, script


def widget() -> dict[str, Any]:
    """Milliseconds from a key press to the stepper's new frame at 8,192 tokens, in headless Chromium."""
    sys.path.insert(0, str(ROOT))  # a checkout's tests are no installed package
    from tests.browser import latency

    times = latency.measure(PROMPT_TOKENS)
    medians = {name: statistics.median(values) for name, values in times.items()}
    return {"tokens": PROMPT_TOKENS, **medians, "lab_step_worst_ms": max(times["lab_step_ms"])}


def quickstart() -> dict[str, Any]:
    """Seconds and peak memory of the quickstart notebook's kernel, the model's cache warm."""
    results: dict[str, Any] = script("notebooks/run.py").measure("00_quickstart")
    return results
