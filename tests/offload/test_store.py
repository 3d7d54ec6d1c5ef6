"""The store that evicts tokens, and attention over all kinds of selections, against dictionaries and loops."""

from __future__ import annotations

import weakref

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import kvviz
from kvviz.cache.decoding import attend_selection
from kvviz.methods.selection import Merged, Selection, ValueCorrection, add_sinks_and_recent, stack_rows
from kvviz.offload.device_store import SPARE_AFTER_RETAIN, DeviceStore
from kvviz.offload.token_cache import TokenCache
from tests.cache.test_long_sessions import CONTEXT, DIM, HEADS, KV_HEADS, by_hand, tokens


def numbered(start, count, batch=2, heads=2):
    """Keys with one channel that encodes head and token, and values that are their negatives."""
    position = torch.arange(start, start + count, dtype=torch.float32)
    head = torch.arange(batch * heads, dtype=torch.float32).view(batch, heads, 1) * 10_000
    keys = (position + head)[..., None]
    return keys, -keys


@settings(max_examples=60)
@given(st.integers(0, 10_000), st.lists(st.tuples(st.integers(1, 90), st.booleans()), min_size=1, max_size=6))
def test_a_store_that_evicts_tokens_against_sets(seed, rounds):
    generator = torch.Generator().manual_seed(seed)
    store, kept = DeviceStore(), [[set() for _ in range(2)] for _ in range(2)]
    for count, evicts in rounds:
        store.append(*numbered(store.length, count))
        for kept_of_head in (kept_of_head for row in kept for kept_of_head in row):
            kept_of_head.update(range(store.length - count, store.length))
        if evicts:
            retained = torch.full((2, 2, store.length), -1)
            for b in range(2):
                for h in range(2):
                    share = float(torch.rand(1, generator=generator))
                    stays = torch.rand(store.length, generator=generator) < share
                    kept[b][h] = {p for p in kept[b][h] if stays[p]} | {store.length - 1}
                    retained[b, h, : len(kept[b][h])] = torch.tensor(sorted(kept[b][h]))
            largest = max(len(kept_of_head) for row in kept for kept_of_head in row)
            store.retain(retained[..., :largest])
            assert store.used == largest
            assert store.key_buffer.shape[2] == largest + SPARE_AFTER_RETAIN
    for b in range(2):
        for h in range(2):
            positions = torch.full((2, 2, len(kept[b][h]) + 1), -1)
            positions[b, h, :-1] = torch.tensor(sorted(kept[b][h]))
            slots = store.slots(positions)[b, h]
            assert slots[-1] == -1
            assert store.keys[b, h, slots[:-1], 0].tolist() == [p + 10_000 * (2 * b + h) for p in sorted(kept[b][h])]
            assert store.values[b, h, slots[:-1], 0].tolist() == [-p - 10_000 * (2 * b + h) for p in sorted(kept[b][h])]
    clone = store.clone()
    clone.append(*numbered(store.length, 3))
    assert torch.equal(clone.slots(positions)[..., :-1], store.slots(positions)[..., :-1])
    pads = store.pads()
    distinct = store.used if pads is None else (~pads).sum(-1)
    assert torch.equal(torch.as_tensor(distinct).expand(2, 2), torch.tensor([[len(h) for h in row] for row in kept]))


def test_eviction_frees_the_memory():
    store = DeviceStore()
    store.append(*numbered(0, 1000))
    before = store.kept_bytes()["device"]
    buffer = weakref.ref(store.key_buffer.untyped_storage())
    store.retain(torch.arange(0, 1000, 10).expand(2, 2, -1))
    assert buffer() is None
    after = sum(t.untyped_storage().nbytes() for t in (store.key_buffer, store.value_buffer))
    assert store.kept_bytes() == {"device": after}
    assert after < before / 5


def test_an_evicted_token_cannot_be_retained_again():
    store = DeviceStore()
    store.append(*numbered(0, 50))
    store.retain(torch.arange(0, 50, 2).expand(2, 2, -1))
    with pytest.raises(kvviz.InvalidInputError, match="dropped before"):
        store.retain(torch.tensor([3, 4]).expand(2, 2, -1))


