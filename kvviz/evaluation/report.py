"""Reports: evaluation results as a Markdown page."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

from .cost_table import BYTES_HELD, TIMES, WITH_RATIO, costs
from .results import load_results
from .statistics import SETTING, differences, holds_of, of_hold, orderings, summary, wins, without_budget

if TYPE_CHECKING:
    import pandas as pd

REFERENCES = ("full", "oracle")
PLACES = {"after": "question after the compressed context", "last": "question last", "first": "question first"}
COUNTS = ("wins", "ties", "losses")
AT_EQUAL_BYTES = (
    "# At equal bytes\n\nBudgets are bytes per layer and sequence, as shares of the full cache's bytes. What a method "
    "keeps counts, and its metadata; of a method that keeps all tokens, the keys and values that a step attends to "
    "(`kvviz.bytes` has the rule). Held: these bytes at the end, in all layers. Read: bytes that a step reads."
)
WIDE = 0.1  # for scores from 0 to 1: a wider interval says little
VERSIONS = ("kvviz", "commit", "torch", "transformers", "numpy")


def report(results: pd.DataFrame | str | os.PathLike[str], confidence: float = 0.95, seed: int = 0) -> str:
    """A Markdown report of results: a table of `load_results`, or the path of a results file.

    Sections: what was run and where; mean scores, with the widest interval per task and length; differences to full
    attention and to the oracle, if they were run; wins and losses at equal budgets; rankings; costs; refused cells with
    their reasons. Intervals have the given `confidence` and are resampled with `seed`. The budget NaN, of methods that
    ignore the budget, is written as "any". The order of the rows does not matter. Raises the errors of
    `kvviz.evaluation.costs`.
    """
    table = load_results(results) if isinstance(results, str | os.PathLike) else results
    sections = ["# Results of an evaluation", _run(table)]
    for hold in holds_of(table) or ["tokens"]:
        sections += [AT_EQUAL_BYTES] if hold == "bytes" else []
        sections += _of_budgets(of_hold(table, hold), confidence, seed)
    return "\n\n".join(section for section in sections if section) + "\n"


def _of_budgets(table: pd.DataFrame, confidence: float, seed: int) -> list[str]:
    """The sections on rows whose budgets hold the same equal."""
    means = summary(table, confidence, seed)
    sections = [
        _tasks(table), _methods(table),
        "## Scores",
        f"In brackets: the {100 * confidence:g}% bootstrap interval over samples (2,000 resamples, seed {seed}). It "
        "has zero width if all scores are equal or there is only one; this says nothing about their certainty.",
        _widths(means), markdown(means),
    ]  # fmt: skip
    for reference in REFERENCES:
        if reference in set(table["method"]):
            sections += [_differences_heading(reference), markdown(differences(table, reference, confidence, seed))]
    return [*sections, _wins(table), _orderings(table), _costs(table), _refused(table)]


def markdown(table: pd.DataFrame) -> str:
    """The table of `summary` or `differences` in Markdown: one table per task, placement and length.

    Rows are methods, columns budgets; "any" (NaN) is for methods that ignore the budget. A cell has the value and its
    interval, "refused" if the method refused the budget on all samples, and `n` if it has fewer samples than others.
    Bold: differences whose interval has non-zero width and excludes 0. Means in nats per token are written as
    perplexity, the exponential of mean and interval; differences stay in nats.
    """
    return "\n\n".join(_setting(rows) for _, rows in table.groupby(SETTING))


def _setting(rows: pd.DataFrame) -> str:
    first, most = rows.iloc[0], int(rows["n"].max())
    is_difference = "difference" in rows.columns
    unit = first["metric"] if is_difference or first["higher_is_better"] else "perplexity, lower is better"
    title = f"### {first['task']}, {first['length']:,} tokens, {_place(first['placement'])}"
    cells = _cells(rows, lambda row: _difference(row, most) if is_difference else _mean(row, most))
    return f"{title}\n\n{_capital(unit)}, {most} samples.\n\n{_by_budget(rows, cells)}"


def _mean(row: pd.Series[Any], most: int) -> str:
    if not row["n"]:
        return "refused"
    ends = [row["mean"], row["low"], row["high"]]
    mean, low, high = (f"{value if row['higher_is_better'] else math.exp(value):.2f}" for value in ends)
    return f"{mean} [{low}, {high}]" + _fewer(row, most)


def _difference(row: pd.Series[Any], most: int) -> str:
    digits = 2 if row["higher_is_better"] else 3
    ends = (row["difference"], row["low"], row["high"])
    value, low, high = (f"{round(end, digits) + 0.0:+.{digits}f}" for end in ends)  # no -0.00
    text = f"{value} [{low}, {high}]"
    significant = row["low"] < row["high"] and not row["low"] <= 0 <= row["high"]
    return (f"**{text}**" if significant else text) + _fewer(row, most)


def _fewer(row: pd.Series[Any], most: int) -> str:
    return f", n = {row['n']}" if row["n"] < most else ""


def _widths(means: pd.DataFrame) -> str:
    """The widest interval per task, placement and length, over methods and budgets."""
    scored = means[means["n"] > 0]
    lengths = sorted(set(scored["length"]))
    cells = {setting: _widest(rows) for setting, rows in scored.groupby(SETTING)}
    lines = [
        [f"`{task}`", _place(place), *(cells.get((task, place, length), "") for length in lengths)]
        for task, place in sorted({(task, place) for task, place, _ in cells})
    ]
    flat = int((scored["low"] == scored["high"]).sum())
    text = (
        "The widest interval over methods and budgets, in points (hundredths of the score) or nats, and n, the number "
        f"of samples per mean. Bold: over {100 * WIDE:g} points. {flat:,} of {len(scored):,} intervals have zero width."
    )
    head = ["task", "question", *(f"{length:,} tokens" for length in lengths)]
    return f"### How wide the intervals are\n\n{text}\n\n{_lines(head, lines)}" if lines else ""


def _widest(rows: pd.DataFrame) -> str:
    least, most = int(rows["n"].min()), int(rows["n"].max())
    samples = f"n = {most}" if least == most else f"n = {least} to {most}"
    width = round(float((rows["high"] - rows["low"]).max()), 9)  # 0.3 - 0.2 is not above 0.1
    if not width:
        return f"all have zero width, {samples}"
    if not rows["higher_is_better"].iloc[0]:
        return f"{width:.3f} nats, {samples}"
    text = f"{100 * width:.1f}"
    return f"{f'**{text}**' if width > WIDE else text}, {samples}"


def _by_budget(rows: pd.DataFrame, cells: dict[tuple[str, str], str]) -> str:
    """A Markdown table of methods by budgets, methods that ignore the budget first; "" without rows."""
    if rows.empty:
        return ""
    budgets = [_budget(value) for value in sorted(set(rows["budget"].dropna()))]
    ignoring = sorted(set(rows.loc[rows["budget"].isna(), "method"]))
    methods = [*ignoring, *sorted(set(rows["method"]) - set(ignoring))]
    columns = ["any"] * bool(ignoring) + budgets
    lines = [[f"`{method}`", *(cells.get((method, column), "") for column in columns)] for method in methods]
    return _lines(["method", *columns], lines)


def _run(table: pd.DataFrame) -> str:
    models = zip(table["model"], table["model_hash"], table["dtype"], strict=True)
    lines = [
        ["model", "; ".join(sorted({f"{name}, weights {digest}, {dtype}" for name, digest, dtype in models}))],
        ["hardware", _values(table["hardware"])],
        *([name, _values(table[name])] for name in VERSIONS),
        ["seeds of the samples", _values(table["seed"])],
        ["cells", f"{table['key'].nunique():,}, of which {table[table['refused'] != '']['key'].nunique():,} refused"],
    ]
    return "## What was run\n\n" + _lines(["", ""], lines)


def _tasks(table: pd.DataFrame) -> str:
    lines = []
    for (task, placement), rows in table.groupby(["task", "placement"]):
        samples = rows.drop_duplicates(["length", "seed", "sample"])["length"].value_counts().sort_index()
        chance = rows["chance"].iloc[0]
        lines.append([
            f"`{task}`", _place(placement), rows["metric"].iloc[0],
            "" if math.isnan(chance) else f"{chance:g}", _of_full(rows),
            ", ".join(f"{at:,} ({n})" for at, n in samples.items()), _values(rows["task_config"]),
        ])  # fmt: skip
    head = ["task", "question", "score", "by chance", "full attention", "lengths in tokens (samples)", "fields"]
    return "Tasks:\n\n" + _lines(head, lines)


def _of_full(rows: pd.DataFrame) -> str:
    """The mean score of full attention at each length: what the model itself can do."""
    means = rows[rows["method_name"] == "full"].groupby("length")["score"].mean().dropna()
    return ", ".join(f"{mean:.2f} at {length:,}" for length, mean in means.items())


def _methods(table: pd.DataFrame) -> str:
    lines = []
    for (label, name, preset), rows in table.groupby(["method", "method_name", "preset"]):
        budgets = sorted(rows["budget"].unique())
        ran = rows[rows["refused"] == ""]
        config = without_budget(ran["method_config"].iloc[0]) if preset == "own" and len(ran) else ""
        lines.append([f"`{label}`", f"`{name}`", str(preset), ", ".join(map(_budget, budgets)), config])
    return "Methods and their budgets:\n\n" + _lines(["label", "method", "preset", "budgets", "custom fields"], lines)


def _differences_heading(reference: str) -> str:
    pairs = "at every budget" if reference == "full" else "at the same budget"
    return (
        f"## Differences to `{reference}`\n\nPaired by sample, {pairs}. Above 0 is better than `{reference}`; for nats "
        "per token the sign is reversed. Bold: the interval has non-zero width and excludes 0."
    )


def _wins(table: pd.DataFrame) -> str:
    text = (
        "## Wins, ties and losses\n\nAgainst every other method at the same budget, sample by sample, over all tasks "
        "and lengths of a placement: a task with more samples counts more. In nats per token, lower wins."
    )

    def counted(rows: pd.DataFrame) -> str:
        sums = wins(rows)
        if not sums.empty:
            sums = sums.groupby(["method", "budget"], dropna=False)[list(COUNTS)].sum().reset_index()
        return _by_budget(sums, _cells(sums, lambda row: " / ".join(str(row[name]) for name in COUNTS)))

    return _by_placement(text, table, counted)


def _orderings(table: pd.DataFrame) -> str:
    text = (
        "## Rankings\n\nBy the mean over the tasks' means at each budget; in brackets, that mean and the number of "
        "tasks. Left out: tasks in nats per token, and methods that lack a task or length that most methods have."
    )

    def ranked(rows: pd.DataFrame) -> str:
        ranks = orderings(rows)
        return _by_budget(ranks, _cells(ranks, lambda row: f"{row['rank']} ({row['mean']:.3f} of {row['tasks']})"))

    return _by_placement(text, table, ranked)


def _costs(table: pd.DataFrame) -> str:
    text = (
        "## Costs\n\nMedians over the samples of all tasks; in brackets, the median ratio to `full` on the same "
        "sample. TTFT is the time to the first token: prefill, building and question. TT2T is the time to the second, "
        "TPOT the time per later token. Attended: tokens per KV head at the last step. Kept: keys and values at the "
        "end. Peak: the most keys, values and metadata on the device, the whole prompt included. MB are 10^6 bytes."
    )
    measured = costs(table)
    known = [name for name in BYTES_HELD if measured[name].notna().any()]
    head = ["method", "budget", "n", "TTFT (s)", "TT2T (s)", "TPOT (s)", "attended", "kept (MB)", "peak (MB)",
            *(f"{name.removesuffix('_bytes')} (MB)" for name in known), "metadata (MB)"]  # fmt: skip
    sections = [
        f"### {length:,} tokens, {hardware}\n\n{_lines(head, [_cost_line(row, known) for _, row in rows.iterrows()])}"
        for (hardware, length), rows in measured.groupby(["hardware", "length"])
    ]
    return "\n\n".join([text, *sections]) if sections else ""


def _cost_line(row: pd.Series[Any], known: Sequence[str]) -> list[str]:
    cells = [f"`{row['method']}`", _budget(row["budget"]), f"{row['n']}"]
    for name in [*WITH_RATIO, *known]:
        value = row[name] / (1e6 if name.endswith("_bytes") else 1)
        digits = f"{value:.3f}" if name in TIMES else f"{value:,.1f}"
        ratio = "" if math.isnan(row[f"{name}_ratio"]) else f" ({row[f'{name}_ratio']:.2f})"
        cells.append("" if math.isnan(value) else digits + ratio)
    return [*cells, f"{row['metadata_bytes'] / 1e6:,.1f}"]


def _by_placement(text: str, table: pd.DataFrame, written: Callable[[pd.DataFrame], str]) -> str:
    """One table per placement of the question, since these are different settings; "" if all are empty."""
    parts = {_place(name): written(rows) for name, rows in table.groupby("placement")}
    sections = [f"### {_capital(place)}\n\n{part}" for place, part in parts.items() if part]
    return "\n\n".join([text, *sections]) if sections else ""


def _place(placement: object) -> str:
    return PLACES.get(str(placement), str(placement))


def _cells(rows: pd.DataFrame, text: Callable[[Any], str]) -> dict[tuple[str, str], str]:
    return {(row["method"], _budget(row["budget"])): text(row) for _, row in rows.iterrows()}


def _refused(table: pd.DataFrame) -> str:
    refused = table[table["refused"] != ""]
    lines = []
    for (method, _), rows in refused.groupby(["method", "budget"], dropna=False):
        first, *others = sorted(rows["refused"].unique())
        reason = first + (f" (and {len(others)} similar)" if others else "")
        budget = _budget(rows["budget"].iloc[0])
        lines.append([f"`{method}`", budget, _values(rows["length"]), f"{len(rows):,}", reason])
    head = ["method", "budget", "lengths (tokens)", "cells", "reason"]
    return "## Refused cells\n\n" + (_lines(head, lines) if lines else "None.")


def _budget(budget: float) -> str:
    """A budget as text: tokens; a percentage of the prompt if below 1; "any" for NaN."""
    if math.isnan(budget):
        return "any"
    return f"{100 * budget:g} %" if budget < 1 else f"{budget:,.0f}"


def _values(values: pd.Series[Any]) -> str:
    return ", ".join(str(value) for value in sorted(values.unique()))


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]


def _lines(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A Markdown table; vertical bars in cells are escaped, and line breaks become spaces."""

    def line(cells: Sequence[str]) -> str:
        return f"| {' | '.join(' '.join(str(cell).replace('|', chr(92) + '|').split()) for cell in cells)} |"

    return "\n".join([line(head), "|" + "---|" * len(head), *map(line, rows)])
