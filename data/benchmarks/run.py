"""Measures what the README claims and writes it, with versions and hardware, to a JSON file beside this script.

    python data/benchmarks/run.py                    everything, about ten minutes on two cores
    python data/benchmarks/run.py --only decode      one part; the others keep their last results
    python data/benchmarks/run.py --readme           only writes the results into README.md again

Times are compared inside one run, in turns, as ratios of medians: single times on a shared machine say little.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import platform
import statistics
import subprocess
import sys
import time
from importlib.metadata import version
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
DEFAULT_OUT = HERE / "cpu.json"
SEED = 0
PROMPT_TOKENS, DECODE_BUDGET, DECODE_STEPS, DECODE_TURNS = 8192, 512, 9, 10
RECALL_TOKENS, RECALL_LAYERS, RECALL_STEPS = 4096, tuple(range(2, 30, 4)), 64
RECALL_BUDGETS = (128, 256, 512, 1024)
METHODS = ("oracle", "clusterkv", "quest", "streaming_llm")


def imports() -> dict[str, Any]:
    """Seconds that an import adds to a bare interpreter, medians of nine, and what it loads."""

    def seconds(code: str) -> float:
        started = time.perf_counter()
        subprocess.run([sys.executable, "-c", code], check=True)
        return time.perf_counter() - started

    codes = {"bare": "pass", "kvviz": "import kvviz", "kvviz.plots": "import kvviz.plots"}
    times: dict[str, list[float]] = {name: [] for name in codes}
    for _ in range(9):
        for name, code in codes.items():
            times[name].append(seconds(code))
    medians = {name: statistics.median(values) for name, values in times.items()}
    loading = (
        "import time; t = time.perf_counter(); import kvviz; kvviz.load(); once = time.perf_counter(); kvviz.load()"
    )
    printing = "; print(once - t, time.perf_counter() - once)"
    loads = [subprocess.check_output([sys.executable, "-c", loading + printing], text=True).split() for _ in range(5)]
    load_s, again_s = (statistics.median(map(float, column)) for column in zip(*loads, strict=True))
    added = {f"{name}_s": medians[name] - medians["bare"] for name in ("kvviz", "kvviz.plots")}
    return {**added, "load_with_imports_s": load_s, "load_s": again_s}


def kernels() -> dict[str, Any]:
    """Kernels against what a user would pick instead, on the keys of one real layer."""
    bench = script("kernels/bench.py")
    results: dict[str, Any] = bench.run(*bench.keys_of(real_trace(PROMPT_TOKENS, (15,)), 15))
    return results


def decode() -> dict[str, Any]:
    """Milliseconds a token on SmolLM2 at 8,192 tokens, methods in turns of some steps, and their ratio to `full`."""
    import torch

    import kvviz
    from kvviz.generation import fill, wait_for_states
    from kvviz.hf import SelectiveCache, attached

    lm = kvviz.load("smollm2-135m", device="cpu")
    ids = lm.encode(prose())[:, : PROMPT_TOKENS - DECODE_STEPS * DECODE_TURNS]
    turns: dict[str, list[float]] = {name: [] for name in ("full", *METHODS[1:])}  # median seconds a token
    with torch.no_grad(), attached(lm.model):
        base = SelectiveCache(lm.model, "full")
        fill(lm, base, ids)
        caches = {name: base.fork(kvviz.methods.create(name, budget=DECODE_BUDGET)) for name in turns}
        for cache in caches.values():
            wait_for_states(cache)
        for turn in range(DECODE_TURNS):
            for name, cache in caches.items():
                times = []
                for step in range(turn * DECODE_STEPS, (turn + 1) * DECODE_STEPS):
                    started = time.perf_counter()
                    lm.model(ids[:, step : step + 1], past_key_values=cache, use_cache=True, logits_to_keep=1)
                    times.append(time.perf_counter() - started)
                turns[name].append(statistics.median(times[1:]))  # the first finds another method's data in the caches
    ratios = {name: [mine / full for mine, full in zip(turns[name], turns["full"], strict=True)] for name in turns}
    return {
        "prompt_tokens": ids.shape[1],
        "budget": DECODE_BUDGET,
        "steps_a_turn": DECODE_STEPS - 1,
        "turns": DECODE_TURNS,
        "ms_a_token": {name: 1e3 * statistics.median(values) for name, values in turns.items()},
        "ratio_to_full": {name: statistics.median(values) for name, values in ratios.items()},
        "ratio_range": {name: [min(values), max(values)] for name, values in ratios.items()},
    }


def recall() -> dict[str, Any]:
    """Recall and attention mass of each method and budget on real keys; means over layers, heads and steps."""
    import kvviz

    trace = real_trace(RECALL_TOKENS, RECALL_LAYERS)
    table: dict[str, Any] = {}
    for name in METHODS:
        for budget in RECALL_BUDGETS:
            recording = kvviz.replay(trace, name, queries=RECALL_STEPS, budget=budget, dense_layers=0)
            summary = recording.summary()
            table.setdefault(name, {})[str(budget)] = {
                key: summary[key] for key in ("recall", "attention_mass", "output_error")
            }
    return {"tokens": RECALL_TOKENS, "layers": RECALL_LAYERS, "steps": RECALL_STEPS, "methods": table}


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


def script(path: str) -> Any:
    """A script of the repository as a module."""
    spec = importlib.util.spec_from_file_location(Path(path).stem, ROOT / path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


PARTS = {part.__name__: part for part in (imports, kernels, decode, recall, widget, quickstart)}


def prose() -> str:
    """English reference prose that comes with Python (`pydoc_data.topics`), sections in alphabetical order."""
    from pydoc_data.topics import topics

    return "\n\n".join(topics[name] for name in sorted(topics))


def real_trace(tokens: int, layers: tuple[int, ...]) -> Any:
    """Queries, keys and values of SmolLM2 over the first `tokens` tokens of the prose."""
    import kvviz

    return kvviz.capture(kvviz.load("smollm2-135m", device="cpu"), prose(), layers=layers, max_tokens=tokens)


def machine() -> dict[str, Any]:
    """The hardware, versions, commit and seed that the results belong to."""
    import torch

    cpu = platform.processor() or platform.machine()
    info = Path("/proc/cpuinfo")
    if info.exists():
        names = [
            line.partition(":")[2].strip() for line in info.read_text().splitlines() if line.startswith("model name")
        ]
        cpu = f"{names[0]}, {len(names)} cores" if names else cpu
    commit = subprocess.run(["git", "-C", str(ROOT), "rev-parse", "--short", "HEAD"], capture_output=True, text=True)
    packages = ("torch", "transformers", "scikit-learn", "numpy", "plotly", "ipywidgets", "anywidget")
    return {
        "hardware": torch.cuda.get_device_name() if torch.cuda.is_available() else cpu,
        "threads": torch.get_num_threads(),
        "python": platform.python_version(), "versions": {name: version(name) for name in packages},
        "commit": commit.stdout.strip() or "unknown", "seed": SEED,
    }  # fmt: skip


def markdown(results: dict[str, Any]) -> str:
    """The README's table of what was measured."""
    rows = ["| what | measured |", "|---|---|"]
    if part := results.get("imports"):
        rows.append(
            f"| `import kvviz`, `import kvviz.plots` | {part['kvviz_s']:.2f} s, {part['kvviz.plots_s']:.2f} s |"
        )
        loads = (
            f"{part['load_s']:.2f} s; {part['load_with_imports_s']:.1f} s with the imports of torch and transformers"
        )
        rows.append(f"| `kvviz.load()`, de-quantised before | {loads} |")
    if part := results.get("decode"):
        ratios = ", ".join(f"{name} {part['ratio_to_full'][name]:.2f}" for name in METHODS[1:])
        what = f"time a token after {part['prompt_tokens']:,} tokens, budget {part['budget']}, as a share of `full`"
        rows.append(f"| {what} | {ratios} |")
    if part := results.get("kernels"):
        rows += [f"| {row['name']}: time as a share of {rival(row)} | {row['ratio']:.2f} |" for row in part["results"]]
    if part := results.get("recall"):
        for budget in RECALL_BUDGETS:
            cells = ", ".join(f"{name} {part['methods'][name][str(budget)]['recall']:.2f}" for name in METHODS[1:])
            rows.append(f"| recall of the oracle's tokens, {part['tokens']:,} tokens, budget {budget} | {cells} |")
    if part := results.get("widget"):
        frame = f"{part['lab_step_ms']:.0f} ms, at worst {part['lab_step_worst_ms']:.0f} ms"
        rows.append(f"| stepper in JupyterLab, key press to new frame at {part['tokens']:,} tokens | {frame} |")
    if part := results.get("quickstart"):
        rows.append(
            f"| quickstart notebook | {part['seconds']:.0f} s, kernel's peak memory {part['peak_gib']:.2f} GiB |"
        )
    about = results["machine"]
    rows.append("")
    rows.append(
        f"{about['hardware']}; torch {about['versions']['torch']}, transformers {about['versions']['transformers']}, "
        f"Python {about['python']}, seed {about['seed']}. Written by `make bench`."
    )
    return "\n".join(rows)


