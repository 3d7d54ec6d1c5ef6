"""Methods after a prompt and one decoded token, over random tensors, and helpers for their references."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch

import kvviz
from kvviz.methods.base import LayerContext

DIM = 16
SCALE = 0.3  # not 1 / sqrt(16), so that a method that assumes it is caught
HEADS = ((4, 4), (6, 2), (3, 1))
LENGTHS = (1, 63, 100, 1000)


def context(n_heads, n_kv_heads, **changes):
    plain = LayerContext(index=4, n_layers=8, n_heads=n_heads, n_kv_heads=n_kv_heads, head_dim=DIM, scale=SCALE)
    return replace(plain, details=True, **changes)


def tensors(n_heads, n_kv_heads, length, seed=0, batch=1):
    """Queries, keys and values with channels of different sizes, as in real models."""
    generator = torch.Generator().manual_seed(seed)
    channel_scale = torch.rand(DIM, generator=generator) * 2
    queries = torch.randn(batch, n_heads, length, DIM, generator=generator) * channel_scale
    keys, values = (torch.randn(batch, n_kv_heads, length, DIM, generator=generator) for _ in range(2))
    return queries, keys, values


def stepped(name, n_heads, n_kv_heads, length, *, seed=0, keys=None, softcap=None, **fields):
    """A method, its state after a prompt and one decoded token, and the queries, keys and values of all tokens."""
    q, k, v = tensors(n_heads, n_kv_heads, length + 1, seed)
    if keys is not None:
        k = keys(k)
    method = kvviz.methods.create(name, **fields)
    prompt_queries = q[:, :, :length] if method.needs_queries else q[:, :, :0]
    layer = context(n_heads, n_kv_heads, softcap=softcap)
    state = method.build(layer, prompt_queries, k[:, :, :length], v[:, :, :length])
    state = method.extend(state, q[:, :, length:], k[:, :, length:], v[:, :, length:])
    return method, state, q, k, v


def reduced(by_query, n_kv_heads, group):
    """[Q, N] -> [R, N]."""
    if group == "each":
        return by_query
    return getattr(by_query.reshape(n_kv_heads, -1, by_query.shape[-1]), group)(1)


def softmax(logits):
    weights = np.exp(logits - logits.max())
    return weights / weights.sum()


def assert_best(scores, chosen, count):
    """Assert that `chosen` are positions of the `count` best scores [N]; ties up to rounding may go either way."""
    chosen = np.asarray(chosen)
    assert len(chosen) == count
    other_scores = np.delete(scores, chosen)
    if count and len(other_scores):
        assert scores[chosen].min() >= other_scores.max() - 1e-5 * max(1.0, abs(other_scores.max()))
