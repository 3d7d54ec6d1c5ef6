"""Multipole Attention: near clusters exactly, farther ones by their centroids, the farthest by coarse centroids."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch
from kvviz_kernels import kmeans_assign, kmeans_update
from torch import Tensor
from torch.nn.functional import pad

from ..clustering.kmeans import initial_positions, kmeans
from ..clustering.merged import Merged
from .attention import attention_weights
from .base import LayerContext, Method
from .fields import number, whole
from .ranking import Ranking, spread
from .retroinfer import CentroidState, best_clusters, clusters_of_tokens, no_clusters, tokens_of
from .selection import Selection, positions, reduce_group, to_selection_heads
from .sliders import Slider
from .state import tensor_bytes


@dataclass
class MultipoleState(CentroidState):
    """A state with clusters, and with coarse clusters of their centroids.

    `parents` int32 [B, H, C] is the coarse cluster of each cluster. `coarse_keys` and `coarse_values` [B, H, K, D] are
    the means over all tokens of a coarse cluster, `coarse_sizes` int32 [B, H, K] their number. `block_start` is the
    first token of the last block, of those clustered, and `block_clusters` the number of clusters before it.
    """

    parents: Tensor
    coarse_keys: Tensor
    coarse_values: Tensor
    coarse_sizes: Tensor
    block_start: int = 0
    block_clusters: int = 0

    def read_bytes(self) -> int:
        """Bytes of all centroids and sizes, of both levels."""
        return super().read_bytes() + tensor_bytes([self.coarse_keys, self.coarse_sizes, self.parents])

    def drop_block(self) -> None:
        """Drop the clusters of the last block, and let the next ones take their place."""
        self.centroids = self.centroids[:, :, : self.block_clusters]
        self.mean_values = self.mean_values[:, :, : self.block_clusters]
        self.sizes, self.labels = self.sizes[..., : self.block_clusters], self.labels[..., : self.block_start]

    def add_block(self, keys: Tensor, values: Tensor, labels: Tensor, empty: Tensor) -> None:
        """Add clusters of the tokens after the others, as `add`, as the last block."""
        self.block_start, self.block_clusters = self.clustered, self.sizes.shape[-1]
        self.add(keys, values, labels, empty)


@dataclass
class Multipole(Method[MultipoleState]):
    """Attends to the tokens of near clusters exactly, to others by centroids that get coarser with less importance.

    Source: Multipole Attention (arXiv 2506.13059). k-means clusters the keys between sinks and recent window, one
    cluster per `tokens_per_cluster` tokens, in blocks of `block` tokens; the last block has half as many to one and a
    half times as many. For a query, S_i = exp(q·c_i) / Σ_j N_j exp(q·c_j) estimates the weight of one key of cluster i
    (eq. 1; N: tokens per cluster). All tokens of the clusters with the largest S are attended to exactly; each other
    cluster by its centroid, N_i exp(q·c_i) times the mean of its values. With `levels` 2, the centroids are clustered
    too, one coarse cluster per `clusters_per_coarse` clusters: only the coarse clusters with the largest S are opened,
    so that a step compares the query with the centroids in these only; any other is attended to by its coarse centroid,
    the mean of all its tokens.

    Fast cluster update: generated tokens wait, on top of the budget, until `decode_interval` of them have left the
    recent window. Some of these are then the first centroids of new clusters, the others join the nearest cluster and
    move its centroid, and `update_iterations` of k-means over the last block follow. Older blocks stay. A last block
    that becomes too large is clustered again as two. Coarse clusters are made again after each update.

    The budget counts centroids. `exact_share` of what sinks and window leave is for tokens, the rest is for centroids:
    coarse clusters are opened, the best first, while the centroids of both levels fit into it, but one always. Then the
    best clusters are exact while these and the centroids fit into both parts. If the centroids do not fit at all, those
    with the lowest S are left out. In the published runs the budget of 128 exact tokens did not count centroids, which
    were a sixteenth of the context, 512 of 8,192 tokens: a share of 0.2.

    Preset "official" is that of the published runs: one level, a window of at least 128 tokens. Deviations: centroids
    are means of keys after RoPE, while the paper takes keys before RoPE, and rotates the query to a fixed distance
    (windowed RoPE); a coarse centroid is weighted by its tokens, not by its clusters as in the code; initial centroids
    are the same positions in all heads, and a centroid without keys stays where it is; the recent window of 64 tokens
    instead of 128 leaves room at small budgets.
    """

    name = "multipole"
    title = "Multipole Attention"
    paper = "arXiv 2506.13059"
    kind = "retrieval"
    score_name = "estimated attention weight of one key"
    stages = ("kept", "grouping", "ranking")
    needs_queries = False
    overlaps_build = True
    builds_for_any_budget = True
    least_recent = 1
    expected_failures = {
        "extension_equals_one_build": "generated tokens wait, and an update does not cluster the whole prompt again",
    }
    presets = {"paper": {}, "official": {"levels": 1, "recent": 128}}
    sliders = (
        Slider("tokens_per_cluster", "tokens per cluster", (4, 8, 16, 32, 64), "one cluster per so many tokens"),
        Slider("exact_share", "exact share", (0.1, 0.25, 0.5, 0.75, 0.9),
               "share of the free budget for tokens; the rest is for centroids"),
        Slider("levels", "levels", (1, 2), "1: one level of centroids; 2: coarse centroids for the least important"),
    )  # fmt: skip

    sinks: int = 10
    recent: int = 64
    levels: int = whole(2, 1, 2)
    tokens_per_cluster: int = whole(16, 1)
    clusters_per_coarse: int = whole(16, 2)
    exact_share: float = number(0.5, 0, 1)
    block: int = whole(8192, 2)
    max_iter: int = whole(10, 1)
    decode_interval: int | None = whole(128, 1)
    update_iterations: int = whole(3, 0)
    seed: int = 0

    @property
    def decode_window(self) -> int:
        """The generated tokens that wait to be clustered; without updates, they count within the budget."""
        return self.decode_interval or 0

    def build(self, layer: LayerContext, queries: Tensor, keys: Tensor, values: Tensor) -> MultipoleState:
        """The state with clusters of all tokens but sinks and recent window; O(iterations · block / 16 · L · D)."""
        length = keys.shape[2]
        start = min(self.sinks, length)
        middle = slice(start, max(start, length - self.always_recent))
        none = no_clusters(keys, values)
        coarse_keys, coarse_values, coarse_sizes = none[:3]
        state = MultipoleState(
            layer, length, length, layer.token_cache(keys, values), *none, parents=none[3], coarse_keys=coarse_keys,
            coarse_values=coarse_values, coarse_sizes=coarse_sizes,
        )  # fmt: skip
        self._add_blocks(state, keys[:, :, middle], values[:, :, middle])
        self._add_coarse(state)
        return state

    def extend(self, state: MultipoleState, queries: Tensor, keys: Tensor, values: Tensor) -> MultipoleState:
        """The state with the new tokens; `decode_interval` of them that left the recent window are clustered."""
        state.append(keys, values)
        interval, clustered = self.decode_interval, state.clustered
        while interval is not None and self.local_window(state) - self.always_recent >= interval:
            first = self.sinks + state.block_start
            span = positions(first, self.recent_start(state) + interval, *keys.shape[:2], keys.device)
            block = state.tokens.take(span)
            labels = self._updated(state, block[0], interval)
            state.drop_block()
            if labels is None:
                self._add_blocks(state, *block)
            else:
                state.add_block(*block, *labels)
        if state.clustered > clustered:
            self._add_coarse(state)
        return state

    def recent_start(self, state: MultipoleState) -> int:
        """The first token that is in no cluster."""
        return min(self.sinks, state.length) + state.clustered

    def local_window(self, state: MultipoleState) -> int:
        """The tokens that are in no cluster."""
        return state.length - self.recent_start(state)

    def choose(self, state: MultipoleState, queries: Tensor) -> Selection:
        """Sinks and window, the tokens of the best clusters, and centroids for the others."""
        if state.clustered == 0:
            return self.with_sinks_and_recent(state, self.no_tokens(state, queries))
        scores, coarse = self.scores(state, queries)
        free = self.free_budget(state) - coarse.sum(-1, keepdim=True)
        exact, fine = best_clusters(scores, state.sizes, free, self._room(state))
        chosen = tokens_of(state, exact, scores, self.sinks, min(self.free_budget(state), state.clustered))
        return self.with_sinks_and_recent(state, replace(chosen, merged=self._stand_ins(state, fine, coarse)))

    def scores(self, state: MultipoleState, queries: Tensor) -> tuple[Tensor, Tensor]:
        """The scores S of the clusters, float32 [B, R, C], and which coarse centroids stand in, bool [B, R, K].

        -inf for empty clusters, and for those in coarse clusters that are not opened.
        """
        if not state.coarse_sizes.shape[-1]:
            scores = self._estimates(state, queries, state.centroids, state.sizes)
            return scores, scores.new_zeros((*scores.shape[:2], 0), dtype=torch.bool)
        coarse = self._estimates(state, queries, state.coarse_keys, state.coarse_sizes)  # [B, R, K]
        parents = to_selection_heads(state.parents, coarse.shape[1]).long()
        used = to_selection_heads((state.sizes > 0).to(torch.int32), coarse.shape[1])
        children = torch.zeros_like(coarse, dtype=torch.int32).scatter_add_(-1, parents, used)
        room = self._room(state)
        opened, standing = best_clusters(coarse, children, room, room, always_one=True)
        found = opened.gather(-1, parents)
        return self._estimates(state, queries, state.centroids, state.sizes, found), standing

    def ranking(self, state: MultipoleState, queries: Tensor, keys: Tensor) -> Ranking | None:
        """S of each token's cluster, -inf if its coarse cluster is not opened, and the exact weight of the token."""
        if state.clustered == 0:
            return None
        layer = state.layer
        scores, _ = self.scores(state, queries)
        groups = to_selection_heads(clusters_of_tokens(state, self.sinks), scores.shape[1]).long()
        weights = attention_weights(queries, keys, layer.scale, layer.softcap)
        exact = self._estimates(state, queries, state.centroids, state.sizes)
        alone = reduce_group(weights, layer.n_kv_heads, self.group)
        return Ranking(spread(scores, groups), spread(exact, groups), alone, groups)

    def group_tokens(self, state: MultipoleState, head: int, number: int) -> Tensor:
        """The members of a cluster."""
        return (state.labels[0, head] == number).nonzero()[:, 0] + self.sinks

    def clusters_of(self, count: int) -> int:
        """The number of clusters of so many tokens."""
        return max(round(count / self.tokens_per_cluster), 1)

    def _room(self, state: MultipoleState) -> int:
        """The entries of the budget that are for centroids, before any cluster is exact."""
        free = self.free_budget(state)
        return free - math.floor(free * self.exact_share)

    def _estimates(
        self, state: MultipoleState, queries: Tensor, centroids: Tensor, sizes: Tensor, found: Tensor | None = None
    ) -> Tensor:
        """S [B, R, C] by centroids [B, H, C, D] of so many tokens [B, H, C]; -inf for those empty or not found."""
        layer = state.layer
        by_head: Tensor = queries.unflatten(1, (layer.n_kv_heads, -1)).float()  # [B, H, G, D]
        logits = layer.logits(by_head @ centroids.float().mT).flatten(1, 2)  # [B, Q, C]
        rows = layer.selection_heads(self.group)
        known = to_selection_heads(sizes, rows) > 0 if found is None else found & (to_selection_heads(sizes, rows) > 0)
        logits = logits.masked_fill(~to_selection_heads(known, layer.n_heads), -torch.inf)
        tokens = to_selection_heads(sizes, layer.n_heads).clamp(min=1).log()
        weights = (logits - (logits + tokens).logsumexp(-1, keepdim=True)).exp()
        return reduce_group(weights, layer.n_kv_heads, self.group).masked_fill(~known, -torch.inf)

    def _stand_ins(self, state: MultipoleState, fine: Tensor, coarse: Tensor) -> Merged:
        """The centroids of the clusters `fine` bool [B, R, C], and of the coarse clusters `coarse` bool [B, R, K]."""
        rows, count = fine.shape[1:]
        chosen = torch.cat([fine, coarse], dim=-1)
        sizes = to_selection_heads(torch.cat([state.sizes, state.coarse_sizes], dim=-1), rows).masked_fill(~chosen, 0)
        keys = torch.cat([state.centroids, state.coarse_keys], dim=2)
        values = torch.cat([state.mean_values, state.coarse_values], dim=2)
        if not state.layer.details:
            return Merged(keys, values, sizes)
        numbers = torch.arange(count, device=fine.device).expand_as(fine)
        stand_in = torch.where(fine, numbers, -1)  # of each cluster
        if coarse.shape[-1]:
            parents = to_selection_heads(state.parents, rows).long()
            stand_in = torch.where(coarse.gather(-1, parents), count + parents, stand_in)
        clusters = to_selection_heads(clusters_of_tokens(state, self.sinks), rows).long()
        members = pad(stand_in, (0, 1), value=-1).gather(-1, clusters % (count + 1))  # the last is for no cluster
        return Merged(keys, values, sizes, members.to(torch.int32))

    def _add_blocks(self, state: MultipoleState, keys: Tensor, values: Tensor) -> None:
        """Cluster the next tokens, keys and values [B, H, n, D], block by block."""
        for start, stop in self.blocks(keys.shape[2]):
            part, count = keys[:, :, start:stop], self.clusters_of(stop - start)
            found = kmeans(part, count, metric="l2", max_iter=self.max_iter, seed=self.seed)
            state.add_block(part, values[:, :, start:stop], found.labels, found.centroids)

    def blocks(self, count: int) -> list[tuple[int, int]]:
        """The first token of each block of so many tokens, and the first after it."""
        starts = range(0, max((count - self.block // 2) // self.block, 0) * self.block + 1, self.block)
        return list(zip(starts, [*starts[1:], count], strict=True)) if count else []

    def _updated(self, state: MultipoleState, keys: Tensor, new: int) -> tuple[Tensor, Tensor] | None:
        """The clusters of the last block's keys [B, H, n, D], of which the last `new` have none: labels, centroids.

        None if the block becomes too large, or is the first.
        """
        if len(self.blocks(keys.shape[2])) > 1 or keys.shape[2] == new:
            return None
        added, fresh = self.clusters_of(new), keys[:, :, -new:].float()
        seeds = initial_positions(new, added, self.seed)
        others = torch.ones(new, dtype=torch.bool).index_fill_(0, seeds, False).nonzero()[:, 0]
        block = slice(state.block_clusters, None)
        means = torch.cat([state.centroids[:, :, block].float(), fresh[:, :, seeds]], dim=2)
        sizes = pad(state.sizes[..., block], (0, added), value=1)[..., None]
        joining = fresh[:, :, others]
        if joining.shape[2]:
            sums, joined = kmeans_update(joining, kmeans_assign(joining, means, metric="l2"), means.shape[2])
            means = (means * sizes + sums) / (sizes + joined[..., None]).clamp(min=1)
        for _ in range(self.update_iterations):
            sums, counts = kmeans_update(keys, kmeans_assign(keys.float(), means, metric="l2"), means.shape[2])
            means = torch.where(counts[..., None] > 0, sums / counts[..., None], means)
        return kmeans_assign(keys.float(), means, metric="l2"), means

    def _add_coarse(self, state: MultipoleState) -> None:
        """Cluster the centroids, if there are two levels."""
        count = state.sizes.shape[-1]
        if self.levels == 1 or count == 0:
            return
        coarse = max(round(count / self.clusters_per_coarse), 1)
        found = kmeans(state.centroids, coarse, metric="l2", max_iter=self.max_iter, seed=self.seed)
        tokens = state.sizes[..., None].float()
        sums, _ = kmeans_update(state.centroids.float() * tokens, found.labels, coarse)
        value_sums, _ = kmeans_update(state.mean_values.float() * tokens, found.labels, coarse)
        sizes = torch.zeros_like(found.sizes).scatter_add_(-1, found.labels, state.sizes.long())
        state.parents, state.coarse_sizes = found.labels.to(torch.int32), sizes.to(torch.int32)
        of_one = sizes.clamp(min=1)[..., None]
        state.coarse_keys = (sums / of_one).to(state.centroids.dtype)
        state.coarse_values = (value_sums / of_one).to(state.mean_values.dtype)
