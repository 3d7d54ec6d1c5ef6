"""Traces and recordings without layer 0: figures, explorers and inspectors take the first layer that there is."""

from __future__ import annotations

import pytest

import kvviz
from kvviz import plots, widgets
from kvviz.generation.explore import Explorer, Mechanism
from tests.tiny_models import letters_tokenizer, make, prompt


@pytest.fixture(scope="module")
def trace():
    return kvviz.capture(kvviz.LanguageModel(make("gemma3"), letters_tokenizer(), "tiny"), prompt(300), layers=[3, 1])


@pytest.fixture(scope="module")
def recording(trace):
    return kvviz.replay(trace, "quest", queries=8, budget=64, dense_layers=0)


@pytest.mark.parametrize(
    ("draw", "options"),
    [
        (plots.attention_distribution, {}),
        (plots.importance_drift, {}),
        (plots.page_fragmentation, {"top": 8}),
        (plots.query_overlap, {"k": 8, "pairs": 50}),
        (plots.semantic_space, {}),
        (plots.selection_map, {}),
    ],
)
def test_figures(trace, recording, draw, options):
    takes_recordings = (plots.attention_distribution, plots.importance_drift, plots.page_fragmentation)
    sources = (
        [recording] if draw is plots.selection_map else [trace, *([recording] if draw in takes_recordings else [])]
    )
    for source in sources:
        assert draw(source, **options) == draw(source, 1, **options) != draw(source, 3, **options)


def test_a_figure_of_several_takes_a_layer_that_all_have(trace, recording):
    other = kvviz.replay(kvviz.capture(lm_of(), prompt(300), layers=[3]), "quest", queries=8, budget=64, dense_layers=0)
    assert plots.selection_map([recording, other]) == plots.selection_map([recording, other], 3)
    assert plots.semantic_space(trace, recording=other) == plots.semantic_space(trace, 3, recording=other)
    only_first = kvviz.replay(
        kvviz.capture(lm_of(), prompt(300), layers=[1]), "quest", queries=8, budget=64, dense_layers=0
    )
    with pytest.raises(kvviz.InvalidInputError, match=r"selection_map: layer: got layers \[\[3\], \[1\]\]"):
        plots.selection_map([other, only_first])


def lm_of():
    return kvviz.LanguageModel(make("gemma3"), letters_tokenizer(), "tiny")


def test_explorers_and_widgets_open_at_a_captured_layer(trace, recording):
    quest = kvviz.methods.create("quest", budget=64, dense_layers=0)
    assert list(Mechanism(trace, quest).layers) == [1, 3] == list(Explorer(trace).layers(quest))
    for widget in (
        widgets.ClusterInspector(trace), widgets.BudgetExplorer(trace, budget=64), widgets.DecodeStepper(recording),
        widgets.MechanismStepper(trace, quest), widgets.MethodComparer([recording]),
    ):  # fmt: skip
        assert widget.layer in (1, 3)
