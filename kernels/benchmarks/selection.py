"""Selection kernels against plain torch that selects the same tokens, and against exact scores of all keys with topk.

Layers take turns, as in a model, so that caches are cold.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from kvviz_kernels.selection import count_pairs, page_scores, pair_cells, pq_scores, select_clusters, take_best
from kvviz_kernels.tuning import Config
from kvviz_kernels.tuning import tune as tune_kernel
from timing import Call, Row, alternate, forms, row_of, waiting
from torch import Tensor

from .attention import Size

SEED, PAGE, TOKENS_PER_CLUSTER, PARTS, CENTROIDS = 0, 16, 80, 2, 64


@dataclass(frozen=True)
class Layer:
    """The inputs of one layer's selections: the queries, all keys, and their clusters, pages and codes."""

    queries: Tensor
    keys: Tensor
    centroids: Tensor
    lists: tuple[Tensor, Tensor, Tensor]  # sizes, offsets, order
    bounds: Tensor
    parts: Tensor
    codes: Tensor
    counts: Tensor | None
    scores: Tensor


@torch.no_grad()
def check(device: torch.device) -> None:
    """Assert that all implementations of a selection select the same tokens."""
    layer = _layer(Size(2, 6, 2, 2000, 200, 64, torch.float32), device, SEED)
    for choice in CHOICES:
        expected = choice(layer, 200, "plain")
        for impl in forms(device):
            assert torch.equal(choice(layer, 200, impl), expected), (choice.__name__, impl)


@torch.no_grad()
def rows(device: torch.device) -> list[Row]:
    """One row per selection and size, in microseconds per layer."""
    if device.type == "cpu":
        sizes, layers = [Size(1, 9, 3, 8192, 512, 64, torch.float32)], 12
    else:
        shapes = [(batch, tokens) for tokens in (8192, 131_072) for batch in (1, 8)]
        sizes = [Size(batch, 32, 8, tokens, 1024, 128, torch.bfloat16) for batch, tokens in shapes]
        layers = 3
    measured = []
    for size in sizes:
        step_layers = [_layer(size, device, SEED + number) for number in range(layers)]
        for choice in CHOICES:
            names = [*reversed(forms(device)), "plain"]
            choices = {name: partial(choice, budget=size.selected, impl=name) for name in names}
            choices["exact"] = partial(_exact, budget=size.selected)
            calls: dict[str, Call] = {name: partial(_over, step_layers, chosen) for name, chosen in choices.items()}
            words = f"{choice.__name__.strip('_')}, {size.selected} of {size.tokens} tokens, batch {size.batch}"
            shape = f"{size.heads} query heads, {size.kv_heads} key/value heads"
            measured.append(row_of(f"{words}, {shape}", alternate(waiting(calls, device)), names[0], calls=layers))
    return measured


@torch.no_grad()
def tune(device: torch.device) -> dict[str, Config]:
    """The best configurations on this GPU."""
    from kvviz_kernels.selection import fused

    size = Size(8, 32, 8, 131_072, 1024, 128, torch.bfloat16)
    layer = _layer(size, device, SEED)
    runs = {
        "select_clusters": partial(
            fused.select_clusters, layer.queries, layer.centroids, *layer.lists, size.selected, group="mean"
        ),
        "page_scores": partial(fused.page_scores, layer.queries, layer.bounds, group="mean"),
        "pq_scores": partial(fused.pq_scores, layer.queries, layer.parts, layer.codes, group="mean", scale=0.1),
        "take_best": partial(fused.take_best, layer.scores, size.selected),
    }
    return {name: tune_kernel(name, fused.CANDIDATES[name], run, device) for name, run in runs.items()}


def _clusters(layer: Layer, budget: int, impl: Any) -> Tensor:
    if impl != "plain":
        return select_clusters(layer.queries, layer.centroids, *layer.lists, budget, group="mean", impl=impl)[0]
    sizes, offsets, order = layer.lists
    scores = (_by_head(layer.queries, layer).float().mean(2, keepdim=True) @ layer.centroids.mT).squeeze(2)
    ranked = scores.argsort(dim=-1, descending=True, stable=True)
    ranked_sizes = sizes.gather(-1, ranked)
    ends = ranked_sizes.cumsum(-1)
    slots = torch.arange(budget, device=scores.device).expand(*scores.shape[:2], -1).contiguous()
    rank = torch.searchsorted(ends, slots, right=True)
    shift = offsets.gather(-1, ranked) - (ends - ranked_sizes)
    return order.gather(-1, shift.gather(-1, rank) + slots).sort(-1).values


