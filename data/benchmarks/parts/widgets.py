"""The widgets' latencies in Markdown."""

from __future__ import annotations

from typing import Any

from .markdown import table

Results = dict[str, Any]
LIVE = "JupyterLab"


def lines(part: Results) -> list[list[str]]:
    """One row per widget and size for docs/measured.md: its controls' medians in JupyterLab, the slowest, and the limit."""
    shown: dict[tuple[str, str], list[Results]] = {}
    for row in part.get("rows", []):
        if row["place"] == LIVE:
            shown.setdefault((row["widget"], row["size"]), []).append(row)
    return [_line(rows) for rows in shown.values()]


def every_change(part: Results) -> str:
    """A table with one row per control, on a page without a kernel and in JupyterLab."""
    if "rows" not in part:
        return ""
    head = ["widget", "showing", "where", "what changes", "changes", "median ms", "worst ms", "limit ms"]
    rows = [
        [
            row["widget"], row["size"], row["place"], row["change"], str(row["changes"]), f"{row['median_ms']:.0f}",
            f"{row['worst_ms']:.0f}", str(row["limit_ms"]),
        ]
        for row in part["rows"]
    ]  # fmt: skip
    return "\n\n".join([
        "Milliseconds from a key press, or a choice in a list, to the first frame that shows the change, in headless "
        "Chromium: in JupyterLab with the kernel's work and its messages, on a page without a kernel only the widget's "
        "JavaScript. Sliders go over all their values, or over 30 of them.",
        table(head, rows),
    ])  # fmt: skip


def _line(rows: list[Results]) -> list[str]:
    first, several = rows[0], len(rows) > 1

    def formatted(row: Results, measure: str) -> str:
        return f"{row[measure]:.0f} ms" + (f" ({row['change']})" if several else "")

    quickest, slowest = (choose(rows, key=lambda row: row["median_ms"]) for choose in (min, max))
    medians = [formatted(quickest, "median_ms")] + ([formatted(slowest, "median_ms")] if several else [])
    worst = formatted(max(rows, key=lambda row: row["worst_ms"]), "worst_ms")
    what = f"{first['widget']} in {LIVE}, key press to new frame, {first['size']}; limit {first['limit_ms']} ms"
    return [what, f"{' to '.join(medians)}, at worst {worst}"]
