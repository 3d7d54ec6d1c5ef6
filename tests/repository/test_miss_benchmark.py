"""The benchmark of misses: which samples it takes, how it adds some, and its page."""

from __future__ import annotations

import sys
from pathlib import Path

import pandas as pd
import pytest

import kvviz.evaluation
from tests import tiny_models

sys.path.insert(0, str(Path(__file__).parents[2] / "data" / "benchmarks"))  # scripts, not an installed package

from parts import misses  # found through the line above


def rows_of(seeds, method="quest"):
    numbers = {"full": -0.5, "logprob": -2.0, "answered": True, "recall": 0.5, "attention_mass": 0.5,
               "output_error": 0.1, "attended_tokens": 256.0, "evidence_recall": 0.5,
               "weighted_evidence_recall": 0.6}  # fmt: skip
    counts = {"attended": 3, "not wanted": 9, **dict.fromkeys(misses.LOST, 1)}
    nats = {f"nats: {cause}": -0.25 for cause in misses.CAUSES}
    return [
        {"seed": seed, "method": method, **numbers, **counts, **nats, "logprob": -2.0 - seed, "answered": seed < 2}
        for seed in seeds
    ]


def test_only_samples_that_are_missing_are_run(monkeypatch):
    asked = []

    def run(lm, samples, methods, *, progress):
        asked.append(([sample.seed for sample in samples], list(methods)))
        table = pd.DataFrame(rows_of(sample.seed for sample in samples[1:]))
        table.attrs["left_out"] = [samples[0].seed]
        return table

    class Model:
        name = "tiny"

    monkeypatch.setattr(misses, "model", Model)
    samples = [type("Sample", (), {"seed": seed})() for seed in range(6)]
    monkeypatch.setattr(misses, "_samples", lambda: samples)
    monkeypatch.setattr(kvviz.evaluation, "misses", run)
    part = misses.extended({"rows": rows_of([0, 1]), "left_out": [3]})
    assert asked == [([2, 4, 5], list(misses.METHODS))]
    assert [row["seed"] for row in part["rows"]] == [0, 1, 4, 5]
    assert part["left_out"] == [3, 2]
    (logprob,) = [row for row in part["predictors"] if row["number"] == "logprob"]
    assert logprob["correlation"] == pytest.approx(0.894, abs=0.01)


def test_samples_are_far_apart_and_of_both_batches(monkeypatch):
    lm = kvviz.LanguageModel(tiny_models.make("llama"), tiny_models.letters_tokenizer(), "tiny")
    text = " ".join(f"Sentence {number} says that {number * 7919} sheep came home." for number in range(400))
    monkeypatch.setattr(misses, "model", lambda: lm)
    monkeypatch.setattr(misses, "prose", lambda: text)
    samples = misses._samples()
    assert len({sample.seed for sample in samples}) == len(samples) == misses.COUNT
    depths = [sample.depth for sample in samples[misses.BATCH :]]
    assert max(depths) - min(depths) > 0.7


def test_the_page_has_shares_and_intervals():
    part = {"model": "tiny", "tokens": 2000, "budget": 256, "samples": 3, "left_out": [2],
            "rows": rows_of([0, 1]), "predictors": [{"number": "recall", "correlation": 0.5, "low": 0.1, "high": 0.7}],
            }  # fmt: skip
    page = misses.each(part)
    assert "2 needles that full attention finds, of 3" in page
    row = next(line for line in page.splitlines() if line.startswith("| `quest`"))
    assert "| 2 of 2 | -2.50 [-3.00, -2.00] | 0.38 [0.38, 0.38] |" in row
    assert "| recall | +0.50 [+0.10, +0.70] |" in page
