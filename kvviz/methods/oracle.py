"""The oracle: the best tokens by their exact attention weights."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from ..trace.styles import Style
from .attention import attention_weights
from .scoring import KeyState, ScoringMethod
from .selection import reduce_group


@dataclass
class Oracle(ScoringMethod[KeyState]):
    """Attends to the tokens with the largest exact attention weights: the upper bound for a selection of this size.

    It scores all tokens, so it saves no time; other methods are measured against it ("Oracle" in ClusterKV and PQCache,
    "FLAT" in CTkvr). With group="mean" it maximises the attention mass kept, averaged over a KV head's query heads.
    """

    name = "oracle"
    title = "Oracle (exact top tokens)"
    paper = "arXiv 2412.03213"
    kind = "exact"
    style = Style("foreground", "solid", "diamond-tall")
    builds_for_any_budget = True
    expected_failures = {"generated_tokens_are_seen": "the exact top tokens need not hold the newest one"}

    def scores(self, state: KeyState, queries: Tensor) -> Tensor:
        """Exact attention weights of all tokens, reduced over the group."""
        weights = attention_weights(queries, state.tokens.keys, state.layer.scale, state.layer.softcap)
        return reduce_group(weights, state.layer.n_kv_heads, self.group)
