"""Product quantization against scikit-learn, faiss and brute force, and the fit that limits its iterations."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.cluster import KMeans
from sklearn.exceptions import ConvergenceWarning

from kvviz.clustering import Codebook, IterationModel, fit_iterations, product_quantize
from kvviz.clustering.iterations import ClusteringTime, ComputeTime, profile_clustering, profile_compute
from kvviz.clustering.kmeans import initial_positions
from kvviz.errors import InvalidInputError


def clustered(*batch: int, length: int, width: int, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    centres = torch.randn(*batch, 40, width, generator=generator) * 2
    labels = torch.randint(40, (length,), generator=generator)
    return centres[..., labels, :] + torch.randn(*batch, length, width, generator=generator)


def brute_codes(keys: torch.Tensor, centroids: torch.Tensor) -> np.ndarray:
    """Number of the nearest centroid of each part, [L, m], for keys [L, D] and centroids [m, C, D/m]."""
    parts = keys.double().numpy().reshape(len(keys), centroids.shape[0], -1)
    distances = ((parts[:, :, None] - centroids.double().numpy()[None]) ** 2).sum(-1)  # [L, m, C]
    return distances.argmin(-1)


@pytest.mark.parametrize("iterations", [1, 6, 100])
def test_the_clusters_of_each_part_agree_with_scikit_learn(iterations):
    keys = clustered(2, length=900, width=24)
    book = product_quantize(keys, n_partitions=3, n_bits=4, max_iter=iterations, seed=5)
    assert book.centroids.shape == (2, 3, 16, 8)
    assert (book.codes.shape, book.codes.dtype) == ((2, 900, 3), torch.uint8)
    start = initial_positions(900, 16, seed=5)
    for head in range(2):
        for part in range(3):
            part_keys = keys[head, :, 8 * part : 8 * part + 8].numpy()
            reference = KMeans(16, init=part_keys[start], n_init=1, max_iter=iterations, tol=0, algorithm="lloyd")
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", ConvergenceWarning)
                reference.fit(part_keys)
            np.testing.assert_allclose(book.centroids[head, part], reference.cluster_centers_, rtol=1e-4, atol=1e-5)
            assert np.array_equal(book.codes[head, :, part].numpy(), reference.labels_)


@pytest.mark.parametrize(("n_partitions", "n_bits"), [(2, 6), (4, 8), (8, 3)])
def test_codes_scores_and_reconstruction_are_those_of_faiss(n_partitions, n_bits):
    faiss = pytest.importorskip("faiss")
    keys = clustered(length=700, width=32)
    book = product_quantize(keys[:500], n_partitions=n_partitions, n_bits=n_bits, max_iter=5).append(keys[500:])
    index = faiss.IndexPQ(32, n_partitions, n_bits, faiss.METRIC_INNER_PRODUCT)
    faiss.copy_array_to_vector(book.centroids.numpy().ravel(), index.pq.centroids)
    index.is_trained = True
    packed = index.pq.compute_codes(keys.numpy())
    assert np.array_equal(faiss.unpack_bitstrings(packed, n_partitions, n_bits), book.codes.numpy())
    np.testing.assert_allclose(index.pq.decode(packed), book.reconstruct(), rtol=1e-6)
    index.add(keys.numpy())
    queries = clustered(length=3, width=32, seed=1)
    scores, positions = index.search(queries.numpy(), 700)
    np.testing.assert_allclose(np.take_along_axis(book.scores(queries).numpy(), positions, -1), scores, atol=1e-3)


@settings(max_examples=40)
@given(data=st.data())
def test_properties(data):
    length = data.draw(st.sampled_from([1, 2, 63, 100, 1000]), "length")
    n_partitions = data.draw(st.sampled_from([1, 2, 4, 8]), "n_partitions")
    n_bits = data.draw(st.sampled_from([1, 3, 6, 9]), "n_bits")
    batch = data.draw(st.sampled_from([(), (3,), (2, 2)]), "batch")
    group = data.draw(st.sampled_from([1, 3, 4]), "group")
    kind = data.draw(st.sampled_from(["normal", "duplicates", "constant", "zero"]), "kind")
    seed = data.draw(st.integers(0, 2**31), "seed")
    generator = torch.Generator().manual_seed(seed)
    keys = torch.randn(*batch, length, 8, generator=generator)
    if kind == "duplicates":
        keys = keys[..., torch.arange(length) // 7, :]
    elif kind == "constant":
        keys = keys[..., :1, :].expand_as(keys)
    elif kind == "zero":
        keys = torch.zeros_like(keys)
    before = keys.clone()
    book = product_quantize(keys, n_partitions=n_partitions, n_bits=n_bits, max_iter=4, seed=seed)

    n_centroids = min(2**n_bits, length)
    assert torch.equal(keys, before)
    assert book.centroids.shape == (*batch, n_partitions, n_centroids, 8 // n_partitions)
    assert book.codes.shape == (*batch, length, n_partitions)
    assert book.codes.dtype == (torch.uint8 if n_bits <= 8 else torch.uint16)
    assert book.codes.long().max() < n_centroids
    rebuilt = book.reconstruct()
    last_book, last_keys, last_rebuilt = book, keys, rebuilt
    for _ in batch:  # the last head, by brute force; equal centroids may have either code
        last_book = Codebook(last_book.centroids[-1], last_book.codes[-1])
        last_keys, last_rebuilt = last_keys[-1], last_rebuilt[-1]
    nearest_codes = brute_codes(last_keys, last_book.centroids)
    parts = np.arange(n_partitions)
    coded = last_book.centroids.numpy()[parts, last_book.codes.long().numpy()].reshape(length, 8)
    assert np.array_equal(last_rebuilt.numpy(), coded)
    nearest = last_book.centroids.numpy()[parts, nearest_codes].reshape(length, 8)
    distance = ((coded - last_keys.numpy()) ** 2).sum(-1)
    np.testing.assert_allclose(distance, ((nearest - last_keys.numpy()) ** 2).sum(-1), rtol=1e-4, atol=1e-5)
    queries = torch.randn(*batch, group, 8, generator=generator)
    scores = book.scores(queries)
    torch.testing.assert_close(scores, queries @ rebuilt.transpose(-1, -2), rtol=1e-4, atol=1e-4)
    if length <= 2**n_bits and kind == "normal" and n_partitions <= 2:  # smaller parts may be too close in float32
        assert torch.equal(rebuilt, keys)
    if batch and kind == "normal":
        alone = product_quantize(keys[-1].clone(), n_partitions=n_partitions, n_bits=n_bits, max_iter=4, seed=seed)
        assert torch.equal(alone.codes, book.codes[-1])
        assert torch.equal(alone.centroids, book.centroids[-1])


@pytest.mark.parametrize("new", [1, 16, 17, 100])
def test_appended_keys_get_their_nearest_centroids(new):
    keys = clustered(2, length=400 + new, width=16)
    book = product_quantize(keys[:, :400], n_partitions=2, n_bits=5, max_iter=3)
    longer = book.append(keys[:, 400:])
    assert torch.equal(longer.codes[:, :400], book.codes)
    assert torch.equal(longer.centroids, book.centroids)
    for head in range(2):
        assert np.array_equal(longer.codes[head].numpy(), brute_codes(keys[head], book.centroids[head]))


def test_codebooks_that_share_a_beginning_do_not_change_each_other():
    keys = clustered(2, length=700, width=16)
    book = product_quantize(keys[:, :400], n_partitions=2, n_bits=4, max_iter=3)
    stepwise = shared = book.append(keys[:, 400:401])
    for step in range(401, 600):
        stepwise = stepwise.append(keys[:, step : step + 1])
    at_once = shared.append(keys[:, 600:])
    for head in range(2):
        assert np.array_equal(stepwise.codes[head].numpy(), brute_codes(keys[head, :600], book.centroids[head]))
        assert np.array_equal(shared.codes[head].numpy(), brute_codes(keys[head, :401], book.centroids[head]))
        assert np.array_equal(at_once.codes[head, 401:].numpy(), brute_codes(keys[head, 600:], book.centroids[head]))


def test_pairs_of_codes_are_counted_up_to_a_length():
    keys = clustered(2, length=500, width=16)
    book = product_quantize(keys[:, :400], n_partitions=2, n_bits=4, max_iter=3)
    assert book.pair_counts(255) is None, "more pairs than tokens"
    longer = book.append(keys[:, 400:420]).append(keys[:, 420:])
    for length in (300, 301, 350, 500, 260):
        counts = longer.pair_counts(length)
        for head in range(2):
            pairs, frequencies = np.unique(longer.codes[head, :length].numpy(), axis=0, return_counts=True)
            assert counts[head].sum() == length
            assert np.array_equal(counts[head].numpy()[pairs[:, 1], pairs[:, 0]], frequencies)
    assert longer.pairs.counted == 260
    assert product_quantize(keys, n_partitions=4, n_bits=4).pair_counts(500) is None


def test_half_precision_keys_are_computed_in_float32():
    keys = clustered(2, length=300, width=16).to(torch.bfloat16)
    half, full = (product_quantize(k, n_partitions=2, n_bits=4) for k in (keys, keys.float()))
    assert torch.equal(half.codes, full.codes)
    assert torch.equal(half.centroids, full.centroids)
    assert torch.equal(half.scores(keys[:, :3]), full.scores(keys[:, :3].float()))


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"n_partitions": 3}, "n_partitions: got 3; wanted a divisor of the head dimension, 16"),
        ({"n_partitions": 0}, "n_partitions: got 0; wanted an int >= 1"),
        ({"n_bits": 0}, "n_bits: got 0; wanted an int from 1 to 16"),
        ({"n_bits": 17}, "n_bits: got 17; wanted an int from 1 to 16"),
        ({"n_bits": 2.5}, r"n_bits: got 2\.5"),
        ({"max_iter": 0}, "max_iter: got 0; wanted an int >= 1"),
    ],
)
def test_fields_out_of_range(fields, message):
    with pytest.raises(InvalidInputError, match=message):
        product_quantize(torch.ones(2, 10, 16), **fields)


def test_invalid_keys():
    for keys in (torch.ones(16), torch.ones(0, 16), torch.ones(4, 16, dtype=torch.int64)):
        with pytest.raises(InvalidInputError, match="at least one token"):
            product_quantize(keys)
    with pytest.raises(InvalidInputError, match="finite keys"):
        product_quantize(torch.full((10, 16), torch.nan))
    with pytest.raises(InvalidInputError, match="got 8 channels; wanted 16 channels, 2 parts of 8"):
        product_quantize(torch.ones(10, 16)).encode(torch.ones(1, 8))


class TestIterations:
    def fitted(self, **limits):
        clustering = [ClusteringTime(s, t, 0.004 + 3e-8 * s * t) for s in (512, 1024, 4096, 8192) for t in (1, 5, 20)]
        compute = [ComputeTime(s, 0.001 + 2e-6 * s + 4e-10 * s * s) for s in (512, 1024, 4096, 8192)]
        return fit_iterations(clustering, compute, **limits)

    def test_the_fit_finds_the_coefficients(self):
        model = self.fitted()
        coefficients = (model.alpha1, model.beta1, model.alpha2, model.beta2, model.gamma2)
        np.testing.assert_allclose(coefficients, (0.004, 3e-8, 0.001, 2e-6, 4e-10), rtol=1e-8)
        assert model.table()["residual_s"].abs().max() < 1e-12

    def test_the_fit_of_noisy_times_is_least_squares(self):
        rng = np.random.default_rng(0)
        clustering = [ClusteringTime(s, t, 1e-8 * s * t * rng.uniform(0.8, 1.2)) for s in (1000, 3000) for t in (2, 9)]
        compute = [ComputeTime(s, 1e-9 * s * s * rng.uniform(0.8, 1.2)) for s in (1000, 2000, 3000, 4000)]
        model = fit_iterations(clustering, compute)
        slope, offset = np.polyfit([p.tokens * p.iterations for p in clustering], [p.seconds for p in clustering], 1)
        square, linear, constant = np.polyfit([p.tokens for p in compute], [p.seconds for p in compute], 2)
        coefficients = (model.alpha1, model.beta1, model.alpha2, model.beta2, model.gamma2)
        np.testing.assert_allclose(coefficients, (offset, slope, constant, linear, square), rtol=1e-6)
        table = model.table()
        assert table["work"].tolist() == ["clustering"] * 4 + ["one layer"] * 4
        assert table["fitted_s"][1] == pytest.approx(offset + slope * 9000)
        assert table["residual_s"][4] == pytest.approx(
            compute[0].seconds - np.polyval([square, linear, constant], 1000)
        )

    @settings(max_examples=60)
    @given(tokens=st.integers(1, 200_000), least=st.integers(1, 10), span=st.integers(0, 300))
    def test_max_iterations_against_a_search(self, tokens, least, span):
        model = self.fitted(least=least, most=least + span)
        limit = model.compute_seconds(tokens)
        fitting = [t for t in range(least, least + span + 1) if model.clustering_seconds(tokens, t) <= limit]
        assert model.max_iterations(tokens) == max(fitting, default=least)

    def test_clipping(self):
        assert self.fitted().max_iterations(64) == 3, "with short inputs, clustering takes longer than the layer"
        assert self.fitted().max_iterations(10**6) == 300
        assert self.fitted(least=5, most=7).max_iterations(64) == 5

    def test_the_description_names_fits_residuals_and_iterations(self):
        text = self.fitted().describe()
        assert "0.004 s + 3e-08 s · tokens · iterations (off by at most " in text
        assert "0.001 s + 2e-06 s · tokens + 4e-10 s · tokens²" in text
        assert f"{self.fitted().max_iterations(8192)} at 8,192 tokens" in text

    def test_profiles_measure_the_best_run(self):
        """A clock with given readings, two per run; the profile keeps the best run."""
        readings = iter([0.0, 5.0, 10.0, 12.0, 20.0, 26.0] * 2)
        lengths_run = []
        points = profile_compute(lengths_run.append, (10, 20), n_layers=4, repeats=3, clock=lambda: next(readings))
        assert points == (ComputeTime(10, 0.5), ComputeTime(20, 0.5))
        assert lengths_run == [10] * 4 + [20] * 4

    def test_the_profile_records_the_iterations_until_convergence(self):
        points = profile_clustering((80,), (1, 50), n_heads=1, head_dim=4, n_bits=2, repeats=1)
        assert [p.tokens for p in points] == [80, 80]
        assert points[0].iterations == 1
        assert 1 < points[1].iterations < 50
        assert all(p.seconds > 0 for p in points)

    def test_times_that_cannot_be_fitted(self):
        good = [ComputeTime(s, s * 1e-3) for s in (1, 2, 3)]
        times = [ClusteringTime(10, 1, 1.0), ClusteringTime(10, 2, 2.0)]
        with pytest.raises(InvalidInputError, match="clustering: got 1 different sizes; wanted at least 2"):
            fit_iterations([ClusteringTime(10, 2, 1.0), ClusteringTime(5, 4, 1.1)], good)
        with pytest.raises(InvalidInputError, match="compute: got 2 different sizes; wanted at least 3"):
            fit_iterations(times, good[:2])
        with pytest.raises(InvalidInputError, match="seconds that grow"):
            fit_iterations([ClusteringTime(10, 1, 2.0), ClusteringTime(10, 2, 1.0)], good)
        with pytest.raises(InvalidInputError, match="1 <= least <= most"):
            fit_iterations(times, good, least=8, most=4)
        with pytest.raises(InvalidInputError, match="tokens: got 0"):
            IterationModel(0, 1, 0, 0, 0).max_iterations(0)
        with pytest.raises(InvalidInputError, match="repeats: got 0"):
            profile_compute(print, (1,), repeats=0)
