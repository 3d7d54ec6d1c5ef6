"""RetroInfer: the best clusters exactly, the next ones by centroids with the sums of their values, the rest not."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch
from kvviz_kernels import kmeans_assign, kmeans_update
from torch import Tensor
from torch.nn.functional import pad

from ..clustering.kmeans import kmeans
from ..clustering.merged import Merged
from .attention import attention_weights
from .base import LayerContext, Method
from .fields import number, whole
from .ranking import Ranking, of_groups
from .selection import Group, Selection, positions, reduce_group, to_selection_heads
from .sliders import Slider
from .state import TokenState, tensor_bytes


@dataclass
class CentroidState(TokenState):
    """A state with clusters of the tokens after the sinks, each with the mean of its keys and of its values.

    `centroids` and `mean_values` [B, H, C, D] have the dtype of the cache. `sizes` int32 [B, H, C] are the numbers of
    tokens, 0 for an empty cluster. `labels` int32 [B, H, n] is the cluster of each of the n clustered tokens.
    """

    centroids: Tensor
    mean_values: Tensor
    sizes: Tensor
    labels: Tensor

    @property
    def clustered(self) -> int:
        """The number of clustered tokens."""
        return self.labels.shape[-1]

    def read_bytes(self) -> int:
        """Bytes of the centroids and sizes: those of all clusters are compared with the query."""
        return tensor_bytes([self.centroids, self.sizes])

    def add(self, keys: Tensor, values: Tensor, labels: Tensor, empty: Tensor) -> None:
        """Add clusters of the next tokens, with keys and values [B, H, n, D]; `labels` [B, H, n] count from 0.

        `empty` [B, H, C, D] are the centroids of clusters without tokens.
        """
        sums, sizes = kmeans_update(keys, labels, empty.shape[2])
        value_sums, _ = kmeans_update(values, labels, empty.shape[2])
        count = sizes.clamp(min=1)[..., None]
        first = self.sizes.shape[-1]
        centroids = torch.where(sizes[..., None] > 0, sums / count, empty)
        self.centroids = torch.cat([self.centroids, centroids.to(keys.dtype)], dim=2)
        self.mean_values = torch.cat([self.mean_values, (value_sums / count).to(values.dtype)], dim=2)
        self.sizes = torch.cat([self.sizes, sizes.to(torch.int32)], dim=2)
        self.labels = torch.cat([self.labels, (labels + first).to(torch.int32)], dim=2)


@dataclass
class RetroInfer(Method[CentroidState]):
    """Attends to the best clusters exactly, to the next ones by their centroids, and to no token of the others.

    Source: RetroInfer (arXiv 2505.02922), section 4, the wave index. The keys between sinks and recent window are cut
    into segments of `segment` tokens. Within each, spherical k-means clusters them, minus their mean, with one centroid
    per `tokens_per_cluster` tokens. A step has three zones (tripartite attention approximation):

    - steady: the sinks, the recent window, and the generated tokens that wait for the index;
    - retrieval: the clusters with the best centroids, all of whose tokens are attended to;
    - estimation: the clusters that follow. A cluster of s tokens with centroid c adds exp(q·c) times the sum of its
      values to the output, and s·exp(q·c) to the denominator, at most what its tokens add (Jensen's inequality). In
      `Selection.merged` it is the mean value, with the weight of s tokens.

    Generated tokens wait, on top of the budget, until `decode_interval` of them have left the recent window; these are
    then a segment of their own. In the paper both zones are shares of the clusters: 1.8 % are retrieved, 23.2 % are
    estimated. Here the budget decides: a cluster costs its tokens in the retrieval zone, one entry in the estimation
    zone. `estimated_per_retrieved`, 23.2 / 1.8, is how many clusters are estimated for each retrieved one of average
    size. As many of the best clusters are retrieved as leave room for this, but one at least if it fits. Clusters are
    retrieved whole: one too large for what is left is the first of the estimation zone, which takes all of the rest.

    A query ranks clusters by the softmax over q·c; `group` reduces it, as in the code, where it is summed. Preset
    "official" is the published code: 10 iterations, of which the last lets each key join the nearest centroid of any
    segment. Deviations: initial centroids are random keys (code: evenly spaced ones), the last segment is not
    shortened, and the number of clusters need not be a multiple of 8. The wave buffer is not here: offloading is.
    """

    name = "retroinfer"
    title = "RetroInfer"
    paper = "arXiv 2505.02922"
    kind = "retrieval"
    score_name = "softmax of q·centroid over the clusters"
    stages = ("kept", "grouping", "ranking")
    needs_queries = False
    overlaps_build = True
    builds_for_any_budget = True
    least_recent = 1
    expected_failures = {
        "extension_equals_one_build": "generated tokens wait for the index, and are a segment of their own then",
    }
    presets = {"paper": {}, "official": {"joins_any_segment": True}}
    sliders = (
        Slider("tokens_per_cluster", "tokens per cluster", (4, 8, 16, 32, 64), "one centroid per so many tokens"),
        Slider("estimated_per_retrieved", "estimated per retrieved", (0, 2, 6, 232 / 18, 25, 50),
               "clusters that their centroids stand for, per cluster attended to exactly"),
    )  # fmt: skip

    sinks: int = 4
    recent: int = 64
    group: Group = "sum"
    tokens_per_cluster: int = whole(16, 1)
    segment: int = whole(8192, 1)
    estimated_per_retrieved: float = number(232 / 18, 0)
    max_iter: int = whole(10, 1)
    joins_any_segment: bool = False
    decode_interval: int | None = whole(1024, 1)
    seed: int = 0

    @property
    def decode_window(self) -> int:
        """The generated tokens that wait for the index; without updates, they count within the budget."""
        return self.decode_interval or 0

    def build(self, layer: LayerContext, queries: Tensor, keys: Tensor, values: Tensor) -> CentroidState:
        """The state with clusters of all tokens but sinks and recent window; O(iterations · segment / 16 · L · D)."""
        length = keys.shape[2]
        start = min(self.sinks, length)
        middle = slice(start, max(start, length - self.always_recent))
        tokens = layer.token_cache(keys, values)
        state = CentroidState(layer, length, length, tokens, *no_clusters(keys, values))
        if middle.stop > middle.start:
            state.add(keys[:, :, middle], values[:, :, middle], *self._clusters(keys[:, :, middle]))
        return state

    def extend(self, state: CentroidState, queries: Tensor, keys: Tensor, values: Tensor) -> CentroidState:
        """The state with the new tokens; `decode_interval` of them that left the recent window become a segment."""
        state.append(keys, values)
        interval = self.decode_interval
        while interval is not None and self.waiting(state) >= interval:
            first = self.recent_start(state)
            taken = state.tokens.take(positions(first, first + interval, *keys.shape[:2], keys.device))
            state.add(*taken, *self._clusters(taken[0]))
        return state

    def waiting(self, state: CentroidState) -> int:
        """The number of tokens that left the recent window and are in no cluster."""
        return state.length - self.recent_start(state) - self.always_recent

    def recent_start(self, state: CentroidState) -> int:
        """The first token that is in no cluster."""
        return min(self.sinks, state.length) + state.clustered

    def local_window(self, state: CentroidState) -> int:
        """The tokens that are in no cluster."""
        return state.length - self.recent_start(state)

    def choose(self, state: CentroidState, queries: Tensor) -> Selection:
        """The three zones: sinks and window, the tokens of the best clusters, and centroids of the next ones."""
        if state.clustered == 0:
            return self.with_sinks_and_recent(state, self.no_tokens(state, queries))
        scores = self.scores(state, queries)
        retrieved, estimated = self.zones(state, scores)
        chosen = tokens_of(state, retrieved, scores, self.sinks, min(self.free_budget(state), state.clustered))
        return self.with_sinks_and_recent(state, replace(chosen, merged=self._estimate(state, estimated)))

    def scores(self, state: CentroidState, queries: Tensor) -> Tensor:
        """The softmax over q·centroid of each selection head, float32 [B, R, C]; -inf for empty clusters."""
        layer = state.layer
        weights = attention_weights(queries, state.centroids, layer.scale, layer.softcap, visible=state.sizes > 0)
        scores = reduce_group(weights, layer.n_kv_heads, self.group)
        return scores.masked_fill(to_selection_heads(state.sizes == 0, scores.shape[1]), -torch.inf)

    def zones(self, state: CentroidState, scores: Tensor) -> tuple[Tensor, Tensor]:
        """Which clusters are retrieved and which are estimated, by their scores [B, R, C]: two masks bool [B, R, C]."""
        free, ratio = self.free_budget(state), self.estimated_per_retrieved
        most = math.floor(free * ratio / (ratio + self.tokens_per_cluster))
        return best_clusters(scores, state.sizes, free, most)

    def ranking(self, state: CentroidState, queries: Tensor, keys: Tensor) -> Ranking | None:
        """The score of each token's cluster, and the exact attention weight of the token."""
        if state.clustered == 0:
            return None
        layer = state.layer
        scores = self.scores(state, queries)
        weights = attention_weights(queries, keys, layer.scale, layer.softcap)
        groups = clusters_of_tokens(state, self.sinks)
        exact = reduce_group(weights, layer.n_kv_heads, self.group)
        return of_groups(scores, exact, to_selection_heads(groups, scores.shape[1]).long())

    def group_tokens(self, state: CentroidState, head: int, number: int) -> Tensor:
        """The members of a cluster."""
        return (state.labels[0, head] == number).nonzero()[:, 0] + self.sinks

    def _estimate(self, state: CentroidState, estimated: Tensor) -> Merged:
        """The centroids of the estimated clusters, bool [B, R, C]."""
        sizes = to_selection_heads(state.sizes, estimated.shape[1]).masked_fill(~estimated, 0)
        if not state.layer.details:
            return Merged(state.centroids, state.mean_values, sizes)
        clusters = to_selection_heads(clusters_of_tokens(state, self.sinks), estimated.shape[1])
        stands_in = pad(estimated, (0, 1)).gather(-1, clusters.long() % (estimated.shape[-1] + 1))  # the last for none
        return Merged(state.centroids, state.mean_values, sizes, clusters.masked_fill(~stands_in, -1))

    def _clusters(self, keys: Tensor) -> tuple[Tensor, Tensor]:
        """The cluster of each key [B, H, n, D], int64 [B, H, n], and the centroids that k-means ends with."""
        mean = keys.float().mean(2, keepdim=True)
        centred = keys.float() - mean
        labels, means = [], []
        first = 0
        for part in centred.tensor_split(max(round(keys.shape[2] / self.segment), 1), dim=2):
            count = max(round(part.shape[2] / self.tokens_per_cluster), 1)
            iterations = max(self.max_iter - self.joins_any_segment, 1)
            clusters = kmeans(part, count, metric="cosine", max_iter=iterations, seed=self.seed)
            labels.append(clusters.labels + first)
            means.append(clusters.centroids)
            first += count
        centroids = torch.cat(means, dim=2)
        if self.joins_any_segment:
            return kmeans_assign(centred, centroids, metric="cosine"), centroids + mean
        return torch.cat(labels, dim=2), centroids + mean


def no_clusters(keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The fields of a CentroidState without clusters, for keys and values [B, H, L, D]."""
    none = torch.zeros((*keys.shape[:2], 0), dtype=torch.int32, device=keys.device)
    return torch.empty_like(keys[:, :, :0]), torch.empty_like(values[:, :, :0]), none, none


def best_clusters(
    scores: Tensor, sizes: Tensor, free: int | Tensor, most: int, *, always_one: bool = False
) -> tuple[Tensor, Tensor]:
    """Which clusters are attended to exactly, and which of the next ones by their centroids: masks bool [B, R, C].

    scores [B, R, C] are -inf for the clusters to leave out, sizes int32 [B, H, C]. `free`, an int or [B, R, 1], is the
    number of entries in all. As many of the best clusters are exact, whole, as leave `most` entries for centroids, or
    enough for all others; one at least if it fits, or in any case (`always_one`). Centroids get all entries that are
    left, none if `most` is 0.
    """
    sizes = to_selection_heads(sizes, scores.shape[1]).masked_fill(scores == -torch.inf, 0)
    order = scores.argsort(dim=-1, descending=True, stable=True)
    tokens = sizes.gather(-1, order).cumsum(-1)
    ranks = torch.arange(1, order.shape[-1] + 1, device=order.device)
    others = (sizes > 0).sum(-1, keepdim=True) - ranks  # after this one; below 0 for those to leave out
    fits = (tokens + others.clamp(max=most) <= free) | ((ranks == 1) & (always_one | (tokens <= free)))
    exact = fits & (others >= 0)
    left = free - (tokens * exact).amax(-1, keepdim=True)
    by_centroid = ~exact & (others >= 0) & (ranks - exact.sum(-1, keepdim=True) <= left) & (most > 0)
    places = order.argsort(-1)
    return exact.gather(-1, places), by_centroid.gather(-1, places)


def tokens_of(state: CentroidState, taken: Tensor, scores: Tensor, start: int, count: int) -> Selection:
    """All tokens of the `taken` clusters, bool [B, R, C], at most `count` of each row.

    The first clustered token has position `start`. There are `count` slots, whatever is taken: rows do not depend on
    their batch, and a GPU need not be asked.
    """
    labels = to_selection_heads(state.labels, taken.shape[1]).long()
    mask = taken.gather(-1, labels)  # [B, R, n]
    slots = torch.where(mask, mask.cumsum(-1) - 1, count)  # the last one is for tokens that are not taken
    places = torch.arange(mask.shape[-1], device=mask.device).expand_as(mask)
    found = places.new_full((*mask.shape[:2], count + 1), -1).scatter_(-1, slots, places)[..., :count]
    pads, places = found < 0, found.clamp(min=0)
    indices = (places + start).masked_fill(pads, -1)
    if not state.layer.details:
        return Selection(indices, padded=True)
    groups = labels.gather(-1, places)
    of_tokens = scores.gather(-1, groups).float().masked_fill(pads, torch.nan)
    return Selection(indices, groups.to(torch.int32).masked_fill(pads, -1), of_tokens, padded=True)


def clusters_of_tokens(state: CentroidState, start: int) -> Tensor:
    """The cluster of each token, int32 [B, H, L], -1 for none; the first clustered token has position `start`."""
    return pad(state.labels, (start, state.length - start - state.clustered), value=-1)
