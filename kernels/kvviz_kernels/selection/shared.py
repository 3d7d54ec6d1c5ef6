"""Shared parts of the naive and the fused selection kernels: scores, and their reduction over a group."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

Group = Literal["mean", "max", "sum", "each"]
GROUPS: tuple[Group, ...] = ("mean", "max", "sum", "each")
Chosen = tuple[Tensor, Tensor | None, Tensor | None]  # indices int64, groups int32, scores float32, each [B, R, S]


def check_group(kernel: str, group: str, query_heads: int, kv_heads: int) -> None:
    """Raise ValueError for an unknown `group`, or if the KV heads do not divide the query heads."""
    if group not in GROUPS:
        raise ValueError(f"{kernel}: got group={group!r}; wanted one of {', '.join(GROUPS)}")
    if query_heads % kv_heads:
        wanted = f"a multiple of the {kv_heads} key/value heads"
        raise ValueError(f"{kernel}: got {query_heads} query heads; wanted {wanted}")


def reduce_group(scores: Tensor, n_kv_heads: int, group: str) -> Tensor:
    """Scores per selection head: [B, Q, N] -> [B, H, N], or unchanged for "each"."""
    if group == "each":
        return scores
    by_head: Tensor = scores.unflatten(1, (n_kv_heads, -1))  # [B, H, G, N]
    if group == "max":
        return by_head.amax(2)
    return by_head.mean(2) if group == "mean" else by_head.sum(2)


def group_scores(queries: Tensor, representatives: Tensor, group: str) -> Tensor:
    """Inner products of queries [B, Q, D] with representatives [B, H, C, D], reduced over the group: [B, R, C].

    In the dtype of the representatives. "mean" and "sum" are linear, so the queries are reduced first: one product per
    head.
    """
    batch, heads, count, width = representatives.shape
    by_head = queries.reshape(batch * heads, -1, width).to(representatives.dtype)  # [B·H, G, D]
    if group in ("mean", "sum"):
        by_head = by_head.mean(1, keepdim=True) if group == "mean" else by_head.sum(1, keepdim=True)
    table = representatives.reshape(batch * heads, count, width).transpose(1, 2)
    scores = torch.bmm(by_head, table)  # [B·H, G or 1, C]; 7 µs, where a 4-D matmul takes 17
    if group == "max":
        scores = scores.amax(1)
    return scores.view(batch, -1, count)
