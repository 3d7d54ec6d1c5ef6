"""Tables of the results of `make bench` (data/benchmarks/cpu.json) and of `make results` beside it, for figures."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import pandas as pd

from kvviz import IncompatibleFileError, load_results
from kvviz.clustering.iterations import ClusteringTime, ComputeTime, IterationModel, fit_iterations
from kvviz.evaluation import differences

DATA = Path(__file__).resolve().parents[2]
CPU, INDEXES = DATA / "benchmarks" / "cpu.json", DATA / "papers" / "measured" / "ctkvr_index_building.json"
SHOWN = ("clusterkv", "pqcache", "ctkvr", "centroidkv", "quest", "retrieval_attention")


@cache
def _results() -> dict[str, Any]:
    results: dict[str, Any] = json.loads(CPU.read_text(encoding="utf-8"))
    return results


def _part(name: str) -> dict[str, Any]:
    """The results of one part. Raises IncompatibleFileError if it was never measured."""
    if name not in _results():
        raise IncompatibleFileError(f"read {CPU}", f"no part {name!r}", f'what `make bench ARGS="--only {name}"` adds')
    part: dict[str, Any] = _results()[name]
    return part


def _table(rows: list[dict[str, Any]], **known: Any) -> pd.DataFrame:
    table, results = pd.DataFrame(rows), _results()
    table.attrs = {"model": results["needle"]["model"], "hardware": results["machine"]["hardware"], **known}
    return table


def decoding() -> pd.DataFrame:
    """Seconds of a decode step by method and part, in float32.

    The whole step, "rest" (the model without attention) and "select" were measured; "attention" is the remainder:
    attention, and storing keys and values.
    """
    part_results = _part("decode")
    measured = part_results["dtypes"]["float32"]
    floor = measured["ms_a_token"]["no attention"] / 1e3
    rows = []
    for method, ms in measured["ms_a_token"].items():
        if method == "no attention":
            continue
        whole, select = ms / 1e3, measured["choosing_share"].get(method, 0.0) * ms / 1e3
        parts = {"rest": floor, "select": select, "attention": whole - floor - select}
        rows += [{"method": method, "part": part, "seconds": seconds} for part, seconds in parts.items()]
    return _table(rows, prompt_length=part_results["prompt_tokens"], budget=part_results["budget"])


def throughput() -> pd.DataFrame:
    """Tokens per second by method and batch; NaN for a batch that would not fit."""
    results = _part("throughput")
    rows = [{name: row[name] for name in ("method", "batch", "tokens_per_s")} for row in results["rows"]]
    on_host = [row["method"] for row in results["rows"] if (row["batch"], row["store"]) == (1, "host")]
    table = _table(rows, prompt_length=results["prompt_tokens"], budget=results["budget"])
    limit = f"{results['limit_bytes'] / 2**30:.3g} GiB on the device"
    table.attrs["hardware"] += f" · {limit} · {', '.join(on_host)}: KV on the host"
    return table


def generating() -> pd.DataFrame:
    """Attended tokens, hit rate, bytes on the device and time against full attention, by method and generated token."""
    results = _part("long_generation")
    columns = ("method", "step", "attended", "hit_rate", "device_bytes", "ratio")
    # Every fourth block, which keeps the picture below the limit of its bytes.
    shown = [row for row in results["rows"] if row["step"] % (4 * results["block"]) == 0]
    rows = [{name: row[name] for name in columns} for row in shown]
    table = _table(rows, prompt_length=results["prompt_tokens"], budget=results["budget"])
    return table.astype({"hit_rate": float})  # missing for methods without copies on the device


def orders() -> pd.DataFrame:
    """Paired differences of the four papers' methods with Quest and SnapKV: needles in 1,024 tokens."""
    results = load_results(DATA / "benchmarks" / "results.parquet")
    needles = results.query("task == 'needle' and placement == 'after' and length == 1024 and budget >= 1")
    methods = ("clusterkv", "centroidkv", "pqcache", "ctkvr")
    compared = [
        differences(needles[needles["method"].isin([method, reference])], reference).assign(reference=reference)
        for method in methods
        for reference in ("quest", "snapkv")
    ]
    table = pd.concat(compared)
    table.attrs = compared[0].attrs | {"prompt_length": 1024}
    return table


def choosing() -> pd.DataFrame:
    """Seconds to select tokens in one layer, by method and length."""
    return _by_length("step", "method").assign(part="choosing")


def building() -> pd.DataFrame:
    """Seconds to build an index of one layer's keys, by index and length: the papers' measurement with faiss's."""
    stored = json.loads(INDEXES.read_text(encoding="utf-8"))
    about, sizes = stored["about"], stored["about"]["sizes"]
    table = pd.DataFrame(stored["rows"]).groupby(["index", "length"], sort=False, as_index=False)["seconds"].mean()
    table.attrs = {"model": about["model"], "hardware": f"{about['hardware']} · mean of {sizes['count']} texts"}
    return table


def iterations(faster: float = 1) -> IterationModel:
    """The fit of PQCache's clustering and of one layer, whose measured seconds are divided by `faster`."""
    rows = _part("iterations")["table"]
    clustering = [ClusteringTime(row["tokens"], row["iterations"], row["seconds"]) for row in rows if row["iterations"]]
    compute = [ComputeTime(row["tokens"], row["seconds"] / faster) for row in rows if not row["iterations"]]
    return fit_iterations(clustering, compute)


def machine() -> str:
    """The hardware of the benchmarks."""
    hardware: str = _part("machine")["hardware"]
    return hardware


def _by_length(part: str, name: str) -> pd.DataFrame:
    results = _part(part)
    rows = [
        {name: row["label"], "length": length, "seconds": seconds}
        for row in results["rows"]
        if row["label"] in SHOWN
        for length, seconds in zip(results["lengths"], row["seconds"], strict=True)
    ]
    return _table(rows, layers=[results["layer"]], budget=results["budget"])
