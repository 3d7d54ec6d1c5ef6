"""PQCache on random tensors, and brute force over its codes, for its tests."""

from __future__ import annotations

import numpy as np
import torch

import kvviz
from kvviz.clustering import Codebook
from kvviz.methods.base import LayerContext

CONTEXT = LayerContext(index=4, n_layers=8, n_heads=6, n_kv_heads=2, head_dim=16, scale=0.25, details=True)


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
