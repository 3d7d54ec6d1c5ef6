"""The oracle: exact scores for every token, then the best."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, cast

from torch import Tensor

from ..offload.store import TokenCache
from ..trace.styles import Style
from .attention import attention_weights
from .base import LayerContext, Method, State, tensor_bytes
from .selection import Selection, reduce_group, surround, take_tokens


@dataclass
class OracleState(State):
    """Beside the counts, where every key is: the oracle looks at all of them."""

    tokens: TokenCache

    def read_bytes(self) -> int:
        """Bytes of every key."""
        return tensor_bytes(self.tokens.keys)


@dataclass
class Oracle(Method):
    """The tokens with the largest exact attention weights: the best that any choice of this size can do.

    It computes every score and so saves nothing; it is the measure of the others ("Oracle" in ClusterKV and PQCache,
    "FLAT" in CTkvr). With group="mean" it maximises the attention mass kept, averaged over a KV head's query heads.
    """

    name = "oracle"
    title = "Oracle (exact top tokens)"
    paper = "arXiv 2412.03213"
    kind = "exact"
    style = Style("foreground", "solid", "diamond-tall")
    needs_queries = False
    builds_for_any_budget = True
    expected_failures: ClassVar[Mapping[str, str]] = {
        "generated_tokens_are_seen": "the exact top tokens need not hold the newest one"
    }

    def build(self, layer: LayerContext, queries: Tensor, keys: Tensor, values: Tensor) -> OracleState:
        """A state that knows where the keys are; O(1)."""
        return OracleState(layer, keys.shape[2], keys.shape[2], layer.token_cache(keys, values))

    def extend(self, state: State, queries: Tensor, keys: Tensor, values: Tensor) -> OracleState:
        """Counts the new tokens."""
        state = cast(OracleState, state)
        state.tokens.append(keys, values)
        state.length += keys.shape[2]
        return state

    def select(self, state: State, queries: Tensor) -> Selection:
        """The exact top tokens between sinks and recent window."""
        everything = self.everything(state, queries)
        if everything is not None:
            return everything
        layer, state = state.layer, cast(OracleState, state)
        weights = attention_weights(queries, state.tokens.keys, layer.scale, layer.softcap)
        scores = reduce_group(weights, layer.n_kv_heads, self.group)
        middle = scores[..., self.sinks : state.length - self.recent]
        chosen = take_tokens(middle, self.allowance(state) - self.reserved, details=layer.details)
        chosen.indices.add_(self.sinks)
        return surround(chosen, before=self.sinks, after=(state.length - self.recent, state.length))
