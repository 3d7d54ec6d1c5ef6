"""The oracle: exact scores for every token, then the best."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, cast

from torch import Tensor

from ..attention import attention_weights
from ..offload.store import DeviceStore
from ..selection import Selection, reduce_group, surround, take_tokens
from .base import LayerContext, Method, State


@dataclass
class OracleState(State):
    """Beside the counts, every key: the oracle looks at all of them."""

    store: DeviceStore

    def metadata_bytes(self) -> int:
        """Bytes of the oracle's own copy of the keys."""
        return self.store.keys.numel() * self.store.keys.element_size()


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
    needs_queries = False
    expected_failures: ClassVar[Mapping[str, str]] = {
        "generated_tokens_are_seen": "the exact top tokens need not hold the newest one"
    }

    def build(self, layer: LayerContext, queries: Tensor, keys: Tensor, values: Tensor) -> OracleState:
        """Keeps a copy of the keys."""
        store = DeviceStore()
        store.append(keys, keys[..., :0])
        return OracleState(layer, keys.shape[2], keys.shape[2], store)

    def extend(self, state: State, queries: Tensor, keys: Tensor, values: Tensor) -> OracleState:
        """Adds the new keys."""
        state = cast(OracleState, state)
        state.store.append(keys, keys[..., :0])
        state.length += keys.shape[2]
        return state

    def select(self, state: State, queries: Tensor) -> Selection:
        """The exact top tokens between sinks and recent window."""
        everything = self.everything(state, queries)
        if everything is not None:
            return everything
        layer, state = state.layer, cast(OracleState, state)
        weights = attention_weights(queries, state.store.keys, layer.scale, layer.softcap)
        scores = reduce_group(weights, layer.n_kv_heads, self.group)
        middle = scores[..., self.sinks : state.length - self.recent]
        chosen = take_tokens(middle, self.allowance(state) - self.reserved, details=layer.details)
        chosen.indices.add_(self.sinks)
        return surround(chosen, before=self.sinks, after=(state.length - self.recent, state.length))
