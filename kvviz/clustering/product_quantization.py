"""Product quantization of keys: each part of a key is replaced by the number of its nearest centroid."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from kvviz_kernels import kmeans_assign
from kvviz_kernels.selection import count_pairs, pair_cells, pairs_pay, pq_scores
from numpy.typing import NDArray
from torch import Tensor

from ..errors import InvalidInputError
from ..offload.growing import GrowingTensor
from .kmeans import Clusters, kmeans

__all__ = ["MAX_BITS", "Codebook", "cluster_parts", "product_quantize"]

MAX_BITS = 16
DEFAULT_ITERATIONS = 20
FEW_KEYS = 16  # up to here, one batched product is faster than head by head: 16 µs against 220 µs, 2 parts, 3 heads


@dataclass(eq=False)
class PairCounts:
    """Number of the first `counted` tokens with each pair of codes: float32 [..., C, C], second code, first code.

    `ahead` [n, heads] are the cells in which the tokens from `counted` on will be counted, if they have codes: a step
    adds one token, and finding its cell alone takes longer than counting it.
    """

    tensor: Tensor
    counted: int = 0
    ahead: NDArray[Any] | None = None

    def count_to(self, length: int, codes: Tensor) -> None:
        """Count the first `length` tokens with these codes [..., L, m], and no others."""
        if length < self.counted:
            self.tensor.zero_()
            self.counted, self.ahead = 0, None
        new = length - self.counted
        if self.ahead is None or len(self.ahead) < new:
            self.ahead = pair_cells(codes[..., self.counted :, :], self.tensor.shape[-1])
        if new:
            count_pairs(self.tensor, self.ahead[:new])
            rest = self.ahead[new:]
            self.counted, self.ahead = length, rest if new == 1 else rest.copy()  # a view would keep the whole prompt


@dataclass(eq=False)
class Codebook:
    """A codebook: the centroids of each part, and the codes of L tokens; m parts of D/m channels, C centroids each.

    `centroids` [..., m, C, D/m] float32; `codes` [..., L, m], uint8 up to 8 bits and uint16 beyond: the number of the
    nearest centroid for each part of a key. A token takes m bytes (2·m beyond 8 bits); packed in host memory it takes
    m·b/8, as in PQCache (arXiv 2407.12820, section 4.1.3).

    Tables that save work at each step are made at the first use: `half_norms` of the centroids [... · m, 1, C] by
    `append`, the counts of pairs by `pair_counts`.
    """

    centroids: Tensor
    codes: Tensor
    half_norms: Tensor | None = None
    pairs: PairCounts | None = None

    def __post_init__(self) -> None:
        self._growing: GrowingTensor | None = None  # the codes with spare room, shared by codebooks that grow
        self._table: Tensor | None = None  # a view of the centroids [... · m, D/m, C]

    @property
    def length(self) -> int:
        """Number of tokens with codes."""
        return self.codes.shape[-2]

    @property
    def n_bits(self) -> int:
        """Bits that a code needs, at least 1."""
        return max((self.centroids.shape[-2] - 1).bit_length(), 1)

    def encode(self, keys: Tensor) -> Tensor:
        """Codes [..., n, m] of keys [..., n, D]: the nearest centroids (L2); ties go to the lowest number.

        Raises InvalidInputError for keys of another width.
        """
        return self._nearest(keys).to(self.codes.dtype)

    def append(self, keys: Tensor) -> Codebook:
        """A codebook with the codes of further keys [..., n, D] appended; the centroids stay the same."""
        codes = self._nearest(keys)
        growing, pairs = self._growing, self.pairs
        if growing is None or growing.used != self.length:  # another codebook has already grown from this one
            growing, pairs = GrowingTensor(self.codes, -2), None
        growing.append(codes)
        longer = Codebook(self.centroids, growing.tensor, self.half_norms, pairs)
        longer._growing, longer._table = growing, self._table
        return longer

    def _nearest(self, keys: Tensor) -> Tensor:
        """Codes int64 [..., n, m] of keys [..., n, D]."""
        n_partitions, count, width = self.centroids.shape[-3:]
        n_keys = keys.shape[-2]
        if keys.shape[-1] != n_partitions * width:
            wanted = f"{n_partitions * width} channels, {n_partitions} parts of {width}"
            raise InvalidInputError("Codebook.encode: keys", f"{keys.shape[-1]} channels", wanted)
        if n_keys > FEW_KEYS:
            return kmeans_assign(split(keys, n_partitions), self.centroids, metric="l2").transpose(-1, -2)
        if self.half_norms is None or self._table is None:
            self.half_norms = self.centroids.square().sum(-1).mul_(0.5).view(-1, 1, count)
            self._table = self.centroids.view(-1, count, width).transpose(1, 2)
        if n_keys == 1:  # the parts of one key are adjacent in memory
            parts = keys.reshape(-1, 1, width).float()
        else:
            parts = keys.float().reshape(-1, n_keys, n_partitions, width).transpose(1, 2).reshape(-1, n_keys, width)
        scores = torch.baddbmm(self.half_norms, parts, self._table, beta=-1)  # [... · m, n, C]
        codes = scores.argmax(-1).view(*keys.shape[:-2], n_partitions, n_keys)
        return codes.transpose(-1, -2)

    def pair_counts(self, length: int) -> Tensor | None:
        """Number of the first `length` tokens with each pair of codes, for `pq_scores`; None if it would not help.

        The counts are kept between calls, so that a call for a few more tokens only adds those.
        """
        pairs = self.pairs
        if pairs is None:
            if not pairs_pay(self.centroids, self.codes[..., :length, :]):
                return None
            count = self.centroids.shape[-2]
            pairs = self.pairs = PairCounts(self.centroids.new_zeros((*self.codes.shape[:-2], count, count)))
        pairs.count_to(length, self.codes)
        return pairs.tensor

    def scores(self, queries: Tensor) -> Tensor:
        """Approximate inner products float32 [..., G, L] of queries [..., G, D] with all tokens, by table look-up.

        The leading dimensions are those of the codebook. A score equals q · reconstruct(), but no key is made: a table
        of q · centroid is read once per part and token. O(G·D·C + G·m·L) operations, O((G + m)·L) memory. Source:
        PQCache (arXiv 2407.12820), section 3.1, step 4.
        """
        scores = pq_scores(
            queries.reshape(1, -1, queries.shape[-1]),
            self.centroids.reshape(1, -1, *self.centroids.shape[-3:]),
            self.codes.reshape(1, -1, *self.codes.shape[-2:]),
            group="each",
        )
        return scores.view(*queries.shape[:-1], self.length)

    def reconstruct(self) -> Tensor:
        """Approximate keys float32 [..., L, D], made of the centroids that the codes name."""
        codes = self.codes.transpose(-1, -2).long()  # [..., m, L]
        indices = codes[..., None].expand(*codes.shape, self.centroids.shape[-1])
        return self.centroids.gather(-2, indices).transpose(-2, -3).flatten(-2)


@torch.no_grad()
def product_quantize(
    keys: Tensor, *, n_partitions: int = 2, n_bits: int = 6, max_iter: int = DEFAULT_ITERATIONS, seed: int = 0
) -> Codebook:
    """The Codebook of keys [..., L, D]: m = `n_partitions` parts, each with 2^`n_bits` centroids by k-means.

    Any float dtype. Each head and part is clustered separately, by L2, from the same `initial_positions`, until no
    label changes or for `max_iter` iterations. Then each part is coded by its nearest centroid. With fewer tokens than
    centroids, there are as many centroids as tokens, and the codes are exact.

    Raises InvalidInputError if `n_partitions` does not divide D, for `n_bits` outside 1 to 16, `max_iter` below 1, no
    tokens, or keys that are not finite floats [..., L, D].

    Source: PQCache (arXiv 2407.12820), section 3.1, step 2; product quantization itself is from Jégou et al. (2011).
    """
    if isinstance(n_bits, bool) or not isinstance(n_bits, int) or not 1 <= n_bits <= MAX_BITS:
        raise InvalidInputError("product_quantize: n_bits", repr(n_bits), f"an int from 1 to {MAX_BITS}")
    if keys.dim() < 2 or not keys.is_floating_point() or keys.shape[-2] == 0:
        got = f"{keys.dtype} {list(keys.shape)}"
        raise InvalidInputError("product_quantize: keys", got, "floats [..., L, D] of at least one token")
    clusters = cluster_parts(keys, n_partitions=n_partitions, n_bits=n_bits, max_iter=max_iter, seed=seed)
    labels = clusters.labels
    if not clusters.converged.all():  # the last iteration moved centroids: another one may be the nearest now
        labels = kmeans_assign(split(keys, n_partitions), clusters.centroids, metric="l2")
    dtype = torch.uint8 if n_bits <= 8 else torch.uint16
    return Codebook(clusters.centroids, labels.transpose(-1, -2).to(dtype).contiguous())


def cluster_parts(keys: Tensor, *, n_partitions: int, n_bits: int, max_iter: int, seed: int = 0) -> Clusters:
    """Clusters of each part of keys [..., L, D] by k-means, min(2^n_bits, L) each, for [..., m] heads."""
    if isinstance(n_partitions, bool) or not isinstance(n_partitions, int) or n_partitions < 1:
        raise InvalidInputError("product_quantize: n_partitions", repr(n_partitions), "an int >= 1")
    if keys.shape[-1] % n_partitions:
        wanted = f"a divisor of the head dimension, {keys.shape[-1]}"
        raise InvalidInputError("product_quantize: n_partitions", n_partitions, wanted)
    if isinstance(max_iter, bool) or not isinstance(max_iter, int) or max_iter < 1:
        raise InvalidInputError("product_quantize: max_iter", repr(max_iter), "an int >= 1")
    n_clusters = min(2**n_bits, keys.shape[-2])
    return kmeans(split(keys, n_partitions), n_clusters, metric="l2", max_iter=max_iter, seed=seed)


def split(vectors: Tensor, n_partitions: int) -> Tensor:
    """Parts of vectors: [..., n, D] -> [..., m, n, D/m], a view."""
    parts: Tensor = vectors.unflatten(-1, (n_partitions, -1))
    return parts.transpose(-2, -3)
