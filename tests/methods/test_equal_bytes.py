"""Budgets in bytes: every method counts no more than its bytes, and one token more would not fit."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace

import numpy as np
import pytest
import torch

import kvviz
from kvviz.cache.layer_cache import LayerCache
from kvviz.errors import BudgetTooSmallError
from kvviz.methods.base import LayerContext
from kvviz.methods.buffered import BufferedEviction
from kvviz.methods.checks import smallest
from kvviz.methods.checks.steps import ROTATION, tokens_of
from kvviz.metrics.byte_budgets import Bytes
from kvviz.offload.device_store import DeviceStore
from kvviz.offload.growing import GrowingTensor
from kvviz.offload.token_cache import TokenCache

HEADS, KV_HEADS, DIM, LENGTH, LAYERS = 6, 2, 16, 320, 4
TOKEN = 2 * DIM * 4  # bytes of a key and a value, float32
FULL = LENGTH * KV_HEADS * TOKEN
NOT_FILLED = ("r_kv", "triattention")  # their metadata of fixed size count in proportion, until the budget is full


def tensors(length=LENGTH, batch=1, seed=0):
    generator = torch.Generator().manual_seed(seed)
    heads = (HEADS, KV_HEADS, KV_HEADS)
    return tuple(torch.randn(batch, count, length, DIM, generator=generator) for count in heads)


def built(method, index=2, parts=None, starts=None, details=False):
    """A layer whose prompt is complete."""
    queries, keys, values = tensors() if parts is None else parts
    context = LayerContext(index, LAYERS, HEADS, KV_HEADS, DIM, DIM**-0.5, details=details, rotation=ROTATION)
    layer = LayerCache(context, method)
    layer.store.append(keys, values)
    layer.keep_queries(queries)
    layer.build(starts)
    return layer


def tensor_bytes(value, seen):
    """Bytes of all tensors in a state but the tokens' keys and values, and the scores that only recordings need."""
    if id(value) in seen or isinstance(value, TokenCache | LayerContext | str | int | float | type(None)):
        return 0
    seen.add(id(value))
    if isinstance(value, GrowingTensor):
        value = value.tensor
    if isinstance(value, torch.Tensor | np.ndarray):
        return value.nbytes
    if isinstance(value, Mapping):
        return sum(tensor_bytes(part, seen) for part in value.values())
    if isinstance(value, list | tuple):
        return sum(tensor_bytes(part, seen) for part in value)
    return sum(tensor_bytes(part, seen) for part in vars(value).values()) if hasattr(value, "__dict__") else 0


def counted(layer):
    """Bytes of one layer and sequence, from its tensors: kept tokens, or those that a step may attend to; metadata."""
    (state,), method = layer.states, layer.method
    if isinstance(method, BufferedEviction):  # generated tokens fill its budget
        tokens = KV_HEADS * filled(layer)
    elif method.drops_tokens:
        store = layer.store
        assert isinstance(store, DeviceStore)
        pads = store.pads()
        tokens = store.used * KV_HEADS - (0 if pads is None else int(pads.sum()))
    else:
        waiting = method.extra_tokens(LENGTH) - method.decode_window
        per_kv_head = HEADS // KV_HEADS if method.group == "each" else 1
        tokens = KV_HEADS * min((method.layer_budget(layer.context, LENGTH) + waiting) * per_kv_head, LENGTH)
    in_faiss = layer.method.name == "retrieval_attention"  # whose graphs are no tensors
    return tokens * TOKEN + (state.metadata_bytes() if in_faiss else tensor_bytes(state, set()))


def filled(layer):
    """The most tokens that a layer keeps per head while it decodes."""
    most = 0
    for step in range(150):
        queries, keys, values = tensors(1, seed=100 + step)
        layer.store.append(keys, values)
        layer.decode(queries[:, :, 0])
        most = max(most, layer.method.keeps(layer.states[0]).shape[-1])
    return most


def mean_over_layers(method):
    """The bytes of all layers that select, over their number, and the largest bytes of one of them."""
    layers = [built(method, index) for index in range(LAYERS) if not method.is_dense(index)]
    return sum(map(counted, layers)) / len(layers)


