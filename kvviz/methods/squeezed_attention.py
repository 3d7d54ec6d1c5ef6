"""Squeezed Attention: clusters of the fixed context's keys, selected by an estimate of their softmax weight."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from kvviz_kernels import kmeans_assign, kmeans_update
from torch import Tensor
from torch.nn import functional as F

from ..clustering.kmeans import kmeans
from ..offload.token_cache import TokenCache
from ..trace.styles import Style
from .attention import attention_weights
from .base import LayerContext, Method
from .clusterkv import ClusteredState
from .fields import number, whole
from .ranking import Ranking, cluster_of_token, of_groups
from .selection import Selection, positions, reduce_group, take_groups, to_selection_heads


@dataclass
class SqueezedAttentionState(ClusteredState):
    """A state with clusters and access to the keys of tokens that are to join one."""

    tokens: TokenCache

    def append(self, keys: Tensor, values: Tensor) -> None:
        """Count new tokens, and store them if no layer does."""
        self.tokens.append(keys, values)
        super().append(keys, values)

    def join(self, keys: Tensor, start: int) -> None:
        """Let the tokens from position `start` on, with keys [B, H, n, D], join the clusters of the nearest centroids.

        Without clusters, the first of them is the centroid of one.
        """
        if not self.centroids.shape[2]:
            self.centroids = keys[:, :, :1].float()
            self.sizes = keys.new_zeros((*keys.shape[:2], 1), dtype=torch.int64)
            self.offsets = keys.new_zeros((*keys.shape[:2], 2), dtype=torch.int64)
        labels = kmeans_assign(keys.float(), self.centroids, metric="cosine")  # [B, H, n]
        numbers = torch.arange(self.sizes.shape[2], device=keys.device)
        for token in range(keys.shape[2]):
            label = labels[..., token : token + 1]
            end = self.offsets.gather(-1, label + 1)  # of the cluster's tokens in the order
            slots = torch.arange(self.clustered + 1, device=keys.device)
            longer = F.pad(self.order, (0, 1), value=start + token)
            sources = torch.where(slots == end, self.clustered, slots - (slots > end).long())
            self.order = longer.gather(-1, sources)
            self.sizes = self.sizes + (numbers == label)
            self.offsets = F.pad(self.sizes.cumsum(-1), (1, 0))


@dataclass
class SqueezedAttention(Method[SqueezedAttentionState]):
    """Attends to all keys of the clusters of the fixed context with the largest estimated attention weights.

    Source: Squeezed Attention (arXiv 2411.09688), section 4. The prompt is the fixed context. Its normalised keys are
    clustered by k-means; the number of clusters is the share `cluster_share` of the number of keys (at least one). A
    centroid is the mean of the keys before normalising. For a query, S_i = exp(q·C_i) / Σ_j N_j exp(q·C_j) estimates
    the weight of one key of cluster i (N: keys per cluster) and is compared with a threshold. All keys of the clusters
    above it are attended to exactly, without ranking inside a cluster.

    In the paper all tokens after the fixed context, here the generated ones, are attended to too, on top of the budget:
    generated="on_top". By default they count within the budget, where they would soon take all of it. So a generated
    token that leaves the recent window (at least the newest token) joins the cluster of the centroid nearest to its key
    by cosine. Centroids and their number stay those of the prompt; without any, the first such key becomes one.

    `threshold` None takes the best clusters within the budget and trims the last, so that all heads attend to equally
    many tokens. The paper calibrates one threshold for all layers and heads to a target sparsity, on the last queries
    of the fixed context; so does `kvviz.calibrated_squeezed_attention`. With such a `threshold`, clusters above it are
    selected, at most the budget, and heads attend to different numbers of tokens.

    Presets: "official" is the published code: the last 100 tokens of the fixed context are never clustered and always
    attended to, clusters are chosen per query head, at most 300 iterations. Deviations: initial centroids are random
    keys (paper: k-means++); `group` reduces S over grouped query heads, which the paper's models do not have; the
    two-level look-up of section 4.3 is not implemented; the recent window is not clustered.
    """

    name = "squeezed_attention"
    title = "Squeezed Attention"
    paper = "arXiv 2411.09688"
    score_name = "estimated attention weight of one key"
    kind = "retrieval"
    stages = ("kept", "grouping", "ranking", "trimming")
    style = Style(dash="dash", symbol="cross-open")
    needs_queries = False
    overlaps_build = True
    builds_for_any_budget = True
    least_recent = 1
    expected_failures = {
        "extension_equals_one_build": "centroids come from the fixed context; generated tokens only join them",
    }
    presets = {
        "paper": {},
        "official": {"recent": 100, "group": "each", "max_iter": 300},
    }

    sinks: int = 1
    cluster_share: float = number(0.05, 0, 1)
    threshold: float | None = number(None, 0, 1)
    max_iter: int = whole(50, 1)
    seed: int = 0

    def build(self, layer: LayerContext, queries: Tensor, keys: Tensor, values: Tensor) -> SqueezedAttentionState:
        """The state with clusters of all tokens but sinks and recent window; O(iterations · C · L · D)."""
        length = keys.shape[2]
        sinks = min(self.sinks, length)
        fixed = keys[:, :, sinks : max(sinks, length - self.recent)].float()
        count, tokens = fixed.shape[2], layer.token_cache(keys, values)
        if count == 0:
            empty = torch.zeros((*keys.shape[:2], 0), dtype=torch.int64, device=keys.device)
            return SqueezedAttentionState(layer, length, length, fixed, empty, F.pad(empty, (1, 0)), empty, tokens)
        n_clusters = max(1, int(self.cluster_share * count))
        # For unit vectors, L2 and cosine agree on the nearest centroid, up to the different lengths of the centroids.
        clusters = kmeans(F.normalize(fixed, dim=-1), n_clusters, metric="l2", max_iter=self.max_iter, seed=self.seed)
        sums, sizes = kmeans_update(fixed, clusters.labels, n_clusters)
        centroids = sums / sizes.clamp(min=1)[..., None]
        order = clusters.order + sinks
        return SqueezedAttentionState(layer, length, length, centroids, sizes, clusters.offsets, order, tokens)

    def extend(
        self, state: SqueezedAttentionState, queries: Tensor, keys: Tensor, values: Tensor
    ) -> SqueezedAttentionState:
        """The state with the new tokens added; within the budget, tokens that left the window join clusters."""
        state.append(keys, values)
        start, end = self.recent_start(state), state.length - self.always_recent
        if self.generated == "within" and end > start:
            leaving = positions(start, end, *keys.shape[:2], keys.device)
            state.join(state.tokens.take_keys(leaving), start)
        return state

    def recent_start(self, state: SqueezedAttentionState) -> int:
        """The first token after the clustered ones."""
        return self.sinks + state.clustered

    def choose(self, state: SqueezedAttentionState, queries: Tensor) -> Selection:
        """Sinks, the tokens of the best clusters, and all tokens in no cluster."""
        if state.clustered == 0:
            return self.with_sinks_and_recent(state, self.no_tokens(state, queries))
        scores = self.scores(state, queries)
        free, details = self.free_budget(state), state.layer.details or self.threshold is not None
        chosen = take_groups(scores, state.sizes, state.offsets, state.order, free, details=details)
        if self.threshold is not None:
            chosen = _above(chosen, self.threshold, details=state.layer.details)
        return self.with_sinks_and_recent(state, chosen)

    def ranking(self, state: SqueezedAttentionState, queries: Tensor, keys: Tensor) -> Ranking | None:
        """The estimated weight of each token's cluster, and the exact weight of the token."""
        if state.clustered == 0:
            return None
        layer = state.layer
        scores = self.scores(state, queries)
        groups = to_selection_heads(cluster_of_token(state.order, state.offsets, state.length), scores.shape[1])
        weights = attention_weights(queries, keys, layer.scale, layer.softcap)
        return of_groups(scores, reduce_group(weights, layer.n_kv_heads, self.group), groups)

    def scores(self, state: SqueezedAttentionState, queries: Tensor) -> Tensor:
        """Estimated weights S of each cluster for each selection head, [B, R, C]; `threshold` is compared with them."""
        return reduce_group(self._estimated_weights(state, queries), state.layer.n_kv_heads, self.group)

    def _estimated_weights(self, state: SqueezedAttentionState, queries: Tensor) -> Tensor:
        """S [B, Q, C]: the softmax weight of one key of each cluster if every key equalled its centroid."""
        layer = state.layer
        by_head: Tensor = queries.unflatten(1, (layer.n_kv_heads, -1)).float()  # [B, H, G, D]
        logits = layer.logits(by_head @ state.centroids.mT)
        total = torch.logsumexp(logits + state.sizes[:, :, None].log(), dim=-1, keepdim=True)
        return (logits - total).exp().flatten(1, 2)


def _above(chosen: Selection, threshold: float, *, details: bool) -> Selection:
    """The selection without clusters whose score is not above the threshold, padded with -1."""
    assert chosen.scores is not None
    assert chosen.groups is not None
    kept = chosen.scores > threshold  # [B, R, S]
    count = int(kept.sum(-1).max()) if kept.numel() else 0
    places = (~kept).sort(dim=-1, stable=True).indices[..., :count]
    pads = ~kept.gather(-1, places)
    indices = chosen.indices.gather(-1, places).masked_fill(pads, -1)
    if not details:
        return Selection(indices, padded=True)
    groups = chosen.groups.gather(-1, places).masked_fill(pads, -1)
    return Selection(indices, groups, chosen.scores.gather(-1, places).masked_fill(pads, torch.nan), padded=True)
