"""Clusters of keys for the inspector, against ClusterKV's replay and sums over single tokens."""

from __future__ import annotations

import numpy as np
import pytest

import kvviz
from kvviz.errors import InvalidInputError, UnknownNameError
from kvviz.generation.explore import cluster_keys
from kvviz.generation.explore.clusters import cluster_limits
from kvviz.trace import Geometry, Trace

SINKS = 16


def made_trace(length=300, *, layers=(0, 2), tokens=None, seed=0, topics=6):
    """A trace with keys around a few directions, so that there are clusters: 4 query heads, 2 KV heads."""
    rng = np.random.default_rng(seed)
    directions = rng.normal(size=(2, topics, 16)) * 3
    keys, queries, values = {}, {}, {}
    for layer in layers:
        topic = rng.integers(topics, size=(2, length))
        near = np.stack([directions[head][topic[head]] for head in range(2)])
        keys[layer] = (near + rng.normal(size=near.shape)).astype(np.float16)
        queries[layer] = rng.normal(size=(4, length, 16)).astype(np.float16)
        values[layer] = rng.normal(size=near.shape).astype(np.float16)
    words = tokens or [f" word{position % 40}" for position in range(length)]
    geometry = Geometry(max(layers) + 1, 4, 2, 16, 4096)
    return Trace("synthetic", geometry, words, np.arange(length, dtype=np.int64), queries, keys, values)


def cosine(first, second):
    return float(first @ second / (np.linalg.norm(first) * np.linalg.norm(second)))


@pytest.mark.parametrize("metric", ["cosine", "l2", "ip"])
def test_clusters_and_their_selected_tokens_equal_those_of_a_replay(metric):
    trace, options = made_trace(), {"n_clusters": 9, "metric": metric, "seed": 3, "budget": 60}
    recording = kvviz.replay(trace, "clusterkv", queries=12, dense_layers=0, **options)
    for layer in trace.layers:
        for head in range(2):
            clusters = cluster_keys(trace, layer, head, queries=12, **options)
            assert clusters.taken.shape == (12, 9)
            for step in range(12):
                groups, indices = recording.groups(step, layer)[head], recording.indices(step, layer)[head]
                retrieved = groups >= 0
                assert retrieved.sum() == 60 - SINKS - 1, "and the step's own token"
                assert (clusters.labels[indices[retrieved]] == groups[retrieved]).all()
                assert clusters.taken[step].tolist() == np.bincount(groups[retrieved], minlength=9).tolist()


def test_sizes_spread_central_and_nearest_against_single_tokens():
    trace = made_trace()
    found = cluster_keys(trace, 2, 1, n_clusters=7, queries=20, seed=2)  # a seed without empty clusters
    keys = trace.keys[2][1, :280].astype(np.float64)
    assert (found.labels[:SINKS] == -1).all()
    assert (found.labels[SINKS:] >= 0).all()
    for cluster in range(7):
        members = np.flatnonzero(found.labels == cluster)
        cosines = [cosine(keys[member], found.centroids[cluster]) for member in members]
        np.testing.assert_allclose(found.centroids[cluster], keys[members].mean(0), atol=1e-4)
        assert found.sizes[cluster] == len(members)
        assert found.spread[cluster] == pytest.approx(np.mean(cosines), abs=1e-5)
        assert found.central[cluster] == members[np.argmax(cosines)]
        similarity = {other: cosine(found.centroids[cluster], found.centroids[other]) for other in range(7)}
        del similarity[cluster]
        ranked = sorted(similarity, key=similarity.get, reverse=True)[:5]
        assert found.nearest[cluster].tolist() == ranked
        np.testing.assert_allclose(found.nearest_cosine[cluster], [similarity[other] for other in ranked], atol=1e-5)
    for position in range(SINKS, 280):  # converged: each key belongs to the centroid with the largest cosine
        assert found.labels[position] == np.argmax([cosine(keys[position], centroid) for centroid in found.centroids])


def test_the_seed_determines_the_clusters():
    first, same, other = (cluster_keys(made_trace(), 0, 0, n_clusters=12, seed=seed) for seed in (1, 1, 2))
    assert (first.labels == same.labels).all()
    assert (first.labels != other.labels).any()


