"""Figures of similarity show the metrics, describe the run, and refuse missing data."""

from __future__ import annotations

import dataclasses
import xml.etree.ElementTree as ET

import numpy as np
import pytest

from kvviz import metrics, plots
from kvviz.errors import InvalidInputError
from kvviz.trace import Geometry, Trace

LENGTH = 150


@pytest.fixture(scope="module")
def trace():
    """A trace of layers 0, 3 and 5, 2 KV heads and 4 query heads, with similar neighbours."""
    rng = np.random.default_rng(0)
    walks = {
        layer: (1.0 + np.cumsum(rng.normal(size=(4, LENGTH, 8)) * 0.3, axis=1)).astype(np.float16)
        for layer in (0, 3, 5)
    }
    keys = {layer: walk[:2] for layer, walk in walks.items()}
    geometry = Geometry(6, 4, 2, 8, 1024)
    return Trace("walker", geometry, ["t"] * LENGTH, np.arange(LENGTH), walks, keys, keys)


def named(figure, start):
    (trace,) = [item for item in figure.data if item.name and item.name.startswith(start)]
    return trace


def test_key_similarity_draws_one_map_per_layer_and_head_on_one_scale(trace):
    figure = plots.key_similarity(trace, layers=[5, 0], size=50)
    grids = [item for item in figure.data if item.type == "heatmap"]
    expected = [metrics.similarity_map(trace.keys[layer][head], 50) for layer in (5, 0) for head in (0, 1)]
    assert len(grids) == 4
    for grid, values in zip(grids, expected, strict=True):
        np.testing.assert_allclose(grid.z, values, atol=1e-6)
        np.testing.assert_allclose(grid.x, 3 * np.arange(50) + 1)  # the middle of each block of three
    assert {grid.coloraxis for grid in grids} == {"coloraxis"}
    lowest = np.floor(10 * np.quantile(expected, 0.01)) / 10
    assert (figure.layout.coloraxis.cmin, figure.layout.coloraxis.cmax) == (pytest.approx(lowest), 1)
    assert figure.layout.coloraxis.colorbar.ticktext[0] == f"≤ {lowest:.1f}"
    assert [note.text for note in figure.layout.annotations] == ["KV head 0", "KV head 1"]
    assert figure.layout.title.text == "Cosine of keys · walker · 150 tokens · mean of blocks of 3 tokens"
    assert figure.layout.yaxis.range == (LENGTH - 0.5, -0.5)  # the first position on top
    assert plots.key_similarity(trace, size=256).layout.title.text == "Cosine of keys · walker · 150 tokens"
    assert "blocks of up to 2 tokens" in plots.key_similarity(trace, size=100).layout.title.text


def test_key_curves_are_means_over_heads_with_their_convex_fit(trace):
    figure = plots.similarity_by_distance(trace)
    for layer in (0, 3, 5):
        drawn = named(figure, f"layer {layer} ±")
        mean = metrics.similarity_by_distance(trace.keys[layer], drawn.x).mean.mean(0)
        fit = metrics.convex_fit(drawn.x, mean)
        np.testing.assert_allclose(drawn.y, mean)
        assert drawn.name == f"layer {layer} ± {fit.error:.3f}"
        np.testing.assert_allclose(named(figure, f"layer {layer}, convex fit, R² {fit.explained:.3f}").y, fit.values)
    assert drawn.x[0] == 1
    assert drawn.x[-1] == LENGTH // 2
    assert {1, 64} <= set(drawn.x)
    assert not [item for item in figure.data if item.fill]
    assert figure.layout.title.text == "Key cosine by distance · walker · 150 tokens · mean of 2 KV heads"
    assert named(plots.similarity_by_distance(trace, max_distance=20), "layer 3 ±").x[-1] == 20


def test_a_single_layer_has_the_band_of_the_pairs(trace):
    for draw, vectors in (
        (plots.similarity_by_distance, trace.keys[3]), (plots.query_similarity_by_distance, trace.queries[3])
    ):  # fmt: skip
        figure = draw(trace, [3], [1], dark=True)
        (band,) = [item for item in figure.data if item.fill]
        distances = np.asarray(named(figure, "layer 3").x if draw is plots.query_similarity_by_distance
                               else named(figure, "layer 3 ±").x)  # fmt: skip
        curve = metrics.similarity_by_distance(vectors[1], distances)
        np.testing.assert_allclose(band.y, np.concatenate([curve.high, curve.low[::-1]]))
        assert "head 1" in figure.layout.title.text


def test_query_curves_are_labelled_at_1_64_and_1024(trace):
    long = np.concatenate([trace.queries[0]] * 15, axis=1)  # [Q, 2250, D]
    short = plots.query_similarity_by_distance(trace)
    assert [note.text for note in short.layout.annotations if ":" not in note.text] == [
        f"{np.mean([metrics.similarity_by_distance(trace.queries[layer], [at]).mean for layer in (0, 3, 5)]):.2f}"
        for at in (1, 64)
    ]
    drawn = [note for note in plots.query_similarity_by_distance({7: long}).layout.annotations if ":" not in note.text]
    for note, at in zip(drawn, (1, 64, 1024), strict=True):
        value = metrics.similarity_by_distance(long, [at]).mean.mean()
        assert note.text == f"{value:.2f}"
        assert (10**note.x, note.y) == (pytest.approx(at), pytest.approx(value))


