"""Helpers for the tests of InfLLM and ShadowKV: small layers, decode steps and selections as lists."""

from __future__ import annotations

import torch

from kvviz.methods.base import LayerContext

DIM, SCALE = 8, 0.3
GROUPS = ["mean", "max", "sum", "each"]
HEADS = [(4, 4), (6, 2), (3, 1)]
LENGTHS = [1, 63, 100, 1000]


def context(heads, kv_heads, **fields):
    return LayerContext(4, 8, heads, kv_heads, DIM, SCALE, details=True, **fields)


def random_tensors(length, heads, kv_heads, seed=0, batch=1):
    generator = torch.Generator().manual_seed(seed)
    return tuple(torch.randn(batch, n, length, DIM, generator=generator) for n in (heads, kv_heads, kv_heads))


def run(method, layer, queries, keys, values, prompt):
    """State and selection after a prompt of `prompt` tokens and one decode step for each of the others."""
    prompt_queries = queries if method.needs_queries else queries[:, :, :0]
    state = method.build(layer, prompt_queries[:, :, :prompt], keys[:, :, :prompt], values[:, :, :prompt])
    for step in range(prompt, keys.shape[2]):
        newest = slice(step, step + 1)
        state = method.extend(state, queries[:, :, newest], keys[:, :, newest], values[:, :, newest])
    return state, method.select(state, queries[:, :, -1])


def reduced(scores, group):
    """Scores [G, N] of the query heads of one KV head, reduced to one row per selection head."""
    return scores if group == "each" else getattr(scores, group)(0, keepdims=True)


def rows_of(selection, batch=0):
    """The selection as lists of (position, group)."""
    return [
        list(zip(positions, groups, strict=True))
        for positions, groups in zip(selection.indices[batch].tolist(), selection.groups[batch].tolist(), strict=True)
    ]
