"""What CTkvr's entries share: numbers printed in the paper, and the rows of our measurements by setting."""

from __future__ import annotations

from typing import Any

import pandas as pd
import sources

LLAMA = "gradientai/Llama-3-8B-Instruct-262k"
RULER_TEST = "tests/tasks/test_ruler.py::test_prompts_fill_their_length_in_bytes"
LONGBENCH_TEST = "tests/tasks/test_public_tasks.py::test_every_subset_has_prompts_and_scores"
RESUMING_TEST = "tests/evaluation/test_command.py::test_a_grid_resumes_after_ctrl_c_and_after_a_kill"

# Tables 14 and 15: C or C', throughput in tokens/s, accuracy. Table 5: rounds, without and with the update.
TABLE_14 = {
    "C": (20, 40, 80, 160, 320, 640, 1280, 1920),
    "throughput": (16.76, 16.71, 16.67, 16.51, 16.47, 16.43, 16.40, 16.35),
    "accuracy": (0.4167, 0.3020, 0.4791, 0.6250, 0.8020, 0.8645, 0.8645, 0.8645),
}
TABLE_15 = {
    "C'": (2, 4, 6, 8, 10, 12, 14),
    "throughput": (17.47, 16.41, 15.46, 14.25, 12.89, 11.47, 10.14),
    "accuracy": (0.8854, 0.8958, 0.8988, 0.8990, 0.8990, 0.8990, 0.8990),
}
TABLE_5 = {
    "round": (1, 2, 4, 6, 8),
    "no update": (100, 90.02, 88.45, 86.27, 85.67),
    "fifo": (100, 95.78, 94.38, 94.18, 94.02),
}
TABLE_9 = {
    "length": (4096, 8192, 16384, 32768, 65536, 131072),
    "RetrievalAttention": (140, 289, 587, 1225, 2463, 4247),  # ms
    "CTkvr": (0.21, 0.22, 0.23, 0.25, 0.29, 0.43),
}
TABLE_13 = {"recall": 5.57, "rerank": 35.68, "host attention": 15.80, "device attention": 2.84}  # ms
TABLE_4 = {"init": 75.60, "random": 79.93, "equidistant": 81.98, "final": 83.35}  # the mean of 13 RULER tasks


def needles() -> pd.DataFrame:
    """The rows of ctkvr_needles."""
    return sources.measured("ctkvr_needles")


def of(table: pd.DataFrame, label: str, column: str = "correct") -> pd.Series[Any]:
    """A column of the rows with a label, one per sample."""
    rows = table[table["label"] == label].set_index("sample")[column].astype(float)
    assert len(rows), f"no rows of {label!r}"
    return rows


def found(table: pd.DataFrame, *labels: str) -> str:
    """How many needles each label found, such as "ctkvr 9 (0.70–1.00) of 10": with the interval of the share."""
    import kvviz

    parts = []
    for label in labels:
        correct = of(table, label)
        low, high = kvviz.metrics.bootstrap_interval(correct.to_numpy())
        parts.append(f"{label} {correct.sum():.0f} of {len(correct)} ({low:.2f}–{high:.2f})")
    return ", ".join(parts)


def varied(table: pd.DataFrame, name: str) -> list[str]:
    """The labels of CTkvr with another `name` (C or C'), and the default, in ascending order."""
    labels = [label for label in table["label"].unique() if label.startswith(f"{name} = ")]
    default = 4 if name == "C'" else table.attrs["sizes"]["centroids"]
    return sorted([*labels, "ctkvr"], key=lambda label: int(label.partition(" = ")[2] or default))


def ceiling(table: pd.DataFrame, labels: list[str]) -> str:
    """A sentence that says so if all of these labels find every needle."""
    return (
        "All find every needle, so these samples are too easy to order them. "
        if all(of(table, label).all() for label in labels)
        else ""
    )


def attended(table: pd.DataFrame, label: str) -> str:
    """The mean number of tokens attended to per KV head and step."""
    return f"{of(table, label, 'attended_tokens').mean():.0f}"


def settings(field: str) -> pd.DataFrame:
    """The rows of ctkvr_fields in which `field` varies, with numbers as numbers."""
    table = sources.measured("ctkvr_fields")
    rows = table[table["field"] == field].copy()
    if field != "choice":
        rows["value"] = rows["value"].astype(float)
    rows.attrs = table.attrs
    return rows


def layers_of(table: pd.DataFrame) -> str:
    """Which layers a measurement has."""
    every = table.attrs["sizes"]["every"]
    return "all layers" if every == 1 else f"each {every}th layer from the first"


def by_value(rows: pd.DataFrame, column: str) -> pd.Series[Any]:
    """The mean of a column per value of the field, over texts."""
    return rows.groupby("value", sort=False)[column].mean()


def on_tasks(methods: dict[str, float | None], placement: str = "after") -> str:
    """Mean scores of methods at their budgets (None: any) on the stored tasks with these methods, with intervals."""
    table = sources.scores()
    table = table[(table["metric"] != "nats per token") & (table["placement"] == placement) & (table["length"] == 1024)]
    parts = []
    for task, rows in table.groupby("task", sort=False):
        chosen = {
            name: rows[(rows["method"] == name) & ((rows["budget"] == budget) | (budget is None))].dropna(
                subset=["score"]
            )
            for name, budget in methods.items()
        }
        if all(len(each) for each in chosen.values()):
            scores = ", ".join(
                f"{name} {sources.with_interval(each.groupby('sample')['score'].mean())}"
                for name, each in chosen.items()
            )
            parts.append(f"{task}: {scores}")
    assert parts, f"no task with {', '.join(methods)}"
    return "; ".join(parts)


def stored_run() -> str:
    """How the stored scores were made."""
    return f"1,024 tokens; {sources.scores_described()}"
