"""ClusterKV: semantic clusters of keys; the best clusters are recalled whole, within the budget."""

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
from .ranking import Ranking, cluster_of_token, spread
from .selection import Selection, group_scores, to_selection_heads
from .sliders import Slider


@dataclass
class ClusteredState(State):
    """A state with the metadata of clusters (ClusterKV, fig. 8)."""

    centroids: Tensor  # [B, H, C, D]
    sizes: Tensor  # [B, H, C]
    offsets: Tensor  # [B, H, C+1], prefix sum of the sizes
    order: Tensor  # [B, H, n], positions sorted by cluster

    @property
    def clustered(self) -> int:
        """The number of clustered tokens, without sinks and recent tokens."""
        return self.order.shape[-1]


@dataclass
class ClusterKVState(ClusteredState):
    """A state with clusters and the keys [B, H, n, D] that are not clustered yet."""

    pending: list[Tensor]


@dataclass
class ClusterKV(Method[ClusterKVState]):
    """Clusters keys by cosine, ranks clusters by q·centroid, and recalls the best within the budget, trimming the last.

    Source: ClusterKV (arXiv 2412.03213), sections III-B, III-C, IV-C. The first `sinks` tokens are never clustered and
    always attended to. The prompt gets one cluster per `tokens_per_cluster` tokens, or `n_clusters` clusters if that is
    set. Generated tokens are all attended to, on top of the budget, until `decode_interval` of them wait; these are
    then clustered among themselves into `decode_clusters` clusters. The step's own token always waits.

    Presets: "paper" runs k-means until labels stop changing, for at most 50 iterations. "official" is the accuracy run
    of the published code: 400 clusters at any length (fewer if there are fewer tokens), at most 20 iterations, ranking
    per query head; generated tokens are never clustered and come on top of the budget. Deviations: the paper does not
    say how to combine the query heads of a KV head ("paper" takes the mean), nor whether waiting tokens count in the
    budget. Once clustered, generated tokens are recalled like those of the prompt, within the budget, as in the paper.
    """

    name = "clusterkv"
    title = "ClusterKV"
    paper = "arXiv 2412.03213"
    score_name = "q·centroid"
    kind = "retrieval"
    style = Style("#0072B2", "solid", "circle")
    sliders = (
        Slider("n_clusters", "clusters", (16, 32, 64, 128, 256, 512), "clusters of the prompt's keys"),
        Slider("tokens_per_cluster", "tokens per cluster", (10, 20, 40, 80, 160, 320, 640),
               "the prompt gets one cluster per so many tokens", unless="n_clusters"),
        Slider("sinks", "sinks", (0, 4, 8, 16, 32, 64), "first tokens, always attended to and never clustered"),
    )  # fmt: skip
    needs_queries = False
    overlaps_build = True
    least_recent = 1  # a step's own token is attended to before it is clustered
    builds_for_any_budget = True
    expected_failures = {
        "extension_equals_one_build": "generated tokens form separate clusters (paper, section III-B)",
    }
    presets = {
        "paper": {},
        "official": {
            "n_clusters": 400,
            "max_iter": 20,
            "group": "each",
            "decode_interval": None,
            "generated": "on_top",
        },
    }

    stages = ("kept", "grouping", "ranking", "trimming")

    sinks: int = 16
    dense_layers: int = 2
    tokens_per_cluster: int = whole(80, 1)
    n_clusters: int | None = whole(None, 1)
    metric: str = one_of("cosine", METRICS)
    max_iter: int = whole(50, 1)
    decode_interval: int | None = whole(320, 1)
    decode_clusters: int = whole(4, 1)
    seed: int = 0

    @property
    def decode_window(self) -> int:
        """The generated tokens that wait to be clustered; without clustering, they count within the budget."""
        return self.decode_interval or 0

    def prompt_clusters(self, length: int) -> int:
        """The number of clusters of a prompt with so many tokens, or as many as there are tokens to cluster."""
        return self.n_clusters or math.ceil(length / self.tokens_per_cluster)

    def build(self, layer: LayerContext, queries: Tensor, keys: Tensor, values: Tensor) -> ClusterKVState:
        """The state with clusters of all tokens but sinks and recent window; O(iterations · C · L · D)."""
        length = keys.shape[2]
        sinks = min(self.sinks, length)
        end = max(sinks, length - self.recent)
        n_clusters = self.prompt_clusters(length)
        empty = ClusterKVState(
            layer,
            length,
            length,
            centroids=keys[:, :, :0].float(),
            sizes=keys.new_zeros((*keys.shape[:2], 0), dtype=torch.int64),
            offsets=keys.new_zeros((*keys.shape[:2], 1), dtype=torch.int64),
            order=keys.new_zeros((*keys.shape[:2], 0), dtype=torch.int64),
            pending=[keys[:, :, end:].clone()],  # a view would keep the old buffer alive
        )
        return self._add_clusters(empty, keys[:, :, sinks:end], sinks, n_clusters)

    def extend(self, state: ClusterKVState, queries: Tensor, keys: Tensor, values: Tensor) -> ClusterKVState:
        """The state with the new tokens added; every `decode_interval` of them are clustered."""
        sinks_left = max(self.sinks - state.length, 0)  # after a very short prompt
        state.append(keys, values)
        state.pending.append(keys[:, :, sinks_left:])
        first = self.recent_start(state)
        while self.decode_interval is not None and state.length - first >= self.decode_interval + self.always_recent:
            pending = torch.cat(state.pending, dim=2)
            ready = pending[:, :, : self.decode_interval]
            state = self._add_clusters(state, ready, first, self.decode_clusters)
            state.pending = [pending[:, :, self.decode_interval :]]
            first += self.decode_interval
        return state

    def choose(self, state: ClusterKVState, queries: Tensor) -> Selection:
        """Sinks, the best clusters within the budget, and the tokens not clustered yet."""
        if state.clustered == 0:
            return self.with_sinks_and_recent(state, self.no_tokens(state, queries))
        clusters = (state.centroids, state.sizes, state.offsets, state.order)
        free, details = self.free_budget(state), state.layer.details
        chosen = select_clusters(queries, *clusters, free, group=self.group, details=details)
        return self.with_sinks_and_recent(state, Selection(*chosen))

    def ranking(self, state: ClusterKVState, queries: Tensor, keys: Tensor) -> Ranking:
        """The score of each token's cluster, that of the mean of its keys, and that of the token's own key."""
        groups = cluster_of_token(state.order, state.offsets, keys.shape[2])
        cluster = groups.gather(-1, state.order)
        members = keys.float().gather(2, state.order[..., None].expand(*state.order.shape, keys.shape[-1]))
        sums = torch.zeros_like(state.centroids).scatter_add_(2, cluster[..., None].expand_as(members), members)
        means = sums / state.sizes.clamp(min=1)[..., None]
        groups = to_selection_heads(groups, state.layer.selection_heads(self.group))
        scores, exact, alone = (
            group_scores(queries, table.float(), self.group) for table in (state.centroids, means, keys)
        )
        return Ranking(spread(scores, groups), spread(exact, groups), alone, groups)

    def group_tokens(self, state: ClusterKVState, head: int, number: int) -> Tensor:
        """The members of a cluster."""
        ends = state.offsets[0, head]
        if number >= len(ends) - 1:
            return state.order.new_empty(0)
        return state.order[0, head, ends[number] : ends[number + 1]].sort().values

    def recent_start(self, state: ClusterKVState) -> int:
        """The first token that is not clustered yet."""
        return min(self.sinks, state.length) + state.clustered

    def local_window(self, state: ClusterKVState) -> int:
        """The tokens that are not clustered yet (paper, section III-D: clustered and offloaded together)."""
        return state.length - self.recent_start(state)

    def _add_clusters(self, state: ClusterKVState, keys: Tensor, start: int, n_clusters: int) -> ClusterKVState:
        count = keys.shape[2]
        if count == 0:
            return state
        clusters = kmeans(keys, min(n_clusters, count), metric=self.metric, max_iter=self.max_iter, seed=self.seed)
        state.centroids = torch.cat([state.centroids, clusters.centroids.float()], dim=2)
        state.sizes = torch.cat([state.sizes, clusters.sizes], dim=2)
        state.offsets = torch.cat([state.offsets, state.offsets[..., -1:] + clusters.offsets[..., 1:]], dim=2)
        state.order = torch.cat([state.order, clusters.order + start], dim=2)
        return state