def test_query_overlap_draws_the_pairs_the_trend_and_the_bounds(trace):
    figure = plots.query_overlap(trace, 3, k=10, pairs=200, seed=2)
    pairs = metrics.topk_overlap(trace.queries[3], trace.keys[3], 10, 200, 2)
    np.testing.assert_allclose(figure.data[0].x, pairs.cosine)
    np.testing.assert_allclose(figure.data[0].y, pairs.overlap)
    trend = named(figure, "trend")
    fit = metrics.linear_fit(pairs.cosine, pairs.overlap)
    assert trend.name == f"trend, r = {fit.correlation:.2f}"
    np.testing.assert_allclose(trend.y, fit.slope * np.asarray(trend.x) + fit.intercept)
    assert named(figure, "unrelated").y[0] == pytest.approx(np.mean(10 / (pairs.first + 1)))
    chosen = np.linspace(0, 199, 32).astype(int)
    for name, sharp in (("Theorem 1", False), ("sharper", True)):
        drawn = named(figure, name)
        expected = np.mean([
            metrics.overlap_bound(
                trace.queries[3][pairs.head[pair], pairs.first[pair]],
                trace.keys[3][pairs.head[pair] // 2, : pairs.first[pair] + 1], 10, drawn.x, sharp=sharp,
            )
            for pair in chosen
        ], axis=0)  # fmt: skip
        np.testing.assert_allclose(drawn.y, expected)
        assert drawn.y[0] > 0.5 > drawn.y[-1] == 0  # from a cosine of nearly 1 to one of 0
    assert figure.layout.title.text.replace("<br>", " ") == (
        "Overlap of top-10 keys · walker · 150 tokens · layer 3 · 4 query heads · 200 pairs · seed 2"
    )


def test_titles_are_escaped_and_layers_are_spread_evenly(trace):
    evil = dataclasses.replace(trace, model="<b>$x$")
    for draw in (plots.key_similarity, plots.similarity_by_distance, plots.query_similarity_by_distance):
        assert "&lt;b&gt;&#36;x&#36;" in draw(evil).layout.title.text
        assert draw(evil, title="<i>").layout.title.text == "&lt;i&gt;"
        assert draw(evil, dark=True).layout.template == draw(trace, dark=True).layout.template
    assert "&lt;b&gt;&#36;x&#36;" in plots.query_overlap(evil, 0, k=5, pairs=10).layout.title.text
    keys = {layer: trace.keys[0] for layer in range(21)}
    heads = plots.key_similarity({0: np.ones((10, 4, 2))}).layout.annotations
    assert [note.text for note in heads] == ["KV head 0", "KV head 3", "KV head 6", "KV head 9"]
    names = [item.name for item in plots.similarity_by_distance(keys).data if "±" in item.name]
    assert [int(name.split()[1]) for name in names[:-1]] == [0, 5, 10, 15, 20]


def test_missing_data_is_refused(trace):
    for call, message in (
        (lambda: plots.key_similarity(trace, layers=[1]), r"layers: got \[1\]; wanted captured layers: \[0, 3, 5\]"),
        (lambda: plots.key_similarity(trace, heads=[2]), "heads: got"),
        (lambda: plots.key_similarity(trace, size=257), "1 to 256"),
        (lambda: plots.key_similarity({}), "layers: got none"),
        (lambda: plots.key_similarity({0: np.ones((60, 4, 2))}, heads=range(49)), "48 maps"),
        (lambda: plots.key_similarity({0: np.ones((4, 2))}), r"\[heads, L, D\]"),
        (lambda: plots.similarity_by_distance(trace, heads=[]), "heads"),
        (lambda: plots.similarity_by_distance(trace, max_distance=150), "longest distance: got 150"),
        (lambda: plots.query_similarity_by_distance({0: np.ones((1, 4, 2))}), "longest distance"),
        (lambda: plots.query_overlap(trace, 1), "layer of a trace"),
        (lambda: plots.query_overlap(trace, 0, pairs=5001), "2 to 5,000"),
        (lambda: plots.query_overlap(trace, 0, k=76), "k from 1 to 75"),
    ):
        with pytest.raises(InvalidInputError, match=message):
            call()


@pytest.mark.slow
def test_the_figure_with_the_most_points_is_saved_as_vectors(trace, tmp_path):
    path = plots.save(plots.query_overlap(trace, 3, k=10, pairs=5000), tmp_path / "overlap.svg")
    root = ET.parse(path).getroot()
    assert "image" not in {item.tag.rpartition("}")[2] for item in root.iter()}
    text = "".join(root.itertext())
    assert "cosine of the two queries" in text
    assert "sharper bound" in text
