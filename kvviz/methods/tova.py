"""TOVA: each step drops the token to which the last query attends least."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from torch import Tensor

from ..trace.styles import Style
from .attention import attention_weights
from .eviction import Eviction, EvictionState
from .fields import one_of
from .selection import reduce_group, to_selection_heads


@dataclass
class TOVA(Eviction[EvictionState]):
    """Keeps the tokens to which the last query attends most; there are no sinks and no recent window.

    After the prompt, the tokens with the largest attention weights of its last query stay. Each step then first drops
    the token with the lowest weight of the query before (the later one of equals), and attends to `budget` tokens, its
    own included: generated tokens count within the budget. Weights are softmax weights over the kept tokens, of one
    query only, so nothing accumulates. Source: TOVA (arXiv 2401.06104), section 3.

    With heads="shared", as in the paper, weights are averaged over all heads of the layer, which all keep the same
    tokens; `group` then matters only within a KV head. heads="separate" is the paper's variant in which each KV head
    (query head, for group="each") keeps its own; the paper finds it worse.

    Building reads the keys once, for one query. A decode step reads the kept keys a second time, for the weights that
    the attention kernel does not return. Deviations: the last token of a prompt stays until the first step, as in
    kvpress; paper and published code could drop it at once. The paper has no later prompts: here their last query ranks
    the kept tokens together with theirs. With generated="on_top", as in kvpress, nothing is dropped while decoding.
    """

    name = "tova"
    title = "TOVA"
    paper = "arXiv 2401.06104"
    score_name = "attention of the last query"
    style = Style(dash="longdash", symbol="diamond-open")  # the derived one is that of expected_attention

    heads: Literal["shared", "separate"] = one_of("shared", ("shared", "separate"))

    def rank(self, state: EvictionState, queries: Tensor, keys: Tensor) -> Tensor:
        """The attention weights of the prompt's last query."""
        return self._weights(state, queries[:, :, -1], keys)

    def observe(self, state: EvictionState, queries: Tensor) -> None:
        """Rank the kept tokens by the weights of the newest token's query."""
        if state.votes is not None:
            state.votes = self._weights(state, queries[:, :, 0], state.tokens.take_keys(state.kept))

    def _weights(self, state: EvictionState, queries: Tensor, keys: Tensor) -> Tensor:
        """Weights [B, R, N] of the keys [B, H or R, N, D] for queries [B, Q, D], as the heads are combined."""
        layer = state.layer
        weights = attention_weights(queries, keys, layer.scale, layer.softcap)
        reduced = reduce_group(weights, layer.n_kv_heads, self.group)
        if self.heads == "shared":
            reduced = reduced.mean(1, keepdim=True).repeat(1, reduced.shape[1], 1)
        return to_selection_heads(reduced, state.kept.shape[1])
