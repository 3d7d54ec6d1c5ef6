"""Chunked soft matching: neighbouring tokens with similar keys become one centroid."""

from __future__ import annotations

import math

import torch
from kvviz_kernels import kmeans_assign, kmeans_update
from torch import Tensor
from torch.nn import functional as F

from ..errors import InvalidInputError
from ..selection import Merged

__all__ = ["chunked_soft_matching", "count_links"]


@torch.no_grad()
def chunked_soft_matching(
    keys: Tensor, values: Tensor, degree: Tensor, *, chunk_size: int | None = 256, ratio: float = 0.8
) -> Merged:
    """The centroids that one round of merging leaves, fewer than L (unless L is 1), as many for every head.

    keys [..., L, D], values [..., L, D] and degree [..., L], how many tokens each stands for; any float and integer
    dtypes, which the result keeps; computed in float32. Every head is matched on its own. `members` int32 [..., L] of
    the result names the centroid of each input token.

    The sequence is cut into chunks of `chunk_size` tokens (None: one chunk). In a chunk the first token, the third and
    so on are set A, the others set B. Each token of A is linked to the token of B in its chunk with the largest cosine
    similarity of keys. Of the links of all chunks the most similar share `ratio` is kept, rounded to the nearest number
    of links and at least one. Tokens joined by links, one of B and any number of A, become the means of their keys and
    of their values, weighted by degree; degrees add up. All others stay as they are.

    A centroid takes the place of its token of B, so that the result is in the order of the sequence and can be cut into
    chunks again. The last chunk may be shorter. An odd chunk has one token more in A than in B; a last chunk of a
    single token has no link. A key of zeros has similarity 0 to every key. Ties go to the earlier token of B, and among
    links to the earlier token of A; which of equal keys these are is open where rounding decides.

    L · chunk_size / 4 similarities a head: linear in L for a fixed chunk size, quadratic without chunks. On the CPU a
    few MiB of them are held at once, on a GPU with Triton none; all other memory is linear in L.

    Raises InvalidInputError for a chunk size below 2, a ratio outside (0, 1], shapes that do not fit, degrees below 1,
    and keys that are not finite.

    Source: CentroidKV (OpenReview T3EeupQhGj), sections 5.2 and 5.3, eq. 5. Deviation: bipartite soft matching appends
    B to what is left of A; that would tear neighbours apart before the next round, and so is not done.
    """
    _check(keys, values, degree, chunk_size, ratio)
    batch, length = degree.shape[:-1], degree.shape[-1]
    rows = math.prod(batch)
    links = count_links(length, chunk_size)
    if links == 0:
        alone = torch.zeros_like(degree, dtype=torch.int32)
        return Merged(keys.clone(), values.clone(), degree.clone(), alone)
    kept = max(1, round(ratio * links))
    flat = keys.reshape(rows, length, keys.shape[-1])
    sources, targets = _best_links(flat, min(chunk_size or length, length), kept)
    gone = torch.zeros((rows, length), dtype=torch.bool, device=keys.device).scatter_(-1, sources, True)
    left = gone.to(torch.uint8).argsort(dim=-1, stable=True)[:, : length - kept]  # [N, C], ascending
    place = (~gone).cumsum(-1) - 1  # [N, L], of each token that is left
    members = place.scatter(-1, sources, place.gather(-1, targets))
    merged_keys, merged_values, merged_degree = _weighted_means(
        flat, values.reshape(rows, length, values.shape[-1]), degree.reshape(rows, length), sources, left, members
    )
    return Merged(
        merged_keys.view(*batch, *merged_keys.shape[1:]),
        merged_values.view(*batch, *merged_values.shape[1:]),
        merged_degree.view(*batch, -1),
        members.to(torch.int32).view(*batch, length),
    )


