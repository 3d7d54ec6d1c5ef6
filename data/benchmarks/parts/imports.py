"""Seconds that imports add to a bare interpreter (medians of nine), and seconds to load the model."""

from __future__ import annotations

import statistics
import subprocess
import sys
import time
from typing import Any


def run() -> dict[str, Any]:
    """Seconds of `import kvviz`, `import kvviz.plots` and `kvviz.load()`."""
    codes = {"bare": "pass", "kvviz": "import kvviz", "kvviz.plots": "import kvviz.plots"}
    times: dict[str, list[float]] = {name: [] for name in codes}
    for _ in range(9):
        for name, code in codes.items():
            times[name].append(_seconds(code))
    medians = {name: statistics.median(values) for name, values in times.items()}
    loading = (
        "import time; t = time.perf_counter(); import kvviz; kvviz.load(); once = time.perf_counter(); kvviz.load()"
    )
    printing = "; print(once - t, time.perf_counter() - once)"
    loads = [subprocess.check_output([sys.executable, "-c", loading + printing], text=True).split() for _ in range(5)]
    load_s, again_s = (statistics.median(map(float, column)) for column in zip(*loads, strict=True))
    added = {f"{name}_s": medians[name] - medians["bare"] for name in ("kvviz", "kvviz.plots")}
    return {**added, "load_with_imports_s": load_s, "load_s": again_s}


def _seconds(code: str) -> float:
    started = time.perf_counter()
    subprocess.run([sys.executable, "-c", code], check=True)
    return time.perf_counter() - started
