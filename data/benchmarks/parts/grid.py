"""A grid on one sample: evaluate() compared with a generate() call per cell, with the same prompts and answers.

A grid prefills the sample once, and builds a state once if it serves all budgets; `generate` does both for every cell.
Both run on one thread, as every process of a grid does on a CPU, and must generate the same texts.
"""

from __future__ import annotations

import time
from typing import Any

from .inputs import model

METHODS = ("full", "oracle", "clusterkv", "quest", "pqcache", "centroidkv", "snapkv", "streaming_llm")
BUDGETS, LENGTH, TASK = (128, 256, 512, 1024), 4096, "niah_single_2"


def run() -> dict[str, Any]:
    """Seconds of the whole grid both ways, and the number of prefills."""
    import torch

    from kvviz.evaluation.grid import cells, examples

    lm, grid_cells = model(), cells(METHODS, BUDGETS)
    (example,) = examples([TASK], [LENGTH], 1, 0)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        results = measure(lm, example, grid_cells)
    finally:
        torch.set_num_threads(threads)
    return {"model": lm.name, "task": TASK, "length": LENGTH, "methods": METHODS, "budgets": BUDGETS, **results}


def measure(lm: Any, example: Any, grid_cells: Any) -> dict[str, Any]:
    """Seconds both ways, one after the other. Raises RuntimeError if the texts differ."""
    import kvviz
    from kvviz.evaluation.example_cells import run_example
    from kvviz.tasks.prompts import render

    evaluated: list[str] = []
    started = time.perf_counter()
    prefills = run_example(lm, example, grid_cells, {}, lambda _, rows: evaluated.append(rows[0]["text"]))
    evaluate_s = time.perf_counter() - started
    sample = example.task.sample(lm, example.length, example.index, example.seed)
    prompt = render(lm, sample, example.task.placement)
    generated: list[str] = []
    started = time.perf_counter()
    for cell in grid_cells:
        out = kvviz.generate(
            lm, prompt.text, cell.method, question=prompt.turns[0], max_new_tokens=sample.turns[0].max_new_tokens
        )
        generated.append(out.text)
    generate_s = time.perf_counter() - started
    if evaluated != generated:
        raise RuntimeError("evaluate and generate wrote different texts")
    return {
        "cells": len(grid_cells), "prefills": prefills, "evaluate_s": evaluate_s, "generate_s": generate_s,
        "ratio": generate_s / evaluate_s,
    }  # fmt: skip
