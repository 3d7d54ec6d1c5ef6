"""CTkvr: queries of the prompt as centroids, each with a list of keys; the nearest ones' lists are reranked exactly."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import torch
from kvviz_kernels.softcap import softcap_
from torch import Tensor
from torch.nn.functional import normalize

from ..clustering.query_centroids import CHOICES, UnionOfLists, best_first, query_centroids, union_of_lists
from ..trace.styles import Style
from .base import LayerContext, Method, State
from .fields import number, one_of, whole
from .selection import Group, Selection, reduce_group
from .sliders import Slider
from .state import TokenState, tensor_bytes

UPDATES = ("fifo",)


@dataclass
class CTkvrState(TokenState):
    """Beside the counts, the query centroids and the inverted lists of the keys each attends most.

    `deduplication` holds the coefficient α of every step that chose, in order: the distinct tokens among the lists
    looked at, as a share of C'·ρ, the mean over rows. Inside a layer: `layer.states[0].deduplication[-1]`.
    """

    centroids: Tensor  # [B, Q, C, D] float32 of length 1: only their direction is asked for
    lists: Tensor  # [B, R, C, rho] int32, -1 pads at the end
    key_bytes: int  # of one key
    replaced: int = 0  # centroids replaced since the prompt: the next one takes slot replaced % C, the oldest
    newest: list[Tensor] = field(default_factory=list)  # the last step's centroid [B, Q, D] and list [B, R, rho]
    deduplication: list[float] = field(default_factory=list)
    step_bytes: int = 0

    def read_bytes(self) -> int:
        """Bytes that the last step read to choose: all centroids, the lists of C', the keys it reranked."""
        return self.step_bytes


