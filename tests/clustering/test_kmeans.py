"""k-means against scikit-learn and brute force, and its properties."""

from __future__ import annotations

import importlib
import math
import warnings

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.cluster import KMeans
from sklearn.exceptions import ConvergenceWarning

from kvviz.clustering import Clusters, kmeans
from kvviz.clustering.kmeans import initial_positions
from kvviz.errors import InvalidInputError, UnknownNameError

METRICS = ("cosine", "l2", "ip")


def clustered(*batch: int, length: int, width: int, centers: int, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    centres = torch.randn(*batch, centers, width, generator=generator) * 2
    labels = torch.randint(centers, (length,), generator=generator)
    return centres[..., labels, :] + torch.randn(*batch, length, width, generator=generator)


def nearest(keys: torch.Tensor, centroids: torch.Tensor, metric: str) -> torch.Tensor:
    keys, centroids = keys.double()[..., :, None, :], centroids.double()[..., None, :, :]
    if metric == "l2":
        return (keys - centroids).square().sum(-1).argmin(-1)
    scores = (keys * centroids).sum(-1)
    return (scores / (keys.norm(dim=-1) * centroids.norm(dim=-1)) if metric == "cosine" else scores).argmax(-1)


def means(keys: torch.Tensor, labels: torch.Tensor, n_clusters: int) -> torch.Tensor:
    one_hot = torch.nn.functional.one_hot(labels, n_clusters).double().transpose(-1, -2)
    return one_hot @ keys.double() / one_hot.sum(-1, keepdim=True)


def assert_same(first: Clusters, second: Clusters) -> None:
    for name in Clusters.__dataclass_fields__:
        assert torch.equal(getattr(first, name), getattr(second, name)), name


@pytest.mark.parametrize(("n_clusters", "iterations"), [(7, 4), (60, 10), (60, 100)])
def test_l2_agrees_with_scikit_learn(n_clusters, iterations):
    keys = clustered(3, length=1500, width=16, centers=40)
    start = initial_positions(1500, n_clusters, seed=5)
    # scikit-learn assigns once more after its last update
    clusters = kmeans(keys, n_clusters, metric="l2", max_iter=iterations + 1, seed=5)
    for head in range(3):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)
            reference = KMeans(n_clusters, init=keys[head, start].numpy(), n_init=1, max_iter=iterations, tol=0)
            reference.fit(keys[head].numpy())
        assert np.array_equal(clusters.labels[head].numpy(), reference.labels_)
        assert bool(clusters.converged[head]) == (reference.n_iter_ < iterations)
        inertia = (keys[head] - clusters.centroids[head, clusters.labels[head]]).square().sum().item()
        assert inertia <= reference.inertia_ * (1 + 1e-6)  # means of the final labels are never worse


@pytest.mark.parametrize("metric", METRICS)
def test_one_iteration_assigns_then_averages(metric):
    keys = clustered(2, 3, length=400, width=10, centers=8)
    clusters = kmeans(keys, 9, metric=metric, max_iter=1, seed=3)
    first = keys[..., initial_positions(400, 9, seed=3), :]
    assert torch.equal(clusters.labels, nearest(keys, first, metric))
    expected = torch.where(clusters.sizes[..., None] > 0, means(keys, clusters.labels, 9), first.double())
    torch.testing.assert_close(clusters.centroids.double(), expected, rtol=1e-5, atol=1e-5)
    assert not clusters.converged.any()


@pytest.mark.parametrize("metric", ["cosine", "l2"])
def test_converged_clusters_are_a_fixed_point(metric):
    keys = clustered(2, length=600, width=12, centers=10)
    clusters = kmeans(keys, 20, metric=metric, max_iter=300)
    assert clusters.converged.all()
    assert (clusters.n_iter < 300).all()
    assert torch.equal(clusters.labels, nearest(keys, clusters.centroids, metric))
    not_empty = clusters.sizes > 0
    expected = means(keys, clusters.labels, 20)[not_empty]
    torch.testing.assert_close(clusters.centroids[not_empty].double(), expected, rtol=1e-5, atol=1e-5)
    assert_same(clusters, kmeans(keys, 20, metric=metric, max_iter=1000))


