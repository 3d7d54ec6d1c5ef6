"""Score every method on every task: fill results.parquet next to this script, and write README.md from it.

    python data/benchmarks/results.py           the whole grid on a GPU; without one, the part for two cores
    python data/benchmarks/results.py --whole   the whole grid, with or without a GPU
    python data/benchmarks/results.py --page    only README.md, from the existing results
    python data/benchmarks/results.py --again quest ctkvr    these methods once more, after a change of their code

An interrupted run can be resumed. Cells in the file are never run again, so the part for two cores counts towards the
whole grid; those of methods whose fields have changed since are dropped. On the same machine and commit, a second run
from scratch writes the same file.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as parquet
import torch

import kvviz
from kvviz.evaluation import report
from kvviz.evaluation.grid import cells, examples
from kvviz.methods import Method
from kvviz.methods.pqcache import PQCache
from kvviz.metrics import compensated_budget
from kvviz.tasks import Task, create
from kvviz.trace.storage import replacing

HERE = Path(__file__).resolve().parent
OUT, PAGE = HERE / "results.parquet", HERE / "README.md"
MODEL, SEED, JOBS = "smollm2-135m", 0, 2
RULER = (
    "niah_single_1", "niah_single_2", "niah_single_3", "niah_multikey_1", "niah_multikey_2", "niah_multikey_3",
    "niah_multivalue", "niah_multiquery", "vt", "cwe", "fwe", "qa_1", "qa_2",
)  # fmt: skip


@dataclass(frozen=True)
class Grid:
    """The arguments of one call of `kvviz.evaluate`; all methods by default."""

    tasks: tuple[str | Task, ...]
    lengths: tuple[int, ...]
    budgets: tuple[int | float, ...]
    samples: int
    # The official preset of ClusterKV makes many more clusters.
    methods: Sequence[str] | Mapping[str, Method] = (*kvviz.methods.names(), "clusterkv:official", "infinigen:top")
    hold: Literal["tokens", "bytes"] = "tokens"


NEEDLES, OTHERS = ("needle", "niah_single_2", "niah_multikey_1"), ("needle_multi_turn", "kv_retrieval", "perplexity")
# The question at the end of the prompt, as in most papers: an eviction method then knows the question.
LAST = create("needle", placement="last")
# Methods with other fields, to separate the method from its settings. InfiniGen's threshold is relative to the largest
# weight, which is often that of a sink, also where sinks are kept separately. CTkvr's preset has 64 sinks and 64 recent
# tokens. CentroidKV's share of links falls from round to round by default.
FIELDS = {
    "infinigen, sinks kept": kvviz.methods.create("infinigen", sinks=4, recent=32),
    "ctkvr, small window": kvviz.methods.create("ctkvr", sinks=16, recent=16),
    "centroidkv, constant ratio": kvviz.methods.create("centroidkv", ratio_step=0.0),
}
# The baselines "(C)" of PQCache's tables: methods that drop tokens get as many tokens more as fit into the bytes of
# PQCache's extra communication (head dimension 64), at the length of the short prompts.
COMPENSATED = {f"{name} (C)": kvviz.methods.create(name) for name in ("snapkv", "pyramidkv", "h2o")}
LENGTHS, SHORT = (1024, 2048, 4096), (1024,)
SHARES = (1 / 16, 1 / 8, 1 / 4)  # of the full cache's bytes
BUDGETS, SMALL = (128, 256, 512, 1024, 0.25, 0.5, 0.75), (128, 256, 512)
EXTRA = PQCache().extra_communication(head_dim=64)
COMPENSATED_BUDGETS = tuple(compensated_budget(budget, EXTRA, SHORT[0]) for budget in SMALL)
TWO_CORES = (
    Grid(NEEDLES, SHORT, SMALL, 12),
    Grid((LAST,), SHORT, SMALL, 8),
    Grid(NEEDLES, SHORT, (0.5, 0.75), 6, ("centroidkv", "snapkv", "pyramidkv", "streaming_llm")),
    Grid((*RULER, "needle", LAST, *OTHERS), LENGTHS, (), 3, ("full",)),  # what the model can do without compression
    Grid(("perplexity",), SHORT, SMALL, 4),
    Grid(("perplexity",), SHORT, SMALL, 4, FIELDS),
    Grid(NEEDLES, SHORT, SMALL, 12, FIELDS),
    Grid(NEEDLES, SHORT, COMPENSATED_BUDGETS, 12, COMPENSATED),
    Grid((LAST,), SHORT, COMPENSATED_BUDGETS, 8, COMPENSATED),
    Grid(("niah_single_2",), (4096,), (*SMALL, 1024), 4),  # full attention still solves it at this length
    Grid(("needle",), SHORT, SHARES, 12, hold="bytes"),
    Grid(("perplexity",), SHORT, SHARES, 4, hold="bytes"),
)
# 400 samples keep a 95 % interval of a share within 10 points: 2 * 1.96 * sqrt(0.25 / 400) = 0.098.
WHOLE = (
    Grid((*RULER, "needle", LAST, *OTHERS), LENGTHS, BUDGETS, 400),
    Grid(("needle", "perplexity"), LENGTHS, SHARES, 400, hold="bytes"),
)


def missing(grids: Sequence[Grid], table: pd.DataFrame) -> tuple[int, int]:
    """The cells of these grids that are not in the table, and all of them."""
    keys = {
        example.key(cell)
        for grid in grids
        for example in examples(grid.tasks, grid.lengths, grid.samples, SEED)
        for cell in cells(grid.methods, grid.budgets, hold=grid.hold)
    }
    return len(keys - set(table["key"])), len(keys)


def drop_outdated(path: Path, grids: Sequence[Grid], again: Sequence[str] = ()) -> None:
    """Remove the rows of methods whose fields have changed since, and those of the methods `again`, from the file."""
    if not path.exists():
        return
    current = {
        (cell.label, json.dumps(dict(cell.config), sort_keys=True, default=str))
        for grid in grids
        for cell in cells(grid.methods, grid.budgets, hold=grid.hold)
    }
    table = parquet.read_table(path)
    columns = (table[name].to_pylist() for name in ("method", "method_name", "method_config"))
    kept = [(label, config) in current and name not in again for label, name, config in zip(*columns, strict=True)]
    if not all(kept):
        with replacing(path) as partial:
            parquet.write_table(table.filter(pa.array(kept)), partial, compression="zstd")
        print(f"{kept.count(False):,} rows dropped: their methods have changed", flush=True)


def page(table: pd.DataFrame) -> str:
    """README.md: the report, and first how many cells of the command on two cores are missing."""
    absent, total = missing(TWO_CORES, table)
    if not absent:
        return report(table)
    note = f"**{absent:,} of the {total:,} cells of `make results` are missing here; the same command goes on.**"
    left = sorted({*kvviz.methods.names()} - {*table["method"]})
    if left:
        note += f" Methods without any result: {', '.join(f'`{name}`' for name in left)}."
    title, _, rest = report(table).partition("\n")
    return f"{title}\n\n{note}\n{rest}"


def main() -> None:
    """Run the chosen grid, then write the page."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--whole", action="store_true", help="run the whole grid, even without a GPU")
    parser.add_argument("--samples", type=int, help="maximum number of samples per task and length")
    parser.add_argument("--jobs", type=int, default=JOBS, help=f"processes; {JOBS} by default, 1 on a GPU")
    parser.add_argument("--out", type=Path, default=OUT, help="another results file; README.md is written next to it")
    parser.add_argument("--again", nargs="+", metavar="NAME", default=[], help="methods to run again")
    parser.add_argument("--page", action="store_true", help="only write the page, from the existing results")
    options = parser.parse_args()
    gpu = torch.cuda.is_available()
    # float32 on a GPU too, since one file holds the results of one model.
    lm = None if options.page else kvviz.load(MODEL, dtype=torch.float32)
    grids = () if lm is None else WHOLE if options.whole or gpu else TWO_CORES
    if grids:
        drop_outdated(options.out, (*TWO_CORES, *WHOLE), options.again)
    for grid in grids:
        started = time.perf_counter()
        table = kvviz.evaluate(
            lm, grid.tasks, grid.methods, grid.budgets, grid.lengths, seed=SEED, out=options.out,
            samples=min(grid.samples, options.samples or grid.samples), jobs=1 if gpu else options.jobs,
            hold=grid.hold,
        )  # fmt: skip
        seconds = round(time.perf_counter() - started)
        print(json.dumps({"tasks": list(map(str, grid.tasks)), "cells": table["key"].nunique(), "seconds": seconds}))
    options.out.with_name(PAGE.name).write_text(page(kvviz.load_results(options.out)))


if __name__ == "__main__":
    main()
