"""Needles found if the model sees the question only after the context was compressed.

All methods attend to equally many tokens in every step: tokens fed after the context count within the budget (`EQUAL`).
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Container, Iterable
from typing import Any

from .inputs import SYSTEMS, Configuration, configurations, model, prose

TOKENS, BUDGETS, COUNT, SEED, NEW_TOKENS = 2000, (256,), 16, 0, 8
BATCHES = range(2)  # of COUNT samples, at the same depths with other seeds
# What each method needs for that: tokens that wait for their cluster count too, merging goes on with each token, and
# methods that drop tokens at the end of a prompt only drop one for each new one.
EQUAL: dict[str, dict[str, Any]] = {
    "clusterkv": {"decode_interval": None, "generated": "within"}, "centroidkv": {"decode_interval": 1},
    "snapkv": {"generated": "within"}, "pyramidkv": {"generated": "within"},
}  # fmt: skip
MEANS = ("recall", "attention_mass", "output_error", "attended_tokens", "metadata_bytes", "build_s")


def run(methods: Container[str] | None = None, batches: Iterable[int] = BATCHES) -> dict[str, Any]:
    """Needles found per configuration and budget, and means over samples of what `kvviz.compare` measures.

    `methods` names the methods to measure, by default all.
    """
    import pandas as pd

    import kvviz
    from kvviz.tasks import needle_samples

    lm = model()
    samples = [
        sample
        for batch in batches
        for sample in needle_samples(lm, prose(), count=COUNT, tokens=TOKENS, seed=SEED + batch * COUNT)
    ]
    labelled, left_out = _allowed(configurations((*SYSTEMS, "infinigen"), methods))
    tables, seconds = [], []
    for sample in samples:
        started = time.perf_counter()
        table = kvviz.compare(lm, sample.context, labelled, BUDGETS, sample.question, sample.answer, NEW_TOKENS)
        bounds = [_bounds(table.recordings[key]) for key in zip(table["method"], table["budget"], strict=True)]
        tables.append(pd.DataFrame(table).assign(least=[low for low, _ in bounds], most=[high for _, high in bounds]))
        seconds.append(time.perf_counter() - started)
        finders = "; ".join(table["method"][table["correct"]])
        print(f"{sample.needle} ({seconds[-1]:.0f} s) found by: {finders}", flush=True)
    return {
        "model": lm.name, "tokens": TOKENS, "budgets": BUDGETS, "samples": len(samples),
        "seeds": [sample.seed for sample in samples], "new_tokens": NEW_TOKENS,
        "median_s_a_sample": statistics.median(seconds),
        "example": {"needle": samples[0].needle, "question": samples[0].question},
        "rows": summed(tables), "left_out": left_out,
    }  # fmt: skip


def extended(old: dict[str, Any]) -> dict[str, Any]:
    """The old results with those of the batches that they lack."""
    lacking = range(old["samples"] // COUNT, len(BATCHES))
    if not lacking:
        raise SystemExit(f"needle: got {old['samples']} samples, which is all of them; raise BATCHES for more")
    new = run(batches=lacking)
    by_label = {(row["label"], row["budget"]): row for row in new["rows"]}
    rows = [_joined(row, by_label[row["label"], row["budget"]]) for row in old["rows"]]
    return new | {
        "samples": old["samples"] + new["samples"], "seeds": [*old["seeds"], *new["seeds"]],
        "example": old["example"], "rows": rows,
    }  # fmt: skip


def _joined(old: dict[str, Any], new: dict[str, Any]) -> dict[str, Any]:
    """The row of all samples from the rows of two parts of them."""
    import numpy as np

    from kvviz.metrics import bootstrap_interval

    correct, of = old["correct"] + new["correct"], old["of"] + new["of"]
    means = {name: (old[name] * old["of"] + new[name] * new["of"]) / of for name in MEANS}
    return old | means | {
        "correct": correct, "of": of, "interval": bootstrap_interval((np.arange(of) < correct).astype(float)),
        "least": min(old["least"], new["least"]), "most": max(old["most"], new["most"]),
    }  # fmt: skip


def summed(tables: list[Any], budgets: tuple[int, ...] = BUDGETS) -> list[dict[str, Any]]:
    """One row per label and budget of tables from `kvviz.compare`: needles found, and means over the tables.

    A method that attends to all tokens has the prompt's length as its budget; it gets one row, with a budget of 0.
    """
    import pandas as pd

    from kvviz.metrics import bootstrap_interval

    table = pd.concat(tables, ignore_index=True)
    table.loc[~table["budget"].isin(budgets), "budget"] = 0
    rows = []
    for (label, budget), group in table.groupby(["method", "budget"], sort=False):
        row = {"label": label, "budget": int(budget), "correct": int(group["correct"].sum()), "of": len(group)}
        row["interval"] = bootstrap_interval(group["correct"].to_numpy(float))
        if "least" in group:  # of the tokens attended to in a step
            row |= {"least": float(group["least"].min()), "most": float(group["most"].max())}
        rows.append(row | {name: float(group[name].mean()) for name in MEANS})
    return rows


def _bounds(recording: Any) -> tuple[float, float]:
    """The fewest and the most tokens attended to in a step: means over a KV head and layer of those that select."""
    if not recording.layers:  # all tokens in every step
        return recording.prompt_length + 1, recording.prompt_length + recording.steps
    by_step = [
        statistics.fmean(float(recording.attended_tokens(step, layer).mean()) for layer in recording.layers)
        for step in range(recording.steps)
    ]
    return min(by_step), max(by_step)


def _allowed(candidates: list[Configuration]) -> tuple[dict[str, Any], dict[str, str]]:
    """The methods by label, and why the others cannot be run at these budgets."""
    import kvviz

    allowed, left_out = {}, {}
    for configuration in candidates:
        try:
            for budget in BUDGETS:
                allowed[configuration.label] = configuration.create(budget=budget, **EQUAL.get(configuration.name, {}))
        except kvviz.InvalidInputError as error:
            allowed.pop(configuration.label, None)
            left_out[configuration.label] = str(error)
    return allowed, left_out
