"""The budget explorer without a browser: what it shows and refuses, and the content of its page."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import re

import numpy as np
import pytest

import kvviz.generation.explore
from kvviz import Trace, methods, replay
from kvviz.errors import InvalidInputError, UnknownNameError
from kvviz.generation.explore import Explorer
from kvviz.generation.explore.explorer_sliders import sliders_of
from kvviz.widgets import BudgetExplorer, explorer_budgets, explorer_data, view
from tests.browser.recordings import HOSTILE
from tests.generation.test_explore import made_trace
from tests.widgets.javascript import exported
from tests.widgets.test_stepper_page import Scripts, embedded, page_data


@pytest.fixture(scope="module")
def trace():
    return made_trace()


@pytest.mark.parametrize("method", ["quest", "clusterkv", "pqcache", "ctkvr", "centroidkv", "streaming_llm", "snapkv"])
def test_it_shows_the_numbers_of_a_replay(trace, method):
    explorer = BudgetExplorer(trace, method=method, budget=160, layer=3, head=1)
    recording = replay(trace, method, queries=8, budget=160)
    assert explorer.highlighted().tolist() == [place for place in recording.indices(7, 3)[1] if place >= 0]
    shown = explorer.numbers
    assert shown["recall"] == pytest.approx(np.mean([recording.recall(step, 3)[1] for step in range(8)]))
    assert shown["mass"] == pytest.approx(np.mean([recording.attention_mass(step, 3)[1] for step in range(8)]))
    assert shown["error"] == pytest.approx(recording.events[3].output_error.mean())
    assert shown["mass"] <= shown["oracle"]["mass"] + 1e-6
    marks = explorer_data.arrays(explorer.explored, range(1, 2), "none")["marks"]
    attended = (marks & view.ATTENDED) > 0
    parts = shown["parts"]
    sink, recent, generated, oracle = (
        (marks & mark) > 0 for mark in (view.SINK, view.RECENT, view.GENERATED, view.ORACLE)
    )
    chosen = attended & ~sink & ~recent & ~generated
    assert parts["sinks"] == (attended & sink).sum()  # the text and the bar show the same tokens
    assert parts["recent"] == (attended & recent).sum()
    assert parts["generated"] == (attended & generated).sum()
    assert (parts["agreed"], parts["wasted"]) == ((chosen & oracle).sum(), (chosen & ~oracle).sum())
    assert parts["missed"] == (oracle & ~attended & ((marks & view.MERGED) == 0)).sum()


def test_traits_change_the_view_and_bad_values_change_nothing(trace):
    explorer = BudgetExplorer(trace, method="quest", budget=96)
    assert (explorer.layer, explorer.head, explorer.settings) == (3, 0, {"page_size": 16})
    before = explorer.slice
    explorer.budget = 128
    assert explorer.numbers["budget"] == 128
    assert explorer.slice != before
    explorer.settings = {"page_size": 8}
    expected = replay(trace, "quest", queries=8, budget=128, page_size=8).indices(7, 3)[0]
    assert explorer.highlighted().tolist() == expected[expected >= 0].tolist()
    assert "budget=128" in explorer.numbers["call"]
    assert "page_size=8" in explorer.numbers["call"]
    shown = dict(explorer.numbers)
    for name, value, message in (
        ("budget", 20, "at least 24 tokens"),
        ("layer", 1, "attends to all tokens"),
        ("layer", 2, "a captured layer"),
        ("head", 2, "0 to 1"),
        ("settings", {"page_size": 64}, "at least 192 tokens"),
    ):
        with pytest.raises(InvalidInputError, match=message):
            setattr(explorer, name, value)
        assert explorer.numbers == shown
    with pytest.raises(InvalidInputError, match="at least 192"):
        explorer.show(layer=3, page_size=64)
    assert explorer.settings == {"page_size": 8}
    explorer.show(budget=224, page_size=64, head=1)  # neither alone is valid
    assert (explorer.budget, explorer.settings, explorer.head) == (224, {"page_size": 64}, 1)


def test_its_call_makes_the_same_view(trace):
    first = BudgetExplorer(trace, method="clusterkv", budget=0.4, head=1, seed=3, metric="ip", tokens_per_cluster=20)
    again = eval(first.numbers["call"], {"kvviz": __import__("kvviz.widgets"), "trace": trace})
    assert again.slice == first.slice
    assert again.numbers == first.numbers
    assert first.budget == int(0.4 * 292)
    assert {"seed=3", "metric='ip'"} <= set(re.findall(r"[\w]+=[^,)]+", first.numbers["call"]))


def test_errors_name_a_way_out(trace):
    empty = Trace("m", trace.geometry, ["a"] * 20, np.arange(20), {}, {}, {})
    for make, message in (
        (lambda: BudgetExplorer("text"), "wanted a kvviz.Trace"),
        (lambda: BudgetExplorer(made_trace(length=6)), "1 to 5, so that a prompt is left; capture more tokens"),
        (lambda: BudgetExplorer(made_trace(length=60), method="ctkvr"), "a longer trace, or fewer sinks and recent"),
        (lambda: BudgetExplorer(trace, method="full"), "another method"),
        (lambda: BudgetExplorer(trace, head=5, budget=64), "0 to 1"),
        (lambda: BudgetExplorer(trace, method=3), "its name, and fields as keywords"),
        (lambda: BudgetExplorer(trace, method="clusterkv", n_clusters=0), "n_clusters"),
        (lambda: BudgetExplorer(empty), "a trace without layers"),
    ):  # fmt: skip
        with pytest.raises(InvalidInputError, match=message):
            make()
    with pytest.raises(UnknownNameError, match="did you mean 'quest'"):
        BudgetExplorer(trace, method="ques")
    with pytest.raises(UnknownNameError, match="page_size"):
        BudgetExplorer(trace, method="quest", page_siz=3)


def test_the_page_gets_an_answer_to_each_request(trace):
    explorer = BudgetExplorer(trace, method="quest", budget=96)
    serial = explorer.numbers["serial"]
    place = {"budget": 128, "layer": 3, "head": 1, "settings": {"page_size": 32}}
    explorer._heard(explorer, {"kind": "show", "place": place}, [])
    assert {name: explorer.numbers[name] for name in place} == place
    assert explorer.numbers["serial"] == serial + 1
    explorer._heard(explorer, {"kind": "show", "place": place}, [])  # no change, but still an answer
    assert explorer.numbers["serial"] == serial + 2
    explorer._heard(explorer, {"kind": "show", "place": place | {"budget": 20}}, [])
    assert "at least 96 tokens" in explorer.numbers["refusal"]
    assert (explorer.budget, explorer.numbers["serial"]) == (128, serial + 3)


def test_the_curve_grows_until_it_is_complete(trace):
    explorer = BudgetExplorer(trace, method="quest", budget=96, layer=3, head=1)
    requests = 0
    while not explorer.curve["done"]:
        explorer._heard(explorer, {"kind": "curve"}, [])
        requests += 1
    points = explorer.curve["points"]
    assert requests == len(points) >= 4
    for budget, mass, recall, error in points:
        recording = replay(trace, "quest", queries=8, budget=budget)
        assert mass == pytest.approx(np.mean([recording.attention_mass(step, 3)[1] for step in range(8)]))
        assert recall == pytest.approx(np.mean([recording.recall(step, 3)[1] for step in range(8)]))
        assert error == pytest.approx(recording.events[3].output_error.mean())
    assert all(point[1] <= best[1] + 1e-6 for point, best in zip(points, explorer.curve["oracle"], strict=True))
    explorer.budget = 128
    assert explorer.curve["done"]  # the same curve
    explorer.head = 0
    assert explorer.curve == {"points": [], "oracle": [], "done": False}


def test_sliders_have_valid_values_and_the_current_one():
    first, second = sliders_of(methods.create("clusterkv", tokens_per_cluster=33), 64)
    assert (first.name, second.name) == ("tokens_per_cluster", "sinks")
    assert 33 in first.values
    assert [item.name for item in sliders_of(methods.create("clusterkv", n_clusters=9), 64)] == ["n_clusters", "sinks"]
    assert [item.name for item in sliders_of(methods.create("ctkvr", n_centroids=9), 64)] == [
        "n_centroids",
        "list_ratio",
    ]
    (parts, _) = sliders_of(methods.create("pqcache", n_partitions=3), 96)
    assert parts.values == (1, 2, 3, 4, 8)
    (parts, _) = sliders_of(methods.create("pqcache"), 6)
    assert parts.values == (1, 2)


def test_there_are_four_budgets_per_doubling():
    stops = explorer_budgets.budgets(1000)
    assert (stops[0], stops[-1], stops == sorted(set(stops))) == (16, 1000, True)
    assert max(np.diff(stops) / stops[:-1]) <= 0.25
    assert explorer_budgets.budgets(10) == [10]


@pytest.mark.parametrize("name", [name for name in methods.names() if methods.get(name).sliders is None])
def test_a_method_without_sliders_gets_them_from_its_numeric_fields(name):
    method = methods.create(name, budget=400)
    fields = {field.name: field for field in dataclasses.fields(method)}
    shared = {field.name for field in dataclasses.fields(methods.Method)}
    numeric = [
        name for name in fields if name not in shared | {"seed"} and type(getattr(method, name)) in (int, float)
    ]  # fmt: skip
    sliders = sliders_of(method, 64)
    assert [slider.name for slider in sliders] == [name for name in numeric if name in {s.name for s in sliders}]
    assert len(sliders) == min(2, len(numeric))
    for slider in sliders:
        current = getattr(method, slider.name)
        assert len(slider.values) > 1
        assert slider.values == tuple(sorted({*slider.values, current}))
        assert all(type(value) is type(current) for value in slider.values)
        assert slider.meaning == f"a field of {method.title}, {fields[slider.name].default} by default"
        for value in slider.values:
            dataclasses.replace(method, **{slider.name: value})  # the method accepts every value


def test_the_ends_of_a_derived_slider_can_be_shown_or_are_refused():
    explorer, shown = Explorer(made_trace(200), queries=1), 0
    for name in [name for name in methods.names() if methods.get(name).sliders is None]:
        for slider in sliders_of(methods.create(name, budget=160), 16) if explorer.layers(name, budget=160) else ():
            for value in (slider.values[0], slider.values[-1]):
                with contextlib.suppress(InvalidInputError):
                    explored = explorer.select(3, name, **{"budget": 160, slider.name: value})
                    assert explored.method.config[slider.name] == value
                    assert (explored.indices >= 0).any()
                    shown += 1
    assert shown > 30


def test_a_slider_of_an_unknown_field_is_refused():
    @dataclasses.dataclass
    class Mistaken(type(methods.create("quest"))):
        sliders = (methods.Slider("pagesize", "page size", (4, 8), "tokens"),)

    with pytest.raises(UnknownNameError, match="did you mean 'page_size'"):
        sliders_of(Mistaken(), 64)


def test_the_page_holds_a_grid_and_describes_it(trace):
    explorer = BudgetExplorer(trace, method="quest", budget=100, head=1)
    page = explorer.to_html()
    data, slices = embedded(page)
    budgets, sizes = data["page"]["budgets"], data["page"]["sliders"][0]["values"]
    assert 100 in budgets
    curves, cells = [], {}
    for answer in page_data(page)["answers"]:
        size = answer["when"]["settings"]["page_size"]
        if "budget" in answer["when"]:
            cells[answer["when"]["budget"], size] = answer["then"]
        else:
            curves.append((size, answer["then"]["curve"]["done"]))
    assert curves == [(size, True) for size in sizes]
    assert set(cells) == {(budget, size) for budget in budgets for size in sizes}
    assert set(slices) == {cell["slice"]["blob"] for cell in cells.values() if not cell["numbers"]["refusal"]}
    assert 0 < len(slices) < len(cells)
    other = BudgetExplorer(trace, method="quest", budget=100, head=1, page_size=8)
    assert slices[cells[100, 8]["slice"]["blob"]] == other.slice
    assert cells[100, 8]["numbers"]["parts"] == other.numbers["parts"]
    assert data["page"]["notes"] == [
        f"This page holds {len(budgets)} budgets from {budgets[0]} to {budgets[-1]} × page size 4, 8, 16, 32, 64, 128"
        " for layer 3, KV head 1. BudgetExplorer(trace) in a notebook computes all others."
    ]
    assert explorer.to_html() == page == BudgetExplorer(trace, method="quest", budget=100, head=1).to_html()
    assert (explorer.budget, explorer.settings) == (100, {"page_size": 16})


def test_hostile_tokens_are_not_markup():
    tokens = [HOSTILE[place % len(HOSTILE)] if place % 3 == 0 else f" word{place}" for place in range(120)]
    page = BudgetExplorer(made_trace(120, tokens=tokens), method="streaming_llm", budget=40).to_html()
    data, slices = embedded(page)
    assert data["page"]["tokens"] == tokens
    tags = [tag for tag, _ in Scripts(page).tags]
    assert tags.count("script") == 2 + len(slices)
    assert not {"img", "link", "iframe", "b"} & set(tags)
    assert "alert(1)</" not in page
    assert not re.search(r"https?://(?!www\.w3\.org/2000/svg)", page)


def test_every_number_is_explained(trace):
    explained = set(exported("explorer_words.js")["MEANING"])
    parts = set(vars(kvviz.generation.explore.select(trace, 3, "quest", budget=64).parts[0])) - {"merged_tokens"}
    assert parts | {"budget", "recall", "mass", "error", "attended", "metadata", "read"} <= explained
    json.dumps(BudgetExplorer(trace, method="quest", budget=96).page)