def rival(row: dict[str, Any]) -> str:
    """What a kernel was timed against."""
    return "scikit-learn's" if "scikit_learn_ms" in row else "SDPA's over all"


def write_readme(results: dict[str, Any]) -> None:
    """Put the table between README.md's benchmark markers."""
    readme = ROOT / "README.md"
    before, _, rest = readme.read_text().partition("<!-- benchmarks -->\n")
    _, _, after = rest.partition("<!-- /benchmarks -->")
    readme.write_text(f"{before}<!-- benchmarks -->\n{markdown(results)}\n<!-- /benchmarks -->{after}")


def main() -> None:
    """Run the parts asked for and write the results."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", choices=PARTS, action="append", help="a part to run; may be repeated")
    parser.add_argument("--out", type=Path, default=DEFAULT_OUT, help="README.md shows the default file alone")
    parser.add_argument("--readme", action="store_true", help="only write the last results into README.md")
    options = parser.parse_args()
    results = json.loads(options.out.read_text()) if options.out.exists() else {}
    if not options.readme:
        for name in options.only or PARTS:
            results[name] = PARTS[name]()
            print(json.dumps({name: results[name]}, indent=2))
        results["machine"] = machine()
        options.out.write_text(json.dumps(results, indent=2) + "\n")
    if options.out == DEFAULT_OUT:
        write_readme(results)


if __name__ == "__main__":
    main()