def usable(name):
    """The method with its smallest budget; skips those that only work in a running model."""
    method = smallest(kvviz.methods.get(name))
    if method.ignores_budget:
        pytest.skip("it ignores the budget")
    try:
        built(method, LAYERS - 1)
    except kvviz.InvalidInputError as error:
        pytest.skip(f"no state from stored tensors: {error}")
    return method


def least_tokens(method):
    """The smallest budget in tokens that the method's fields accept."""
    for tokens in range(1, LENGTH):
        with suppress(kvviz.InvalidInputError):
            return replace(method, budget=tokens).budget
    raise AssertionError("none")


@pytest.mark.parametrize("share", [0.3, 0.6])
@pytest.mark.parametrize("name", kvviz.methods.names())
def test_the_bytes_hold_and_one_token_more_does_not_fit(name, share):
    least = usable(name)
    method = replace(least, budget=kvviz.bytes(share), dense_layers=0)
    if method.is_dense(LAYERS - 1):
        pytest.skip("it is dense in all layers")
    allowed = int(share * FULL)
    least_bytes = mean_over_layers(replace(method, budget=least_tokens(method)))
    if least_bytes > allowed:
        with pytest.raises(
            BudgetTooSmallError, match=re.escape(method.name) + ": budget: got .* in layer 2, .* wanted at least "
        ):
            built(method)
        return
    layer = built(method)
    tokens = tokens_of(layer.method)
    same = {tokens_of(built(method, index).method) for index in range(LAYERS)}
    assert same == {tokens}, "equal layers find equal budgets, also those of a pyramid"
    fitting, larger = (mean_over_layers(replace(method, budget=count)) for count in (tokens, tokens + 1))
    assert fitting <= allowed
    assert larger > allowed or name in NOT_FILLED, "one more token would fit"
    assert larger > fitting or name in NOT_FILLED


def test_what_does_not_fit_says_how_many_bytes_are_needed():
    with pytest.raises(BudgetTooSmallError) as caught:
        built(kvviz.methods.create("magicpig", budget=kvviz.bytes("10 KiB")))
    text = str(caught.value)
    assert text.startswith("magicpig: budget: got 10 KiB in layer 2; wanted at least ")
    assert "of metadata and" in text
    assert "at its least budget, 68 tokens" in text


@pytest.mark.parametrize(("name", "builds"), [("pqcache", 1), ("quest", 3), ("snapkv", 5), ("streaming_llm", 3)])
def test_the_search_builds_few_states(name, builds, monkeypatch):
    cls, calls = kvviz.methods.get(name), []
    original = cls.build
    monkeypatch.setattr(cls, "build", lambda self, *rest: calls.append(self.budget) or original(self, *rest))
    layer = built(cls(budget=kvviz.bytes(0.7)))
    assert len(calls) <= builds, calls
    assert isinstance(layer.method.budget, int)
    assert isinstance(layer.given.budget, Bytes)


def test_a_recording_does_not_change_the_budget():
    """Scores and members that only recordings need do not count."""
    for name in ("snapkv", "h2o", "centroidkv"):
        method = kvviz.methods.create(name, budget=kvviz.bytes(0.5))
        plain, recorded = (built(method, details=details).method.budget for details in (False, True))
        assert plain == recorded


def test_rows_of_a_padded_batch_find_their_own_budgets():
    queries, keys, values = tensors(batch=2)
    method, start = kvviz.methods.create("snapkv", budget=kvviz.bytes(0.5)), 100
    layer = built(method, parts=(queries, keys, values), starts=[0, start])
    alone = [
        built(method, parts=tuple(part[row : row + 1, :, first:] for part in (queries, keys, values)))
        for row, first in enumerate((0, start))
    ]
    budgets = [run.method.budget for run in layer.runs()]
    assert budgets == [one.method.budget for one in alone]
    assert budgets[0] > budgets[1]


def test_sequences_without_padding_share_a_budget_of_their_own_bytes():
    one, two = (
        built(kvviz.methods.create("quest", budget=kvviz.bytes(0.4), dense_layers=0), parts=tensors(batch=batch))
        for batch in (1, 2)
    )
    assert one.method.budget == two.method.budget


