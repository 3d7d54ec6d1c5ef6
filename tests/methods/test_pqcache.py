"""PQCache against brute force over its codes, with generated tokens, later prompts and rebuilt codebooks."""

from __future__ import annotations

import json
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.flop_counter import FlopCounterMode

import kvviz
from kvviz.cache.layer_cache import LayerCache
from kvviz.clustering import Codebook, IterationModel, fit_iterations, product_quantize
from kvviz.clustering.iterations import ClusteringTime, ComputeTime
from kvviz.methods.base import LayerContext

CONTEXT = LayerContext(index=4, n_layers=8, n_heads=6, n_kv_heads=2, head_dim=16, scale=0.25, details=True)
GROUPS = ("mean", "max", "sum", "each")


def tensors(length, seed=0, heads=6, kv_heads=2):
    generator = torch.Generator().manual_seed(seed)
    shapes = ((1, heads, length, 16), (1, kv_heads, length, 16), (1, kv_heads, length, 16))
    return tuple(torch.randn(shape, generator=generator) for shape in shapes)


def build(length=300, context=CONTEXT, **fields):
    queries, keys, values = tensors(length, heads=context.n_heads, kv_heads=context.n_kv_heads)
    method = kvviz.methods.create("pqcache", **{"budget": 64, "n_bits": 3, **fields})
    return method, method.build(context, queries[:, :, :0], keys, values), queries, keys, values


def decode(method, state, steps, seed=50, heads=6, kv_heads=2):
    keys = []
    for step in range(steps):
        new = tensors(1, seed=seed + step, heads=heads, kv_heads=kv_heads)
        state = method.extend(state, *new)
        keys.append(new[1])
    return state, torch.cat(keys, dim=2)


def coded_keys(book: Codebook) -> np.ndarray:
    """Keys [H, L, D] float64 as the codebook of one prompt encodes them, one centroid after the other."""
    centroids, codes = book.centroids[0].double().numpy(), book.codes[0].long().numpy()
    heads, length, parts = codes.shape
    return np.stack(
        [
            [np.concatenate([centroids[h, j, codes[h, t, j]] for j in range(parts)]) for t in range(length)]
            for h in range(heads)
        ]
    )


