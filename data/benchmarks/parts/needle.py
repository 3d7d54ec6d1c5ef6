"""Needles found if the model sees the question only after the context was compressed."""

from __future__ import annotations

import statistics
import time
from collections.abc import Container
from typing import Any

from .inputs import SYSTEMS, Configuration, configurations, model, prose

TOKENS, BUDGETS, COUNT, SEED, NEW_TOKENS = 2000, (256,), 16, 0, 8
MEANS = ("recall", "attention_mass", "output_error", "attended_tokens", "metadata_bytes", "build_s")


def run(methods: Container[str] | None = None) -> dict[str, Any]:
    """Needles found per configuration and budget, and means over samples of what `kvviz.compare` measures.

    `methods` names the methods to measure, by default all.
    """
    import kvviz
    from kvviz.tasks import needle_samples

    lm = model()
    samples = needle_samples(lm, prose(), count=COUNT, tokens=TOKENS, seed=SEED)
    labelled, left_out = _allowed(configurations(SYSTEMS, methods))
    tables, seconds = [], []
    for sample in samples:
        started = time.perf_counter()
        tables.append(
            kvviz.compare(
                lm, sample.context, labelled, BUDGETS, sample.question, sample.answer, NEW_TOKENS, recordings=False
            )
        )
        seconds.append(time.perf_counter() - started)
        finders = "; ".join(tables[-1]["method"][tables[-1]["correct"]])
        print(f"{sample.needle} ({seconds[-1]:.0f} s) found by: {finders}", flush=True)
    return {
        "model": lm.name, "tokens": TOKENS, "budgets": BUDGETS, "samples": COUNT, "seeds": [s.seed for s in samples],
        "new_tokens": NEW_TOKENS, "median_s_a_sample": statistics.median(seconds),
        "example": {"needle": samples[0].needle, "question": samples[0].question},
        "rows": summed(tables), "left_out": left_out,
    }  # fmt: skip


def summed(tables: list[Any], budgets: tuple[int, ...] = BUDGETS) -> list[dict[str, Any]]:
    """One row per label and budget of tables from `kvviz.compare`: needles found, and means over the tables.

    A method that attends to all tokens has the prompt's length as its budget; it gets one row, with a budget of 0.
    """
    import pandas as pd

    table = pd.concat(tables, ignore_index=True)
    table.loc[~table["budget"].isin(budgets), "budget"] = 0
    rows = []
    for (label, budget), group in table.groupby(["method", "budget"], sort=False):
        row = {"label": label, "budget": int(budget), "correct": int(group["correct"].sum()), "of": len(group)}
        rows.append(row | {name: float(group[name].mean()) for name in MEANS})
    return rows


def _allowed(candidates: list[Configuration]) -> tuple[dict[str, Any], dict[str, str]]:
    """The methods by label, and why the others cannot be run at these budgets."""
    import kvviz

    allowed, left_out = {}, {}
    for configuration in candidates:
        try:
            for budget in BUDGETS:
                allowed[configuration.label] = configuration.create(budget=budget)
        except kvviz.InvalidInputError as error:
            allowed.pop(configuration.label, None)
            left_out[configuration.label] = str(error)
    return allowed, left_out
