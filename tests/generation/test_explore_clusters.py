"""Clusters of keys for the inspector: against ClusterKV's replay and against sums over single tokens."""

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
    """Keys around a few directions, so that there are clusters: 4 query heads, 2 KV heads, 16 dimensions."""
    random = np.random.default_rng(seed)
    directions = random.normal(size=(2, topics, 16)) * 3
    keys, queries, values = {}, {}, {}
    for layer in layers:
        topic = random.integers(topics, size=(2, length))
        near = np.stack([directions[head][topic[head]] for head in range(2)])
        keys[layer] = (near + random.normal(size=near.shape)).astype(np.float16)
        queries[layer] = random.normal(size=(4, length, 16)).astype(np.float16)
        values[layer] = random.normal(size=near.shape).astype(np.float16)
    words = tokens or [f" word{position % 40}" for position in range(length)]
    geometry = Geometry(max(layers) + 1, 4, 2, 16, 4096)
    return Trace("synthetic", geometry, words, np.arange(length, dtype=np.int64), queries, keys, values)


def cosine(one, other):
    return float(one @ other / (np.linalg.norm(one) * np.linalg.norm(other)))


@pytest.mark.parametrize("metric", ["cosine", "l2", "ip"])
def test_clusters_and_what_was_taken_are_those_of_a_replay(metric):
    trace, options = made_trace(), {"n_clusters": 9, "metric": metric, "seed": 3, "budget": 60}
    recording = kvviz.replay(trace, "clusterkv", queries=12, dense_layers=0, **options)
    for layer in trace.layers:
        for head in range(2):
            found = cluster_keys(trace, layer, head, queries=12, **options)
            assert found.taken.shape == (12, 9)
            for step in range(12):
                groups, indices = recording.groups(step, layer)[head], recording.indices(step, layer)[head]
                recalled = groups >= 0
                assert recalled.sum() == 60 - SINKS
                assert (found.labels[indices[recalled]] == groups[recalled]).all()
                assert found.taken[step].tolist() == np.bincount(groups[recalled], minlength=9).tolist()


def test_sizes_spread_central_and_nearest_by_single_tokens():
    trace = made_trace()
    found = cluster_keys(trace, 2, 1, n_clusters=7, queries=20, seed=2)  # a seed without empty clusters
    keys = trace.keys[2][1, :280].astype(np.float64)
    assert (found.labels[:SINKS] == -1).all()
    assert (found.labels[SINKS:] >= 0).all()
    for cluster in range(7):
        members = np.flatnonzero(found.labels == cluster)
        near = [cosine(keys[member], found.centroids[cluster]) for member in members]
        np.testing.assert_allclose(found.centroids[cluster], keys[members].mean(0), atol=1e-4)
        assert found.sizes[cluster] == len(members)
        assert found.spread[cluster] == pytest.approx(np.mean(near), abs=1e-5)
        assert found.central[cluster] == members[np.argmax(near)]
        others = {other: cosine(found.centroids[cluster], found.centroids[other]) for other in range(7)}
        del others[cluster]
        ranked = sorted(others, key=others.get, reverse=True)[:5]
        assert found.nearest[cluster].tolist() == ranked
        np.testing.assert_allclose(found.nearest_cosine[cluster], [others[other] for other in ranked], atol=1e-5)
    for position in range(SINKS, 280):  # converged: every key is with the centroid of the largest cosine
        assert found.labels[position] == np.argmax([cosine(keys[position], centroid) for centroid in found.centroids])


def test_the_seed_decides():
    one, same, other = (cluster_keys(made_trace(), 0, 0, n_clusters=12, seed=seed) for seed in (1, 1, 2))
    assert (one.labels == same.labels).all()
    assert (one.labels != other.labels).any()


@pytest.mark.parametrize("group", ["mean", "each"])
@pytest.mark.parametrize("method", ["clusterkv", "quest"])
def test_a_recording_of_any_method_says_what_its_steps_took(method, group):
    trace = made_trace()
    recording = kvviz.replay(trace, method, queries=10, budget=64, dense_layers=1, group=group)
    found = cluster_keys(trace, 2, 1, n_clusters=5, recording=recording)
    rows = range(1, 2) if group == "mean" else range(2, 4)
    for step in range(10):
        attended = {int(position) for row in rows for position in recording.indices(step, 2)[row]}
        wanted = [sum(int(label) == cluster for position, label in enumerate(found.labels) if position in attended)
                  for cluster in range(5)]  # fmt: skip
        assert found.taken[step].tolist() == wanted
    assert cluster_keys(trace, 0, 1, n_clusters=5, recording=recording).taken.shape == (0, 5)  # layer 0 was dense


def test_a_recording_of_clusterkv_gives_its_own_clusters():
    trace = made_trace()
    options = {"sinks": 4, "recent": 8, "tokens_per_cluster": 20}
    recording = kvviz.replay(trace, "clusterkv", queries=10, budget=64, dense_layers=0, **options)
    found = cluster_keys(trace, 0, 0, recording=recording)
    assert len(found.sizes) == 290 // 20 + 1
    assert np.flatnonzero(found.labels < 0).tolist() == [*range(4), *range(282, 290)]
    for step in range(10):
        groups, indices = recording.groups(step, 0)[0], recording.indices(step, 0)[0]
        recalled = groups >= 0
        assert (found.labels[indices[recalled]] == groups[recalled]).all()


def test_a_budget_that_covers_the_prompt_takes_everything():
    found = cluster_keys(made_trace(), 0, 0, n_clusters=4, budget=1000, queries=3)
    assert (found.taken == found.sizes).all()


def test_one_cluster_has_no_neighbour_and_an_empty_one_no_members():
    alone = cluster_keys(made_trace(), 0, 0, n_clusters=1)
    assert alone.nearest.shape == (1, 0)
    trace = made_trace(length=40)
    trace.keys[0][:] = 1.0  # equal keys: all of them join one centroid
    found = cluster_keys(trace, 0, 0, n_clusters=3, queries=4)
    empty = found.sizes == 0
    assert empty.sum() == 2
    assert np.isnan(found.spread[empty]).all()
    assert (found.central[empty] == -1).all()
    assert (found.nearest[~empty] == -1).all()


def test_limits_are_clusterkv_s_own():
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
        ({"budget": 8}, InvalidInputError, "at least 16"),
        ({"recording": "other text"}, InvalidInputError, "capture the same prompt"),
        ({"recording": "other model"}, InvalidInputError, "the trace's model"),
    ],
)
def test_bad_input_is_refused(change, error, message):
    trace = made_trace()
    if "recording" in change:
        recording = kvviz.replay(trace, "quest", queries=8, budget=64, dense_layers=0)
        other = {"token_ids": recording.token_ids + 1} if "text" in change["recording"] else {"model": "another"}
        change = {"recording": recording.replace(**other)}
    with pytest.raises(error, match=message):
        cluster_keys(trace, **{"layer": 0, "head": 0} | change)
