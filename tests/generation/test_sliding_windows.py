"""A model with sliding windows: replays, explorers, maps and ledgers leave the layers with a window alone."""

from __future__ import annotations

from typing import ClassVar

import numpy as np
import pytest

import kvviz
from kvviz.errors import InvalidInputError
from kvviz.generation import diagnosing
from kvviz.generation.explore import Explorer, Mechanism
from kvviz.metrics import attention_weights
from tests.tiny_models import letters_tokenizer, make, prompt

WINDOW, FULL = 16, (1, 3)


@pytest.fixture(scope="module")
def hybrid():
    return kvviz.LanguageModel(make("gemma3"), letters_tokenizer(), name="hybrid")


@pytest.fixture(scope="module")
def trace(hybrid):
    return kvviz.capture(hybrid, prompt(200))


def test_replays_and_explorers_choose_in_full_layers_only(trace):
    assert (trace.layers, trace.full_layers) == ((0, 1, 2, 3), FULL)
    recording = kvviz.replay(trace, "quest", queries=8, budget=64, dense_layers=0)
    assert (recording.layers, recording.exact_layers) == (FULL, (0, 2))
    assert Explorer(trace).layers("quest", budget=64, dense_layers=0) == FULL
    assert Mechanism(trace, "quest", budget=64, dense_layers=0).layers == list(FULL)
    with pytest.raises(InvalidInputError, match="layer 2, sliding window of 16: attends to its window only"):
        Explorer(trace).select(2, "quest", budget=64, dense_layers=0)


def test_a_maps_layer_with_a_window_counts_the_window_only(trace):
    by_head = trace.by_head(tokens=range(100), group="each")
    assert (by_head[[0, 2]] == 0).all()
    assert (by_head[[1, 3]] > 0).all()
    within = trace.by_head(tokens=range(200 - WINDOW, 200), group="each")
    np.testing.assert_allclose(within[[0, 2]], 1, atol=1e-3)
    whole = attention_weights(trace.queries[1], trace.keys[1], np.array([199]), scale=trace.scale, group="each")
    np.testing.assert_allclose(by_head[1], whole[:, 0, :100].sum(-1), atol=1e-5)


def test_a_budget_says_how_many_layers_it_governs(hybrid):
    out = kvviz.generate(hybrid, prompt(120), "quest", 64, max_new_tokens=4, record=True, dense_layers=0)
    assert out.ledger.exact_layers == (0, 2)
    assert "budget 64 in 2 of 4 layers" in out._repr_html_()
    assert "2 of 4 layers" in out.ledger._repr_html_()
    assert "budget 64 in 2 of 4 layers" in out.recording.description


class Display:
    """What diagnose tells a progress display."""

    shown: ClassVar[list[Display]] = []

    def __init__(self, **options: object) -> None:
        self.n, self.total, self.options = 0, 0, options
        Display.shown.append(self)

    def __enter__(self) -> Display:
        return self

    def __exit__(self, *_: object) -> None:
        self.options["closed"] = True

    def update(self, count: int) -> None:
        self.n += count

    def refresh(self) -> None:
        assert self.total > self.n


def test_a_diagnosis_of_a_hybrid_model_counts_its_passes(hybrid, monkeypatch):
    monkeypatch.setattr(diagnosing, "tqdm", Display)
    ids = prompt(120)
    answer = kvviz.generate(hybrid, ids, "full", max_new_tokens=3).text
    found = kvviz.diagnose(hybrid, ids, answer, "quest", 64, max_passes=8, controls=1, dense_layers=0)
    assert set(found.losses["layer"]) | set(found.restored["layer"]) <= {*FULL, -1}
    assert "budget 64 in 2 of 4 layers" in found.description
    (display,) = Display.shown
    assert display.options["disable"] is None, "not quiet in scripts"
    assert display.options["closed"]
    assert display.total / 2 <= display.n <= display.total
    assert found.passes >= display.n
