"""ClusterKV's centroid update with atomic additions and P partitions of the channels (section IV-B, figure 7)."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor


def _update(
    keys: tl.tensor, labels: tl.tensor, sums: tl.tensor, counts: tl.tensor, length: tl.tensor, n_clusters: tl.tensor,
    steps: tl.tensor, D: tl.constexpr, KEYS: tl.constexpr, P: tl.constexpr,
) -> None:  # fmt: skip
    """One program per head: KEYS keys at a time, one channel of each of the P partitions after the other."""
    head = tl.program_id(0).to(tl.int64)
    slots, partitions = tl.arange(0, KEYS), tl.arange(0, P)
    for step in range(steps):
        tokens = slots * steps + step  # strided: tokens far from each other rarely have the same cluster
        inside = tokens < length
        cluster = head * n_clusters + tl.load(labels + head * length + tokens, mask=inside, other=0)
        tl.atomic_add(counts + cluster, 1, mask=inside)
        for channel in range(D // P):
            places = partitions * (D // P) + channel
            from_keys = keys + (head * length + tokens)[:, None] * D + places[None, :]
            values = tl.load(from_keys, mask=inside[:, None] & (places[None, :] < D), other=0.0)
            into = sums + cluster[:, None] * D + places[None, :]
            tl.atomic_add(into, values, mask=inside[:, None] & (places[None, :] < D))


_update_kernel = triton.jit(_update)


def update_with_atomics(
    keys: Tensor, labels: Tensor, n_clusters: int, block_size: int, partitions: int
) -> tuple[Tensor, Tensor]:
    """Sums [H, C, D] and sizes [H, C] of the clusters, by one program per head.

    keys float32 [H, L, D], labels int64 [H, L]. Of `block_size` threads, each adds one partition of the channels of one
    key, so that block_size / partitions keys are added at a time. Deviation: sums are added up in global memory, since
    Triton has no atomic additions in shared memory; conflicts thus cost more than in the paper's kernel.
    """
    heads, length, width = keys.shape
    assert width % partitions == block_size % partitions == 0, "P divides the channels and BlockSize"
    sums = torch.zeros(heads, n_clusters, width, device=keys.device)
    counts = torch.zeros(heads, n_clusters, dtype=torch.int32, device=keys.device)
    at_once = block_size // partitions
    _update_kernel[(heads,)](
        keys.contiguous(), labels.contiguous(), sums, counts, length, n_clusters, triton.cdiv(length, at_once),
        D=width, KEYS=at_once, P=partitions, num_warps=max(block_size // 32, 1),
    )  # fmt: skip
    return sums, counts
