"""Measure what docs/measured.md shows, and write it, with versions and hardware, to a JSON file next to this script.

    python data/benchmarks/run.py                    everything
    python data/benchmarks/run.py --only decode      one part; the others keep their last results
    python data/benchmarks/run.py --only needle --methods quest    some rows of a part; the others stay
    python data/benchmarks/run.py --only needle --extend    only the batches of samples that the last results lack
    python data/benchmarks/run.py --gpu --out …      the parts that need a GPU, into a separate file
    python data/benchmarks/run.py --only end_to_end --methods quest --out …    one of them, only these methods
    python data/benchmarks/run.py --pages            only write the last results into the Markdown files again

Methods are timed in turns within one run and compared as ratios of medians, since absolute times vary between machines.
Results are saved after every part, in case a later part fails. Tables of all methods go to methods.md next to this
script, and to docs/measured.md between the markers of a part (<!-- benchmarks needle -->).
"""

from __future__ import annotations

import argparse
import json
import platform
import subprocess
import time
from pathlib import Path
from typing import Any

from parts import (
    ablations,
    build,
    cache,
    causes,
    decode,
    decode_kernels,
    diagnosis,
    edits,
    end_to_end,
    grid,
    imports,
    inputs,
    iterations,
    kernels,
    long_context,
    long_generation,
    long_layers,
    misses,
    needle,
    notebooks,
    pages,
    recall,
    schedules,
    step,
    store,
    tables,
    throughput,
    timeline,
)

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
DEFAULT_OUT, TABLES = HERE / "cpu.json", HERE / "methods.md"
MEASURED = ROOT / "docs" / "measured.md"
SEED = 0

PARTS = {
    "imports": imports.run, "kernels": kernels.run, "decode": decode.run,
    "decode_kernels": decode_kernels.run, "edits": edits.run, "diagnosis": diagnosis.run,
    "recall": recall.run, "needle": needle.run,
    "build": build.run, "step": step.run, "ablations": ablations.run, "schedules": schedules.run,
    "iterations": iterations.run, "causes": causes.run, "misses": misses.run,
    "timeline": timeline.run, "throughput": throughput.run,
    "long_generation": long_generation.run, "long_context": long_context.run, "cache": cache.run, "store": store.run,
    "grid": grid.run,
    "widget": pages.widget, "notebooks": notebooks.run,
}  # fmt: skip
# Parts whose rows are methods, with the function that merges newly measured rows into the old ones.
BY_METHOD = {
    "recall": recall.merged, "needle": inputs.merged, "end_to_end": end_to_end.merged,
    "long_layers": long_layers.merged,
}  # fmt: skip
EXTENDED = {"needle": needle.extended, "misses": misses.extended}  # parts that can add samples to their last results
ON_GPU = {"kernels": kernels.run, "long_layers": long_layers.run, "end_to_end": end_to_end.run, "decode": decode.run}


def machine() -> dict[str, Any]:
    """The hardware, versions, commit and seed that the results belong to."""
    import torch

    from kvviz.models.provenance import hardware, installed

    commit = subprocess.run(["git", "-C", str(ROOT), "rev-parse", "--short", "HEAD"], capture_output=True, text=True)
    packages = (
        "torch", "transformers", "scikit-learn", "faiss-cpu", "numpy", "numba", "plotly", "ipywidgets", "anywidget",
    )  # fmt: skip
    return {
        "hardware": hardware("cuda" if torch.cuda.is_available() else "cpu"),
        "threads": torch.get_num_threads(),
        "python": platform.python_version(), "versions": {name: installed(name) for name in packages},
        "commit": commit.stdout.strip() or "unknown", "seed": SEED,
    }  # fmt: skip


def between(text: str, marker: str, content: str) -> str:
    """The text with `content` between <!-- marker --> and <!-- /marker -->; unchanged without these markers."""
    before, opening, rest = text.partition(f"<!-- {marker} -->\n")
    _, closing, after = rest.partition(f"<!-- /{marker} -->")
    return f"{before}{opening}{content}\n{closing}{after}" if opening and closing else text


def write_markdown(results: dict[str, Any]) -> None:
    """Write the tables between the markers of docs/measured.md, and those of all methods to methods.md."""
    text = between(MEASURED.read_text(), "benchmarks", tables.summary(results))
    for name, (_, written) in tables.LONG.items():
        if name in results:
            text = between(text, f"benchmarks {name}", written(results[name]))
    MEASURED.write_text(text)
    TABLES.write_text(tables.document(results))


def main() -> None:
    """Run the chosen parts and write the results."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--only", choices={**PARTS, **ON_GPU}, action="append", help="a part to run; may be repeated")
    parser.add_argument("--gpu", action="store_true", help="run the parts that need a GPU")
    parser.add_argument(
        "--out", type=Path, default=DEFAULT_OUT, help="the results file; only the default one is shown in Markdown"
    )
    parser.add_argument("--pages", action="store_true", help="only write the last results into the Markdown files")
    parser.add_argument("--methods", nargs="+", metavar="NAME", help=f"measure only these, in {' or '.join(BY_METHOD)}")
    parser.add_argument("--extend", action="store_true", help="add the samples that the last results lack")
    options = parser.parse_args()
    if options.extend and not (options.only and set(options.only) <= EXTENDED.keys()):
        parser.error(f"--extend needs --only {' or '.join(EXTENDED)}")
    if options.methods and not (options.only and set(options.only) <= BY_METHOD.keys()):
        parser.error(f"--methods needs --only {' or '.join(BY_METHOD)}")
    results = json.loads(options.out.read_text()) if options.out.exists() else {}
    parts = {**PARTS, **ON_GPU}
    for name in () if options.pages else options.only or (ON_GPU if options.gpu else PARTS):
        started = time.perf_counter()
        again = options.methods and name in results
        if again:
            results[name] = BY_METHOD[name](results[name], parts[name](options.methods))
        elif options.extend:
            results[name] = EXTENDED[name](results[name])
        else:
            results[name] = parts[name](options.methods) if options.methods else parts[name]()
        print(json.dumps({name: results[name]}, indent=2))
        print(f"{name}: {time.perf_counter() - started:.0f} s", flush=True)
        results["machine"] = machine()
        # Results may come from several runs.
        run = {
            "commit": results["machine"]["commit"], "threads": results["machine"]["threads"],
            "seconds": round(time.perf_counter() - started),
        }  # fmt: skip
        runs = results.setdefault("runs", {})
        if again:
            run = runs[name] | {"again": {"methods": options.methods, **run}}
        elif options.extend:
            run = runs[name] | {"extended": run}
        runs[name] = run
        options.out.write_text(json.dumps(results, indent=2) + "\n")
    if options.out == DEFAULT_OUT:
        write_markdown(results)


if __name__ == "__main__":
    main()
