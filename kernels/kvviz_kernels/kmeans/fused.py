"""k-means steps in Triton: no matrix of scores in memory, no atomics, no wait for the GPU."""

from __future__ import annotations

import os

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.nn import functional as F

from ..tuning import Config, best_config, grid
from .shared import linear_scores, sort_rows_by_label

# tokens and clusters: the tile of scores that a program holds at once, in addition to the best scores so far.
# Without a tuned configuration, the first of these that fits into the GPU's shared memory is used.
ASSIGN_DEFAULTS: list[Config] = [
    {"tokens": tokens, "clusters": clusters, "num_warps": num_warps, "num_stages": num_stages}
    for tokens, clusters, num_warps, num_stages in (
        (128, 64, 8, 2), (128, 32, 8, 2), (64, 32, 4, 2), (64, 16, 4, 2), (64, 16, 4, 1), (32, 16, 4, 1),
    )
]  # fmt: skip
# piece: sorted keys that one program sums, so that a large cluster has several programs; slots: read at once
UPDATE_DEFAULT: Config = {"piece": 256, "slots": 32, "num_warps": 4, "num_stages": 2}
PIECES_AT_ONCE = 8
INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
CANDIDATES = {
    "kmeans_assign": grid(tokens=(64, 128, 256), clusters=(32, 64, 128), num_warps=(4, 8), num_stages=(2, 3, 4)),
    "kmeans_update": grid(piece=(64, 128, 256, 512), slots=(16, 32, 64), num_warps=(2, 4, 8), num_stages=(2, 4)),
}  # the assignment is tuned per `assign_name`

HIGH_16, HIGH_19 = -1 << 16, -1 << 13  # bits of a float32 that bfloat16 and TF32 keep
_HIGH_19 = tl.constexpr(HIGH_19)


