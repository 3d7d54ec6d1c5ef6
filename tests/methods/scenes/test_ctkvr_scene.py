"""CTkvr's scene against the two algorithms of the paper, from the trace alone."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import kvviz
from kvviz.generation.explore import Mechanism
from kvviz.trace import Trace
from kvviz.trace.scene import Bars, Frame, Rows, Scene

LAYER, HEAD, STEP, QUERIES = 14, 1, 31, 32
CENTROIDS, SINKS, RECENT, BEST, LISTED, PROBES = 126, 64, 64, 128, 320, 4  # of a budget of 256 and 2,016 tokens
Floats, Positions = NDArray[np.float64], NDArray[np.int64]


@dataclass
class Reference:
    """The last step as the paper has it. Centroids are known by the position of their query."""

    lists: dict[int, Positions]  # of the prompt's centroids
    weights: dict[int, Floats]
    cosines: dict[int, float]
    probed: list[int]  # the nearest first
    entries: list[Positions]
    scores: dict[int, float]  # of the union
    new_list: Positions


@pytest.fixture(scope="module")
def trace() -> Trace:
    return kvviz.open_runs(live=False).trace("prose")


@pytest.fixture(scope="module")
def scene(trace: Trace) -> Scene:
    return Mechanism(trace, "ctkvr", QUERIES, budget=256).scene(LAYER, HEAD, STEP)[0]


@pytest.fixture(scope="module")
def reference(trace: Trace) -> Reference:
    queries = trace.queries[LAYER][3 * HEAD : 3 * HEAD + 3].astype(np.float64)
    keys, prompt = trace.keys[LAYER][HEAD].astype(np.float64), len(trace) - QUERIES
    directions = queries / np.linalg.norm(queries, axis=-1, keepdims=True)
    centroids, weights = {}, {}
    for position in range(prompt - CENTROIDS, prompt):
        weights[position] = shares(queries[:, position], keys[:prompt]).max(0)
        middle = weights[position][SINKS : prompt - RECENT]
        centroids[position] = np.argsort(-middle, kind="stable")[:LISTED] + SINKS
    lists = dict(centroids)
    for now in range(prompt, prompt + STEP + 1):
        cosines = {old: float((directions[:, old] * directions[:, now]).sum(-1).max()) for old in centroids}
        probed = sorted(cosines, key=lambda old: -cosines[old])[:PROBES]
        union = np.unique(np.concatenate([centroids[old] for old in probed]))
        union = union[union <= now - RECENT]
        exact = shares(queries[:, now], keys[union]).max(0)
        best = union[np.argsort(-exact, kind="stable")]
        entries = [centroids[old] for old in probed]
        new_list = np.append(np.arange(now, now - RECENT, -1), best[: LISTED - RECENT])
        del centroids[min(centroids)]
        centroids[now] = new_list
    scores = dict(zip(union.tolist(), exact.tolist(), strict=True))
    return Reference(lists, weights, cosines, probed, entries, scores, new_list)


def shares(queries: Floats, keys: Floats) -> Floats:
    """Softmax weights of queries [G, D] over keys [N, D]."""
    logits = queries @ keys.T / np.sqrt(queries.shape[-1])
    weights: Floats = np.exp(logits - logits.max(-1, keepdims=True))
    return weights / weights.sum(-1, keepdims=True)


def chapter(scene: Scene, name: str) -> list[Frame]:
    return [frame for frame in scene.frames if frame.chapter == name]


def bars(frame: Frame, place: int = 0) -> Bars:
    return [panel for panel in frame.panels if isinstance(panel, Bars)][place]


def names(frame: Frame) -> list[str]:
    return [row.name for panel in frame.panels if isinstance(panel, Rows) for row in panel.rows]


def test_the_lists_have_the_keys_with_the_largest_weight(scene: Scene, reference: Reference) -> None:
    one, several = chapter(scene, "lists")
    centroid = max((old for old in reference.lists if old in reference.cosines), key=reference.cosines.__getitem__)
    assert [panel.rows[0].labels for panel in one.panels if isinstance(panel, Rows)] == [[f'" @{centroid}']]
    expected = reference.lists[centroid][:12]
    assert list(bars(one).numbers) == expected.tolist()
    np.testing.assert_allclose(bars(one).values, reference.weights[centroid][expected], rtol=1e-4)
    followed = 1877
    holding = sum(followed in listed for listed in reference.lists.values())
    assert f"is in {holding} of the 126." in several.words
    rows = several.panels[0].rows  # type: ignore[union-attr]  # the panel is Rows
    assert [list(row.numbers) for row in rows] == [
        reference.lists[int(row.name.split("@")[1])][:12].tolist() for row in rows
    ]


def test_the_nearest_centroids_and_what_their_lists_have(scene: Scene, reference: Reference, trace: Trace) -> None:
    _, ordered, checked = chapter(scene, "nearest")
    first = min(reference.lists)  # centroids are numbered from it on, since all queries follow one another
    positions = np.asarray(bars(ordered).numbers) + first
    ranked = sorted(reference.cosines, key=lambda old: -reference.cosines[old])
    assert positions.tolist() == ranked[: len(positions)]
    np.testing.assert_allclose(bars(ordered).values, [reference.cosines[old] for old in ranked[:16]], rtol=1e-5)
    assert bars(ordered).cut == PROBES
    assert ordered.lit is not None
    assert list(ordered.lit.positions) == [*sorted(reference.probed), 2047]
    assert f"1 token ago: {reference.cosines[2046]:.3f}" in ordered.words
    now = len(trace) - QUERIES + STEP
    query = trace.queries[LAYER][3 * HEAD : 3 * HEAD + 3, now].astype(np.float64)
    exact = shares(query, trace.keys[LAYER][HEAD, : now + 1].astype(np.float64)).max(0)[SINKS : now + 1 - RECENT]
    wanted = np.argsort(-exact)[:BEST] + SINKS
    nearest = int(np.isin(wanted[:12], reference.entries[0]).sum())
    found = sum(int(token) in reference.scores for token in wanted)
    assert f"The nearest list has {nearest} of these 12. Of the 128 best, the 4 lists have {found}." in checked.words


def test_duplicates_fall_away(scene: Scene, reference: Reference) -> None:
    before, after = chapter(scene, "union")
    together = np.concatenate(reference.entries)
    recent = int((together >= 2048 - RECENT).sum())
    seen: set[int] = set()
    added = []
    for entries in reference.entries:
        new = {int(token) for token in entries if token < 2048 - RECENT} - seen
        added.append(len(new))
        seen |= new
    assert [int(name.split("+")[1]) for name in names(after)] == added
    assert [int(name.split("@")[1].split(":")[0]) for name in names(before)] == reference.probed
    assert f"duplicates fall away ({len(together) - recent - len(seen):,})" in after.words
    assert f"entries in the recent window ({recent})." in after.words
    assert f"{len(seen)} tokens remain, a share of α = {len(seen) / len(together):.3f}." in after.words
    assert after.lit is not None
    assert list(after.lit.positions) == sorted(seen)


def test_exact_scores_and_the_cut(scene: Scene, reference: Reference) -> None:
    _, ordered = chapter(scene, "scores")
    (cut,) = chapter(scene, "cut")
    ranked = sorted(reference.scores, key=lambda token: -reference.scores[token])
    assert list(bars(ordered).numbers) == ranked[:16]
    np.testing.assert_allclose(bars(ordered).values, [reference.scores[token] for token in ranked[:16]], rtol=1e-4)
    assert f"has rank {ranked.index(1877) + 1}:" in ordered.words
    assert list(bars(cut).numbers) == ranked[BEST - 8 : BEST + 8]
    assert bars(cut).cut == 8
    assert cut.lit is not None
    assert list(cut.lit.positions) == sorted(ranked[:BEST])


def test_both_parts_merge_to_one_softmax(scene: Scene, reference: Reference, trace: Trace) -> None:
    _, parts, merged = chapter(scene, "attention")
    ranked = sorted(reference.scores, key=lambda token: -reference.scores[token])
    device = [*range(SINKS), *range(2048 - RECENT, 2048)]
    tokens = np.array([*device, *ranked[:BEST]])
    query = trace.queries[LAYER][3 * HEAD : 3 * HEAD + 3, 2047].astype(np.float64)
    logits = query @ trace.keys[LAYER][HEAD][tokens].astype(np.float64).T / 8
    sums = np.log([[np.exp(row[:128]).sum(), np.exp(row[128:]).sum()] for row in logits])
    np.testing.assert_allclose(bars(parts).values, sums.ravel(), rtol=1e-4)
    share = np.exp(sums) / np.exp(sums).sum(-1, keepdims=True)
    np.testing.assert_allclose(bars(parts, 1).values, share.ravel(), rtol=1e-4)
    weights = dict(zip(tokens.tolist(), (np.exp(logits[0]) / np.exp(logits[0]).sum()).tolist(), strict=True))
    shown = [int(token) for token in bars(merged, 1).numbers]
    assert 1877 in shown, "the followed token"
    np.testing.assert_allclose(bars(merged, 1).values, [weights[token] for token in shown], rtol=1e-4)
    assert f"= {weights[1877]:.3g} (1st" in merged.words
    assert f"gives the same: {weights[1877]:.3g}." in merged.words


def test_the_query_replaces_the_oldest_centroid(scene: Scene, reference: Reference) -> None:
    queue, listed = chapter(scene, "update")
    leaves, oldest, newest = queue.panels[0].rows  # type: ignore[union-attr]  # the panel is Rows
    first = min(reference.lists)
    assert (np.asarray(leaves.numbers) + first).tolist() == [min(reference.cosines)]
    assert (np.asarray(oldest.numbers) + first).tolist() == sorted(reference.cosines)[1:9]
    assert (np.asarray(newest.numbers) + first).tolist() == list(range(2040, 2048))
    recent, best = listed.panels[0].rows  # type: ignore[union-attr]  # the panel is Rows
    assert list(recent.numbers) == reference.new_list[:12].tolist()
    assert list(best.numbers) == reference.new_list[RECENT : RECENT + 12].tolist()
    assert names(listed) == ["window: 64", "best of union: 256"]


def small(heads: int, length: int = 90) -> Trace:
    """Random queries, keys and values of two KV heads."""
    rng = np.random.default_rng(3)
    arrays = [{0: rng.normal(size=(count, length, 8)).astype(np.float16)} for count in (heads, 2, 2)]
    tokens = [f" {position}" for position in range(length)]
    return Trace("random", kvviz.Geometry(1, heads, 2, 8, 512), tokens, np.arange(length), *arrays)


@pytest.mark.parametrize(
    ("heads", "fields"),
    [
        (2, {"generated": "on_top", "n_probes": 1}),
        (2, {"n_centroids": 1, "list_ratio": 0.05}),
        (4, {"group": "each", "causal": True, "choice": "init"}),
        (4, {"rerank": False, "attends": "union", "n_centroids": 3, "n_probes": 9}),
        (6, {"update": None, "choice": "random", "sinks": 0, "recent": 0}),
        (6, {"group": "mean", "choice": "equidistant", "n_centroids": 60, "list_ratio": 9.0}),
    ],
    ids=str,
)
def test_odd_fields(heads: int, fields: dict[str, Any]) -> None:
    """At each kind of token: a sink, one of the middle, one of the prompt's window, and one that no list has."""
    trace = small(heads)
    mechanism = Mechanism(trace, "ctkvr", 12, **{"budget": 24, "sinks": 3, "recent": 6, **fields})
    replayed = kvviz.replay(trace, mechanism.method, queries=12)
    for step, token in ((0, None), (11, 0), (11, 40), (11, 74), (11, 77)):
        shown, _ = mechanism.scene(0, 1, step, token)
        lit = shown.frames[-1].lit
        assert lit is not None
        own = replayed.indices(step, 0)[1]
        assert np.asarray(lit.positions)[np.asarray(lit.attended)].tolist() == own[own >= 0].tolist()


