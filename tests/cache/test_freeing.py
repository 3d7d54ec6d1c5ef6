"""Eviction frees the memory of evicted tokens, and attention covers the others, with padding and for many steps."""

from __future__ import annotations

import pytest
import torch
from torch.multiprocessing.reductions import StorageWeakRef

import kvviz
from kvviz.cache.accounting import ledger_of
from kvviz.cache.layer_cache import LayerCache
from tests.methods.eviction_reference import (
    DIM,
    FIELDS,
    NAMES,
    context,
    feed_prompt,
    feed_token,
    rows_attended,
    tensors,
)


@pytest.mark.parametrize("group", ["mean", "each"])
@pytest.mark.parametrize("name", NAMES)
def test_evicted_tokens_are_freed(name, group):
    method = kvviz.methods.create(name, group=group, **FIELDS[name])
    layer = LayerCache(context(6, 2), method)
    q, k, v = tensors(6, 2, 1000)
    layer.store.append(k, v)
    old = [StorageWeakRef(buffer.untyped_storage()) for buffer in (layer.store.key_buffer, layer.store.value_buffer)]
    layer.keep_queries(q)
    layer.build()
    del q, k, v
    assert all(storage.expired() for storage in old), "the prompt's keys or values are still in memory"
    (state,) = layer.states
    selected = method.select(state, torch.zeros(1, 6, DIM)).indices[0]
    stored = [len(head_indices.unique()) for head_indices in selected.unflatten(0, (2, -1))]
    count = selected.shape[-1]
    assert count == method.step_budget(state)
    if group == "mean" or name == "streaming_llm":
        assert stored == [count, count]
    else:
        assert count < max(stored) < 3 * count
    assert layer.store.used == max(stored)
    assert layer.store.key_buffer.shape[2] == max(stored) + 64
    nbytes = [b.untyped_storage().nbytes() for b in (layer.store.key_buffer, layer.store.value_buffer)]
    assert sum(nbytes) == 2 * 2 * (max(stored) + 64) * DIM * 4
    assert ledger_of([layer], ()).kept_bytes == {"device": sum(nbytes)}


@pytest.mark.slow
@pytest.mark.parametrize("group", ["mean", "each"])
@pytest.mark.parametrize("name", NAMES)
def test_500_steps(name, group):
    """With generated="on_top" each step attends to the kept tokens of the prompt and all generated ones."""
    method = kvviz.methods.create(name, group=group, generated="on_top", **FIELDS[name])
    layer = LayerCache(context(6, 2), method)
    q, k, v = tensors(6, 2, 800)
    feed_prompt(layer, q[:, :, :300], k[:, :, :300], v[:, :, :300])
    kept = method.select(layer.states[0], q[:, :, 0]).indices[0]
    allowed = torch.zeros(6, 800, dtype=torch.bool)
    allowed.scatter_(1, kept.repeat_interleave(6 // len(kept), 0), True)
    for position in range(300, 800):
        newest = slice(position, position + 1)
        output = feed_token(layer, q[:, :, newest], k[:, :, newest], v[:, :, newest])
        allowed[:, position] = True
        logits = torch.einsum("qd,qld->ql", q[0, :, position], k[0].repeat_interleave(3, 0)) * 0.3
        weights = logits.masked_fill(~allowed, -torch.inf).softmax(-1)
        expected = torch.einsum("ql,qld->qd", weights, v[0].repeat_interleave(3, 0))
        assert torch.allclose(output[0], expected, atol=1e-5), f"position {position}"
    ledger = ledger_of([layer], ())
    assert (ledger.generated, ledger.sinks) == (500, method.sinks)
    assert ledger.attended == allowed.unflatten(0, (2, 3)).any(1).sum().item() / 2
    assert layer.store.used == int(allowed.unflatten(0, (2, 3)).any(1).sum(-1).max())


@pytest.mark.parametrize("name", NAMES)
def test_padding_does_not_change_a_row(name):
    """Three turns of a batch whose rows are padded to the longest; one row is shorter than the budget."""
    method = kvviz.methods.create(name, **FIELDS[name])
    starts = [0, 31, 75]
    together = LayerCache(context(6, 2), method)
    alone = [LayerCache(context(6, 2), method) for _ in starts]
    seed = 0
    for turn, (length, steps) in enumerate(((100, 5), (40, 70), (20, 3))):
        seed += 1
        batch = tensors(6, 2, length, seed, batch=3)
        outputs = feed_prompt(together, *batch, starts=starts)
        for row, layer in enumerate(alone):
            first = starts[row] if turn == 0 else 0
            expected = feed_prompt(layer, *(t[row : row + 1, :, first:] for t in batch))
            if turn:  # the model makes the first prompt's mask itself
                assert torch.allclose(outputs[row], expected[0], atol=1e-5)
        for _ in range(steps):
            seed += 1
            batch = tensors(6, 2, 1, seed, batch=3)
            outputs = feed_token(together, *batch)
            for row, layer in enumerate(alone):
                expected = feed_token(layer, *(t[row : row + 1] for t in batch))
                shifted = [[p + starts[row] for p in positions] for positions in rows_attended(layer)]
                assert rows_attended(together, row) == shifted
                assert torch.allclose(outputs[row], expected[0], atol=1e-5)
    assert together.store.used == max(layer.store.used for layer in alone)