def test_a_token_cache_starts_at_its_first_token_after_the_padding():
    store = DeviceStore()
    store.append(*numbered(0, 60))
    view = TokenCache(store, slice(1, 2), 7)
    assert view.keys.shape == (1, 2, 53, 1)
    positions = torch.tensor([[[0, 20], [5, 52]]])
    expected = [[[20_007, 20_027], [30_012, 30_059]]]
    assert view.take(positions)[0][..., 0].tolist() == expected
    store.retain(torch.tensor([3, 7, 12, 27, 40, 59]).expand(2, 2, -1))
    assert view.take(positions)[0][..., 0].tolist() == expected
    view.append(*numbered(60, 5))
    assert store.length == 60, "the layer stores its tokens itself"


def selections():
    """One selection of each kind over 80 tokens."""
    generator = torch.Generator().manual_seed(3)
    indices = torch.stack([torch.randperm(80, generator=generator)[:12].sort().values for _ in range(HEADS)])[None]
    padded = indices[:, :KV_HEADS].clone()
    padded[0, 1, 4:7] = -1
    bias = torch.rand(1, KV_HEADS, 12, generator=generator)
    merged = Merged(
        *(torch.randn(1, KV_HEADS, 5, DIM, generator=generator) for _ in range(2)),
        torch.tensor([[[1, 9, 2, 4, 0]] * 2]),
    )
    correction = ValueCorrection(
        torch.randn(1, KV_HEADS, DIM, generator=generator), torch.rand(1, HEADS, generator=generator)
    )
    shared = indices[:, :KV_HEADS]
    return {
        "query heads": Selection(indices),
        "pads": Selection(padded, padded=True),
        "bias": Selection(shared, bias=bias),
        "merged": Selection(shared, merged=merged),
        "only merged": Selection(shared[..., :0], merged=merged),
        "value correction": Selection(shared, value_correction=correction),
        "host part": Selection(shared, host_part=(2, 9), bias=bias),
        "all in the host part": Selection(shared, host_part=(0, 12)),
        "an empty host part": Selection(shared, host_part=(5, 5)),
        "all": Selection(padded, None, None, merged, True, bias, correction, host_part=(3, 11)),
    }


@pytest.mark.parametrize("kind", selections())
def test_attention_over_all_kinds_of_selections(kind):
    queries, keys, values = tokens(80, seed=5)
    store = DeviceStore()
    store.append(keys, values)
    selection = selections()[kind]
    output = attend_selection(queries[:, :, -1], store, selection, CONTEXT.scale)
    assert torch.allclose(output.double(), by_hand(selection, queries[:, :, -1], keys, values), atol=1e-5)


def test_selections_of_batch_rows_are_stacked():
    """Two prompts of 80 and 50 tokens in one left-padded batch have the same results as alone."""
    queries, keys, values = tokens(80, seed=5)
    kinds = selections()
    short = Selection(kinds["all"].indices.clamp(max=49)[..., :6], padded=True, bias=kinds["all"].bias[..., :6])
    for first, second in ((kinds["all"], short), (short, kinds["merged"]), (kinds["value correction"], kinds["pads"])):
        store = DeviceStore()
        store.append(torch.cat([keys, keys]), torch.cat([values, values]))
        stacked = stack_rows([first, second], [0, 0])
        output = attend_selection(queries[:, :, -1].expand(2, -1, -1), store, stacked, CONTEXT.scale)
        for row, selection in enumerate((first, second)):
            expected = by_hand(selection, queries[:, :, -1], keys, values)
            assert torch.allclose(output[row].double(), expected[0], atol=1e-5)
    assert stack_rows([short, short], [0, 30]).indices[1].max() == short.indices.max() + 30


def test_added_sinks_and_recent_tokens_have_no_bias():
    selection = selections()["bias"]
    wider = add_sinks_and_recent(selection, 3, (80, 82))
    assert wider.bias is not None
    assert wider.bias[..., 3:-2].equal(selection.bias)
    assert not wider.bias[..., :3].any()
    assert not wider.bias[..., -2:].any()
    assert wider.indices[0, 0, -2:].tolist() == [80, 81]