@pytest.mark.parametrize("group", ["mean", "each"])
@pytest.mark.parametrize("method", ["clusterkv", "quest"])
def test_a_recording_of_any_method_gives_the_selected_tokens(method, group):
    trace = made_trace()
    recording = kvviz.replay(trace, method, queries=10, budget=64, dense_layers=1, group=group)
    clusters = cluster_keys(trace, 2, 1, n_clusters=5, recording=recording)
    rows = range(1, 2) if group == "mean" else range(2, 4)
    for step in range(10):
        attended = {int(position) for row in rows for position in recording.indices(step, 2)[row]}
        expected = [sum(int(label) == cluster for position, label in enumerate(clusters.labels) if position in attended)
                  for cluster in range(5)]  # fmt: skip
        assert clusters.taken[step].tolist() == expected
    assert cluster_keys(trace, 0, 1, n_clusters=5, recording=recording).taken.shape == (0, 5)  # layer 0 was dense


def test_a_recording_of_clusterkv_gives_its_clusters():
    trace = made_trace()
    options = {"sinks": 4, "recent": 8, "tokens_per_cluster": 20}
    recording = kvviz.replay(trace, "clusterkv", queries=10, budget=64, dense_layers=0, **options)
    clusters = cluster_keys(trace, 0, 0, recording=recording)
    assert len(clusters.sizes) == 290 // 20 + 1
    assert np.flatnonzero(clusters.labels < 0).tolist() == [*range(4), *range(282, 290)]
    for step in range(10):
        groups, indices = recording.groups(step, 0)[0], recording.indices(step, 0)[0]
        retrieved = groups >= 0
        assert (clusters.labels[indices[retrieved]] == groups[retrieved]).all()


def test_a_budget_that_covers_the_prompt_selects_all_tokens():
    clusters = cluster_keys(made_trace(), 0, 0, n_clusters=4, budget=1000, queries=3)
    assert (clusters.taken == clusters.sizes).all()


def test_a_single_cluster_has_no_neighbour_and_an_empty_one_no_members():
    single = cluster_keys(made_trace(), 0, 0, n_clusters=1)
    assert single.nearest.shape == (1, 0)
    trace = made_trace(length=40)
    trace.keys[0][:] = 1.0  # equal keys all belong to one centroid
    clusters = cluster_keys(trace, 0, 0, n_clusters=3, queries=4)
    empty = clusters.sizes == 0
    assert empty.sum() == 2
    assert np.isnan(clusters.spread[empty]).all()
    assert (clusters.central[empty] == -1).all()
    assert (clusters.nearest[~empty] == -1).all()


def test_limits_are_those_of_clusterkv():
    assert cluster_limits(made_trace(), queries=20) == (4, 280 - SINKS)
    assert cluster_limits(made_trace(length=22), queries=4) == (1, 2)


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"layer": 1}, InvalidInputError, "a captured layer"),
        ({"head": 2}, InvalidInputError, "0 to 1"),
        ({"n_clusters": 0}, InvalidInputError, "1 to 252"),
        ({"n_clusters": 253}, InvalidInputError, "1 to 252"),
        ({"seed": -1}, InvalidInputError, "seed"),
        ({"metric": "cosin"}, UnknownNameError, "did you mean 'cosine'"),
        ({"queries": 300}, InvalidInputError, "1 to 299"),
        ({"queries": 290}, InvalidInputError, "capture a longer prompt"),
        ({"budget": 8}, InvalidInputError, "at least 17"),
        ({"recording": "other text"}, InvalidInputError, "capture the same prompt"),
        ({"recording": "other model"}, InvalidInputError, "the trace's model"),
    ],
)
def test_bad_input_is_refused(change, error, message):
    trace = made_trace()
    if "recording" in change:
        recording = kvviz.replay(trace, "quest", queries=8, budget=64, dense_layers=0)
        changed = {"token_ids": recording.token_ids + 1} if "text" in change["recording"] else {"model": "another"}
        change = {"recording": recording.replace(**changed)}
    with pytest.raises(error, match=message):
        cluster_keys(trace, **{"layer": 0, "head": 0} | change)