@pytest.mark.parametrize("name", ["snapkv", "quest", "centroidkv", "pqcache"])
def test_a_later_prompt_finds_its_budget_again(name):
    method = kvviz.methods.create(name, budget=kvviz.bytes(0.5), dense_layers=0)
    queries, keys, values = tensors(2 * LENGTH)
    first = slice(0, LENGTH)
    layer = built(method, parts=tuple(part[:, :, first] for part in (queries, keys, values)))
    before = layer.method.budget
    layer.store.append(keys[:, :, LENGTH:], values[:, :, LENGTH:])
    layer.keep_queries(queries[:, :, LENGTH:])
    layer.build()
    assert layer.states[0].prompt_length == 2 * LENGTH
    assert 1.8 * before < layer.method.budget < 2.3 * before
    if method.drops_tokens:
        kept = layer.store.used * KV_HEADS * TOKEN
        assert kept + tensor_bytes(layer.states[0], set()) <= 0.5 * 2 * FULL


def test_fewer_bits_leave_room_for_more_tokens():
    """A token counts as it is stored: two bits for each of its numbers and their scales, the last ones in full."""
    plain, packed = (
        built(kvviz.methods.create(name, budget=kvviz.bytes(0.4), dense_layers=0)) for name in ("quest", "kivi(quest)")
    )
    pages = tensor_bytes(plain.states[0], set())
    assert plain.method.budget == (int(0.4 * FULL) - pages) // (KV_HEADS * TOKEN)
    everything = torch.arange(LENGTH).expand(1, KV_HEADS, -1)
    surplus = packed.store.read_bytes(everything) - KV_HEADS * LENGTH * packed.store.token_bytes
    assert packed.store.token_bytes < TOKEN / 4
    assert surplus > 0, "some of the last tokens are not packed yet"
    free = int(0.4 * FULL) - pages - surplus
    assert packed.method.budget == free // (KV_HEADS * packed.store.token_bytes)


class TestBytes:
    @pytest.mark.parametrize(
        ("given", "expected"),
        [
            ("2 MiB", 2 * 2**20), ("2MB", 2_000_000), ("512", 512), ("1.5 KiB", 1536), ("12.5%", 0.125), ("1/8", 0.125),
            ("0.25", 0.25), (0.5, 0.5), (4096, 4096), ("3B", 3),
        ],
    )  # fmt: skip
    def test_amounts(self, given, expected):
        budget = kvviz.bytes(given)
        assert budget.bytes == expected
        assert type(budget.bytes) is type(expected)
        assert kvviz.bytes(budget.bytes) == budget

    @pytest.mark.parametrize("wrong", ["", "MiB", "2 tokens", "1/0", 0, -1, 1.0, 1.5, 0.0, True, "100%", "-3 B", None])
    def test_other_amounts_are_refused(self, wrong):
        with pytest.raises(kvviz.InvalidInputError, match=r"kvviz\.bytes: got .*; wanted bytes"):
            kvviz.bytes(wrong)

    def test_words(self):
        assert str(kvviz.bytes("2 MiB")) == "2 MiB"
        assert str(kvviz.bytes(1 / 16)) == "6.25 % of the bytes"
        assert eval(repr(kvviz.bytes(0.125))) == kvviz.bytes(0.125)
        assert kvviz.bytes(0.125).of_cache(1000) == 125
        assert kvviz.bytes(7).of_cache(1000) == 7

    def test_a_method_keeps_it_through_its_config(self):
        method = kvviz.methods.create("quest", budget=kvviz.bytes(1 / 3))
        config = json.loads(json.dumps(method.config))
        assert config["budget"] == {"bytes": 1 / 3}
        assert kvviz.methods.create("quest", **config) == method

    def test_its_tokens_are_not_known_outside_a_layer(self):
        with pytest.raises(kvviz.InvalidInputError, match="outside a layer whose prompt is complete"):
            kvviz.methods.create("quest", budget=kvviz.bytes(0.5)).budget_tokens(100)
        with pytest.raises(kvviz.InvalidInputError, match=r"quest: budget: got .*half"):
            kvviz.methods.create("quest", budget="half")
