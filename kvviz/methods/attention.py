"""Exact attention weights, their sums over a prompt, and the merging of partial attention."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from kvviz_kernels import gather_attention
from kvviz_kernels.softcap import softcap_
from torch import Tensor

from ..kernels import merge_attention
from .selection import Selection, to_selection_heads

__all__ = [
    "attention_received",
    "attention_weights",
    "causal_weights",
    "centroid_weights",
    "merge_attention",
    "weighted_values",
]

QUERY_BLOCK = 256  # queries per block; limits the memory of sums over a whole prompt


def attention_weights(
    queries: Tensor, keys: Tensor, scale: float, softcap: float | None = None, *, visible: Tensor | None = None
) -> Tensor:
    """Exact softmax weights of one token's queries over all keys: float32 [B, Q, L].

    queries [B, Q, D]; keys [B, H, L, D]; `softcap` limits the scaled logits as in Gemma 2. `visible` [B, H, L] is False
    for keys that get no weight.
    """
    by_head: Tensor = queries.unflatten(1, (keys.shape[1], -1)).float()  # [B, H, G, D]
    logits = softcap_((by_head @ keys.float().mT) * scale, softcap)
    if visible is not None:
        logits.masked_fill_(~visible[:, :, None], -torch.inf)
    return logits.softmax(-1).flatten(1, 2)


def weighted_values(weights: Tensor, values: Tensor) -> Tensor:
    """Attention output [B, Q, D] in float32 from weights [B, Q, L] and values [B, H, L, D]."""
    by_head: Tensor = weights.unflatten(1, (values.shape[1], -1))  # [B, H, G, L]
    return (by_head @ values.float()).flatten(1, 2)


def centroid_weights(
    queries: Tensor, keys: Tensor, values: Tensor, places: Tensor, selection: Selection, scale: float,
    softcap: float | None = None,
) -> Tensor:  # fmt: skip
    """Weight of each of the selection's centroids in a step's attention, float32 [B, Q, C].

    queries [B, Q, D]. The selection's single tokens have the rest of the weight: their keys and values are at `places`,
    as `LayerStore.fetch` returns them.
    """
    _, single = gather_attention(
        queries, keys, values, places, scale=scale, bias=selection.bias, softcap=softcap, padded=selection.padded
    )
    merged = selection.merged
    assert merged is not None
    by_head = queries.unflatten(1, (merged.keys.shape[1], -1)).float()  # [B, H, G, D]
    logits = softcap_(by_head @ merged.keys.float().mT * scale, softcap).flatten(1, 2)
    logits = logits + to_selection_heads(merged.degree.float().log(), logits.shape[1])
    return (logits - torch.logaddexp(single.float(), logits.logsumexp(-1))[..., None]).exp()


def attention_received(
    queries: Tensor, keys: Tensor, scale: float, softcap: float | None = None, *, visible: Tensor | None = None
) -> Tensor:
    """Accumulated attention: the sum of each key's exact softmax weights over the last n queries, float32 [B, Q, L].

    queries [B, Q, n, D] belong to the last n of the keys [B, H, L, D]; attention is causal. `visible` [B, H, L] is
    False for keys that get no weight. Queries are processed in blocks to save memory; the cost remains n·L·D.
    """
    received = keys.new_zeros((*keys.shape[:2], queries.shape[1] // keys.shape[1], keys.shape[2]), dtype=torch.float32)
    for end, weights in causal_weights(queries, keys, scale, softcap, visible=visible):
        received[..., :end] += weights.sum(-2)
    return received.flatten(1, 2)


def causal_weights(
    queries: Tensor, keys: Tensor, scale: float, softcap: float | None = None, *, visible: Tensor | None = None
) -> Iterator[tuple[int, Tensor]]:
    """Exact softmax weights [B, H, G, b, end] of the last n queries, in blocks of b, over the first `end` keys.

    The arguments are those of `attention_received`.
    """
    new, length = queries.shape[2], keys.shape[2]
    by_head: Tensor = queries.unflatten(1, (keys.shape[1], -1)).float()  # [B, H, G, n, D]
    transposed = keys.float().transpose(-1, -2)[:, :, None]  # [B, H, 1, D, L]
    key_positions = torch.arange(length, device=keys.device)
    for start in range(0, new, QUERY_BLOCK):
        stop = min(start + QUERY_BLOCK, new)
        end = length - new + stop  # keys that the block's last query attends to
        logits = softcap_((by_head[..., start:stop, :] @ transposed[..., :end]) * scale, softcap)
        query_positions = torch.arange(length - new + start, end, device=keys.device)
        logits.masked_fill_(key_positions[:end] > query_positions[:, None], -torch.inf)
        if visible is not None:
            logits.masked_fill_(~visible[:, :, None, None, :end], -torch.inf)
        yield end, logits.softmax(-1)
