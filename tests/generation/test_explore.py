"""Exploring selections: the numbers, and their cache, against replay and brute force."""

from __future__ import annotations

import numpy as np
import pytest

from kvviz import Trace, methods, replay
from kvviz.errors import InvalidInputError, UnknownNameError
from kvviz.generation.explore import Explorer, select, selections
from kvviz.generation.replaying import record
from kvviz.trace.geometry import Geometry

METHODS = ("quest", "clusterkv", "pqcache", "ctkvr", "centroidkv", "streaming_llm", "oracle", "snapkv")
SMALL = {"ctkvr": {"sinks": 8, "recent": 8}, "centroidkv": {"recent": 16}}  # so that a short trace has candidates


def made_trace(length=300, layers=(1, 3), heads=2, seed=0, tokens=None):
    rng = np.random.default_rng(seed)
    centres = rng.normal(size=(12, 16)) * 1.5

    def tensors(rows):
        near = centres[rng.integers(12, size=(rows, length))]
        return (near + rng.normal(size=near.shape) * 0.6).astype(np.float16)

    return Trace(
        model="synthetic", geometry=Geometry(4, 2 * heads, heads, 16, 4096),
        tokens=tokens or [f" word{place}" for place in range(length)], token_ids=np.arange(length, dtype=np.int64),
        queries={layer: tensors(2 * heads) for layer in layers}, keys={layer: tensors(heads) for layer in layers},
        values={layer: tensors(heads) for layer in layers},
    )  # fmt: skip


@pytest.fixture(scope="module")
def trace():
    return made_trace()


def exact_weights(trace, layer, step_position):
    """Mean over a KV head's query heads of the softmax over the visible keys, [H, visible], in float64."""
    queries = trace.queries[layer][:, step_position].astype(np.float64)  # [Q, D]
    keys = trace.keys[layer][:, : step_position + 1].astype(np.float64)  # [H, L, D]
    logits = np.einsum("hgd,hld->hgl", queries.reshape(len(keys), -1, keys.shape[-1]), keys) / keys.shape[-1] ** 0.5
    weights = np.exp(logits - logits.max(-1, keepdims=True))
    return (weights / weights.sum(-1, keepdims=True)).mean(1)


@pytest.mark.parametrize("method", METHODS)
def test_all_numbers_agree_with_brute_force(trace, method):
    selection = select(trace, 3, method, queries=5, budget=100, **SMALL.get(method, {}))
    replayed = replay(trace, selection.method, queries=5)
    recalls, masses = [], []
    for step in range(5):
        weights = exact_weights(trace, 3, 295 + step)
        for head in range(2):
            attended = set(replayed.indices(step, 3)[head].tolist()) - {-1}
            entries = len(attended) + replayed.events[3].merged[step, head]
            best = set(np.argsort(-weights[head], kind="stable")[:entries].tolist())
            share = replayed.merged_share(step, 3)[head]  # only CentroidKV's are not 0
            recalls.append((len(attended & best) + share[sorted(best)].sum()) / len(best))
            masses.append(weights[head, sorted(attended)].sum() + (weights[head] * share).sum())
            if step < 4:
                continue
            parts = selection.parts[head]
            low, high = round(selection.ledger.sinks), 295 - round(selection.ledger.recent)
            chosen = {place for place in attended if low <= place < high}
            merged = set(np.flatnonzero(share >= 0.5).tolist())
            assert (parts.agreed, parts.wasted, parts.missed) == (
                len(chosen & best), len(chosen - best), len(best - attended - merged))  # fmt: skip
            assert selection.indices[head][selection.indices[head] >= 0].tolist() == sorted(attended)
            assert parts.generated == sum(place >= 295 for place in attended)
    np.testing.assert_allclose(selection.recall, np.reshape(recalls, (5, 2)).mean(0))
    np.testing.assert_allclose(selection.attention_mass, np.reshape(masses, (5, 2)).mean(0), atol=1e-5)
    assert selection.output_error == pytest.approx(replayed.events[3].output_error.mean())
    assert selection.metadata_bytes == selection.ledger.metadata_bytes


@pytest.mark.parametrize("method", METHODS)
def test_the_means_over_heads_equal_the_ledger(trace, method):
    selection = select(trace, 3, method, budget=100, **SMALL.get(method, {}))
    means = {name: np.mean([getattr(parts, name) for parts in selection.parts]) for name in vars(selection.parts[0])}
    ledger = selection.ledger
    assert means["agreed"] + means["wasted"] == pytest.approx(ledger.selected)
    for name in ("sinks", "recent", "merged", "generated"):
        assert means[name] == pytest.approx(getattr(ledger, name)), name
    if method == "centroidkv":
        assert means["merged_tokens"] == 292 - ledger.sinks - ledger.recent
        assert ledger.merged > 0
    assert selection.wasted.tolist() == [parts.wasted for parts in selection.parts]


