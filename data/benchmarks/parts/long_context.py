"""A hybrid model by length of the prompt, 1k to 32k tokens: time and peak memory of prefill, decoding and capture.

Each row is measured in a process of its own, whose peak memory includes the model (float32) and torch.
"""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from .inputs import prose
from .markdown import table

MODEL, BUDGET, NEW_TOKENS = "gemma3-270m", 512, 8
LENGTHS = (1024, 2048, 4096, 8192, 16_384, 32_752)
TASKS = ("full", "clusterkv", "capture")


def run(lengths: tuple[int, ...] = LENGTHS) -> dict[str, Any]:
    """One row per length and task; the model has 32,768 positions, 16 of which are left for the answer."""
    rows = []
    for length in lengths:
        for task in TASKS:
            code = f"from parts.long_context import measured; measured({task!r}, {length})"
            folder = Path(__file__).resolve().parents[1]
            printed = subprocess.check_output([sys.executable, "-c", code], cwd=folder, text=True)
            rows.append(json.loads(printed.splitlines()[-1]))
            print(rows[-1], flush=True)
    return {"model": MODEL, "budget": BUDGET, "rows": rows}


def measured(task: str, length: int) -> None:
    """Print one row as JSON: seconds, peak memory, bytes, and how many processes wanted the processor.

    `ttft_s`: prefill and build, up to the first token; `tpot_s` per token after it; `seconds` of a whole capture of the
    layers that attend to all tokens, into a file of `file_bytes`.
    """
    import kvviz

    lm = kvviz.load(MODEL, device="cpu")
    ids = lm.encode(prose() * (1 + 6 * length // len(prose())))[:, :length]
    row: dict[str, Any] = {"task": task, "tokens": length, "load": os.getloadavg()[0]}
    if task == "capture":
        row |= _captured(lm, ids)
    else:
        fields = {} if task == "full" else {"budget": BUDGET}
        out = kvviz.generate(lm, ids, task, max_new_tokens=NEW_TOKENS, **fields)
        row |= {"ttft_s": out.timings.ttft_s, "tpot_s": out.timings.tpot_s, "build_s": out.timings.build_s}
    print(json.dumps(row | {"peak_gib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20}))


def _captured(lm: Any, ids: Any) -> dict[str, Any]:
    import time

    import kvviz

    with tempfile.TemporaryDirectory() as folder:
        path, started = Path(folder) / "trace.safetensors", time.perf_counter()
        kvviz.capture(lm, ids, layers=lm.geometry.full_layers, path=path)
        return {"seconds": time.perf_counter() - started, "file_bytes": path.stat().st_size}


def each(part: dict[str, Any]) -> str:
    """One row per length."""
    head = [
        "tokens", "prefill, s", "per token, full, s", f"per token, ClusterKV {part['budget']}, s", "capture, s",
        "trace, MB", "peak memory: full, ClusterKV, capture, GiB",
    ]  # fmt: skip
    by_length: dict[int, dict[str, Any]] = {}
    for row in part["rows"]:
        by_length.setdefault(row["tokens"], {})[row["task"]] = row
    cells = [
        [
            f"{length:,}", f"{of['full']['ttft_s']:.0f}", f"{of['full']['tpot_s']:.2f}",
            f"{of['clusterkv']['tpot_s']:.2f}", f"{of['capture']['seconds']:.0f}",
            f"{of['capture']['file_bytes'] / 1e6:.0f}", ", ".join(f"{of[task]['peak_gib']:.1f}" for task in TASKS),
        ]
        for length, of in sorted(by_length.items())
    ]  # fmt: skip
    load = max(row["load"] for row in part["rows"])
    shared = f" The machine was shared: up to {load:.0f} processes wanted its two cores." if load > 3 else ""
    return "\n\n".join([
        f"`{part['model']}` in float32, of whose 18 layers 3 attend to all tokens; prompts in chunks of 2,048 tokens. "
        f"The trace is of these 3 layers, written while it is captured.{shared}",
        table(head, cells),
        "Peak memory is that of a process, with the model's 1.0 GiB. Prefill includes the first token.",
    ])  # fmt: skip
