"""Results as a page of Markdown: what was run, scores, differences, wins, rankings and refusals."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

from .results import load_results
from .statistics import SETTING, differences, orderings, summary, wins, without_budget

if TYPE_CHECKING:
    import pandas as pd

REFERENCES = ("full", "oracle")
PLACES = {"after": "question after the compressed context", "last": "question last", "first": "question first"}
COUNTS = ("wins", "ties", "losses")
WIDE = 0.1  # of a score from 0 to 1: an interval wider than this says little
VERSIONS = ("kvviz", "commit", "torch", "transformers", "numpy")


def report(results: pd.DataFrame | str | os.PathLike[str], confidence: float = 0.95, seed: int = 0) -> str:
    """A page of Markdown about the table of `load_results`, or the results file at a path.

    Its sections: what was run and where; mean scores, and how wide their intervals are at most in each task and length;
    differences to full attention and to the oracle where they are among the methods; wins and losses at equal budgets;
    rankings; and refused cells with their reasons. Intervals are of `confidence`, resampled with `seed`. A budget that
    is NaN is written as "any": the method ignores it. The same rows in any order give the same page. Raises what
    `kvviz.evaluation.summary` raises.
    """
    table = load_results(results) if isinstance(results, str | os.PathLike) else results
    means = summary(table, confidence, seed)
    sections = [
        "# Results of an evaluation", _run(table), _tasks(table), _methods(table),
        "## Scores",
        f"In brackets the {100 * confidence:g}% bootstrap interval over samples: 2,000 resamples, seed {seed}. It has "
        "no width where all scores are equal, or there is one, which says nothing about how sure they are.",
        _widths(means), markdown(means),
    ]  # fmt: skip
    for reference in REFERENCES:
        if reference in set(table["method"]):
            sections += [_differences_heading(reference), markdown(differences(table, reference, confidence, seed))]
    sections += [_wins(table), _orderings(table), _refused(table)]
    return "\n\n".join(section for section in sections if section) + "\n"


def markdown(table: pd.DataFrame) -> str:
    """The table of `summary` or `differences` as Markdown: one table a task, placement and length.

    Methods are rows, budgets columns, "any" for NaN: methods that ignore the budget. A cell has the value and its
    interval, "refused" where the method refused the budget on all samples, and `n` where it has fewer samples than
    others. In bold: differences whose interval has a width and leaves out 0. A summary of nats per token is written as
    perplexity, the exponential of mean and interval; differences stay in nats.
    """
    return "\n\n".join(_setting(own) for _, own in table.groupby(SETTING))


def _setting(rows: pd.DataFrame) -> str:
    first, most = rows.iloc[0], int(rows["n"].max())
    apart = "difference" in rows.columns
    unit = first["metric"] if apart or first["higher_is_better"] else "perplexity, less is better"
    title = f"### {first['task']}, {first['length']:,} tokens, {_place(first['placement'])}"
    cells = {
        (row["method"], _budget(row["budget"])): _difference(row, most) if apart else _mean(row, most)
        for _, row in rows.iterrows()
    }
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
    apart = row["low"] < row["high"] and not row["low"] <= 0 <= row["high"]
    return (f"**{text}**" if apart else text) + _fewer(row, most)


def _fewer(row: pd.Series[Any], most: int) -> str:
    return f", n = {row['n']}" if row["n"] < most else ""


def _widths(means: pd.DataFrame) -> str:
    """The widest interval of each task, placement and length, over methods and budgets."""
    scored = means[means["n"] > 0]
    lengths = sorted(set(scored["length"]))
    cells = {place: _widest(own) for place, own in scored.groupby(SETTING)}
    lines = [
        [f"`{task}`", _place(place), *(cells.get((task, place, length), "") for length in lengths)]
        for task, place in sorted({(task, place) for task, place, _ in cells})
    ]
    flat = int((scored["low"] == scored["high"]).sum())
    text = (
        "The widest interval over methods and budgets, in points (hundredths of the score) or nats, and n, the samples "
        f"behind each mean. Bold: more than {100 * WIDE:g} points. Of {len(scored):,} intervals {flat:,} have no width."
    )
    head = ["task", "question", *(f"{length:,} tokens" for length in lengths)]
    return f"### How wide the intervals are\n\n{text}\n\n{_lines(head, lines)}" if lines else ""


def _widest(rows: pd.DataFrame) -> str:
    least, most = int(rows["n"].min()), int(rows["n"].max())
    samples = f"n = {most}" if least == most else f"n = {least} to {most}"
    width = round(float((rows["high"] - rows["low"]).max()), 9)  # 0.3 - 0.2 is not above 0.1
    if not width:
        return f"none has a width, {samples}"
    if not rows["higher_is_better"].iloc[0]:
        return f"{width:.3f} nats, {samples}"
    text = f"{100 * width:.1f}"
    return f"{f'**{text}**' if width > WIDE else text}, {samples}"


def _by_budget(rows: pd.DataFrame, cells: dict[tuple[str, str], str]) -> str:
    """Methods as rows, those that ignore the budget first; budgets as columns. No text for no row."""
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
        ["cells", f"{table['key'].nunique():,}, of which refused {table[table['refused'] != '']['key'].nunique():,}"],
    ]
    return "## What was run\n\n" + _lines(["", ""], lines)


def _tasks(table: pd.DataFrame) -> str:
    lines = []
    for (task, placement), own in table.groupby(["task", "placement"]):
        samples = own.drop_duplicates(["length", "seed", "sample"])["length"].value_counts().sort_index()
        chance = own["chance"].iloc[0]
        lines.append([
            f"`{task}`", _place(placement), own["metric"].iloc[0],
            "" if math.isnan(chance) else f"{chance:g}", _of_full(own),
            ", ".join(f"{at:,} ({n})" for at, n in samples.items()), _values(own["task_config"]),
        ])  # fmt: skip
    head = ["task", "question", "score", "by chance", "full attention", "lengths in tokens (samples)", "fields"]
    return "Tasks:\n\n" + _lines(head, lines)


def _of_full(rows: pd.DataFrame) -> str:
    """The mean score of full attention at each length, which says what the model itself can do."""
    means = rows[rows["method_name"] == "full"].groupby("length")["score"].mean().dropna()
    return ", ".join(f"{mean:.2f} at {length:,}" for length, mean in means.items())


def _methods(table: pd.DataFrame) -> str:
    lines = []
    for (label, name, preset), own in table.groupby(["method", "method_name", "preset"]):
        budgets = sorted(own["budget"].unique())
        ran = own[own["refused"] == ""]
        config = without_budget(ran["method_config"].iloc[0]) if preset == "own" and len(ran) else ""
        lines.append([f"`{label}`", f"`{name}`", str(preset), ", ".join(map(_budget, budgets)), config])
    return "Methods and their budgets:\n\n" + _lines(["label", "method", "preset", "budgets", "own fields"], lines)


def _differences_heading(reference: str) -> str:
    pairs = "at every budget" if reference == "full" else "at the same budget"
    return (
        f"## Differences to `{reference}`\n\nPaired by sample, {pairs}. Above 0 is better than `{reference}`, of nats "
        "per token too, where the sign is turned. Bold: the interval has a width and leaves out 0."
    )


def _wins(table: pd.DataFrame) -> str:
    text = (
        "## Wins, ties and losses\n\nAgainst every other method at the same budget, sample by sample, all tasks and "
        "lengths of a placement together: one with more samples counts more. Of nats per token the lower ones win."
    )

    def counted(own: pd.DataFrame) -> str:
        sums = wins(own)
        if not sums.empty:
            sums = sums.groupby(["method", "budget"], dropna=False)[list(COUNTS)].sum().reset_index()
        return _by_budget(sums, _cells(sums, lambda row: " / ".join(str(row[name]) for name in COUNTS)))

    return _by_placement(text, table, counted)


def _orderings(table: pd.DataFrame) -> str:
    text = (
        "## Rankings\n\nBy the mean of the tasks' means at each budget, in brackets with the number of tasks; without "
        "tasks in nats per token, and without methods that lack a task or length which most have."
    )

    def ranked(own: pd.DataFrame) -> str:
        ranks = orderings(own)
        return _by_budget(ranks, _cells(ranks, lambda row: f"{row['rank']} ({row['mean']:.3f} of {row['tasks']})"))

    return _by_placement(text, table, ranked)


def _by_placement(text: str, table: pd.DataFrame, written: Callable[[pd.DataFrame], str]) -> str:
    """A table for each place of the question, which are different settings; nothing where all are empty."""
    parts = {_place(name): written(own) for name, own in table.groupby("placement")}
    found = [f"### {_capital(place)}\n\n{part}" for place, part in parts.items() if part]
    return "\n\n".join([text, *found]) if found else ""


def _place(placement: object) -> str:
    return PLACES.get(str(placement), str(placement))


def _cells(rows: pd.DataFrame, text: Callable[[Any], str]) -> dict[tuple[str, str], str]:
    return {(row["method"], _budget(row["budget"])): text(row) for _, row in rows.iterrows()}


def _refused(table: pd.DataFrame) -> str:
    refused = table[table["refused"] != ""]
    lines = []
    for (method, _), own in refused.groupby(["method", "budget"], dropna=False):
        first, *others = sorted(own["refused"].unique())
        reason = first + (f" (and {len(others)} more like it)" if others else "")
        budget = _budget(own["budget"].iloc[0])
        lines.append([f"`{method}`", budget, _values(own["length"]), f"{len(own):,}", reason])
    head = ["method", "budget", "lengths (tokens)", "cells", "why"]
    return "## Refused\n\n" + (_lines(head, lines) if lines else "Nothing.")


def _budget(budget: float) -> str:
    """A budget in print: tokens, a percentage of the prompt where it is below 1, "any" where it is ignored."""
    if math.isnan(budget):
        return "any"
    return f"{100 * budget:g} %" if budget < 1 else f"{budget:,.0f}"


def _values(values: pd.Series[Any]) -> str:
    return ", ".join(str(value) for value in sorted(values.unique()))


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]


def _lines(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A Markdown table; bars and line breaks in the cells are kept from ending them."""

    def line(cells: Sequence[str]) -> str:
        return f"| {' | '.join(' '.join(str(cell).replace('|', chr(92) + '|').split()) for cell in cells)} |"

    return "\n".join([line(head), "|" + "---|" * len(head), *map(line, rows)])