def test_the_oracle_keeps_most_attention_and_its_curve_rises(trace):
    explorer = Explorer(trace)
    previous = 0.0
    for budget in (48, 80, 120, 200):
        for method in ("quest", "clusterkv", "pqcache"):
            point = explorer.point(3, method, budget=budget, dense_layers=0)
            best = explorer.oracle_point(3, method, budget=budget, dense_layers=0)
            assert (np.array(point.attention_mass) <= np.array(best.attention_mass) + 1e-6).all()
        weights = [exact_weights(trace, 3, 292 + step) for step in range(8)]
        largest = [-np.sort(-row, axis=-1)[:, :budget].sum(-1) for row in weights]
        np.testing.assert_allclose(best.attention_mass, np.mean(largest, axis=0), atol=1e-5)
        assert min(best.attention_mass) > previous
        previous = min(best.attention_mass)


def test_each_query_head_has_its_own_oracle(trace):
    explorer = Explorer(trace)
    point = explorer.point(3, "clusterkv", budget=60, group="each")
    best = explorer.oracle_point(3, "clusterkv", budget=60, group="each")
    assert len(point.recall) == len(best.recall) == 4
    assert (np.array(point.attention_mass) <= np.array(best.attention_mass) + 1e-6).all()


def test_results_are_cached_up_to_a_limit(trace, monkeypatch):
    runs = []
    monkeypatch.setattr(selections, "record", lambda *args: runs.append(args[1].budget) or record(*args))
    monkeypatch.setattr(selections, "REMEMBERED", 2)
    explorer = Explorer(trace)
    first = explorer.select(3, "quest", budget=64)
    assert explorer.select(3, "quest", budget=64, page_size=16) is first  # the same configuration
    explorer.select(3, "quest", budget=96)
    explorer.select(3, "quest", budget=128)
    assert runs == [64, 96, 128]
    explorer.point(3, "quest", budget=64)
    explorer.select(3, "quest", budget=96)  # not in the cache any more
    explorer.point(3, "quest", budget=64)  # its numbers are still cached
    assert runs == [64, 96, 128, 64, 96] or runs == [64, 96, 128, 64]
    np.testing.assert_array_equal(explorer.select(3, "quest", budget=64).indices, first.indices)


@pytest.mark.parametrize("method", ["quest", "clusterkv", "pqcache", "infinigen", "magicpig", "ctkvr", "snapkv"])
def test_a_built_layer_can_be_used_for_other_budgets(trace, monkeypatch, method):
    """The method's state and the layer's tokens after eight steps must not affect the next budget."""
    fields = {"dense_layers": 0, **SMALL.get(method, {})}
    method_class = methods.get(method)
    builds = []
    build = method_class.build
    monkeypatch.setattr(method_class, "build", lambda *args: builds.append(args[0].budget) or build(*args))
    explorer = Explorer(trace)
    budgets = (80, 200, 96, 80)
    monkeypatch.setattr(selections, "REMEMBERED", 1)
    explored_selections = [explorer.select(3, method, budget=budget, **fields) for budget in budgets]
    reusable = methods.create(method, budget=80, **fields).reusable(explorer.prompt_length)
    assert len(builds) == (len(budgets) if reusable is None else 1)
    for explored, budget in zip(explored_selections, budgets, strict=True):
        whole = replay(trace, method, 8, budget=budget, **fields)
        for name in ("indices", "groups", "output_error", "attention"):
            np.testing.assert_array_equal(getattr(explored.recording.events[3], name), getattr(whole.events[3], name))
        assert explored.ledger == whole.ledgers[3]


def test_longer_lists_serve_any_budget_and_ratio(trace, monkeypatch):
    """CTkvr's lists are the beginnings of longer ones: neither budget nor `list_ratio` needs a new build."""
    fields = {**SMALL["ctkvr"], "causal": True}
    cases = [{"budget": budget, "list_ratio": ratio, **fields} for budget, ratio in ((200, 2.5), (80, 1.0), (96, 4.0))]
    replayed = [replay(trace, "ctkvr", 8, **case).events[3].indices for case in cases]
    builds = []
    build = methods.get("ctkvr").build
    monkeypatch.setattr(methods.get("ctkvr"), "build", lambda *args: builds.append(args[0].budget) or build(*args))
    explorer = Explorer(trace)
    for case, expected in zip(cases, replayed, strict=True):
        np.testing.assert_array_equal(explorer.select(3, "ctkvr", **case).recording.events[3].indices, expected)
    assert len(builds) == 1
    explorer.select(3, "ctkvr", **cases[0], n_centroids=5)
    assert len(builds) == 2


def test_errors_say_what_to_do(trace):
    explorer = Explorer(trace)
    for call, message in (
        (lambda: Explorer("text"), "wanted a kvviz.Trace, such as kvviz.capture"),
        (lambda: Explorer(trace, queries=300), "1 to 299, so that a prompt is left"),
        (lambda: explorer.select(2, "quest", budget=64), "a captured layer: .1, 3."),
        (
            lambda: explorer.select(1, "quest", budget=64),
            r"layer 1, where it attends to all tokens .dense_layers=2.*\[3\]",
        ),
        (lambda: explorer.select(3, "full"), "layer 3, where it attends to all tokens .always.; wanted another method"),
        (lambda: explorer.select(3, "quest", budget=16), "at least 48 tokens"),
    ):
        with pytest.raises(InvalidInputError, match=message):
            call()
    with pytest.raises(UnknownNameError, match="did you mean 'clusterkv'"):
        explorer.select(3, "clusterk", budget=64)
    assert explorer.layers("quest") == (3,)
    assert explorer.budgets("quest", [16, 47, 48, 100]) == [48, 100]
