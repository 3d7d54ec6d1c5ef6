"""CTkvr's two processors: what is retrieved is ranked and attended where it is kept, the rest on the device."""

from __future__ import annotations

import pytest
import torch

from kvviz.cache import decoding
from kvviz.cache.decoding import attend_selection
from kvviz.cache.layer_cache import LayerCache
from kvviz.cache.tiers import make_store
from kvviz.methods import create
from kvviz.methods.base import LayerContext
from kvviz.methods.selection import Selection
from kvviz.offload import DeviceStore, KVStore

HEADS, KV_HEADS, DIM, PROMPT, STEPS = 6, 2, 8, 700, 30


def tokens(seed=0, batch=1):
    generator = torch.Generator().manual_seed(seed)
    shape = (batch, HEADS + 2 * KV_HEADS, PROMPT + STEPS, DIM)
    return torch.randn(shape, generator=generator).split((HEADS, KV_HEADS, KV_HEADS), dim=1)


def decoded(kept, starts=None, batch=1, **fields):
    """Outputs of all steps, and the layer."""
    queries, keys, values = tokens(batch=batch)
    method = create("ctkvr", budget=96, sinks=8, recent=16, **fields)
    context = LayerContext(3, 8, HEADS, KV_HEADS, DIM, 0.35)
    layer = LayerCache(context, method, make_store(kept, context, method))
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
def test_two_processors_attend_what_one_does(group, rerank):
    alone, _ = decoded(KVStore("device"), group=group, rerank=rerank)
    together, layer = decoded(KVStore("host"), group=group, rerank=rerank)
    assert torch.allclose(alone, together, atol=1e-6)
    rows = HEADS if group == "each" else KV_HEADS
    results = HEADS * (2 * DIM + 1) * 4  # query out, output and log-sum-exp back
    assert layer.store.moved_bytes == STEPS * results, "keys or values were moved to the device"
    assert layer.store.lookups == 0, "the arena was asked for tokens that the host attends"
    assert rows == layer.last.indices.shape[1]


def test_the_host_attends_to_the_host_part_and_nothing_else(monkeypatch):
    asked = []
    real = decoding.gather_attention

    def noted(queries, keys, values, indices, **fields):
        asked.append(indices.shape[-1])
        return real(queries, keys, values, indices, **fields)

    monkeypatch.setattr(decoding, "gather_attention", noted)
    _, layer = decoded(KVStore("host"))
    start, stop = layer.last.host_part
    assert asked[-2:] == [layer.last.indices.shape[-1] - (stop - start), stop - start]
    assert (start, stop) == (8, 96 - 16)


def test_padded_rows_go_through_the_arena():
    """Rows of different length are stacked and attended together, so there is no host part."""
    alone, _ = decoded(KVStore("device"), [0, 40], batch=2)
    together, layer = decoded(KVStore("host"), [0, 40], batch=2)
    assert torch.allclose(alone, together, atol=1e-6)
    assert layer.store.lookups > 0


@pytest.mark.parametrize("arena_tokens", [5, None])
def test_tokens_still_on_the_device_are_attended_there(arena_tokens):
    generator = torch.Generator().manual_seed(4)
    keys, values = torch.randn(2, 1, KV_HEADS, 300, DIM, generator=generator)
    queries = torch.randn(1, HEADS, DIM, generator=generator)
    store, device = KVStore("host", arena_tokens=arena_tokens).layer(lambda prompt: 60), DeviceStore()
    for each in (store, device):
        each.append(keys, values)
    store.offload(newest=50)
    indices = torch.arange(200, 300, 2).expand(1, KV_HEADS, -1)
    for host_part in ((0, 20), (10, 40), (50, 50)):
        selection = Selection(indices, host_part=host_part, bias=torch.rand(1, KV_HEADS, 50, generator=generator))
        outputs = [attend_selection(queries, each, selection, 0.35) for each in (store, device)]
        assert torch.allclose(*outputs, atol=1e-6)
