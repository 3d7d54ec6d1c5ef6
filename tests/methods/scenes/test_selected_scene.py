"""The scene of methods without one of their own: budget, scores, cut and exact attention, held against NumPy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import kvviz
from kvviz.generation.explore import Mechanism
from kvviz.methods import Method
from kvviz.methods.eviction import Eviction
from kvviz.trace import Trace
from kvviz.trace.scene import Bars, Ruler, Scene
from kvviz.widgets import mechanism_content
from tests.browser.latency import repeated

LAYER, HEAD, STEP, QUERIES, LENGTH = 14, 1, 7, 8, 237
RANKING = [
    name
    for name in kvviz.methods.names()
    if not kvviz.methods.get(name).ignores_budget and name not in ("streaming_llm", "centroidkv")
]


@pytest.fixture(scope="module")
def trace() -> Trace:
    return repeated(kvviz.open_runs(live=False).trace("prose"), LENGTH)  # its first tokens


def weights_of(trace: Trace, queries: slice) -> Any:
    """The exact causal weights of a KV head's queries, [3, n, LENGTH]."""
    keys, asked = trace.keys[LAYER][HEAD].astype(np.float64), trace.queries[LAYER][3:6, queries].astype(np.float64)
    logits = asked @ keys.T / 8
    ends = np.arange(LENGTH)[queries]
    logits[:, np.arange(LENGTH) > ends[:, None]] = -np.inf
    weights = np.exp(logits - logits.max(-1, keepdims=True))
    return weights / weights.sum(-1, keepdims=True)


def played(trace: Trace, method: Method) -> Scene:
    return Mechanism(trace, method, QUERIES).scene(LAYER, HEAD, STEP)[0]


def panels(scene: Scene, kind: type, chapter: str) -> list:
    return [panel for frame in scene.frames if frame.chapter == chapter for panel in frame.panels
            if isinstance(panel, kind)]  # fmt: skip


def test_the_ruler_is_the_budget_and_sorted_scores_have_the_cut_where_it_ends(trace: Trace) -> None:
    scene = played(trace, kvviz.methods.create("oracle", budget=60, sinks=4, recent=10))
    (ruler,) = panels(scene, Ruler, "budget")
    assert (list(ruler.sizes), ruler.labels, ruler.cut) == (
        [4, 46, 10],
        ["sinks", "chosen by score", "recent window"],
        60,
    )
    weights = weights_of(trace, slice(-1, None)).mean((0, 1))
    order = 4 + np.argsort(-weights[4:-10], kind="stable")
    in_order, ordered = panels(scene, Bars, "scores")
    shown = np.asarray(ordered.numbers)
    assert list(in_order.numbers) == sorted(shown)
    np.testing.assert_allclose(ordered.values, weights[shown], rtol=1e-4)
    assert {order[0], order[45], order[46]} <= set(shown)
    assert set(shown[: ordered.cut]) <= set(order[:46])
    assert not set(shown[ordered.cut :]) & set(order[:46])
    exact = panels(scene, Bars, "exact attention")[0]
    assert list(exact.numbers) == order[:24].tolist()


def test_what_is_left_of_the_budget_and_what_was_never_found_are_told(trace: Trace) -> None:
    scene = played(trace, kvviz.methods.create("magicpig", budget=200, group="mean"))
    replayed = kvviz.replay(trace, "magicpig", budget=200, group="mean", queries=QUERIES)
    attended = replayed.indices(STEP, LAYER)[HEAD]
    count = int((attended >= 0).sum())
    (ruler,) = panels(scene, Ruler, "budget")
    assert (sum(ruler.sizes), ruler.sizes[-1]) == (200, 200 - count)
    never = LENGTH - 4 - 64 - (count - 4 - 64)
    assert f"{never} tokens were never found" in scene.frames[1].words
    missed = next(frame for frame in scene.frames if frame.chapter == "exact attention")
    assert sum(label.startswith("✗") for label in missed.panels[0].labels) == int(missed.result.split()[0])