def _pages(layer: Layer, budget: int, impl: Any) -> Tensor:
    count = budget // PAGE
    if impl != "plain":
        return take_best(page_scores(layer.queries, layer.bounds, group="mean", impl=impl), count, impl=impl)
    heads, width = _by_head(layer.queries, layer).float(), layer.queries.shape[-1]
    upper, lower = layer.bounds[:, :, :width].float(), layer.bounds[:, :, width:].float()
    scores = (heads.clamp(min=0) @ upper + heads.clamp(max=0) @ lower).mean(2)
    return scores.argsort(dim=-1, descending=True, stable=True)[..., :count].sort(-1).values


def _codes(layer: Layer, budget: int, impl: Any) -> Tensor:
    scale = layer.queries.shape[-1] ** -0.5
    if impl != "plain":
        scores = pq_scores(
            layer.queries, layer.parts, layer.codes, group="mean", scale=scale, counts=layer.counts, impl=impl
        )
        return take_best(scores, budget, impl=impl)
    split = _by_head(layer.queries, layer).float().unflatten(-1, (PARTS, -1)).transpose(2, 3)  # [B, H, m, G, D/m]
    tables = split @ layer.parts.mT  # [B, H, m, G, C]
    codes = layer.codes.transpose(-1, -2).long()[:, :, :, None].expand(-1, -1, -1, split.shape[3], -1)
    weights = (tables.gather(-1, codes).sum(2) * scale).softmax(-1).mean(2)
    return weights.argsort(dim=-1, descending=True, stable=True)[..., :budget].sort(-1).values


def _best(layer: Layer, budget: int, impl: Any) -> Tensor:
    if impl != "plain":
        return take_best(layer.scores, budget, impl=impl)
    return layer.scores.topk(budget, dim=-1).indices.sort(-1).values  # which of equal scores it takes is undefined


CHOICES: tuple[Callable[[Layer, int, Any], Tensor], ...] = (_clusters, _pages, _codes, _best)


def _exact(layer: Layer, budget: int) -> Tensor:
    """What a user would do instead: scores of all keys, the mean over the group, topk."""
    scores = (_by_head(layer.queries, layer) @ layer.keys.mT).mean(2)
    return scores.topk(budget, dim=-1).indices.sort(-1).values


def _by_head(queries: Tensor, layer: Layer) -> Tensor:
    return queries.unflatten(1, (layer.keys.shape[1], -1))


def _over(layers: list[Layer], choice: Callable[[Layer], Tensor]) -> None:
    for layer in layers:
        choice(layer)


def _layer(size: Size, device: torch.device, seed: int) -> Layer:
    generator = torch.Generator(device).manual_seed(seed)

    def normal(*shape: int) -> Tensor:
        return torch.randn(size.batch, *shape, generator=generator, device=device)

    keys = normal(size.kv_heads, size.tokens, size.width)
    count = -(-size.tokens // TOKENS_PER_CLUSTER)
    labels = torch.randint(count, keys.shape[:3], generator=generator, device=device)
    sizes = torch.zeros((*labels.shape[:2], count), dtype=torch.int64, device=device)
    sizes.scatter_add_(-1, labels, torch.ones_like(labels))
    offsets = torch.nn.functional.pad(sizes.cumsum(-1), (1, 0))
    pages = keys.unflatten(2, (-1, PAGE))
    bounds = torch.cat([pages.amax(3), pages.amin(3)], dim=-1).mT.contiguous()
    codes = torch.randint(CENTROIDS, (*labels.shape, PARTS), generator=generator, device=device).to(torch.uint8)
    counts = torch.zeros((*labels.shape[:2], CENTROIDS, CENTROIDS)) if device.type == "cpu" else None
    if counts is not None:
        count_pairs(counts, pair_cells(codes, CENTROIDS))
    return Layer(
        normal(size.heads, size.width).to(size.dtype),
        keys.to(size.dtype),
        normal(size.kv_heads, count, size.width),
        (sizes, offsets, labels.argsort(dim=-1, stable=True)),
        bounds.to(size.dtype),
        normal(size.kv_heads, PARTS, CENTROIDS, size.width // PARTS),
        codes,
        counts,
        normal(size.kv_heads, size.tokens),
    )
