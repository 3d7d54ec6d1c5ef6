"""ClusterKV: semantic clusters of keys, recalled whole until the budget is met."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from kvviz_kernels.selection import select_clusters
from torch import Tensor

from ..clustering.kmeans import METRICS, kmeans
from ..trace.styles import Style
from .base import LayerContext, Method, State
from .fields import one_of, whole
from .selection import Selection
from .sliders import Slider


@dataclass
class ClusteredState(State):
    """Beside the counts, the clusters' metadata (ClusterKV, fig. 8)."""

    centroids: Tensor  # [B, H, C, D]
    sizes: Tensor  # [B, H, C]
    offsets: Tensor  # [B, H, C+1], prefix sum of the sizes
    order: Tensor  # [B, H, n], positions sorted by cluster

    @property
    def clustered(self) -> int:
        """Tokens that belong to a cluster; sinks and recent tokens do not."""
        return self.order.shape[-1]


@dataclass
class ClusterKVState(ClusteredState):
    """Beside the clusters, the keys [B, H, n, D] not clustered yet."""

    pending: list[Tensor]


@dataclass
class ClusterKV(Method[ClusterKVState]):
    """Clusters keys by cosine, ranks clusters by q·centroid, recalls clusters until the budget is met, trims the last.

    Source: ClusterKV (arXiv 2412.03213), sections III-B, III-C, IV-C. The first `sinks` tokens are never clustered and
    always attended. The prompt gets one cluster for every `tokens_per_cluster` tokens (`n_clusters` fixes the number
    instead). Every `decode_interval` generated tokens are clustered among themselves into `decode_clusters` clusters;
    until then they are attended in full.

    Presets: "paper" runs k-means until labels stop changing, at most 50 times. "official" is the published code's
    accuracy run: 400 clusters whatever the length (as many as there are tokens, where fewer), at most 20 iterations,
    ranking per query head, generated tokens never clustered. Deviations: the paper does not say how the query heads of
    a KV head agree ("paper" takes the mean); clusters of generated tokens raise the budget of a step by their tokens.
    """

    name = "clusterkv"
    title = "ClusterKV"
    paper = "arXiv 2412.03213"
    kind = "retrieval"
    style = Style("#0072B2", "solid", "circle")
    sliders = (
        Slider("n_clusters", "clusters", (16, 32, 64, 128, 256, 512), "clusters of the prompt's keys"),
        Slider("tokens_per_cluster", "tokens a cluster", (10, 20, 40, 80, 160, 320, 640),
               "the prompt gets one cluster for every so many of its tokens", unless="n_clusters"),
        Slider("sinks", "sinks", (0, 4, 8, 16, 32, 64), "first tokens, always attended and never clustered"),
    )  # fmt: skip
    needs_queries = False
    overlaps_build = True
    builds_for_any_budget = True
    expected_failures = {
        "extension_equals_one_build": "generated tokens form clusters of their own (paper, section III-B)",
    }
    presets = {
        "paper": {},
        "official": {"n_clusters": 400, "max_iter": 20, "group": "each", "decode_interval": None},
    }

    sinks: int = 16
    dense_layers: int = 2
    tokens_per_cluster: int = whole(80, 1)
    n_clusters: int | None = whole(None, 1)
    metric: str = one_of("cosine", METRICS)
    max_iter: int = whole(50, 1)
    decode_interval: int | None = whole(320, 1)
    decode_clusters: int = whole(4, 1)
    seed: int = 0

    def build(self, layer: LayerContext, queries: Tensor, keys: Tensor, values: Tensor) -> ClusterKVState:
        """Clusters of every token but sinks and recent window; O(iterations · C · L · D)."""
        length = keys.shape[2]
        sinks = min(self.sinks, length)
        end = max(sinks, length - self.recent)
        wanted = self.n_clusters or math.ceil(length / self.tokens_per_cluster)
        empty = ClusterKVState(
            layer,
            length,
            length,
            centroids=keys[:, :, :0].float(),
            sizes=keys.new_zeros((*keys.shape[:2], 0), dtype=torch.int64),
            offsets=keys.new_zeros((*keys.shape[:2], 1), dtype=torch.int64),
            order=keys.new_zeros((*keys.shape[:2], 0), dtype=torch.int64),
            pending=[keys[:, :, end:].clone()],  # a view would keep an outgrown buffer
        )
        return self._add_clusters(empty, keys[:, :, sinks:end], sinks, wanted)

    def extend(self, state: ClusterKVState, queries: Tensor, keys: Tensor, values: Tensor) -> ClusterKVState:
        """Adds the new tokens; every `decode_interval` of them become clusters of their own."""
        state.append(keys, values)
        state.pending.append(keys)
        first = self.recent_start(state)
        while self.decode_interval is not None and state.length - first >= self.decode_interval + self.recent:
            pending = torch.cat(state.pending, dim=2)
            ready = pending[:, :, : self.decode_interval]
            state = self._add_clusters(state, ready, first, self.decode_clusters)
            state.pending = [pending[:, :, self.decode_interval :]]
            first += self.decode_interval
        return state

    def choose(self, state: ClusterKVState, queries: Tensor) -> Selection:
        """Sinks, the best clusters within the budget, and the tokens not clustered yet."""
        clusters = (state.centroids, state.sizes, state.offsets, state.order)
        free, details = self.free_budget(state), state.layer.details
        chosen = select_clusters(queries, *clusters, free, group=self.group, details=details)
        return self.with_sinks_and_recent(state, Selection(*chosen))

    def recent_start(self, state: ClusterKVState) -> int:
        """The first token that is not clustered yet."""
        return min(self.sinks, state.prompt_length) + state.clustered

    def local_window(self, state: ClusterKVState) -> int:
        """The tokens that are not clustered yet (paper, section III-D: clustered and offloaded together)."""
        return state.length - self.recent_start(state)

    def _add_clusters(self, state: ClusterKVState, keys: Tensor, start: int, wanted: int) -> ClusterKVState:
        count = keys.shape[2]
        if count == 0:
            return state
        found = kmeans(keys, min(wanted, count), metric=self.metric, max_iter=self.max_iter, seed=self.seed)
        state.centroids = torch.cat([state.centroids, found.centroids.float()], dim=2)
        state.sizes = torch.cat([state.sizes, found.sizes], dim=2)
        state.offsets = torch.cat([state.offsets, state.offsets[..., -1:] + found.offsets[..., 1:]], dim=2)
        state.order = torch.cat([state.order, found.order + start], dim=2)
        return state
