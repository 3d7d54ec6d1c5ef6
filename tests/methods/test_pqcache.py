"""PQCache against brute force over its codes, with generated tokens."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.flop_counter import FlopCounterMode

import kvviz
from kvviz.clustering import IterationModel
from tests.methods.quantized import CONTEXT, build, coded_keys, decode, reference_scores, tensors

GROUPS = ("mean", "max", "sum", "each")


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
