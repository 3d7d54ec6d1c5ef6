"""The stored results that the entries read: measurements, benchmarks, scores of grids, and recorded runs."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import pandas as pd

import kvviz
from kvviz.trace.storage import replacing

HERE = Path(__file__).resolve().parent
MEASURED, BENCHMARKS = HERE / "measured", HERE.parent / "benchmarks"


def path_of(name: str) -> Path:
    """The file of a measurement."""
    return MEASURED / f"{name}.json"


@cache
def measured(name: str) -> pd.DataFrame:
    """The rows of a measurement; `attrs` hold its sizes, model, hardware, versions, commit and seed.

    Raises IncompatibleFileError if it was never measured.
    """
    path = path_of(name)
    if not path.exists():
        wanted = f'what `make papers ARGS="--measure {name}"` writes'
        raise kvviz.IncompatibleFileError(f"read {path.name}", "no such file", wanted)
    stored = json.loads(path.read_text(encoding="utf-8"))
    table = pd.DataFrame(stored["rows"])
    table.attrs.update(stored["about"], name=name)
    return table


def store(name: str, rows: list[dict[str, Any]], about: dict[str, Any]) -> None:
    """Write the rows of a measurement, completely or not at all."""
    MEASURED.mkdir(exist_ok=True)
    with replacing(path_of(name)) as partial:
        partial.write_text(json.dumps({"about": about, "rows": rows}, indent=1) + "\n", encoding="utf-8")
    measured.cache_clear()


@cache
def benchmark(part: str) -> dict[str, Any]:
    """The results of one part of `make bench`, with `machine`. Raises IncompatibleFileError if there are none."""
    results: dict[str, Any] = json.loads((BENCHMARKS / "cpu.json").read_text(encoding="utf-8"))
    if part not in results:
        raise kvviz.IncompatibleFileError("read cpu.json", f"no part {part!r}", f'`make bench ARGS="--only {part}"`')
    return {**results[part], "machine": results["machine"]}


@cache
def scores() -> pd.DataFrame:
    """The scores of `make results`, one row per sample, method and budget."""
    return kvviz.load_results(BENCHMARKS / "results.parquet")


@cache
def runs() -> Any:
    """The recorded runs of `make data`."""
    return kvviz.open_runs(live=False)


def described(table: pd.DataFrame, *more: str) -> str:
    """How a measurement was made: model, sizes, seed, hardware, and whether the sizes are those of the command."""
    about = table.attrs
    sizes = ", ".join(
        f"{name.replace('_', ' ')} {_text(value)}" for name, value in about["sizes"].items() if value is not None
    )
    parts = [about["model"], *([sizes] if sizes else []), *more, f"seed {about['seed']}", about["hardware"]]
    return "; ".join([*parts, *([] if whole(about["name"]) else ["not yet at all sizes of the command"])])


def whole(name: str) -> bool:
    """Whether a measurement is stored at the sizes of its function, rather than at others, or not at all."""
    from measures import MEASURES

    if not path_of(name).exists():
        return False
    stored = json.loads(path_of(name).read_text(encoding="utf-8"))["about"]["sizes"]
    return bool(stored == json.loads(json.dumps(MEASURES[name].sizes)))


def scores_described() -> str:
    """How the scores of `make results` were made."""
    table = scores()
    commits = ", ".join(sorted(set(table["commit"])))
    hardware = ", ".join(sorted(set(table["hardware"])))
    return "; ".join(["`make results`", table.attrs["model"], hardware, f"commit {commits}"])


def _text(value: Any) -> str:
    if isinstance(value, list | tuple):
        return ", ".join(_text(item) for item in value)
    return f"{value:,}" if isinstance(value, int) else str(value)


def with_interval(values: Any, digits: int = 2) -> str:
    """The mean of independent values with its 95 % bootstrap interval, such as "0.48 (0.45–0.51, n = 12)"."""
    import numpy as np

    array = np.asarray(values, float)
    low, high = kvviz.metrics.bootstrap_interval(array)
    return f"{array.mean():.{digits}f} ({low:.{digits}f}–{high:.{digits}f}, n = {len(array)})"