@settings(max_examples=60)
@given(data=st.data())
def test_properties(data):
    length = data.draw(st.integers(1, 200), "length")
    n_clusters = data.draw(st.integers(1, length), "n_clusters")
    width = data.draw(st.sampled_from([1, 5, 16]), "width")
    batch = data.draw(st.sampled_from([(), (3,), (2, 2)]), "batch")
    metric = data.draw(st.sampled_from(METRICS), "metric")
    seed = data.draw(st.integers(0, 2**31), "seed")
    kind = data.draw(st.sampled_from(["normal", "duplicates", "constant", "zero", "some zero"]), "kind")
    keys = torch.randn(*batch, length, width, generator=torch.Generator().manual_seed(seed))
    if kind == "duplicates":
        keys = keys[..., torch.arange(length) // 7, :]
    elif kind == "constant":
        keys = keys[..., :1, :].expand_as(keys)
    elif kind == "zero":
        keys = torch.zeros_like(keys)
    elif kind == "some zero":
        keys[..., ::3, :] = 0
    before = keys.clone()
    clusters = kmeans(keys, n_clusters, metric=metric, max_iter=5, seed=seed)

    assert torch.equal(keys, before)
    assert clusters.centroids.isfinite().all()
    assert clusters.centroids.shape == (*batch, n_clusters, width)
    assert torch.equal(clusters.sizes, torch.nn.functional.one_hot(clusters.labels, n_clusters).sum(-2))
    assert (clusters.offsets[..., 0] == 0).all()
    assert torch.equal(clusters.offsets.diff(dim=-1), clusters.sizes)
    # positions sorted by label, ascending inside a label: the one permutation that sorts label * L + position
    assert torch.equal(clusters.order, (clusters.labels * length + torch.arange(length)).argsort(-1))
    assert_same(clusters, kmeans(keys, n_clusters, metric=metric, max_iter=5, seed=seed))
    if batch and kind == "normal":  # equal keys can give equal centroids, and then rounding decides
        last = tuple(size - 1 for size in batch)
        alone = kmeans(keys[last].clone(), n_clusters, metric=metric, max_iter=5, seed=seed)
        assert_same(alone, Clusters(**{name: getattr(clusters, name)[last] for name in Clusters.__dataclass_fields__}))


def test_a_head_has_the_same_clusters_alone_and_in_a_batch():
    keys = torch.randn(3, 1000, 64, generator=torch.Generator().manual_seed(0))
    together = kmeans(keys, 50, max_iter=100)
    assert len(set(together.n_iter.tolist())) > 1  # heads stop at different iterations
    for head in range(3):
        alone = kmeans(keys[head].clone(), 50, max_iter=100)
        assert_same(alone, Clusters(**{name: getattr(together, name)[head] for name in Clusters.__dataclass_fields__}))


@pytest.mark.parametrize("metric", METRICS)
def test_a_relaxed_step_moves_beyond_the_mean(metric):
    keys = clustered(2, length=400, width=10, centers=8)
    first = keys[..., initial_positions(400, 9, seed=3), :]
    one_iteration = kmeans(keys, 9, metric=metric, max_iter=1, seed=3, relaxation=1.8)
    assert_same(one_iteration, kmeans(keys, 9, metric=metric, max_iter=1, seed=3))  # the returned centroids are means
    moved = first + 1.8 * (one_iteration.centroids - first)
    two_iterations = kmeans(keys, 9, metric=metric, max_iter=2, seed=3, relaxation=1.8)
    assert torch.equal(two_iterations.labels, nearest(keys, moved, metric))
    not_empty = two_iterations.sizes > 0
    expected = means(keys, two_iterations.labels, 9)[not_empty]
    torch.testing.assert_close(two_iterations.centroids[not_empty].double(), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("relaxation", [1.3, 1.8])
@pytest.mark.parametrize("metric", ["cosine", "l2"])
def test_relaxed_clusters_converge_to_a_fixed_point_of_lloyd(metric, relaxation):
    keys = clustered(3, length=600, width=12, centers=10)
    clusters = kmeans(keys, 20, metric=metric, max_iter=500, relaxation=relaxation)
    assert clusters.converged.all()
    assert torch.equal(clusters.labels, nearest(keys, clusters.centroids, metric))
    not_empty = clusters.sizes > 0
    expected = means(keys, clusters.labels, 20)[not_empty]
    torch.testing.assert_close(clusters.centroids[not_empty].double(), expected, rtol=1e-5, atol=1e-5)
    last = clusters.n_iter.max().item()
    assert not kmeans(keys, 20, metric=metric, max_iter=last - 1, relaxation=relaxation).converged.all()
    assert_same(clusters, kmeans(keys, 20, metric=metric, max_iter=last, relaxation=relaxation))
    for head in range(3):
        alone = kmeans(keys[head].clone(), 20, metric=metric, max_iter=500, relaxation=relaxation)
        assert_same(alone, Clusters(**{name: getattr(clusters, name)[head] for name in Clusters.__dataclass_fields__}))


def test_relaxed_iterations_converge_faster():
    keys = torch.randn(3, 3000, 32, generator=torch.Generator().manual_seed(0))

    def inertia(clusters: Clusters) -> float:
        centroids = clusters.centroids.gather(1, clusters.labels[..., None].expand_as(keys))
        return float((keys - centroids).square().sum())

    lloyd = inertia(kmeans(keys, 80, metric="l2", max_iter=10))
    assert inertia(kmeans(keys, 80, metric="l2", max_iter=6, relaxation=1.8)) <= lloyd


@pytest.mark.parametrize("relaxation", [1.0, 1.8])
def test_checking_convergence_less_often_changes_nothing(relaxation, monkeypatch):
    """As on a GPU: heads that have converged are computed until the next check."""
    module = importlib.import_module("kvviz.clustering.kmeans")  # the function has the module's name
    keys = torch.randn(4, 500, 24, generator=torch.Generator().manual_seed(0))
    for max_iter in (1, 7, 16, 300):
        expected = kmeans(keys, 30, max_iter=max_iter, relaxation=relaxation)
        with monkeypatch.context() as patch:
            patch.setattr(module, "_looks", lambda iteration, device: iteration % 4 == 3)
            assert_same(kmeans(keys, 30, max_iter=max_iter, relaxation=relaxation), expected)
    assert expected.converged.all()
    assert len(set(expected.n_iter.tolist())) > 1


def test_the_seed_chooses_the_initial_keys():
    keys = clustered(length=300, width=8, centers=5)
    first, second = (kmeans(keys, 12, seed=seed, max_iter=1).centroids for seed in (1, 2))
    assert not torch.equal(first, second)
    assert len(set(initial_positions(300, 300, seed=0).tolist())) == 300


def test_as_many_clusters_as_keys():
    keys = clustered(2, length=50, width=16, centers=50)
    clusters = kmeans(keys, 50, metric="l2")
    assert (clusters.sizes == 1).all()
    assert torch.equal(clusters.centroids[0, clusters.labels[0]], keys[0])
    assert clusters.converged.all()


def test_an_empty_cluster_keeps_its_centroid():
    keys = torch.tensor([[1.0, 0.0]]).repeat(6, 1)
    clusters = kmeans(keys, 3)
    assert clusters.sizes.tolist() == [6, 0, 0]
    assert torch.equal(clusters.centroids, keys[:3])


def test_half_precision_keys_are_computed_in_float32():
    keys = clustered(2, length=500, width=16, centers=10).to(torch.bfloat16)
    assert_same(kmeans(keys, 20), kmeans(keys.float(), 20))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"n_clusters": 0}, "n_clusters: got 0; wanted 1 to 10"),
        ({"n_clusters": 11}, "n_clusters: got 11; wanted 1 to 10"),
        ({"n_clusters": 2, "max_iter": 0}, "max_iter: got 0; wanted at least 1"),
        ({"n_clusters": 2, "relaxation": 0.9}, "relaxation: got 0.9; wanted at least 1 and below 2"),
        ({"n_clusters": 2, "relaxation": 2.0}, "relaxation: got 2.0; wanted at least 1 and below 2"),
        ({"n_clusters": 2, "relaxation": math.nan}, "relaxation: got nan; wanted at least 1 and below 2"),
    ],
)
def test_values_out_of_range(options, message):
    with pytest.raises(InvalidInputError, match=message):
        kmeans(torch.ones(2, 10, 4), **options)


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_keys_must_be_finite(bad, dtype):
    keys = torch.ones(2, 10, 4, dtype=dtype)
    keys[1, 9, 3] = bad
    with pytest.raises(InvalidInputError, match="finite keys"):
        kmeans(keys, 2)


def test_keys_must_be_float_vectors():
    for keys in (torch.ones(10), torch.ones(10, 4, dtype=torch.int64)):
        with pytest.raises(InvalidInputError, match=r"floats \[..., L, D\]"):
            kmeans(keys, 2)


def test_unknown_names():
    with pytest.raises(UnknownNameError, match="did you mean 'cosine'"):
        kmeans(torch.ones(10, 4), 2, metric="cosin")
    with pytest.raises(UnknownNameError, match="one of random"):
        kmeans(torch.ones(10, 4), 2, init="k-means++")