@dataclass
class CTkvr(Method[CTkvrState]):
    """Finds the prompt's queries nearest to the step's, and takes the best of the keys that those attend most.

    Prefill: C queries of the prompt (`choice`, the last ones by default) are the centroids; each lists the ρ keys with
    the largest softmax weight, the maximum over the query heads of a KV head. Decode: the cosine between the step's
    query and every centroid ranks them, maximum over the group; the lists of the best C' = `n_probes` are joined
    without duplicates, their keys scored exactly, and the best ρ' attended. They are the `host_part`, attended where
    they are kept, and merged by log-sum-exp. Then the step's query and the ρ best keys of what it
    looked at replace the oldest centroid (`update` "fifo"; None for the ablation).

    Source: CTkvr (arXiv 2512.15550), section 3.1, algorithms 1 and 2; section 4.1.1 for C = min(2048, L/16), C' = 4,
    ρ = 2.5·ρ'. Fields: C is `max_centroids` and `tokens_per_centroid`, or `n_centroids`; ρ is `list_ratio`·ρ'; ρ' is
    what sinks and recent window leave of the budget, so that the paper's 512 and 1,024 are budgets of 640 and 1,152.
    No more centroids than tokens and no longer lists than keys to name, where a prompt is short.

    Where the paper is silent: 64 sinks, 64 recent tokens, no dense layers. Tokens generated since the prompt are all
    attended, as part of the recent window, and the step's budget grows with them: the update of algorithm 2 only sees
    tokens that some list names already, so that a generated one that left a window could never be found again. A later
    prompt gets a new index of everything, with its own queries as the last ones. Without rerank the paper attends the
    whole union; here the budget holds, and tokens are taken by their rank in the lists, the nearer centroid first among
    equal ranks; the list that the update adds follows the same order. The update, asynchronous in the paper, is made
    before the next step.

    Deviation: lists name only keys that can be retrieved, no sinks and no recent ones, which would fill them (at a
    budget of 256, 128 of 320 entries) without being asked for. As in the paper a centroid's softmax has no causal mask,
    and the reranking softmax is over the union alone; `causal` hides later keys (see `query_centroids`).

    A question that comes after the context was indexed asks for what none of the last queries asked. SmolLM2-135M, 8
    needles in 2,000 tokens, budget 256, question afterwards: 1 found by default; 3 with equidistant centroids, with 16
    probes, or without the update; 7 with equidistant centroids, 16 probes, 16 sinks and 16 recent tokens together
    (`make bench ARGS="--only causes"`).

    Details: `groups` numbers the centroid that a token came from, the best-ranked one that lists it: 0 to C − 1 for
    those of the prompt, then one more for each that was added.
    """

    name = "ctkvr"
    title = "CTkvr"
    paper = "arXiv 2512.15550"
    kind = "retrieval"
    group_name = "query centroid"
    style = Style("#CC79A7", "dashdot", "triangle-up")
    sliders = (
        Slider("n_centroids", "centroids C", (16, 32, 64, 128, 256, 512), "queries of the prompt that are centroids"),
        Slider("tokens_per_centroid", "tokens a centroid", (8, 16, 32, 64, 128, 256),
               "one of the prompt's queries is a centroid for every so many of its tokens", unless="n_centroids"),
        Slider("list_ratio", "list length ρ/ρ′", (1.0, 1.5, 2.0, 2.5, 3.0, 4.0, 5.0),
               "keys that a centroid lists, for each token that a step retrieves"),
    )  # fmt: skip
    overlaps_build = True

    sinks: int = 64
    recent: int = 64
    group: Group = "max"
    max_centroids: int = whole(2048, 1)
    tokens_per_centroid: int = whole(16, 1)
    n_centroids: int | None = whole(None, 1)
    list_ratio: float = number(2.5, 1)
    n_probes: int = whole(4, 1)
    choice: str = one_of("final", CHOICES)
    rerank: bool = True
    update: str | None = one_of("fifo", UPDATES)
    causal: bool = False
    seed: int = 0

    @property
    def reserved(self) -> int:
        """Sinks, recent window, and one token to retrieve."""
        return self.sinks + self.recent + 1

    def recent_window(self, state: State) -> int:
        """The recent window at the end of the prompt and all tokens since."""
        return self.recent + state.generated

    def build(self, layer: LayerContext, queries: Tensor, keys: Tensor, values: Tensor) -> CTkvrState:
        """The query centroids and their lists; 2·Q·C·L·D operations and one pass (see `query_centroids`)."""
        length = keys.shape[2]
        tokens = layer.token_cache(keys, values)
        end, key_bytes = length - self.recent, keys.shape[-1] * keys.element_size()
        if length <= self.budget_tokens(length):  # everything is attended, whatever is generated
            none = keys.new_zeros((keys.shape[0], layer.selection_heads(self.group), 0, 0), dtype=torch.int32)
            return CTkvrState(layer, length, length, tokens, queries[:, :, :0].float(), none, key_bytes)
        wanted = self.n_centroids or min(self.max_centroids, max(length // self.tokens_per_centroid, 1))
        index = query_centroids(
            queries,
            keys,
            n_centroids=min(wanted, length),
            list_length=int(min(self.list_ratio * self._retrieved(length), end - self.sinks)),
            group=self.group,
            choice=self.choice,
            within=(self.sinks, end),
            causal=self.causal,
            scale=layer.scale,
            softcap=layer.softcap,
            seed=self.seed,
        )
        directions = normalize(index.centroids.float(), dim=-1)
        return CTkvrState(layer, length, length, tokens, directions, index.lists, key_bytes)

    def extend(self, state: CTkvrState, queries: Tensor, keys: Tensor, values: Tensor) -> CTkvrState:
        """Counts the new tokens; the last step's query replaces the oldest centroid."""
        state.append(keys, values)
        if state.newest:
            slot = state.replaced % state.centroids.shape[2]
            state.centroids[:, :, slot], state.lists[:, :, slot] = state.newest
            state.replaced += 1
            state.newest = []
        return state

    def choose(self, state: CTkvrState, queries: Tensor) -> Selection:
        """Sinks, the best tokens of the nearest centroids' lists, and the recent ones; pads where the lists hold less.

        Q·C·D multiplications for the centroids and at most Q·C'·ρ·D for the keys looked at; no Python loop.
        """
        directions = normalize(queries.float(), dim=-1)  # [B, Q, D]
        probed = self._nearest(state, directions)  # [B, R, C']
        lists = state.lists.gather(2, probed[..., None].expand(-1, -1, -1, state.lists.shape[-1]))  # [B, R, C', rho]
        # By centroid first, so that a token's first entry is the best-ranked centroid's; by rank where that decides.
        entries = (lists if self.rerank else lists.mT).flatten(-2)
        union = union_of_lists(entries, state.prompt_length)
        scores = self._exact(state, union.tokens, queries) if self.rerank else _by_rank(union, entries.shape[-1])
        best = best_first(scores, lists.shape[-1])  # [B, R, rho]
        if self.update == "fifo":
            state.newest = [directions, _pick(union.tokens, best).to(torch.int32)]
        counts = union.counts.flatten().tolist()
        state.deduplication.append(sum(counts) / (len(counts) * entries.shape[-1]))
        state.step_bytes = tensor_bytes([state.centroids, lists]) + self.rerank * sum(counts) * state.key_bytes
        count = self.free_budget(state)
        slots = best[..., :count].sort(-1).values  # the union ascends, so its slots in order are tokens in order
        chosen = Selection(_pick(union.tokens, slots), padded=min(counts) < count, host_part=(0, count))
        if state.layer.details:
            chosen = self._detailed(chosen, state, probed, union.first, scores, slots)
        return self.with_sinks_and_recent(state, chosen)

    def _retrieved(self, prompt_length: int) -> int:
        """ρ': the tokens that a step retrieves."""
        return self.budget_tokens(prompt_length) - self.sinks - self.recent

    def _nearest(self, state: CTkvrState, directions: Tensor) -> Tensor:
        """Slots [B, R, C'] of the centroids nearest to the queries by cosine, the nearest first."""
        # a row times the turned matrix: 28 µs; the matrix times a column: 158 µs (512 centroids, EPYC Zen 5)
        cosines = (directions[:, :, None] @ state.centroids.mT)[..., 0, :]  # [B, Q, C]
        scores = reduce_group(cosines, state.layer.n_kv_heads, self.group)
        return scores.argsort(dim=-1, descending=True, stable=True)[..., : self.n_probes]

    def _exact(self, state: CTkvrState, tokens: Tensor, queries: Tensor) -> Tensor:
        """Softmax weights [B, R, U] of these tokens among each other, reduced over the group; -1 for pads.

        Computed on the host where the keys are there: only the query and the weights are moved (paper, section 3.2).
        """
        layer = state.layer
        keys = state.tokens.take_keys_in_place(tokens)  # [B, R, U, D]
        by_row = queries.to(keys.device, torch.float32).unflatten(1, (tokens.shape[1], -1))  # [B, R, Q/R, D]
        logits = (by_row @ keys.float().mT) * layer.scale
        logits = softcap_(logits, layer.softcap)
        pads = (tokens < 0).to(keys.device)
        weights = logits.masked_fill(pads[:, :, None], -torch.inf).softmax(-1).flatten(1, 2)  # [B, Q, U]
        return reduce_group(weights, layer.n_kv_heads, self.group).masked_fill(pads, -1.0).to(tokens.device)

    def _detailed(
        self, chosen: Selection, state: CTkvrState, probed: Tensor, first: Tensor, scores: Tensor, slots: Tensor
    ) -> Selection:
        """The selection with the centroid and the score of the union's tokens at `slots` [B, R, rho']."""
        entry = _pick(first, slots).clamp(min=0)
        rank = entry // state.lists.shape[-1] if self.rerank else entry % probed.shape[-1]
        centroid, count = probed.gather(-1, rank), state.centroids.shape[2]
        # A slot is used again every C replacements, a number never.
        numbers = centroid + count * ((state.replaced + count - 1 - centroid) // count)
        pads = slots < 0
        ranked_by = scores.gather(-1, slots.clamp(min=0)).masked_fill(pads, torch.nan)
        return replace(chosen, groups=numbers.masked_fill(pads, -1).to(torch.int32), scores=ranked_by)


def _by_rank(union: UnionOfLists, entries: int) -> Tensor:
    """Scores [B, R, U] that fall with the place among the entries, all above 0; -1 for pads."""
    return torch.where(union.tokens < 0, -1, entries - union.first).float()


def _pick(tensor: Tensor, slots: Tensor) -> Tensor:
    """tensor [..., U] at slots [..., S], -1 where the slot is -1."""
    return torch.where(slots < 0, -1, tensor.gather(-1, slots.clamp(min=0)))