def reference_scores(queries, keys, group, softmax, softcap=None):
    """Scores [R, n] that rank the tokens of keys [H, n, D]."""
    shared = len(queries) // len(keys)
    scores = np.stack([keys[h // shared] @ queries[h] for h in range(len(queries))])
    if softmax:
        scores = scores * 0.25
        if softcap:
            scores = softcap * np.tanh(scores / softcap)
        scores = np.exp(scores) / np.exp(scores).sum(-1, keepdims=True)
    if group == "each":
        return scores
    return getattr(scores.reshape(len(keys), shared, -1), group)(1)


@pytest.mark.parametrize("group", GROUPS)
@pytest.mark.parametrize(("softmax", "softcap"), [(False, None), (True, None), (True, 2.0)])
def test_the_middle_is_ranked_by_the_coded_keys(group, softmax, softcap):
    method, state, queries, *_ = build(context=replace(CONTEXT, softcap=softcap), group=group, softmax=softmax)
    state, _ = decode(method, state, 5)
    query = queries[0, :, 17]
    chosen = method.select(state, query[None])
    middle = coded_keys(state.books[0])[:, : 305 - 15 - 4]  # sinks 4, window (64 - 4) / 4
    scores = reference_scores(query.double().numpy(), middle, group, softmax, softcap)
    for row in range(6 if group == "each" else 2):
        inside = slice(4, 64 - 15)
        indices = chosen.indices[0, row].numpy()
        assert indices[:4].tolist() == [0, 1, 2, 3]
        assert indices[-15:].tolist() == list(range(290, 305))
        chosen_tokens = indices[inside] - 4
        assert len(indices) == 64
        # tokens with equal codes tie, so the worst chosen token and the best other one may have equal scores
        other_scores = np.delete(scores[row], chosen_tokens)
        assert scores[row, chosen_tokens].min() >= other_scores.max() - 1e-6
        np.testing.assert_allclose(chosen.scores[0, row, inside], scores[row, chosen_tokens], rtol=1e-4, atol=1e-6)
        assert np.array_equal(chosen.groups[0, row, inside], indices[inside] // 128)
        assert chosen.groups[0, row, [0, -1]].tolist() == [-1, -1]
        assert bool(chosen.scores[0, row, -15:].isnan().all())


@settings(max_examples=25)
@given(
    length=st.sampled_from([1, 63, 100, 1000]),
    heads=st.sampled_from([(4, 4), (6, 2), (3, 1)]),
    group=st.sampled_from(GROUPS),
    kind=st.sampled_from(["normal", "duplicates", "constant", "zero"]),
    fields=st.sampled_from([{}, {"n_partitions": 4, "n_bits": 8}, {"n_bits": 9}, {"preset": "official"}]),
)
def test_arbitrary_keys_heads_and_lengths(length, heads, group, kind, fields):
    queries, keys, values = tensors(length, heads=heads[0], kv_heads=heads[1])
    if kind != "normal":
        keys = {"duplicates": keys[:, :, torch.arange(length) // 9], "constant": torch.ones_like(keys)}.get(
            kind, torch.zeros_like(keys)
        )
    method = kvviz.methods.create("pqcache", **{"budget": 48, **fields, "group": group})
    context = replace(CONTEXT, n_heads=heads[0], n_kv_heads=heads[1])
    state = method.build(context, queries[:, :, :0], keys, values)
    state, _ = decode(method, state, 3, heads=heads[0], kv_heads=heads[1])
    chosen = method.select(state, queries[:, :, 0])
    assert chosen.indices.shape[-1] == min(length + 3, 48)
    assert bool((chosen.indices.diff(dim=-1) > 0).all())
    assert chosen.indices.max() == length + 2
    assert bool((chosen.scores.isfinite() == (chosen.groups >= 0)).all())


@pytest.mark.parametrize("softmax", [False, True])
def test_with_a_centroid_for_every_token_it_is_the_oracle(softmax):
    fields = {"budget": 40, "sinks": 4, "recent": 9, "group": "each"}
    method, state, queries, keys, values = build(250, n_bits=8, softmax=softmax, recent_share=0, **fields)
    oracle = kvviz.methods.create("oracle", **fields)
    exact = oracle.build(CONTEXT, queries[:, :, :0], keys, values)
    for position in (0, 100, 249):
        query = queries[:, :, position]
        assert torch.equal(method.select(state, query).indices, oracle.select(exact, query).indices)


def test_a_generated_token_gets_its_nearest_centroids_and_is_retrieved_after_the_window():
    method, state, queries, *_ = build(recent_share=0, recent=8)
    before = state.books[0]
    query = queries[:, :, 3]
    matching_key = query.unflatten(1, (2, 3)).mean(2)[:, :, None] * 20  # the best possible match
    state = method.extend(state, queries[:, :, :1], matching_key, matching_key)
    state, later = decode(method, state, 30)
    assert state.books[0] is before, "not coded yet"
    chosen = method.select(state, query)
    assert state.coded == state.length == 331, "some have left the window"
    (book,) = state.books
    assert torch.equal(book.centroids, before.centroids)
    assert torch.equal(book.codes[:, :, : before.length], before.codes)
    new = torch.cat([matching_key, later], dim=2)[0].double().unflatten(-1, (2, 8))  # [H, n, m, D/m]
    distances = (new[:, :, :, None] - book.centroids[0].double()[:, None]).square().sum(-1)
    assert torch.equal(book.codes[0, :, before.length :].long(), distances.argmin(-1))
    assert bool((chosen.indices == 300).any(-1).all())


def test_tokens_are_coded_together_when_the_first_one_leaves_the_window():
    method, state, queries, *_ = build(recent_share=0, recent=20)
    for step in range(1, 100):
        state, _ = decode(method, state, 1, seed=step)
        method.select(state, queries[:, :, step])
        assert state.coded >= state.length - 20, "the middle has codes"
        assert state.coded == 300 + step // 21 * 21, "20 wait until the first one leaves the window"
    method, state, *_ = build(recent_share=0, recent=80, budget=128)
    state, _ = decode(method, state, 70)
    assert state.coded == 364, "at most 64 wait"
    assert state.auxiliary_bytes() == 6 * 2 * 16 * 4
    assert state.read_bytes() == state.metadata_bytes() - state.auxiliary_bytes()


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


def test_a_step_computes_no_product_over_all_keys():
    for length in (1000, 3000):
        method, state, queries, *_ = build(length, group="max")
        with FlopCounterMode(display=False) as counter:
            state, _ = decode(method, state, 1)
            method.select(state, queries[:, :, 0])
        assert counter.get_total_flops() == 2 * 6 * 8 * 16  # queries times centroids
        with FlopCounterMode(display=False) as counter:
            state, _ = decode(method, state, 63)
        assert counter.get_total_flops() == 64 * 2 * 2 * 8 * 16, "64 keys are coded together"


def test_bytes_kept_and_read():
    _, state, *_ = build(300, n_bits=6)
    assert state.metadata_bytes() == state.read_bytes() == 2 * (296 * 2 + 64 * 16 * 4)
    _, state, *_ = build(300, n_bits=9)
    assert state.read_bytes() == 2 * (296 * 2 * 2 + 296 * 16 * 4)


def test_extra_communication_is_that_of_section_4_1_3():
    paper, long = (kvviz.methods.create("pqcache", preset=name) for name in ("paper", "infinitebench"))
    assert paper.extra_communication(128) == Fraction(12, 2048) < Fraction(1, 128)
    assert long.extra_communication(128) == Fraction(1, 64)
    assert (round(1 / paper.extra_communication(128)), round(1 / paper.extra_communication(64))) == (171, 85)


def test_presets():
    paper, long, official = (
        kvviz.methods.create("pqcache", preset=name) for name in ("paper", "infinitebench", "official")
    )
    assert (paper.n_partitions, paper.n_bits, paper.sinks) == (2, 6, 4)
    assert (long.n_partitions, long.n_bits) == (4, 8)
    assert (official.sinks, official.recent_share, official.softmax, official.group) == (32, 0.5, True, "sum")
    assert (IterationModel(0, 1, 0, 0, 0).least, IterationModel(0, 1, 0, 0, 0).most) == (3, 300)
    _, state, *_ = build(300, preset="official", budget=100, n_bits=3)
    assert kvviz.methods.create("pqcache", preset="official", budget=100).recent_window(state) == 34


@pytest.mark.parametrize(
    ("fields", "window"),
    [
        ({"recent_share": 0}, 1),
        ({"recent_share": 0, "recent": 20}, 20),
        ({"recent_share": 0.5}, 30),
        ({"recent_share": 0.5, "recent": 40}, 40),
        ({"recent_share": 1}, 60),
        ({"recent_share": 0.5, "budget": 0.25}, 35),
    ],
)
def test_the_window(fields, window):
    method, state, queries, *_ = build(300, **fields)
    assert method.recent_window(state) == window
    chosen = method.select(state, queries[:, :, 0])
    assert chosen.groups[0, 0, -window:].tolist() == [-1] * window
    ranked_tokens = chosen.indices.shape[-1] - 4 - window
    assert int((chosen.groups[0, 0] >= 0).sum()) == ranked_tokens == method.step_budget(state) - 4 - window


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"n_partitions": 0}, "n_partitions: got 0; wanted an int >= 1"),
        ({"n_bits": 0}, "n_bits: got 0; wanted an int from 1 to 16"),
        ({"n_bits": 17}, "n_bits: got 17; wanted an int from 1 to 16"),
        ({"max_iter": 0}, "max_iter: got 0; wanted an int >= 1"),
        ({"max_iter": None}, "max_iter: got None"),
        ({"rebuild_interval": 0}, "rebuild_interval: got 0; wanted an int >= 1"),
        ({"recent_share": 1.5}, r"recent_share: got 1\.5; wanted a number from 0 to 1"),
        ({"budget": 4}, "at least 5 tokens"),
    ],
)
def test_fields_out_of_range(fields, message):
    with pytest.raises(kvviz.InvalidInputError, match=message):
        kvviz.methods.create("pqcache", **fields)


def test_partitions_that_do_not_divide_the_head_are_refused():
    with pytest.raises(
        kvviz.InvalidInputError, match="n_partitions: got 3; wanted a divisor of the head dimension, 16"
    ):
        build(n_partitions=3)
