"""misses() and predictors(): their numbers against diagnoses of the same samples, and against SciPy."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from scipy.stats import spearmanr

import kvviz
from kvviz.errors import InvalidInputError
from kvviz.evaluation import misses, predictors
from kvviz.evaluation.miss_table import PREDICTORS, spearman
from kvviz.tasks.needle import NeedleSample
from kvviz.trace.outcomes import OUTCOMES
from tests.cache.test_editing import smallest
from tests.tiny_models import letters_tokenizer, make, prompt

QUESTION, METHODS = " what? ", ("clusterkv", "snapkv", "centroidkv")


@pytest.fixture(scope="module")
def tiny():
    return kvviz.LanguageModel(make("llama"), letters_tokenizer(), name="tiny-llama")


@pytest.fixture(scope="module")
def samples(tiny):
    """A sample that full attention answers, and one that it does not."""
    text = "".join(tiny.tokens(prompt(150)))
    answer = kvviz.generate(tiny, text, "full", question=QUESTION, max_new_tokens=4).text
    return [
        NeedleSample(text, QUESTION, answer, text[40:60], 0.3, 0),
        NeedleSample(text, QUESTION, "zqzq", text[40:60], 0.3, 1),
    ]


@pytest.fixture(scope="module")
def table(tiny, samples):
    return misses(tiny, samples, {name: smallest(name) for name in METHODS}, progress=False)


def test_rows_are_those_of_diagnoses(tiny, samples, table):
    assert table["method"].tolist() == list(METHODS)
    assert table.attrs["left_out"] == [1]
    for row in table.to_dict("records"):
        sample = samples[0]
        d = kvviz.diagnose(
            tiny, sample.context, sample.answer, smallest(row["method"]), question=QUESTION, controls=0,
            evidence=sample.needle,
        )  # fmt: skip
        needed = d.evidence.loc[d.evidence["logprob"] >= 0.05, "position"]
        losses = d.losses[d.losses["position"].isin(needed)]
        assert len(needed) > 0
        counts = losses["stage"].value_counts()
        assert [row[outcome] for outcome in OUTCOMES] == [counts.get(outcome, 0) for outcome in OUTCOMES]
        wanted = losses[losses["stage"] != "not wanted"]
        attended = wanted["stage"] == "attended"
        assert row["evidence_recall"] == pytest.approx(attended.mean())
        weights = wanted["exact_weight"]
        assert row["weighted_evidence_recall"] == pytest.approx(weights[attended].sum() / weights.sum())
        assert (row["full"], row["logprob"]) == pytest.approx((d.full.total, d.method.total), abs=1e-4)
        assert row["answered"] == d.method.answered
        for name, nats in d.causes:
            assert row[f"nats: {name}"] == pytest.approx(nats, abs=1e-3)


def test_means_are_those_of_a_recording(tiny, samples, table):
    """CentroidKV gives the answer here, so that its greedy run feeds the same tokens."""
    (row,) = table[table["method"] == "centroidkv"].to_dict("records")
    assert row["answered"]
    out = kvviz.generate(
        tiny, samples[0].context, smallest("centroidkv"), question=QUESTION, max_new_tokens=4, record=True
    )
    assert out.text == samples[0].answer
    summary = out.recording.summary()
    for name in ("recall", "attention_mass", "output_error", "attended_tokens"):
        assert row[name] == pytest.approx(summary[name], rel=1e-4)


def test_nothing_to_tell_is_refused(tiny, samples):
    with pytest.raises(InvalidInputError, match="0 samples, 1 methods"):
        misses(tiny, [], {"quest": "quest"})


def test_spearman_is_scipys():
    rng = np.random.default_rng(0)
    for _ in range(20):
        one, two = rng.integers(0, 6, 40).astype(float), rng.integers(0, 2, 40).astype(float)
        assert spearman(one, two) == pytest.approx(spearmanr(one, two).statistic)
    assert np.isnan(spearman(np.ones(4), np.arange(4.0)))


def test_predictors_have_intervals_over_samples():
    rng = np.random.default_rng(1)
    seeds = np.repeat(np.arange(12), 5)
    answered = rng.random(60) < 0.5
    table = pd.DataFrame({"seed": seeds, "answered": answered, **{name: rng.random(60) for name in PREDICTORS}})
    table["recall"] = answered + 0.01 * rng.random(60)
    found = predictors(table, resamples=300).set_index("number")
    assert list(found.index) == list(PREDICTORS)
    assert found.loc["recall", "low"] > 0.8
    assert found.loc["attention_mass", "low"] < 0.35
    assert (found["low"] <= found["correlation"]).all()
    assert (found["correlation"] <= found["high"]).all()
