"""The benchmark of CentroidKV's schedules: its differences, by hand, and its table."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

import kvviz
from tests import tiny_models

sys.path.insert(0, str(Path(__file__).parents[2] / "data" / "benchmarks"))  # scripts, not an installed package

from parts import schedules  # found through the line above


def test_differences_are_paired():
    numbers = schedules.compared([1.5, 2.5, 3.25, 9.25], [1.0, 2.0, 3.0, 9.0])
    assert (numbers["output_error"], numbers["difference"]) == (4.125, 0.375)
    low, high = numbers["interval"]
    assert 0.25 <= low < 0.375 < high <= 0.5, "differences of 0.25 to 0.5, whatever the errors"


def test_the_table():
    def numbers(difference):
        return {"512": {"output_error": 0.25, "difference": difference, "interval": [-0.25, 0.5]}}

    rows = [{"fields": {}, "budgets": numbers(0)}, {"fields": {"chunk_size": 64}, "budgets": numbers(0.125)}]
    written = schedules.each({"tokens": 2048, "steps": 160, "every": 16, "texts": 3, "layers": 30, "rows": rows})
    assert "| defaults | 0.250 |  |" in written
    assert "| chunk_size=64 | 0.250 | +0.125 (-0.250 to +0.500) |" in written


def test_one_value_per_layer():
    lm = kvviz.LanguageModel(tiny_models.make("llama"), tiny_models.letters_tokenizer(), "tiny")
    trace = kvviz.capture(lm, tiny_models.prompt(400))
    errors = schedules.errors_by_layer(trace, {"schedule": "literal"}, 128)
    assert len(errors) == len(trace.layers)
    assert min(errors) > 0


@pytest.mark.parametrize("budget", [96, 399])  # two merges while decoding; none
def test_the_errors_are_those_of_a_replay(budget):
    lm = kvviz.LanguageModel(tiny_models.make("llama"), tiny_models.letters_tokenizer(), "tiny")
    trace = kvviz.capture(lm, tiny_models.prompt(400))
    recording = kvviz.replay(trace, "centroidkv", queries=160, budget=budget)
    expected = [recording.events[layer].output_error[7::8].mean() for layer in recording.layers]
    assert schedules.errors_by_layer(trace, {}, budget, every=8) == pytest.approx(expected, rel=1e-3, abs=1e-6)
