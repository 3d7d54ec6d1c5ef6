"""CTkvr: prompt queries as centroids, each with a list of keys; the lists of the nearest centroids are reranked."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from kvviz_kernels.selection import take_best
from torch import Tensor

from ..clustering.query_centroids import CHOICES, UnionOfLists, best_first, query_centroids, union_of_lists
from ..errors import InvalidInputError
from ..trace.styles import Style
from .attention import attention_weights
from .base import LayerContext, Method, State
from .fields import number, one_of, whole
from .query_lists import CTkvrState, Probe, normalized, padded_to, rows_at, take_both, values_at
from .ranking import Ranking, of_candidates
from .selection import Group, Selection, member_mask, positions, reduce_group
from .sliders import Slider
from .state import tensor_bytes

MOST_ENTRIES = 2**22  # of one head's lists, 16 MB, in a state that others reuse: all keys of 8,192 tokens by default


@dataclass
class CTkvr(Method[CTkvrState]):
    """Finds the prompt queries nearest to the step's query, and recalls the best of the keys that they attend to most.

    Prefill: C queries of the prompt (`choice`, by default the last ones) are the centroids. Each lists the ρ keys with
    the largest softmax weight, the maximum over the query heads of a KV head. Decode: centroids are ranked by cosine
    with the step's query, maximum over the group. The lists of the best C' = `n_probes` are united without duplicates,
    their keys are scored exactly, and the best ρ' are attended to. They are the `host_part`, whose partial attention is
    computed where they are stored and merged by log-sum-exp. If that is the host, so are the exact scores, and a step
    moves positions, queries, weights and outputs, but no keys and values. Then the step's query replaces the oldest
    centroid; its list has the recent window, the newest token first, then the best keys of the union, ρ in all
    (`update` "fifo"; None for the ablation).

    Source: CTkvr (arXiv 2512.15550), section 3.1, algorithms 1 and 2; section 4.1.1 for C = min(2048, L/16), C' = 4,
    ρ = 2.5·ρ'. Fields: C is set by `max_centroids` and `tokens_per_centroid`, or by `n_centroids`; ρ is
    `list_ratio`·ρ'; ρ' is the budget without sinks and recent window, so that the paper's 512 and 1,024 are budgets of
    640 and 1,152. For short prompts, C is limited to the tokens and ρ to the keys that can be listed.

    Choices that the paper leaves open: 64 sinks, 64 recent tokens, no dense layers. The update of algorithm 2 uses only
    tokens that are already in a list, so a generated token that left the window could never be found again: that is why
    its list begins with the window here. With generated="on_top" all generated tokens belong to the window instead, and
    with "within" and no update they are lost once they leave it. While the budget covers all tokens, the update lists
    the newest ones. A later prompt gets a new index of all tokens, in which its queries are the last ones. The
    update, asynchronous in the paper, happens before the next step.

    Without `rerank` nothing is scored exactly. `attends` says what the heads then attend to. "union" is the ablation of
    the paper (figure 11): the whole union of the probed lists, whose length ρ stays as it is. A step then attends to at
    most C'·ρ − ρ' more tokens than the budget, nine times ρ' by default (`extra_tokens`); the ledger counts them.
    "budget", the default, takes ρ' tokens of the union, by their rank in the lists; of equal ranks, the nearer centroid
    comes first.

    The paper does not say how generated tokens count. Its initial and local tokens and ρ' do not grow with them, and
    neither does a step here: they count within the budget by default.

    Deviation: the prompt's lists have only keys that can be retrieved, no sinks and no recent tokens, which would take
    much of their space (at a budget of 256, 128 of 320 entries). As in the paper, the softmax of a centroid has no
    causal mask, and the reranking softmax is over the union only; `causal` hides later keys (see `query_centroids`).

    The update forgets: after C steps all lists are those of decode steps, and a token of the prompt can only be found
    if every list on the way passed it on. With 16 centroids and random queries none is left after 2,000 steps.

    A question that is asked after the context was indexed is not covered by the last queries. SmolLM2-135M, 8 needles
    in 2,000 tokens, budget 256, question afterwards: 1 found by default; 2 with equidistant centroids; 3 with 16
    probes, with 16 sinks and 16 recent tokens, or without the update; 7 with equidistant centroids, 16 probes, 16 sinks
    and 16 recent tokens together (`make bench ARGS="--only causes"`).

    Details: `groups` is the number of the best-ranked centroid that lists a token: 0 to C − 1 for centroids of the
    prompt; each centroid added later gets the next number.
    """

    name = "ctkvr"
    title = "CTkvr"
    paper = "arXiv 2512.15550"
    score_name = "attention weight among the probed lists"
    kind = "retrieval"
    group_name = "query centroid"
    style = Style("#CC79A7", "dashdot", "triangle-up")
    sliders = (
        Slider("n_centroids", "centroids C", (16, 32, 64, 128, 256, 512), "prompt queries used as centroids"),
        Slider("tokens_per_centroid", "tokens per centroid", (8, 16, 32, 64, 128, 256),
               "the prompt gets one centroid per so many tokens", unless="n_centroids"),
        Slider("list_ratio", "list length ρ/ρ′", (1.0, 1.5, 2.0, 2.5, 3.0, 4.0, 5.0),
               "keys per centroid's list, as a multiple of the tokens retrieved per step"),
    )  # fmt: skip
    stages = ("kept", "grouping", "ranking")
    overlaps_build = True
    attends_on_host = True
    least_recent = 1
    expected_failures = {
        "extension_equals_one_build": "centroids are the prompt's queries, then those of decode steps (algorithm 2)",
    }

    sinks: int = 64
    recent: int = 64
    group: Group = "max"
    max_centroids: int = whole(2048, 1)
    tokens_per_centroid: int = whole(16, 1)
    n_centroids: int | None = whole(None, 1)
    list_ratio: float = number(2.5, 0.01)
    n_probes: int = whole(4, 1)
    choice: str = one_of("final", CHOICES)
    rerank: bool = True
    attends: str = one_of("budget", ("budget", "union"))
    update: str | None = one_of("fifo", ("fifo",))
    causal: bool = False
    seed: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.attends == "union" and self.rerank:
            raise InvalidInputError(f"{self.name}: attends", "'union' with rerank=True", "rerank=False")

    @property
    def reserved(self) -> int:
        """Sinks, the recent window (at least the newest token), and one retrieved token."""
        return super().reserved + 1

    def extra_tokens(self, prompt_length: int) -> int:
        """C'·ρ − ρ' if steps attend to the whole union of the probed lists, otherwise 0."""
        if self.attends == "budget":
            return 0
        retrieved, list_length = self._lengths(prompt_length)
        return max(self.n_probes * list_length - retrieved, 0)

    def recent_window(self, state: State) -> int:
        """The last `recent` tokens; with generated="on_top" those of the prompt and all tokens generated since."""
        return self.always_recent + (state.generated if self.generated == "on_top" else 0)

    def build(self, layer: LayerContext, queries: Tensor, keys: Tensor, values: Tensor) -> CTkvrState:
        """The state with query centroids and lists; 2·Q·C·L·D operations and one pass (see `query_centroids`)."""
        length = keys.shape[2]
        tokens = layer.token_cache(keys, values)
        end, key_bytes = length - self.recent, keys.shape[-1] * keys.element_size()
        n_centroids = self._n_centroids(length)
        if end <= self.sinks:  # nothing to list yet
            centroids = keys.new_zeros((*queries.shape[:2], n_centroids, keys.shape[-1]), dtype=torch.float32)
            lists = (keys.shape[0], layer.selection_heads(self.group), n_centroids, self._lengths(length)[1])
            no_lists = keys.new_full(lists, -1, dtype=torch.int32)
            return CTkvrState(layer, length, length, tokens, centroids, no_lists, key_bytes)
        index = query_centroids(
            queries,
            keys,
            n_centroids=min(n_centroids, length),
            list_length=self._list_length(length),
            group=self.group,
            choice=self.choice,
            within=(self.sinks, end),
            causal=self.causal,
            scale=layer.scale,
            softcap=layer.softcap,
            seed=self.seed,
        )
        directions = normalized(index.centroids)
        return CTkvrState(layer, length, length, tokens, directions, index.lists, key_bytes)

    def reusable(self, prompt_length: int) -> CTkvr | None:
        """This method with longer lists, of which its own are the beginnings; None if its own are long already."""
        longest = MOST_ENTRIES // self._n_centroids(prompt_length)
        builds_differently = type(self).build is not CTkvr.build
        if builds_differently or not 0 < self._list_length(prompt_length) <= longest:
            return None
        return replace(self, budget=prompt_length + self.reserved, list_ratio=longest / prompt_length)

    def reuse(self, built: Method, state: CTkvrState) -> CTkvrState | None:
        """The state with the lists cut to this method's length; None if `built` is not `reusable`."""
        same_lists = built == self.reusable(state.length)
        list_length = self._list_length(state.length)
        return replace(state, lists=state.lists[..., :list_length].contiguous()) if same_lists else None

    def extend(self, state: CTkvrState, queries: Tensor, keys: Tensor, values: Tensor) -> CTkvrState:
        """The state with the new tokens counted; the last step's query replaces the oldest centroid."""
        state.append(keys, values)
        if state.newest:
            slot = state.replaced % state.centroids.shape[2]
            state.centroids[:, :, slot], *parts = state.newest
            entries = state.lists[:, :, slot]  # a view [B, R, rho]
            for part in parts:
                listed = part[..., : entries.shape[-1]]
                entries[..., : listed.shape[-1]] = listed
                entries = entries[..., listed.shape[-1] :]
            entries.fill_(-1)
            state.replaced += 1
            state.newest = []
        return state

    def select(self, state: CTkvrState, queries: Tensor) -> Selection:
        """The selection of a step; the update also follows steps that attend to all tokens."""
        dense = self.dense_selection(state, queries)
        if dense is None:
            return self.choose(state, queries)
        if self.update == "fifo" and self.generated == "within":
            batch, heads, _, _ = state.lists.shape
            newest = positions(self.sinks, max(state.length, self.sinks), batch, heads, queries.device).flip(-1)
            state.newest = [normalized(queries), newest]
        return dense

    def choose(self, state: CTkvrState, queries: Tensor) -> Selection:
        """Sinks, the best tokens of the nearest centroids' lists, and the recent window, padded if the lists are short.

        Q·C·D multiplications for the centroids and at most Q·C'·ρ·D for the listed keys; no Python loop.
        """
        directions, probed, lists, union = self.probe(state, queries)
        entries = lists.shape[-2:].numel()
        scores = self._union_scores(state, queries, union, entries)
        counts = union.counts.flatten().tolist()
        state.deduplication.append(sum(counts) / (len(counts) * entries))
        state.step_bytes = tensor_bytes([state.centroids, lists]) + self.rerank * sum(counts) * state.key_bytes
        count = self.free_budget(state) if self.attends == "budget" else union.tokens.shape[-1]
        slots = self._best(state, directions, union.tokens, scores, count)  # ascending, and so are their tokens
        tokens = padded_to(union.tokens.gather(-1, slots), count)
        chosen = Selection(tokens, padded=min(counts) < count, host_part=(0, count))
        if state.layer.details:
            chosen = self._detailed(chosen, state, probed, union.first, scores, slots)
        return self.with_sinks_and_recent(state, chosen)

    def ranking(self, state: CTkvrState, queries: Tensor, keys: Tensor) -> Ranking:
        """Exact weights, -inf for tokens of no probed list; `exact` is -inf only for those of no list at all."""
        layer, end = state.layer, self.recent_start(state)
        _, _, lists, union = self.probe(state, queries)
        scores = self._union_scores(state, queries, union, lists.shape[-2:].numel())
        weights = attention_weights(queries, keys, layer.scale, layer.softcap)
        alone = reduce_group(weights, layer.n_kv_heads, self.group)
        listed = member_mask(state.lists.flatten(2).long(), state.length)
        exact = alone.masked_fill(~listed, -torch.inf)
        return of_candidates(union.tokens, scores, exact, alone, slice(self.sinks, end))

    def centroid_scores(self, state: CTkvrState, queries: Tensor) -> Tensor:
        """Cosines [B, R, C] of a step's queries [B, Q, D] with all centroids; the step probes the best `n_probes`."""
        return self._cosines(state, normalized(queries))

    def probe(self, state: CTkvrState, queries: Tensor) -> Probe:
        """The centroids nearest to a step's queries [B, Q, D], with their lists and the lists' union."""
        directions = normalized(queries)
        slots = self._nearest(state, directions)
        lists = rows_at(state.lists, slots)
        entries = (lists if self.rerank else lists.mT).flatten(-2)
        places = not self.rerank or state.layer.details
        return Probe(directions, slots, lists, union_of_lists(entries, self.recent_start(state), places=places))

    def group_tokens(self, state: CTkvrState, head: int, number: int) -> Tensor:
        """The tokens in a centroid's list; if lists are per query head, that of the KV head's first one."""
        heads, rows, count = state.layer.n_kv_heads, *state.lists.shape[1:3]
        listed = state.lists[0, head * (rows // heads), number] if number < count else state.lists.new_empty(0)
        return listed[listed >= 0].long().sort().values

    def _union_scores(self, state: CTkvrState, queries: Tensor, union: UnionOfLists, entries: int) -> Tensor:
        """The scores [B, R, U] by which the union's tokens are ranked; -1 for padding."""
        if self.rerank:
            return state.exact_weights(queries, union.tokens, self.group)
        # above 0, falling with a token's first place among the entries
        return torch.where(union.tokens < 0, -1, entries - union.first).float()

    def _lengths(self, prompt_length: int) -> tuple[int, int]:
        """ρ', the tokens retrieved within the budget, and ρ, the length of a list."""
        retrieved = self.budget_tokens(prompt_length) - self.sinks - self.always_recent
        return retrieved, max(int(self.list_ratio * retrieved), 1)

    def _list_length(self, prompt_length: int) -> int:
        """The length of the prompt's lists: ρ, or as many keys as can be listed."""
        return min(self._lengths(prompt_length)[1], prompt_length - self.recent - self.sinks)

    def _n_centroids(self, prompt_length: int) -> int:
        return self.n_centroids or min(self.max_centroids, max(prompt_length // self.tokens_per_centroid, 1))

    def _best(self, state: CTkvrState, directions: Tensor, union: Tensor, scores: Tensor, count: int) -> Tensor:
        """Slots [B, R, count] of the best of the union, which is sorted, its pads last; prepares the update.

        The step's list has the recent window, the newest token first, and the best of the union. Without rerank the
        best come first, since their rank in a list then counts; otherwise their order is free.
        """
        if self.update is None:
            return take_best(scores, count)
        end = self.recent_start(state)
        window = state.length if self.generated == "within" else end
        recent = positions(end, window, *union.shape[:2], union.device).flip(-1)
        room = min(max(state.lists.shape[-1] - recent.shape[-1], 0), union.shape[-1])
        if self.rerank:
            slots, listed = take_both(scores, count, room)
            best = union.gather(-1, listed)
        else:
            slots, best = take_best(scores, count), values_at(union, best_first(scores, room))
        state.newest = [directions, recent, best]
        return slots

    def _nearest(self, state: CTkvrState, directions: Tensor) -> Tensor:
        """Slots [B, R, C'] of the centroids nearest to the queries by cosine, the nearest first; ties go either way."""
        scores = self._cosines(state, directions)
        return scores.topk(min(self.n_probes, scores.shape[-1])).indices

    def _cosines(self, state: CTkvrState, directions: Tensor) -> Tensor:
        # row times transposed matrix: 28 µs; matrix times column: 158 µs (512 centroids, EPYC Zen 5)
        cosines = torch.bmm(directions.flatten(0, 1)[:, None], state.centroids.flatten(0, 1).mT)  # [B·Q, 1, C]
        return reduce_group(cosines.view(*directions.shape[:2], -1), state.layer.n_kv_heads, self.group)

    def _detailed(
        self, chosen: Selection, state: CTkvrState, probed: Tensor, first: Tensor, scores: Tensor, slots: Tensor
    ) -> Selection:
        """The selection with the centroids and scores of the union's tokens at `slots` [B, R, rho']."""
        pads, slots = chosen.indices < 0, padded_to(slots, chosen.indices.shape[-1]).clamp(min=0)
        entry = first.gather(-1, slots)
        rank = entry // state.lists.shape[-1] if self.rerank else entry % probed.shape[-1]
        numbers = state.numbers(probed.gather(-1, rank))
        slot_scores = scores.gather(-1, slots).masked_fill(pads, torch.nan)
        return replace(chosen, groups=numbers.masked_fill(pads, -1).to(torch.int32), scores=slot_scores)