def _assign(
    keys: tl.tensor, weights: tl.tensor, bias: tl.tensor, labels: tl.tensor,
    length: tl.tensor, blocks: tl.tensor, padded_clusters: tl.tensor, part_stride: tl.tensor,
    D: tl.constexpr, PARTS: tl.constexpr, SPLIT_KEYS: tl.constexpr,
    BLOCK_L: tl.constexpr, BLOCK_C: tl.constexpr, BLOCK_D: tl.constexpr,
) -> None:  # fmt: skip
    """One program per block of keys of one head: goes over the centroids in tiles, keeps the best of each column."""
    program = tl.program_id(0)
    row = (program // blocks).to(tl.int64)
    tokens = program % blocks * BLOCK_L + tl.arange(0, BLOCK_L)
    dims, columns = tl.arange(0, BLOCK_D), tl.arange(0, BLOCK_C)
    inside = (tokens[:, None] < length) & (dims[None, :] < D)
    high = tl.load(keys + row * length * D + tokens[:, None] * D + dims[None, :], mask=inside, other=0.0)
    high = high.to(weights.dtype.element_ty)
    if SPLIT_KEYS:  # float32: the bits that TF32 keeps, and the rest
        whole = high
        high = (whole.to(tl.int32, bitcast=True) & _HIGH_19).to(tl.float32, bitcast=True)
        low = whole - high
    best = tl.full([BLOCK_L, BLOCK_C], float("-inf"), tl.float32)
    tile = tl.zeros([BLOCK_L, BLOCK_C], tl.int32)
    first_weight, first_bias = weights + row * padded_clusters * BLOCK_D, bias + row * padded_clusters
    for start in range(0, padded_clusters, BLOCK_C):
        place = (start + columns)[None, :] * BLOCK_D + dims[:, None]
        scores = tl.zeros([BLOCK_L, BLOCK_C], tl.float32) + tl.load(first_bias + start + columns)[None, :]
        if SPLIT_KEYS:
            scores = tl.dot(low, tl.load(first_weight + place), scores, input_precision="tf32")
        for part in tl.static_range(PARTS - 1, -1, -1):  # the smallest first
            weight = tl.load(first_weight + part * part_stride.to(tl.int64) + place)
            scores = tl.dot(high, weight, scores, input_precision="tf32")
        better = scores > best
        best = tl.where(better, scores, best)
        tile = tl.where(better, start, tile)
    top = tl.max(best, 1)
    label = tl.min(tl.where(best == top[:, None], tile + columns[None, :], padded_clusters), 1)
    tl.store(labels + row * length + tokens, label.to(tl.int64), mask=tokens < length)


def _sum_pieces(
    keys: tl.tensor, places: tl.tensor, bounds: tl.tensor, first_pieces: tl.tensor, owners: tl.tensor,
    partial: tl.tensor, n_clusters: tl.tensor,
    D: tl.constexpr, PIECE: tl.constexpr, BLOCK_L: tl.constexpr, BLOCK_D: tl.constexpr,
) -> None:  # fmt: skip
    """One program per piece of a cluster: sums its keys, by the places sorted by label."""
    piece = tl.program_id(0).to(tl.int64)
    cluster = tl.load(owners + piece)
    if cluster < n_clusters:  # there is one program for each possible piece
        first = tl.load(bounds + cluster) + (piece - tl.load(first_pieces + cluster)) * PIECE
        end = tl.minimum(first + PIECE, tl.load(bounds + cluster + 1))
        dims = tl.arange(0, BLOCK_D)
        total = tl.zeros([BLOCK_L, BLOCK_D], tl.float32)
        for start in range(first, end, BLOCK_L):
            slots = start + tl.arange(0, BLOCK_L)
            tokens = tl.load(places + slots, mask=slots < end, other=0)
            inside = (slots[:, None] < end) & (dims[None, :] < D)
            total += tl.load(keys + tokens[:, None] * D + dims[None, :], mask=inside, other=0.0).to(tl.float32)
        tl.store(partial + piece * D + dims, tl.sum(total, 0), mask=dims < D)


def _sum_clusters(
    partial: tl.tensor,
    first_pieces: tl.tensor,
    sums: tl.tensor,
    D: tl.constexpr,
    BLOCK_P: tl.constexpr,
    BLOCK_D: tl.constexpr,
) -> None:
    """One program per cluster: sums its pieces."""
    cluster = tl.program_id(0).to(tl.int64)
    first, end = tl.load(first_pieces + cluster), tl.load(first_pieces + cluster + 1)
    dims = tl.arange(0, BLOCK_D)
    total = tl.zeros([BLOCK_P, BLOCK_D], tl.float32)
    for start in range(first, end, BLOCK_P):
        pieces = start + tl.arange(0, BLOCK_P)
        inside = (pieces[:, None] < end) & (dims[None, :] < D)
        total += tl.load(partial + pieces[:, None] * D + dims[None, :], mask=inside, other=0.0)
    tl.store(sums + cluster * D + dims, tl.sum(total, 0), mask=dims < D)


# Annotated with tl.tensor, since Triton's compiler refuses names that it does not know, even typing.Any. Not
# decorators, so that type checkers without Triton see the functions.
_assign_kernel = triton.jit(_assign)
_sum_pieces_kernel = triton.jit(_sum_pieces)
_sum_clusters_kernel = triton.jit(_sum_clusters)


def kmeans_assign(keys: Tensor, centroids: Tensor, *, metric: str = "cosine", config: Config | None = None) -> Tensor:
    """Label of each key's nearest centroid; see `kvviz_kernels.kmeans_assign`. config: see `CANDIDATES`."""
    length, width = keys.shape[-2:]
    n_clusters, n_rows = centroids.shape[-2], keys.shape[:-2].numel()
    config = config or best_config(assign_name(keys), keys.device, assign_default(keys))
    weights, bias = linear_scores(centroids.reshape(n_rows, n_clusters, width), metric)
    if bias is None:
        bias = weights.new_zeros(n_rows, n_clusters)
    # padding instead of masks: a centroid with bias -inf is never the nearest
    pad_clusters, block_width = -n_clusters % config["clusters"], _block_width(width)
    bias = F.pad(bias, (0, pad_clusters), value=float("-inf"))
    parts = split_float32(F.pad(weights, (0, block_width - width, 0, pad_clusters)), keys.dtype)
    if INTERPRETED:  # the interpreter would multiply the bits of bfloat16 as integers
        parts = parts.float()
    blocks = triton.cdiv(length, config["tokens"])
    labels = torch.empty(keys.shape[:-1], dtype=torch.int64, device=keys.device)
    if labels.numel():
        _assign_kernel[(blocks * n_rows,)](
            keys.reshape(n_rows, length, width).contiguous(), parts, bias, labels,
            length, blocks, bias.shape[1], parts.stride(0),
            D=width, PARTS=len(parts), SPLIT_KEYS=keys.dtype not in (torch.bfloat16, torch.float16),
            BLOCK_L=config["tokens"], BLOCK_C=config["clusters"], BLOCK_D=block_width,
            num_warps=config["num_warps"], num_stages=config["num_stages"],
        )  # fmt: skip
    return labels


def assign_name(keys: Tensor) -> str:
    """The name under which the assignment of such keys is tuned, such as "kmeans_assign_bfloat16_128"."""
    return f"kmeans_assign_{str(keys.dtype).removeprefix('torch.')}_{_block_width(keys.shape[-1])}"


def assign_default(keys: Tensor) -> Config:
    """The configuration for such keys if none was tuned: the first that fits into shared memory."""
    if not keys.is_cuda:
        return ASSIGN_DEFAULTS[0]
    room = triton.runtime.driver.active.utils.get_device_properties(keys.device.index)["max_shared_mem"]
    # per element, with its parts
    key_bytes, centroid_bytes = {torch.bfloat16: (2, 6), torch.float16: (4, 8)}.get(keys.dtype, (8, 8))
    for config in ASSIGN_DEFAULTS:
        rows = config["tokens"] * key_bytes + config["num_stages"] * config["clusters"] * centroid_bytes
        if rows * _block_width(keys.shape[-1]) <= room:
            return config
    return ASSIGN_DEFAULTS[-1]


def split_float32(weights: Tensor, dtype: torch.dtype) -> Tensor:
    """Parts [P, ...] of float32 weights for products with keys of `dtype` on tensor cores, the largest first.

    For bfloat16 keys: three parts in bfloat16, whose sum is exact. Otherwise: two parts in float32, the first exact in
    TF32, the second to TF32's 11 bits. Parts are truncated, not rounded, so that none overflows.
    """
    if dtype != torch.bfloat16:
        high = (weights.view(torch.int32) & HIGH_19).view(torch.float32)
        return torch.stack([high, weights - high])
    parts = torch.empty(3, *weights.shape, dtype=dtype, device=weights.device)
    for part in parts:
        high = (weights.view(torch.int32) & HIGH_16).view(torch.float32)
        part.copy_(high)
        weights = weights - high
    return parts


def kmeans_update(
    keys: Tensor, labels: Tensor, n_clusters: int, *, config: Config | None = None
) -> tuple[Tensor, Tensor]:
    """Sum of each cluster's keys and its number of keys; see `kvviz_kernels.kmeans_update`.

    config: see `CANDIDATES`. Each cluster is cut into pieces of equal length, starting at its first key, so that
    the order of the additions depends neither on other clusters nor on the batch.
    """
    width, device = keys.shape[-1], keys.device
    config = config or best_config("kmeans_update", device, UPDATE_DEFAULT)
    places, bounds = sort_rows_by_label(labels, n_clusters)
    sizes = bounds.diff()
    piece = config["piece"]
    first_pieces = F.pad(((sizes + (piece - 1)) // piece).cumsum(0), (1, 0))
    most = len(places) // piece + min(len(sizes), len(places))  # full pieces, and one partial piece per cluster
    owners = torch.searchsorted(first_pieces, torch.arange(most, device=device), right=True) - 1
    partial = torch.empty(most, width, dtype=torch.float32, device=device)
    sums = torch.empty(*labels.shape[:-1], n_clusters, width, dtype=torch.float32, device=device)
    block_width = _block_width(width)
    if most:
        _sum_pieces_kernel[(most,)](
            keys.reshape(-1, width).contiguous(), places, bounds, first_pieces, owners, partial, len(sizes),
            D=width, PIECE=piece, BLOCK_L=config["slots"], BLOCK_D=block_width,
            num_warps=config["num_warps"], num_stages=config["num_stages"],
        )  # fmt: skip
    if len(sizes):
        _sum_clusters_kernel[(len(sizes),)](
            partial, first_pieces, sums, D=width, BLOCK_P=PIECES_AT_ONCE, BLOCK_D=block_width
        )
    return sums, sizes.view(*labels.shape[:-1], n_clusters)


def _block_width(width: int) -> int:
    return max(16, int(triton.next_power_of_2(width)))  # tl.dot needs at least 16
