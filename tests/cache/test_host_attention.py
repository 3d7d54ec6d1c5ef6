"""CTkvr on host and device: retrieved tokens are ranked and attended to on the host, the others on the device."""

from __future__ import annotations

import pytest
import torch

from kvviz.cache import decoding
from kvviz.cache.decoding import attend_selection
from kvviz.cache.layer_cache import LayerCache
from kvviz.cache.tiers import make_store
from kvviz.clustering.query_centroids import union_of_lists
from kvviz.methods import create, ctkvr
from kvviz.methods.base import LayerContext
from kvviz.methods.selection import Selection
from kvviz.offload import DeviceStore, KVStore

HEADS, KV_HEADS, DIM, PROMPT, STEPS = 6, 2, 8, 700, 30


def tokens(seed=0, batch=1):
    generator = torch.Generator().manual_seed(seed)
    shape = (batch, HEADS + 2 * KV_HEADS, PROMPT + STEPS, DIM)
    return torch.randn(shape, generator=generator).split((HEADS, KV_HEADS, KV_HEADS), dim=1)


def decoded(store, starts=None, batch=1, **fields):
    """The outputs of all steps, and the layer."""
    queries, keys, values = tokens(batch=batch)
    method = create("ctkvr", budget=96, sinks=8, recent=16, **fields)
    context = LayerContext(3, 8, HEADS, KV_HEADS, DIM, 0.35)
    layer = LayerCache(context, method, make_store(store, context, method))
    layer.store.append(keys[:, :, :PROMPT], values[:, :, :PROMPT])
    layer.keep_queries(queries[:, :, :PROMPT])
    layer.build(starts)
    outputs = []
    for step in range(PROMPT, PROMPT + STEPS):
        layer.store.append(keys[:, :, step : step + 1], values[:, :, step : step + 1])
        outputs.append(layer.decode(queries[:, :, step]))
    return torch.stack(outputs), layer


@pytest.mark.parametrize("group", ["max", "each"])
@pytest.mark.parametrize("rerank", [True, False])
def test_attention_on_host_and_device_equals_that_on_the_device(group, rerank, monkeypatch):
    on_device, _ = decoded(KVStore("device"), group=group, rerank=rerank)
    widths = []

    def recorded(*arguments, **options):
        union = union_of_lists(*arguments, **options)
        widths.append(union.tokens.shape[-1])
        return union

    monkeypatch.setattr(ctkvr, "union_of_lists", recorded)
    on_both, layer = decoded(KVStore("host"), group=group, rerank=rerank)
    assert torch.allclose(on_device, on_both, atol=1e-6)
    rows = HEADS if group == "each" else KV_HEADS
    position, number = 8, 4  # bytes
    query = HEADS * DIM * number
    attended = query + rows * (96 - 8 - 16) * position + query + HEADS * number  # back: output and log-sum-exp
    reranked = [query + rows * width * (position + number) for width in widths]  # back: weights
    assert layer.store.moved_bytes == STEPS * attended + rerank * sum(reranked), "keys or values were moved"
    assert layer.store.lookups == 0, "the arena looked up tokens that the host attends to"
    assert rows == layer.last.indices.shape[1]


def test_the_host_attends_only_to_the_host_part(monkeypatch):
    slots = []
    gather_attention = decoding.gather_attention

    def recorded(queries, keys, values, indices, **fields):
        slots.append(indices.shape[-1])
        return gather_attention(queries, keys, values, indices, **fields)

    monkeypatch.setattr(decoding, "gather_attention", recorded)
    _, layer = decoded(KVStore("host"))
    start, stop = layer.last.host_part
    assert slots[-2:] == [layer.last.indices.shape[-1] - (stop - start), stop - start]
    assert (start, stop) == (8, 96 - 16)


def test_padded_rows_go_through_the_arena():
    """Rows of different lengths are stacked for one attention, so there is no host part."""
    on_device, _ = decoded(KVStore("device"), [0, 40], batch=2)
    with_arena, layer = decoded(KVStore("host"), [0, 40], batch=2)
    assert torch.allclose(on_device, with_arena, atol=1e-6)
    assert layer.store.lookups > 0


@pytest.mark.parametrize("arena_tokens", [5, None])
def test_attention_to_tokens_that_are_still_on_the_device(arena_tokens):
    generator = torch.Generator().manual_seed(4)
    keys, values = torch.randn(2, 1, KV_HEADS, 300, DIM, generator=generator)
    queries = torch.randn(1, HEADS, DIM, generator=generator)
    store, device = KVStore("host", arena_tokens=arena_tokens).layer(lambda prompt: 60), DeviceStore()
    for one_store in (store, device):
        one_store.append(keys, values)
    store.offload(newest=50)
    indices = torch.arange(200, 300, 2).expand(1, KV_HEADS, -1)
    for host_part in ((0, 20), (10, 40), (50, 50)):
        selection = Selection(indices, host_part=host_part, bias=torch.rand(1, KV_HEADS, 50, generator=generator))
        outputs = [attend_selection(queries, one_store, selection, 0.35) for one_store in (store, device)]
        assert torch.allclose(*outputs, atol=1e-6)
