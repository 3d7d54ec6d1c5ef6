"""RetrievalAttention: a search graph over keys, drawn from the prompt's queries, walked at every step."""

from __future__ import annotations

import threading
from dataclasses import dataclass, replace
from typing import Any

import torch
from kvviz_kernels.softcap import softcap_
from torch import Tensor
from torch.nn.functional import pad

from ..errors import InvalidInputError, MissingDependencyError
from ..trace.styles import Style
from .base import LayerContext, Method
from .fields import whole
from .selection import Selection, reduce_group, take_tokens
from .state import TokenState

BLOCK = 1024  # rows of a score matrix held at a time while a graph is built
_counting = threading.Lock()  # faiss counts the work of searches in one place for the whole process


def _faiss() -> Any:
    """The package, loaded at its first use; raises MissingDependencyError without it."""
    try:
        import faiss
    except ImportError as error:
        raise MissingDependencyError("retrieval_attention", "faiss-cpu", extra="ann") from error
    return faiss


class KeyGraph:
    """A graph over the keys of one KV head that faiss walks to the keys with the largest inner product.

    The keys lie in faiss's HNSW index, all on its lowest level; the links are ours. Each key links to the next token's
    first, so that every key can be reached. A column −|k|²/2 beside each key lets the same index answer which keys are
    nearest by distance: it is multiplied with 0 for a query and with 1 for a key.
    """

    def __init__(self, keys: Tensor, links: Tensor, entry: int) -> None:
        self.degree = links.shape[1]
        faiss = _faiss()
        self._index = faiss.IndexHNSWFlat(keys.shape[1] + 1, self.degree // 2, faiss.METRIC_INNER_PRODUCT)
        self._append(keys, links)
        self._index.hnsw.entry_point, self._index.hnsw.max_level = entry, 0

    def __len__(self) -> int:
        return int(self._index.ntotal)

    @property
    def key_bytes(self) -> int:
        """Bytes of the index's own copy of the keys."""
        return len(self) * int(self._index.d) * 4

    @property
    def link_bytes(self) -> int:
        """Bytes of the links (int32), and of the level (int32) and the offset (int64) that faiss keeps of each key."""
        return len(self) * (self.degree * 4 + 4 + 8)

    def search(self, query: Tensor, count: int, width: int, *, nearest: bool = False) -> tuple[Tensor, int]:
        """Places [count] of the keys found for a query [D], -1 for nothing found, and the bytes that the walk read.

        `nearest` looks for the smallest distance instead of the largest inner product.
        """
        row = torch.cat([query.float().cpu(), torch.tensor([float(nearest)])])[None]
        faiss = _faiss()
        settings = faiss.SearchParametersHNSW(efSearch=max(width, count))
        # One query a call: for several, faiss would start threads of its own beside torch's.
        with _counting:
            stats = faiss.cvar.hnsw_stats
            keys, hops = stats.ndis, stats.nhops
            _, places = self._index.search(row.numpy(), count, params=settings)
            keys, hops = stats.ndis - keys, stats.nhops - hops
        read = int(keys) * int(self._index.d) * 4 + int(hops) * self.degree * 4
        return torch.from_numpy(places[0]), read

    def insert(self, key: Tensor, width: int) -> None:
        """Add the next token's key [D], linked with the keys nearest to it that a walk finds, in both directions."""
        place = len(self)
        found, _ = self.search(key, min(self.degree - 1, place), width, nearest=True)
        found = found[found > 0]
        ring = torch.zeros(1, dtype=torch.int64)  # from the last token on to the first
        self._append(key[None], pad(torch.cat([ring, found]), (0, self.degree - 1 - len(found)), value=-1)[None])
        table = self._table()
        table[place - 1, 0] = place
        half = self.degree // 2
        for neighbour in found[:half].tolist():
            # Only the back half of a full list gives way: what the prompt's queries drew stands in front.
            own = table[neighbour]
            at = min(int((own >= 0).sum()), half)
            own[at + 1 :] = own[at:-1]
            own[at] = place

    def _append(self, keys: Tensor, links: Tensor) -> None:
        count, graph = len(keys), self._index.hnsw
        beside = -keys.float().square().sum(1, keepdim=True) / 2
        self._index.storage.add(torch.cat([keys.float(), beside], dim=1).cpu().numpy())
        self._index.ntotal += count
        graph.levels.resize(len(self))
        _faiss().rev_swig_ptr(graph.levels.data(), len(self))[-count:] = 1
        graph.prepare_level_tab(count, True)
        self._table()[-count:] = links.cpu().numpy()

    def _table(self) -> Any:
        """The links int32 [L, degree], faiss's own memory; valid until the next key comes."""
        links = self._index.hnsw.neighbors
        return _faiss().rev_swig_ptr(links.data(), len(self) * self.degree).reshape(-1, self.degree)


@dataclass
class RetrievalAttentionState(TokenState):
    """Beside the counts, a graph for each KV head of each batch row, over the tokens from the sinks up to `end`.

    There are none where the budget covers the prompt: then every step attends everything.
    """

    graphs: list[KeyGraph]
    end: int
    walked_bytes: int = 0

    def metadata_bytes(self) -> int:
        """Bytes of the indexes: keys, links, levels, offsets."""
        return self.auxiliary_bytes() + sum(graph.link_bytes for graph in self.graphs)

    def auxiliary_bytes(self) -> int:
        """Bytes of the keys that the indexes hold."""
        return sum(graph.key_bytes for graph in self.graphs)

    def read_bytes(self) -> int:
        """Bytes of keys and links that the last step's walks read; 0 before the first."""
        return self.walked_bytes


@dataclass
class RetrievalAttention(Method[RetrievalAttentionState]):
    """Walks a graph over the keys to those with the largest inner product; sinks and recent window stay apart.

    Source: RetrievalAttention (arXiv 2409.10516), section 3: queries and keys are distributed differently, so a graph
    drawn from the keys alone misleads; the graph is drawn from the prompt's queries (as RoarGraph does) instead. A
    query is linked with its `query_links` best keys, and these links are projected onto the keys: the best one is
    linked with the others, and the links that most queries draw are kept, `degree` / 2 a key. Attention over what was
    found is computed on its own and merged with that over sinks and window by log-sum-exp. A token that leaves the
    window is inserted. One search a query head; the results of a KV head's query heads are united, scored exactly for
    each of them, and their shares reduced as `group` says.

    Deviations: one graph a KV head, from the queries of all its query heads. The other half of a key's links leads to
    the next token's key and to its nearest keys by distance, found exactly, where RoarGraph searches its projected
    graph. At most `build_queries` positions of the prompt, evenly spaced, give their queries. The static pattern is
    scaled down (the paper: 128 sinks and 512 recent tokens, for 128k contexts, and the best 100; that is the preset
    "128k"). The published code scans every key or searches an inverted file instead, and has no preset here.

    Measured on SmolLM2-135M, 4,096 tokens of Python's reference, layers 5 and 15, recall of a query's top 100 keys:
    0.92 and 0.89 with 15 % and 18 % of the keys visited, where HNSW by inner product over the same keys reaches 0.64
    and 0.50 with 18 % and 20 %. HNSW's links by distance, walked by inner product, come near (0.90 and 0.89 with 15 %
    and 17 %). `degree`, `query_links` and `search_width` come from the same trace; the paper does not give them.

    Creating the method raises MissingDependencyError without faiss.
    """

    name = "retrieval_attention"
    title = "RetrievalAttention"
    paper = "arXiv 2409.10516"
    kind = "retrieval"
    style = Style(dash="longdashdot", symbol="star-open")
    overlaps_build = True
    presets = {
        "paper": {},
        "128k": {"sinks": 128, "recent": 512, "budget": 740},
    }

    sinks: int = 16
    recent: int = 32
    query_links: int = whole(32, 2)
    degree: int = whole(32, 4)
    search_width: int = whole(128, 1)
    build_queries: int = whole(4096, 1)

    def __post_init__(self) -> None:
        _faiss()
        super().__post_init__()
        if self.degree % 2:
            raise InvalidInputError(f"{self.name}: degree", self.degree, "an even int >= 4")

    @property
    def reserved(self) -> int:
        """Sinks, the recent window of at least the newest token, and one token to be found."""
        return self.sinks + max(self.recent, 1) + 1

    def build(self, layer: LayerContext, queries: Tensor, keys: Tensor, values: Tensor) -> RetrievalAttentionState:
        """A graph for each KV head; O(n · L · D) for n queries and O(L² · D) for the nearest keys, in blocks."""
        length = keys.shape[2]
        end = length - max(self.recent, 1)
        graphs = []
        if length > self.budget_tokens(length):
            count = min(length, self.build_queries)
            asked = torch.arange(count, device=keys.device) * length // count
            by_head = queries[:, :, asked].unflatten(1, (keys.shape[1], -1)).flatten(2, 3)  # [B, H, G * count, D]
            indexed = keys[:, :, self.sinks : end]
            pairs = zip(by_head.flatten(0, 1), indexed.flatten(0, 1), strict=True)
            graphs = [self._graph(own.float(), head.float()) for own, head in pairs]
        return RetrievalAttentionState(layer, length, length, layer.token_cache(keys, values), graphs, end)

    def extend(
        self, state: RetrievalAttentionState, queries: Tensor, keys: Tensor, values: Tensor
    ) -> RetrievalAttentionState:
        """Inserts the tokens that leave the recent window into the graphs."""
        state.append(keys, values)
        end = state.length - max(self.recent, 1)
        if state.graphs:
            leaving = state.tokens.keys[:, :, state.end : end].flatten(0, 1)
            for graph, head in zip(state.graphs, leaving, strict=True):
                for key in head:
                    graph.insert(key, self.search_width)
        state.end = end
        return state

    def recent_start(self, state: RetrievalAttentionState) -> int:
        """The first token that is in no graph yet."""
        return state.end

    def choose(self, state: RetrievalAttentionState, queries: Tensor) -> Selection:
        """Sinks, the best of the keys that the walks found, and the recent window."""
        count = self.free_budget(state)
        found = self._walk(state, queries, min(count, state.end - self.sinks))  # [B, R, W]
        scores = self._scores(state, queries, found).masked_fill(found < 0, -torch.inf)
        chosen = take_tokens(scores, count, details=state.layer.details)
        indices = found.gather(-1, chosen.indices)
        padded, host_part = bool((indices < 0).any()), (0, indices.shape[-1])
        return self.with_sinks_and_recent(state, replace(chosen, indices=indices, padded=padded, host_part=host_part))

    def _graph(self, queries: Tensor, keys: Tensor) -> KeyGraph:
        following = (torch.arange(len(keys), device=keys.device)[:, None] + 1) % len(keys)
        drawn = projected_links(queries, keys, self.query_links, self.degree // 2)
        links = distinct_links(torch.cat([following, drawn, nearest_keys(keys, self.degree)], dim=1), self.degree)
        return KeyGraph(keys, links, entry=int((keys @ queries.mean(0)).argmax()))

    def _walk(self, state: RetrievalAttentionState, queries: Tensor, count: int) -> Tensor:
        """Positions [B, R, W] that one walk for each query [B, Q, D] found, ascending, -1 for found twice."""
        asking = queries.flatten(0, 1)
        graphs = [graph for graph in state.graphs for _ in range(len(asking) // len(state.graphs))]
        walks = [graph.search(own, count, self.search_width) for graph, own in zip(graphs, asking, strict=True)]
        state.walked_bytes = sum(read for _, read in walks)
        places = torch.stack([found for found, _ in walks])
        united = places.view(queries.shape[0], state.layer.selection_heads(self.group), -1).sort(-1).values
        united[..., 1:] = united[..., 1:].masked_fill(united[..., 1:] == united[..., :-1], -1)
        return torch.where(united < 0, -1, united + self.sinks).to(queries.device)

    def _scores(self, state: RetrievalAttentionState, queries: Tensor, found: Tensor) -> Tensor:
        """What the tokens found [B, R, W] rank by [B, R, W]: their shares of the attention among them, reduced."""
        keys = state.tokens.take_keys(found)  # [B, R, W, D]
        by_row = queries.unflatten(1, (found.shape[1], -1)).float()  # [B, R, G, D], or G = 1 for group="each"
        logits = (by_row @ keys.float().transpose(-1, -2)) * state.layer.scale
        logits = softcap_(logits, state.layer.softcap)
        shares = logits.masked_fill(found[:, :, None] < 0, -torch.inf).softmax(-1)
        return reduce_group(shares.flatten(1, 2), state.layer.n_kv_heads, self.group)


def projected_links(queries: Tensor, keys: Tensor, count: int, degree: int) -> Tensor:
    """Links [L, degree] that queries [N, D] draw between keys [L, D], those of most queries first, -1 where fewer.

    Each query links its best key with its next `count` - 1 in both directions. Keys that nobody's best list holds get
    no link.
    """
    length = len(keys)
    top = torch.cat([(block @ keys.T).topk(min(count, length)).indices for block in queries.split(BLOCK)])  # [N, count]
    best, others = top[:, :1].expand(-1, top.shape[1] - 1).flatten(), top[:, 1:].flatten()
    pairs = torch.cat([best * length + others, others * length + best])
    drawn, times = pairs.unique(return_counts=True)
    source, target = drawn // length, drawn % length
    order = times.argsort(descending=True, stable=True)
    order = order[source[order].argsort(stable=True)]  # by source, then by how many queries drew the link
    source, target = source[order], target[order]
    degrees = source.bincount(minlength=length)
    rank = torch.arange(len(source), device=keys.device) - (degrees.cumsum(0) - degrees)[source]
    links, kept = torch.full((length, degree), -1, device=keys.device), rank < degree
    links[source[kept], rank[kept]] = target[kept]
    return links


def nearest_keys(keys: Tensor, count: int) -> Tensor:
    """The keys [L, min(count, L)] nearest to each of keys [L, D] by distance, itself among them."""
    lengths, count = keys.square().sum(1), min(count, len(keys))
    return torch.cat([(2 * block @ keys.T - lengths).topk(count).indices for block in keys.split(BLOCK)])


def distinct_links(links: Tensor, degree: int) -> Tensor:
    """The first `degree` links of each key [L, degree], -1 behind them, without itself, -1 and repetitions."""
    ordered, order = links.sort(dim=1, stable=True)
    repeated = torch.zeros_like(links, dtype=torch.bool)
    repeated[:, 1:] = ordered[:, 1:] == ordered[:, :-1]
    unwanted = torch.zeros_like(repeated).scatter(1, order, repeated)
    unwanted |= (links < 0) | (links == torch.arange(len(links), device=links.device)[:, None])
    order = unwanted.int().argsort(dim=1, stable=True)
    kept = links.masked_fill(unwanted, -1).gather(1, order)
    return pad(kept, (0, degree), value=-1)[:, :degree]
