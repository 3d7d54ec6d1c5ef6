"""Seconds and peak kernel memory of every notebook, from the recorded runs and from the model."""

from __future__ import annotations

from typing import Any

from .inputs import ROOT, script
from .markdown import table

Results = dict[str, Any]
WAYS = {"recorded": "from the recorded runs", "live": "from the model"}


def run() -> Results:
    """One row per notebook, with a warm model cache."""
    runner = script("notebooks/run.py")
    names = sorted(path.stem for path in (ROOT / "notebooks").glob("*.ipynb"))
    return {"rows": [
        {"notebook": name, **{way: runner.measure(name, recorded=way == "recorded") for way in WAYS}} for name in names
    ]}  # fmt: skip


def lines(part: Results) -> list[list[str]]:
    """Two rows for docs/measured.md: the range of seconds and the largest peak, recorded and live."""
    rows = []
    for way, words in WAYS.items():
        seconds = [row[way]["seconds"] for row in part["rows"]]
        peak = max(row[way]["peak_gib"] for row in part["rows"])
        what = f"{len(seconds)} notebooks, {words}"
        rows.append([what, f"{min(seconds):.0f} to {max(seconds):.0f} s each, a kernel at most {peak:.2f} GiB"])
    return rows


def each(part: Results) -> str:
    """A table with one row per notebook."""
    head = ["notebook", *(f"{words}, {unit}" for words in WAYS.values() for unit in ("s", "peak GiB"))]
    rows = [
        [f"`{row['notebook']}`"]
        + [f"{row[way][name]:{form}}" for way in WAYS for name, form in (("seconds", ".0f"), ("peak_gib", ".2f"))]
        for row in part["rows"]
    ]
    return table(head, rows)
