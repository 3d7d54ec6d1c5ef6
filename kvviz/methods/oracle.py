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

    The papers' oracles take the exact top tokens of all, generated ones too, within the budget; so does this. It is the
    only method that need not attend to the step's own token: recall is measured against exactly these tokens, and with
    one place reserved, the oracle itself would not reach a recall of 1. `recent=1` reserves it.
    """

    name = "oracle"
    title = "Oracle (exact top tokens)"
    paper = "arXiv 2412.03213"
    score_name = "attention weight"
    kind = "exact"
    style = Style("foreground", "solid", "diamond-tall")
    builds_for_any_budget = True
    expected_failures = {
        "generated_tokens_are_seen": "recall is measured against the exact top tokens, which need not hold the newest"
    }

    def scores(self, state: KeyState, queries: Tensor) -> Tensor:
        """Exact attention weights of all tokens, reduced over the group."""
        weights = attention_weights(queries, state.tokens.keys, state.layer.scale, state.layer.softcap)
        return reduce_group(weights, state.layer.n_kv_heads, self.group)
