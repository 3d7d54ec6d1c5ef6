"""Maps of keys against the singular value decomposition, and their refusals."""

from __future__ import annotations

import re

import numpy as np
import pytest

from kvviz import plots
from kvviz.errors import InvalidInputError
from kvviz.plots.theme import LIGHT, cluster_line
from kvviz.trace import Geometry
from tests.plots import plot_data
from tests.plots.plot_data import make_trace


@pytest.fixture(scope="module")
def recording():
    return plot_data.recording()


def test_semantic_space_is_the_pca_of_the_keys(recording):
    trace = make_trace(recording)
    keys = trace.keys[3][1].astype(float)
    labels = np.arange(68) % 5 - 1
    centroids = np.stack([keys[labels == cluster].mean(0) for cluster in range(4)])
    figure = plots.semantic_space(trace, 3, 1, clusters=labels, centroids=centroids, query=7 * keys[9])
    dots, rings, star = figure.data
    _, _, axes = np.linalg.svd(keys - keys.mean(0), full_matrices=False)

    def project(vectors):
        return np.abs((vectors - keys.mean(0)) @ axes[:2].T)  # the sign of a component is arbitrary

    def places(trace):
        return np.abs(np.stack([trace.x, trace.y], -1))

    np.testing.assert_allclose(places(dots), project(keys), atol=1e-8)
    np.testing.assert_allclose(places(rings), project(centroids), atol=1e-8)
    scaled = keys[9] / np.linalg.norm(keys[9]) * np.linalg.norm(keys, axis=1).mean()
    np.testing.assert_allclose(places(star)[0], project(scaled), atol=1e-8)
    colors = np.array(dots.marker.color)
    assert set(colors[labels == -1]) == {LIGHT.muted}
    for cluster in range(4):
        assert set(colors[labels == cluster]) == {plots.cluster_color(cluster, 0.8)}
        assert rings.marker.color[cluster] == cluster_line(cluster)
    assert [trace.name for trace in figure.data] == ["token", "centroid", "query"]
    assert (rings.marker.symbol, star.marker.symbol) == ("circle-open", "star")


def test_semantic_space_of_a_recording_sets_off_what_was_attended(recording):
    figure = plots.semantic_space(make_trace(recording), 2, 1, recording=recording, step=3)
    rest, attended = figure.data
    chosen = recording.indices(3, 2)[1]
    weights = np.zeros(68)
    weights[: recording.visible(3)] = recording.attention(3, 2)[1]
    for trace, places in ((attended, chosen[chosen >= 0]), (rest, np.setdiff1d(np.arange(68), chosen))):
        positions = [int(re.search(r"position (\d+)", text).group(1)) for text in trace.text]
        assert sorted(positions) == sorted(places.tolist())
        np.testing.assert_allclose(trace.marker.color, np.log10(np.clip(weights[positions], 1e-4, 1)), atol=1e-6)
        assert (np.diff(weights[positions]) >= 0).all()  # the most attended lies on top
    assert "clusterkv, budget 24, step 3" in figure.layout.title.text


def test_semantic_space_thins_out_with_a_seed_keeps_the_most_attended_and_says_so():
    random = np.random.default_rng(0)
    keys, weights = random.normal(size=(500, 6)), random.random(500)
    figures = [plots.semantic_space(keys, weights=weights, max_points=40, seed=seed) for seed in (1, 1, 2)]
    shown = [[int(text.split("position ")[1].split("<")[0]) for text in figure.data[0].text] for figure in figures]
    assert shown[0] == shown[1]
    assert set(shown[0]) != set(shown[2])
    assert all(len(set(places)) == 40 and set(np.argsort(-weights)[:10]) <= set(places) for places in shown)
    assert "500 tokens" in figures[0].layout.title.text
    assert "40 shown · seed 1" in figures[0].layout.title.text.replace("<br>", " ")


def test_tsne_is_the_same_for_the_same_seed_and_separates_what_is_apart():
    random = np.random.default_rng(0)
    labels = np.repeat([0, 1], 20)
    keys = np.where(labels[:, None], 5.0, -5.0) * np.ones(4) + random.normal(size=(40, 4))
    first, second = (plots.semantic_space(keys, clusters=labels, projection="tsne", seed=3).data[0] for _ in range(2))
    np.testing.assert_array_equal(first.x, second.x)
    places = np.stack([first.x, first.y], -1)
    centers = [places[labels == label].mean(0) for label in (0, 1)]
    spread = max(np.linalg.norm(places[labels == label] - centers[label], axis=1).max() for label in (0, 1))
    assert np.linalg.norm(centers[0] - centers[1]) > spread


def test_equal_keys_and_two_tokens_are_drawn():
    for keys in (np.ones((5, 3)), np.eye(2)):
        assert np.isfinite(plots.semantic_space(keys).data[0].x).all()


def test_a_recording_of_another_model_or_text_given_to_a_traces_plot_is_refused(recording):
    trace = make_trace(recording)
    others = [
        (recording.replace(model="other"), "of the trace's model"),
        (recording.replace(geometry=Geometry(9, 4, 2, 64, 4096)), "of the trace's model"),
        (recording.replace(token_ids=recording.token_ids + 1), "capture the same prompt"),
    ]
    for other, wanted in others:
        with pytest.raises(InvalidInputError, match=f"semantic_space: recording: got one of .*{wanted}"):
            plots.semantic_space(trace, 2, 0, recording=other)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [({"layer": 0}, "captured layer"), ({"layer": 2, "head": 2}, "head: got 2"),
     ({"layer": 2, "clusters": np.zeros(3, int)}, r"integers \[68\]"),
     ({"layer": 2, "clusters": np.zeros(68)}, "integers"),
     ({"layer": 2, "centroids": np.zeros((3, 5))}, "64 dimensions"), ({"layer": 2, "query": np.zeros(5)}, "query"),
     ({"layer": 2, "query": np.full(64, np.nan)}, "finite"), ({"layer": 2, "weights": np.zeros(5)}, "weights"),
     ({"layer": 2, "tokens": ["a"]}, "one per key"), ({"layer": 2, "max_points": 3}, "8 or more")],
)  # fmt: skip
def test_what_does_not_fit_a_trace_is_refused(recording, arguments, message):
    with pytest.raises(InvalidInputError, match=message):
        plots.semantic_space(make_trace(recording), **arguments)


@pytest.mark.parametrize("keys", [np.zeros(4), np.zeros((1, 4)), np.zeros((4, 1)), np.array([[1, np.nan], [0, 0]])])
def test_keys_that_have_no_map_are_refused(keys):
    with pytest.raises(InvalidInputError, match="semantic_space: keys"):
        plots.semantic_space(keys)
