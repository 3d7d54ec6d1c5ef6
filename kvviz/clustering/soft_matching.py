"""Chunked soft matching: neighbouring tokens with similar keys become one centroid."""

from __future__ import annotations

import math

import torch
from kvviz_kernels import kmeans_update, soft_match
from kvviz_kernels.matching import count_links, link_sources
from torch import Tensor

from ..errors import InvalidInputError
from .merged import Merged

__all__ = ["chunked_soft_matching", "count_links"]


@torch.no_grad()
def chunked_soft_matching(
    keys: Tensor, values: Tensor, degree: Tensor, *, chunk_size: int | None = 256, ratio: float = 0.8
) -> Merged:
    """The centroids after one round of merging, fewer than L (unless L is 1), and equally many for all heads.

    keys [..., L, D], values [..., L, D] and degree [..., L], the number of tokens that each stands for; any float and
    integer dtypes, which the result keeps; computed in float32. Each head is matched separately. `members` int32
    [..., L] of the result is the centroid of each input token.

    The sequence is cut into chunks of `chunk_size` tokens (None: one chunk). In a chunk, the first token, the third and
    so on are set A, the others set B. Each token of A is linked to the token of B in its chunk with the largest cosine
    similarity of keys. Of the links of all chunks, the most similar share `ratio` is kept, rounded to the nearest
    number of links, and at least one. Linked tokens, one of B and any number of A, are replaced by the means of their
    keys and values, weighted by degree; their degrees are added. All other tokens stay the same.

    A centroid takes the place of its token of B, so that the result is in the order of the sequence and can be cut into
    chunks again. The last chunk may be shorter. An odd chunk has one more token in A than in B; a last chunk of a
    single token has no link. A key of zeros has similarity 0 to all keys. Ties go to the earlier token of B, and among
    links to the earlier token of A; among equal keys, rounding may decide.

    L · chunk_size / 4 similarities per head: linear in L for a fixed chunk size, quadratic without chunks. On the CPU,
    about 1 MiB of them is held at once, on a GPU with Triton none; all other memory is linear in L.

    Raises InvalidInputError for a chunk size below 2, a ratio outside (0, 1], shapes that do not match, degrees below
    1, or keys that are not finite.

    Source: CentroidKV (OpenReview T3EeupQhGj), sections 5.2 and 5.3, eq. 5. Deviation: bipartite soft matching appends
    B to the rest of A. That would separate neighbours before the next round, and so is not done.
    """
    _check(keys, values, degree, chunk_size, ratio)
    batch, length = degree.shape[:-1], degree.shape[-1]
    rows = math.prod(batch)
    links = count_links(length, chunk_size)
    if links == 0:
        members = torch.zeros_like(degree, dtype=torch.int32)
        return Merged(keys.clone(), values.clone(), degree.clone(), members)
    kept = max(1, round(ratio * links))
    flat = keys.reshape(rows, length, keys.shape[-1])
    sources, targets = _best_links(flat, chunk_size, kept)
    absorbed = torch.zeros((rows, length), dtype=torch.bool, device=keys.device).scatter_(-1, sources, True)
    remaining = absorbed.to(torch.uint8).argsort(dim=-1, stable=True)[:, : length - kept]  # [N, C], ascending
    place = (~absorbed).cumsum(-1) - 1  # [N, L], of each remaining token
    members = place.scatter(-1, sources, place.gather(-1, targets))
    merged_keys, merged_values, merged_degree = _weighted_means(
        flat, values.reshape(rows, length, values.shape[-1]), degree.reshape(rows, length), sources, remaining, members
    )
    return Merged(
        merged_keys.view(*batch, *merged_keys.shape[1:]),
        merged_values.view(*batch, *merged_values.shape[1:]),
        merged_degree.view(*batch, -1),
        members.to(torch.int32).view(*batch, length),
    )


def _best_links(keys: Tensor, chunk_size: int | None, kept: int) -> tuple[Tensor, Tensor]:
    """Positions in A and in B of the most similar links of keys [N, L, D], each int64 [N, kept], ascending in A."""
    partners, similarity = soft_match(keys, chunk_size)
    best = _largest(similarity, kept)
    return link_sources(keys.shape[-2], chunk_size, keys.device)[best], partners.gather(-1, best)


def _largest(scores: Tensor, count: int) -> Tensor:
    """Places int64 [N, count] of the `count` largest scores [N, M], ascending; ties go to the earlier place."""
    least = scores.topk(count, dim=-1, sorted=False).values.amin(-1, keepdim=True)
    above, equal = scores > least, scores == least
    chosen = above | (equal & (equal.cumsum(-1) <= count - above.sum(-1, keepdim=True)))
    return chosen.nonzero()[:, 1].view(-1, count)


def _weighted_means(
    keys: Tensor, values: Tensor, degree: Tensor, sources: Tensor, remaining: Tensor, members: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Keys [N, C, D], values [N, C, D] and degree [N, C] of the `remaining` tokens after absorbing the `sources`."""
    labels, count = members.gather(-1, sources), remaining.shape[-1]
    source_degree, old_degree = (degree.gather(-1, chosen)[..., None].float() for chosen in (sources, remaining))
    added_degree, absorbed = kmeans_update(source_degree, labels, count)
    total = old_degree + added_degree  # exact up to 2**24 tokens
    means = []
    for tensor in (keys, values):
        sums, _ = kmeans_update(_take(tensor, sources).float() * source_degree, labels, count)
        unmerged = _take(tensor, remaining)
        mean = sums.addcmul_(unmerged.float(), old_degree).div_(total).to(tensor.dtype)
        means.append(torch.where(absorbed[..., None] > 0, mean, unmerged))  # k · n / n need not be k
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
        wanted = f"floats {[*keys.shape[:-1], 'D']}, like the keys"
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