def test_a_token_of_no_list_is_said_to_be_missed() -> None:
    """With one short list, which the updates hand on, nearly all tokens of the prompt are lost."""
    mechanism = Mechanism(small(2), "ctkvr", 12, budget=24, sinks=3, recent=6, n_centroids=1, list_ratio=0.05)
    words = {frame.chapter: frame.words for frame in mechanism.scene(0, 1, 11, 40)[0].frames}
    assert "“40” is in none of them" in words["lists"]
    union = [frame.words for frame in mechanism.scene(0, 1, 11, 40)[0].frames if frame.chapter == "union"]
    assert "nor in any other: no query can find it now" in union[0]


def test_a_token_of_other_lists_is_said_to_be_missed() -> None:
    """One query head per KV head, one probe, and the prompt's eight lists of 15 keys."""
    trace, head, now = small(2), 1, 89
    fields = {"budget": 24, "sinks": 3, "recent": 6, "n_centroids": 8, "list_ratio": 1.0, "n_probes": 1}
    mechanism = Mechanism(trace, "ctkvr", 12, **fields, update=None)
    queries, keys = trace.queries[0][head].astype(np.float64), trace.keys[0][head].astype(np.float64)
    lists = np.argsort(-shares(queries[70:78], keys[:78])[:, 3:72], axis=-1)[:, :15] + 3
    unit = queries / np.linalg.norm(queries, axis=-1, keepdims=True)
    nearest = np.argsort(-unit[70:78] @ unit[now])
    token = next(int(token) for token in lists[nearest[1]] if token not in lists[nearest[0]])
    scene = mechanism.scene(0, head, 11, token)[0]
    (before, _) = chapter(scene, "union")
    holding = int((lists == token).any(-1).sum())
    assert f"“{token}” is in none of these: the step misses it, though {holding} other list" in before.words
    assert scene.members["centroid"][token] == nearest[1]
