"""Tables for figures of what `make bench` measured: data/benchmarks/cpu.json."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import pandas as pd

from kvviz import IncompatibleFileError

CPU = Path(__file__).resolve().parents[2] / "benchmarks" / "cpu.json"
SHOWN = ("clusterkv", "pqcache", "ctkvr", "centroidkv", "quest", "retrieval_attention")


@cache
def _results() -> dict[str, Any]:
    results: dict[str, Any] = json.loads(CPU.read_text(encoding="utf-8"))
    return results


def _part(name: str) -> dict[str, Any]:
    """The results of one part; raises IncompatibleFileError where it was never measured."""
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

    Measured were the whole, "rest" (the model without attention) and "select"; "attention" is what remains: attention,
    and putting keys and values into their places.
    """
    found = _part("decode")
    measured = found["dtypes"]["float32"]
    floor = measured["ms_a_token"]["no attention"] / 1e3
    rows = []
    for method, ms in measured["ms_a_token"].items():
        if method == "no attention":
            continue
        whole, select = ms / 1e3, measured["choosing_share"].get(method, 0.0) * ms / 1e3
        parts = {"rest": floor, "select": select, "attention": whole - floor - select}
        rows += [{"method": method, "part": part, "seconds": seconds} for part, seconds in parts.items()]
    return _table(rows, prompt_length=found["prompt_tokens"], budget=found["budget"])


def throughput() -> pd.DataFrame:
    """Tokens a second by method and batch; none for a batch that would not have fitted."""
    found = _part("throughput")
    rows = [{name: row[name] for name in ("method", "batch", "tokens_per_s")} for row in found["rows"]]
    on_host = [row["method"] for row in found["rows"] if (row["batch"], row["store"]) == (1, "host")]
    table = _table(rows, prompt_length=found["prompt_tokens"], budget=found["budget"])
    limit = f"{found['limit_bytes'] / 2**30:.3g} GiB on the device"
    table.attrs["hardware"] += f" · {limit} · {', '.join(on_host)}: KV on the host"
    return table


def choosing() -> pd.DataFrame:
    """Seconds that one layer takes to choose, by method and length."""
    return _by_length("step", "method").assign(part="choosing")


def building() -> pd.DataFrame:
    """Seconds that one layer takes to build an index, by method and length."""
    return _by_length("build", "index")


def _by_length(part: str, name: str) -> pd.DataFrame:
    found = _part(part)
    rows = [
        {name: row["label"], "length": length, "seconds": seconds}
        for row in found["rows"]
        if row["label"] in SHOWN
        for length, seconds in zip(found["lengths"], row["seconds"], strict=True)
    ]
    return _table(rows, layers=[found["layer"]], budget=found["budget"])
