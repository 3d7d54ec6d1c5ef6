"""Time the kernels against what a user would use instead, after checking that they give the same results.

    python kernels/bench.py [--only attention ...] [--device cuda] [--trace FILE [--layer N]] [--json out.json]

Each module in benchmarks/ times its implementations in turns; a ratio is the median over rounds of ours / theirs, and
below 1 we are faster. With a trace, k-means on the CPU is timed on the keys of one of its layers.
"""

from __future__ import annotations

import argparse
import inspect
import json
import os
import platform
from collections.abc import Collection
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import numpy as np
import torch
from benchmarks import benchmarks
from timing import ROUNDS, Row, show
from torch import Tensor

from kvviz.trace import Trace

LENGTH = 8192
SHOWN = ("kmeans", "attention")
CPU = torch.device("cpu")


def main() -> None:
    """Run the benchmarks that the command line names."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--only", nargs="+", choices=benchmarks(), help="benchmarks (default: all)")
    parser.add_argument("--device", type=torch.device, default=default_device(), help="default: a GPU if there is one")
    parser.add_argument("--trace", type=Path, help="a saved kvviz.Trace, whose keys k-means clusters")
    parser.add_argument("--layer", type=int, help="layer of the trace (default: the middle one)")
    parser.add_argument("--json", type=Path, help="where to write the results")
    options = parser.parse_args()
    if options.trace:
        trace = Trace.load(options.trace)
        layer = trace.layers[len(trace.layers) // 2] if options.layer is None else options.layer
        results = run(*keys_of(trace, layer), only=options.only, device=options.device)
    else:
        results = {**machine(), "rounds": ROUNDS, "benchmarks": measure(options.only, options.device)}
    if options.json:
        options.json.write_text(json.dumps(results, indent=1) + "\n")


def run(keys: Tensor, source: str, *, only: Collection[str] | None = None, device: torch.device | None = None) -> Row:
    """The results of all benchmarks; those that take keys use `keys` [H, L, D] from `source`.

    "results" has the rows that docs/measured.md shows, each with a "ratio" to the baseline; they are measured on the CPU,
    even if there is a GPU.
    """
    device = device or default_device()
    results: Row = {**machine(), "keys": source, "shape": list(keys.shape), "rounds": ROUNDS, "device": str(device)}
    print(*(f"{name}: {value}" for name, value in results.items()), sep="\n")
    measured = measure(only, device, keys)
    shown = measured if device.type == "cpu" else measure(SHOWN, CPU, keys)
    results["results"] = [row for name in SHOWN for row in shown.get(name, []) if "ratio" in row]
    return results | {"benchmarks": measured}


def measure(only: Collection[str] | None, device: torch.device, keys: Tensor | None = None) -> dict[str, list[Row]]:
    """Rows of each benchmark on this device, after its check; `only` names the benchmarks to run.

    `keys` [H, L, D] are for the benchmarks that take keys; the others generate their inputs.
    """
    measured = {}
    for name, benchmark in benchmarks().items():
        if only is None or name in only:
            inputs = {"keys": keys} if "keys" in inspect.signature(benchmark.rows).parameters else {}
            with torch.no_grad():
                benchmark.check(device)
                print(f"\n{name}: the same results on {device}")
                measured[name] = [show(row) for row in benchmark.rows(device, **inputs)]
    return measured


def keys_of(trace: Trace, layer: int) -> tuple[Tensor, str]:
    """Keys [H, L, D] of a trace's layer, and their description."""
    keys = torch.from_numpy(trace.keys[trace.check_layer(layer)].astype(np.float32))[:, :LENGTH].contiguous()
    return keys, f"real: {trace.model}, layer {layer}, {len(trace):,} tokens"


def default_device() -> torch.device:
    """A GPU if there is one, else the CPU."""
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


def machine() -> Row:
    """Hardware and versions."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    names = [line.split(":")[1].strip() for line in lines if line.startswith("model name")]
    return {
        "cpu": names[0] if names else platform.processor() or platform.machine(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "load": os.getloadavg()[0] if hasattr(os, "getloadavg") else "unknown",  # ratios need an idle machine
        "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else "none",
        "python": platform.python_version(),
        **{package: _version(package) for package in ("torch", "triton", "numpy", "scikit-learn", "faiss-cpu")},
    }


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "none"


if __name__ == "__main__":
    main()
