"""Product quantization of keys: every part of a key is replaced by the number of its nearest centroid."""

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
FEW_KEYS = 16  # up to here one batched product encodes faster than head by head: 16 µs against 220 µs, 2 parts, 3 heads


@dataclass(eq=False)
class PairCounts:
    """How many of the first `counted` tokens have each pair of codes: float32 [..., C, C], second code, first code.

    `ahead` [n, heads] says where the tokens from `counted` on will be counted, as far as they have codes: a step adds
    one token, and to find its place alone takes longer than to add it.
    """

    tensor: Tensor
    counted: int = 0
    ahead: NDArray[Any] | None = None

    def count_to(self, length: int, codes: Tensor) -> None:
        """Count the first `length` of the tokens with these codes [..., L, m], and no others."""
        if length < self.counted:
            self.tensor.zero_()
            self.counted, self.ahead = 0, None
        new = length - self.counted
        if self.ahead is None or len(self.ahead) < new:
            self.ahead = pair_cells(codes[..., self.counted :, :], self.tensor.shape[-1])
        if new:
            count_pairs(self.tensor, self.ahead[:new])
            rest = self.ahead[new:]
            self.counted, self.ahead = length, rest if new == 1 else rest.copy()  # a view of a prompt would keep it all


@dataclass(eq=False)
class Codebook:
    """Centroids of every part, and the codes of L tokens: m parts of D/m channels, C centroids each.

    `centroids` [..., m, C, D/m] float32; `codes` [..., L, m], uint8 up to 8 bits and uint16 beyond, each the number of
    the centroid nearest to that part of the key. A token takes m bytes (2·m beyond 8 bits); packed into bits it would
    take m·b/8, which is how PQCache counts them (arXiv 2407.12820, section 4.1).

    What saves work at every step is made when first asked for: `half_norms` of the centroids [... · m, 1, C] by
    `append`, the pairs' counts by `pair_counts`.
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
        """Tokens that have codes."""
        return self.codes.shape[-2]

    def encode(self, keys: Tensor) -> Tensor:
        """Codes [..., n, m] of keys [..., n, D] by their nearest centroids (L2); equal distances to the lowest number.

        Raises InvalidInputError for keys of another width.
        """
        return self._nearest(keys).to(self.codes.dtype)

    def append(self, keys: Tensor) -> Codebook:
        """A codebook with the codes of further keys [..., n, D] behind the others; the centroids stay as they are."""
        codes = self._nearest(keys)
        growing, pairs = self._growing, self.pairs
        if growing is None or growing.used != self.length:  # another codebook has grown from this one already
            growing, pairs = GrowingTensor(self.codes, -2), None
        growing.append(codes)
        longer = Codebook(self.centroids, growing.tensor, self.half_norms, pairs)
        longer._growing, longer._table = growing, self._table
        return longer

    def _nearest(self, keys: Tensor) -> Tensor:
        """Codes int64 [..., n, m] of keys [..., n, D]."""
        n_partitions, count, width = self.centroids.shape[-3:]
        few = keys.shape[-2]
        if keys.shape[-1] != n_partitions * width:
            wanted = f"{n_partitions * width} channels, {n_partitions} parts of {width}"
            raise InvalidInputError("Codebook.encode: keys", f"{keys.shape[-1]} channels", wanted)
        if few > FEW_KEYS:
            return kmeans_assign(split(keys, n_partitions), self.centroids, metric="l2").transpose(-1, -2)
        if self.half_norms is None or self._table is None:
            self.half_norms = self.centroids.square().sum(-1).mul_(0.5).view(-1, 1, count)
            self._table = self.centroids.view(-1, count, width).transpose(1, 2)
        if few == 1:  # the parts of one key lie one behind the other
            parts = keys.reshape(-1, 1, width).float()
        else:
            parts = keys.float().reshape(-1, few, n_partitions, width).transpose(1, 2).reshape(-1, few, width)
        scores = torch.baddbmm(self.half_norms, parts, self._table, beta=-1)  # [... · m, n, C]
        codes = scores.argmax(-1).view(*keys.shape[:-2], n_partitions, few)
        return codes.transpose(-1, -2)

    def pair_counts(self, length: int) -> Tensor | None:
        """How many of the first `length` tokens have each pair of codes, as `pq_scores` takes it; None where no help.

        Kept between calls: a call for a few tokens more adds those.
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
        """Approximate inner products float32 [..., G, L] of queries [..., G, D] with every token, by table look-up.

        The leading dimensions are the codebook's own. Each equals q · reconstruct(), but no key is made: a table of
        the part's q · centroid is looked up once a part and token. O(G·D·C + G·m·L) operations, O((G + m)·L) memory.
        Source: PQCache (arXiv 2407.12820), section 3.1, step 4.
        """
        found = pq_scores(
            queries.reshape(1, -1, queries.shape[-1]),
            self.centroids.reshape(1, -1, *self.centroids.shape[-3:]),
            self.codes.reshape(1, -1, *self.codes.shape[-2:]),
            group="each",
        )
        return found.view(*queries.shape[:-1], self.length)

    def reconstruct(self) -> Tensor:
        """Keys float32 [..., L, D] put together from the centroids that the codes name."""
        codes = self.codes.transpose(-1, -2).long()  # [..., m, L]
        where = codes[..., None].expand(*codes.shape, self.centroids.shape[-1])
        return self.centroids.gather(-2, where).transpose(-2, -3).flatten(-2)


@torch.no_grad()
def product_quantize(
    keys: Tensor, *, n_partitions: int = 2, n_bits: int = 6, max_iter: int = DEFAULT_ITERATIONS, seed: int = 0
) -> Codebook:
    """The Codebook of keys [..., L, D]: m = `n_partitions` parts, each with 2^`n_bits` centroids found by k-means.

    Any float dtype; every head and part is clustered on its own, by L2, from the same `initial_positions`, until no
    label changes or for `max_iter` iterations; then each part is coded by its nearest centroid. Fewer tokens than
    centroids give as many centroids as tokens, and so exact codes.

    Raises InvalidInputError for `n_partitions` that do not divide D, `n_bits` outside 1 to 16, `max_iter` below 1, no
    tokens, and keys that are not finite floats [..., L, D].

    Source: PQCache (arXiv 2407.12820), section 3.1, step 2; product quantization itself is Jégou et al. (2011).
    """
    if isinstance(n_bits, bool) or not isinstance(n_bits, int) or not 1 <= n_bits <= MAX_BITS:
        raise InvalidInputError("product_quantize: n_bits", repr(n_bits), f"an int from 1 to {MAX_BITS}")
    if keys.dim() < 2 or not keys.is_floating_point() or keys.shape[-2] == 0:
        got = f"{keys.dtype} {list(keys.shape)}"
        raise InvalidInputError("product_quantize: keys", got, "floats [..., L, D] of at least one token")
    found = cluster_parts(keys, n_partitions=n_partitions, n_bits=n_bits, max_iter=max_iter, seed=seed)
    labels = found.labels
    if not found.converged.all():  # the last iteration moved centroids, so that labels may not be the nearest any more
        labels = kmeans_assign(split(keys, n_partitions), found.centroids, metric="l2")
    dtype = torch.uint8 if n_bits <= 8 else torch.uint16
    return Codebook(found.centroids, labels.transpose(-1, -2).to(dtype).contiguous())


def cluster_parts(keys: Tensor, *, n_partitions: int, n_bits: int, max_iter: int, seed: int = 0) -> Clusters:
    """k-means of every part of keys [..., L, D] into min(2^n_bits, L) clusters: Clusters of [..., m] heads."""
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
