"""A grid on one sample, as evaluate() runs it, beside generate() for each of its cells: the same prompts and answers.

A grid prefills the sample once, and builds a state that serves every budget once; `generate` does all of it for every
cell. Both run on one thread, as every process of a grid does on a CPU, and must write the same texts.
"""

from __future__ import annotations

import time
from typing import Any

from .inputs import model

METHODS = ("full", "oracle", "clusterkv", "quest", "pqcache", "centroidkv", "snapkv", "streaming_llm")
BUDGETS, LENGTH, TASK = (128, 256, 512, 1024), 4096, "niah_single_2"


def run() -> dict[str, Any]:
    """Seconds of the whole grid both ways, and how often the sample was prefilled."""
    import torch

    from kvviz.evaluation.grid import cells, units

    lm, wanted = model(), cells(METHODS, BUDGETS)
    (unit,) = units([TASK], [LENGTH], 1, 0)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        found = measure(lm, unit, wanted)
    finally:
        torch.set_num_threads(threads)
    return {"model": lm.name, "task": TASK, "length": LENGTH, "methods": METHODS, "budgets": BUDGETS, **found}


def measure(lm: Any, unit: Any, wanted: Any) -> dict[str, Any]:
    """Both ways in turn; raises RuntimeError where they write different texts."""
    import kvviz
    from kvviz.evaluation.unit import run_unit
    from kvviz.tasks.prompts import render

    together: list[str] = []
    started = time.perf_counter()
    prefills = run_unit(lm, unit, wanted, {}, lambda _, rows: together.append(rows[0]["text"]))
    evaluate_s = time.perf_counter() - started
    sample = unit.task.sample(lm, unit.length, unit.index, unit.seed)
    prompt = render(lm, sample, unit.task.placement)
    alone: list[str] = []
    started = time.perf_counter()
    for cell in wanted:
        out = kvviz.generate(
            lm, prompt.text, cell.method, question=prompt.turns[0], max_new_tokens=sample.turns[0].max_new_tokens
        )
        alone.append(out.text)
    generate_s = time.perf_counter() - started
    if together != alone:
        raise RuntimeError("evaluate and generate wrote different texts")
    return {
        "cells": len(wanted), "prefills": prefills, "evaluate_s": evaluate_s, "generate_s": generate_s,
        "ratio": generate_s / evaluate_s,
    }  # fmt: skip