def count_links(length: int, chunk_size: int | None) -> int:
    """Links that a round draws between `length` tokens, one for each token of A whose chunk has a token of B."""
    size = min(chunk_size or length, length)
    if size < 2:
        return 0
    whole, rest = divmod(length, size)
    return whole * ((size + 1) // 2) + ((rest + 1) // 2 if rest > 1 else 0)


def _best_links(keys: Tensor, size: int, kept: int) -> tuple[Tensor, Tensor]:
    """Positions in A and in B, each int64 [N, kept], of the most similar links of keys [N, L, D]."""
    rows, length, _ = keys.shape
    unit = F.normalize(keys.float(), dim=-1, eps=torch.finfo(torch.float32).tiny)
    whole = length - length % size
    sources, targets = [], []
    for start, stop, chunk in ((0, whole, size), (whole, length, length - whole)):
        if chunk < 2:
            continue
        chunks: Tensor = unit[:, start:stop].unflatten(1, (-1, chunk))  # [N, chunks, chunk, D]
        nearest = kmeans_assign(chunks[:, :, 0::2], chunks[:, :, 1::2])  # [N, chunks, A]
        first = torch.arange(start, stop, chunk, device=keys.device)[:, None]
        targets.append((first + 2 * nearest + 1).flatten(1))
        sources.append((first + torch.arange(0, chunk, 2, device=keys.device)).flatten())
    source = torch.cat(sources).expand(rows, -1)  # [N, links], ascending
    target = torch.cat(targets, dim=-1)
    similarity = (_take(unit, source) * _take(unit, target)).sum(-1)
    best = similarity.argsort(dim=-1, descending=True, stable=True)[:, :kept]
    return source.gather(-1, best), target.gather(-1, best)


def _weighted_means(
    keys: Tensor, values: Tensor, degree: Tensor, sources: Tensor, left: Tensor, members: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Keys [N, C, D], values [N, C, D] and degree [N, C] of what is `left` after `sources` joined their `members`."""
    weight = degree.gather(-1, sources)[..., None].float()
    joining = torch.cat([_take(keys, sources).float() * weight, _take(values, sources).float() * weight, weight], -1)
    sums, received = kmeans_update(joining, members.gather(-1, sources), left.shape[-1])
    own = degree.gather(-1, left)[..., None].float()
    total = own + sums[..., -1:]  # exact up to 2**24 tokens
    width = keys.shape[-1]
    means = []
    for tensor, sum_ in ((keys, sums[..., :width]), (values, sums[..., width:-1])):
        alone = _take(tensor, left)
        mean = ((alone.float() * own + sum_) / total).to(tensor.dtype)
        means.append(torch.where(received[..., None] > 0, mean, alone))  # k · n / n need not be k
    return means[0], means[1], total[..., 0].to(degree.dtype)


def _take(tensor: Tensor, positions: Tensor) -> Tensor:
    """Rows of tensor [N, L, D] at positions [N, S]: [N, S, D]."""
    rows, length, width = tensor.shape
    first = torch.arange(0, rows * length, length, device=tensor.device)[:, None]
    return tensor.reshape(-1, width).index_select(0, (positions + first).flatten()).view(rows, -1, width)


def _check(keys: Tensor, values: Tensor, degree: Tensor, chunk_size: int | None, ratio: float) -> None:
    operation = "chunked_soft_matching"
    if keys.dim() < 2 or not keys.is_floating_point() or 0 in keys.shape:
        raise InvalidInputError(
            f"{operation}: keys", f"{keys.dtype} {list(keys.shape)}", "floats [..., L, D], not empty"
        )
    if values.shape[:-1] != keys.shape[:-1] or not values.is_floating_point():
        wanted = f"floats {[*keys.shape[:-1], 'D']}, as the keys"
        raise InvalidInputError(f"{operation}: values", f"{values.dtype} {list(values.shape)}", wanted)
    if degree.shape != keys.shape[:-1]:
        raise InvalidInputError(f"{operation}: degree", list(degree.shape), f"shape {list(keys.shape[:-1])}")
    if chunk_size is not None and (isinstance(chunk_size, bool) or not isinstance(chunk_size, int) or chunk_size < 2):
        raise InvalidInputError(f"{operation}: chunk_size", repr(chunk_size), "an int >= 2, or None for one chunk")
    if isinstance(ratio, bool) or not isinstance(ratio, int | float) or not 0 < ratio <= 1:
        raise InvalidInputError(f"{operation}: ratio", repr(ratio), "a number in (0, 1]")
    if not torch.stack(torch.aminmax(keys)).isfinite().all():  # NaN and infinity reach the extremes
        raise InvalidInputError(f"{operation}: keys", "NaN or infinity among the keys", "finite keys")
    if bool((degree < 1).any()):
        raise InvalidInputError(f"{operation}: degree", f"{degree.min().item()}", "at least 1 for every token")
