"""InfiniGen: scores speculated from partial, skewed queries and keys, and as many tokens as matter."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from kvviz_kernels.softcap import softcap_
from torch import Tensor

from ..errors import InvalidInputError
from ..offload.channels import ChannelCache
from ..trace.styles import Style
from .base import LayerContext, Method, State
from .capabilities import Speculative
from .fields import number
from .selection import Selection, reduce_group, stack_rows, take_tokens
from .state import tensor_bytes


@dataclass
class InfiniGenState(State):
    """Beside the counts, the kept columns of the rotation [B, H, D, r] and the keys' channels after it."""

    auxiliary = ("partial_keys",)

    rotation: Tensor
    partial_keys: ChannelCache

    def read_bytes(self) -> int:
        """Bytes of the partial keys of every token, and of the rotation."""
        return self.partial_keys.stored_bytes + tensor_bytes(self.rotation)


@dataclass
class InfiniGen(Speculative, Method[InfiniGenState]):
    """Attends the tokens whose speculated score lies within `alpha` of the largest, at most the budget.

    Source: InfiniGen (arXiv 2406.19707), section 4. A rotation A from the SVD of the queries skews queries and keys,
    which leaves their products as they are and gathers their size in few channels; the share `ratio` of the channels
    with the largest column sums of |QA| + |KA| is kept. Scores q·k over them alone decide: every query head counts the
    tokens above its maximum − `alpha`, a weight of e^-alpha of the largest; the mean over the heads, rounded down and
    at most what the budget leaves, is what every head fetches, its best first. The first layer is dense, because none
    before it can speculate. The newest token is always attended and counts to the budget.

    In a running model `select` gets queries speculated from the attention input of the layer before, as in the paper.
    In `replay` there is no model: it gets the layer's own queries, and so the choice without speculation error.

    `ratio` 0.2 and `alpha` 4 are those of the published speed runs. Preset "official" is its Llama code: every query
    head for itself, alpha 5; that code also keeps the union of the top channels of |QA| and of |KA|, here their sum
    decides in both presets, as in the paper.

    Deviations. The paper skews W_Q and W_K once, by the queries of a sample text and per query head; here the queries
    of the prompt itself, after RoPE, give one rotation for a KV head, of all its query heads together, and |QA| is
    averaged over them. The paper prefetches from host memory and can bound that pool: neither changes what is attended,
    and neither is here. A share of a prompt of less than one token is one token.
    """

    name = "infinigen"
    title = "InfiniGen"
    paper = "arXiv 2406.19707"
    kind = "retrieval"
    style = Style(dash="solid", symbol="circle-open")
    overlaps_build = True
    least_recent = 1
    builds_for_any_budget = True
    expected_failures = {
        "extension_equals_one_build": "the rotation and its channels come from the prompt alone (paper, section 4.2)",
    }
    presets = {"paper": {}, "official": {"group": "each", "alpha": 5.0}}

    budget: int | float = 0.2
    dense_layers: int = 1
    ratio: float = number(0.2, 0, 1)
    alpha: float = number(4.0, 0)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.ratio == 0:
            raise InvalidInputError(f"{self.name}: ratio", self.ratio, "a share of the head dimension in (0, 1]")

    def budget_tokens(self, prompt_length: int) -> int:
        """The budget in tokens; a share of a short prompt is at least one token."""
        if self.reserved == 1 and isinstance(self.budget, float) and self.budget * prompt_length < 1:
            return 1
        return super().budget_tokens(prompt_length)

    def build(self, layer: LayerContext, queries: Tensor, keys: Tensor, values: Tensor) -> InfiniGenState:
        """The rotation's kept columns and the keys' partial channels; O(L·D²)."""
        count = max(1, math.floor(self.ratio * layer.head_dim))
        rotation = skewing_matrix(queries, layer.n_kv_heads)  # [B, H, D, D]
        by_head = queries.unflatten(1, (layer.n_kv_heads, -1)).float()  # [B, H, G, L, D]
        size = (by_head @ rotation[:, :, None]).abs().sum(-2).mean(2)  # [B, H, D]
        size += (keys.float() @ rotation).abs().sum(-2)
        largest = size.argsort(dim=-1, descending=True, stable=True)[..., :count]
        kept = rotation.gather(-1, largest[:, :, None].expand(-1, -1, layer.head_dim, -1))  # [B, H, D, r]
        partial = ChannelCache.of((keys.float() @ kept).to(keys.dtype))
        return InfiniGenState(layer, keys.shape[2], keys.shape[2], kept, partial)

    def extend(self, state: InfiniGenState, queries: Tensor, keys: Tensor, values: Tensor) -> InfiniGenState:
        """Adds the new tokens' partial keys."""
        state.append(keys, values)
        state.partial_keys.append((keys.float() @ state.rotation).to(keys.dtype))
        return state

    def choose(self, state: InfiniGenState, queries: Tensor) -> Selection:
        """Sinks, the tokens of the largest speculated scores, and the recent window."""
        layer, sinks = state.layer, self.sinks
        scores = self._speculated_scores(state, queries)  # [B, Q, L]
        end = self.recent_start(state)
        counts = self._counts(state, scores, end)
        middle = reduce_group(scores, layer.n_kv_heads, self.group)[..., sinks:end]
        if len(set(counts)) == 1:
            chosen = take_tokens(middle, counts[0], start=sinks, details=layer.details)
        else:
            rows = zip(middle.split(1), counts, strict=True)
            alone = [take_tokens(row, count, start=sinks, details=layer.details) for row, count in rows]
            chosen = stack_rows(alone, [0] * len(counts))
        return self.with_sinks_and_recent(state, chosen)

    def _counts(self, state: InfiniGenState, scores: Tensor, end: int) -> list[int]:
        """Tokens to fetch for each batch row: those that matter to a query head, on average, within the budget."""
        earlier = scores[..., : state.length - 1]  # the newest key is not there yet when the paper speculates
        matter = scores[..., self.sinks : end] > earlier.amax(-1, keepdim=True) - self.alpha
        wanted = matter.sum(-1).double().mean(-1)  # [B]
        most = self.free_budget(state)
        return [min(math.floor(count), most) for count in wanted.tolist()]

    def _speculated_scores(self, state: InfiniGenState, queries: Tensor) -> Tensor:
        """Scaled logits [B, Q, L] of queries [B, Q, D] over the kept channels."""
        layer = state.layer
        by_head: Tensor = queries.unflatten(1, (layer.n_kv_heads, -1)).float()  # [B, H, G, D]
        logits = (by_head @ state.rotation) @ state.partial_keys.channels.float() * layer.scale
        logits = softcap_(logits, layer.softcap)
        scores: Tensor = logits.flatten(1, 2)
        return scores


def skewing_matrix(queries: Tensor, n_kv_heads: int) -> Tensor:
    """Orthogonal matrices [B, H, D, D] float32: the right singular vectors of each KV head's queries [B, Q, L, D].

    Columns come with descending singular values; their signs are open and change no product of skewed vectors.
    Source: InfiniGen (arXiv 2406.19707), section 4.2. They are found as eigenvectors of QᵀQ, which takes no L × D SVD.
    """
    together = queries.unflatten(1, (n_kv_heads, -1)).flatten(2, 3).float()  # [B, H, G·L, D]
    vectors: Tensor = torch.linalg.eigh((together.transpose(-1, -2) @ together).double()).eigenvectors
    return vectors.flip(-1).float()