def test_groups_have_their_sizes_and_the_last_one_is_trimmed(trace: Trace) -> None:
    scene = played(trace, kvviz.methods.create("infllm", budget=100, block_size=16))
    chosen = 100 - 16 - 32
    by_number, ordered, _ = panels(scene, Bars, "scores") + panels(scene, Bars, "cut")
    assert (by_number.kind, list(by_number.numbers)) == ("block", list(range(-(-(LENGTH - 48) // 16))))
    assert list(ordered.values) == sorted(by_number.values, reverse=True)
    (ruler,) = panels(scene, Ruler, "cut")
    assert (sum(ruler.sizes), ruler.cut) == (LENGTH - 48, chosen)
    replayed = kvviz.replay(trace, "infllm", budget=100, block_size=16, queries=QUERIES)
    recalled = replayed.groups(STEP, LAYER)[HEAD]
    taken = int(np.isin(ruler.numbers, recalled).sum())
    assert set(ruler.numbers[:taken]) == set(recalled[recalled >= 0])
    last = int((recalled == ruler.numbers[taken - 1]).sum())
    assert ("is trimmed" in scene.frames[3].words) == (last < ruler.sizes[taken - 1])
    masses = panels(scene, Bars, "exact attention")[1]
    weights = weights_of(trace, slice(-1, None)).mean((0, 1))
    blocks = np.add.reduceat(weights[16:-32], np.arange(0, LENGTH - 48, 16))
    np.testing.assert_allclose(masses.values, blocks[masses.numbers], rtol=1e-4)


def test_an_eviction_method_shows_the_scores_of_the_dropped_tokens_too(trace: Trace) -> None:
    method = kvviz.methods.create("snapkv", budget=60, recent=16)
    scene = played(trace, method)
    prompt = LENGTH - QUERIES
    votes = weights_of(trace, slice(prompt - 16, prompt))[:, :, : prompt - 16].sum(1).mean(0)
    pooled = np.convolve(votes, np.full(5, 0.2), "same")
    ordered = panels(scene, Bars, "scores")[1]
    np.testing.assert_allclose(ordered.values, pooled[ordered.numbers], rtol=1e-3)
    assert "dropped the worst for good" in scene.frames[1].words
    kept = np.argsort(-pooled, kind="stable")[: 60 - 16]
    assert np.isin(ordered.numbers, kept).tolist() == (np.arange(len(ordered.numbers)) < ordered.cut).tolist()


@pytest.mark.parametrize("name", RANKING)
def test_a_method_that_scores_says_what_its_score_is(name: str) -> None:
    assert kvviz.methods.get(name).score_name != Method.score_name
    assert issubclass(kvviz.methods.get(name), Eviction) or kvviz.methods.get(name).ranking is not Method.ranking


def test_all_parts_of_a_budget_fit_into_the_words_of_a_frame(trace: Trace) -> None:
    method = kvviz.methods.create("shadowkv", budget=104, sinks=4, outlier_share=0.3)
    frame = played(trace, method).frames[0]
    assert frame.panels[0].labels == ["sinks", "chosen by score", "kept without a score", "recent window", "not used"]
    assert all(f"{size} " in frame.words for size in frame.panels[0].sizes)


def test_centroids_that_stand_in_for_clusters_are_shown_after_the_cut(trace: Trace) -> None:
    method = kvviz.methods.create("retroinfer", budget=60, sinks=4, recent=10, tokens_per_cluster=8)
    mechanism = Mechanism(trace, method, QUERIES)
    assert mechanism_content.described(mechanism)["merges"], "the legend has the mark of merged tokens"
    scene = played(trace, method)
    recording = kvviz.replay(trace, method, queries=QUERIES)
    members, weights = recording.members(STEP, LAYER)[HEAD], recording.attention(STEP, LAYER)[HEAD]
    masses = {number: weights[members == number].sum() for number in {*members.tolist()} - {-1}}
    assert 5 < len(masses) == recording.events[LAYER].merged[STEP, HEAD]
    (bars,) = panels(scene, Bars, "centroids")
    assert list(bars.numbers) == sorted(masses, key=lambda number: -masses[number])
    np.testing.assert_allclose(bars.values, sorted(masses.values(), reverse=True), rtol=1e-3)
    frame = next(frame for frame in scene.frames if frame.chapter == "centroids")
    words = f"{len(masses)} centroids stand in for {(members >= 0).sum()} tokens that are not attended to alone."
    assert frame.text == words
    ordered = panels(scene, Bars, "cut")[0]
    assert set(ordered.numbers[: len({*recording.groups(STEP, LAYER)[HEAD].tolist()} - {-1})]).isdisjoint(masses)
