"""What PQCache clusters: prompts, later prompts and rebuilt codebooks, for how long, and on which device."""

from __future__ import annotations

import json
import threading
from dataclasses import replace

import numpy as np
import pytest
import torch

import kvviz
from kvviz.cache.layer_cache import LayerCache
from kvviz.clustering import IterationModel, fit_iterations, product_quantize
from kvviz.clustering.iterations import ClusteringTime, ComputeTime
from tests.methods.quantized import CONTEXT, build, coded_keys, decode, reference_scores, tensors


def test_codebooks_are_rebuilt_periodically():
    method, state, _, keys, _ = build(rebuild_interval=10, max_iter=4)
    state, new = decode(method, state, 9)
    assert state.rebuilt == 300
    state, last = decode(method, state, 1, seed=99)
    keys = torch.cat([keys, new, last], dim=2)
    expected = product_quantize(keys[:, :, 4:], n_bits=3, max_iter=4)
    assert torch.equal(state.books[0].centroids, expected.centroids)
    assert torch.equal(state.books[0].codes, expected.codes)
    state, _ = decode(method, state, 9)
    assert torch.equal(state.books[0].centroids, expected.centroids), "no rebuild before the next interval"


def test_each_turn_is_clustered_separately():
    method, state, *_ = build(cluster_each_turn=True, rebuild_interval=20, n_bits=5, group="sum", softmax=False)
    state, _ = decode(method, state, 3)
    state.code()
    first = state.books[0]
    queries, second, values = tensors(80, seed=7)
    state = method.continue_prompt(state, queries[:, :, :0], second, values)
    state, new = decode(method, state, 2)
    state.code()
    assert [book.length for book in state.books] == [299, 82]
    assert torch.equal(state.books[0].codes, first.codes)
    expected = product_quantize(second, n_bits=5, max_iter=10).append(new)
    assert torch.equal(state.books[1].codes, expected.codes)
    assert (state.prompt_length, state.length) == (383, 385)
    query = queries[0, :, 5]
    coded = np.concatenate([coded_keys(book) for book in state.books], axis=1)[:, : 385 - 15 - 4]
    scores = reference_scores(query.double().numpy(), coded, "sum", softmax=False)
    chosen = method.select(state, query[None])
    assert chosen.indices.shape[-1] == 64
    for row in range(2):
        chosen_tokens = chosen.indices[0, row, 4:-15].numpy() - 4
        assert scores[row, chosen_tokens].min() >= np.delete(scores[row], chosen_tokens).max() - 1e-5
        assert chosen_tokens.max() > 300, "tokens of both turns are retrieved"
        assert chosen_tokens.min() < 200
    state, more = decode(method, state, 18, seed=200)
    expected = product_quantize(torch.cat([second, new, more], dim=2), n_bits=5, max_iter=10)
    assert torch.equal(state.books[1].codes, expected.codes), "a rebuild includes the output of the turn"
    assert torch.equal(state.books[0].codes, first.codes)


def test_a_later_prompt_is_clustered_with_all_earlier_tokens_by_default():
    for each_turn in (False, True):
        method = kvviz.methods.create("pqcache", budget=64, n_bits=3, cluster_each_turn=each_turn)
        layer = LayerCache(replace(CONTEXT, cached=None), method)
        _, keys, values = tensors(420)
        layer.store.append(keys[:, :, :300], values[:, :, :300])
        layer.build()
        layer.store.append(keys[:, :, 300:], values[:, :, 300:])
        layer.build()
        (state,) = layer.states
        assert [book.length for book in state.books] == ([296, 120] if each_turn else [416])
        assert state.prompt_length == 420


def test_a_prompt_within_the_sinks_has_no_codebook_until_later_tokens():
    method, state, *_ = build(3, cluster_each_turn=True)
    assert state.books == []
    state, _ = decode(method, state, 4)
    assert method.select(state, torch.ones(1, 6, 16)).indices.tolist() == [[list(range(7))] * 2]
    assert method.continue_prompt(state, *tensors(50)) is None


def test_an_iteration_model_sets_the_number_of_iterations():
    model = IterationModel(alpha1=0.0, beta1=1.0, alpha2=0.0, beta2=0.0, gamma2=0.01, least=1)
    method, state, _, keys, _ = build(404, max_iter=model)
    assert model.max_iterations(400) == 4
    assert torch.equal(state.books[0].centroids, product_quantize(keys[:, :, 4:], n_bits=3, max_iter=4).centroids)
    five_iterations = product_quantize(keys[:, :, 4:], n_bits=3, max_iter=5).centroids
    assert not torch.equal(state.books[0].centroids, five_iterations)
    assert method.config["max_iter"]["beta1"] == 1.0


def test_a_method_with_an_iteration_model_is_created_from_its_config():
    clustering = [ClusteringTime(tokens, 5, 1e-6 * tokens) for tokens in (100, 200)]
    compute = [ComputeTime(tokens, 1e-9 * tokens**2) for tokens in (100, 200, 300)]
    method = kvviz.methods.create("pqcache", max_iter=fit_iterations(clustering, compute, most=40))
    for config in (method.config, json.loads(json.dumps(method.config))):
        created = kvviz.methods.create("pqcache", **config)
        assert created == method
        assert created.max_iter.describe() == method.max_iter.describe()
    with pytest.raises(kvviz.UnknownNameError, match=r"'beta'.*'beta1'"):
        kvviz.methods.create("pqcache", max_iter={"beta": 1.0})
    with pytest.raises(kvviz.InvalidInputError, match="IterationModel: got no alpha2, beta2, gamma2"):
        kvviz.methods.create("pqcache", max_iter={"alpha1": 0.0, "beta1": 1.0})


def test_without_a_gpu_clustering_on_host_and_device_is_the_same():
    books = []
    for place in ("host", "device"):
        method, state, *_ = build(400, cluster_on=place, rebuild_interval=10, cluster_each_turn=True)
        state, _ = decode(method, state, 12)
        state = method.continue_prompt(state, *tensors(80, seed=7))
        books.append(state.books)
    for host, device in zip(*books, strict=True):
        assert torch.equal(host.centroids, device.centroids)
        assert torch.equal(host.codes, device.codes)


@pytest.mark.gpu
def test_the_keys_of_a_gpu_are_clustered_on_the_host_or_on_the_gpu(monkeypatch):
    places = []

    def logged(keys, **fields):
        places.append((keys.device.type, threading.current_thread() is threading.main_thread()))
        return product_quantize(keys, **fields)

    monkeypatch.setattr("kvviz.methods.pqcache.product_quantize", logged)
    _, keys, values = (tensor.cuda() for tensor in tensors(3000))
    _, reference, *_ = build(3000, n_bits=6)
    inertia = {}
    for place, device in (("host", "cpu"), ("device", "cuda")):
        method = kvviz.methods.create("pqcache", budget=64, cluster_on=place)
        layer = LayerCache(replace(CONTEXT, cached=None), method)
        layer.store.append(keys, values)
        places.clear()
        layer.build()
        (state,) = layer.states
        assert places == [(device, False)], "in the worker thread"
        (book,) = state.books
        assert (book.centroids.device, book.codes.device) == (keys.device, keys.device)
        if place == "host":
            assert torch.equal(book.centroids.cpu(), reference.books[0].centroids)
            assert torch.equal(book.codes.cpu(), reference.books[0].codes)
        inertia[place] = float((book.reconstruct() - keys[:, :, 4:]).square().sum())
    assert inertia["device"] == pytest.approx(inertia["host"], rel=0.02)
