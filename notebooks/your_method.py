"""A method to copy and change: of each number of a key it keeps one bit, the sign."""

from dataclasses import dataclass

import torch
from torch import Tensor

from kvviz.methods import LayerContext, Method, State
from kvviz.methods.selection import Selection, add_sinks_and_recent, group_scores, take_tokens


@dataclass
class SignState(State):
    """Beside the counts, which numbers of each key are above 0: bool [B, H, L, D]."""

    above: Tensor


@dataclass
class Signs(Method):
    """Attends the tokens whose signs have the largest inner product with the query."""

    name = "signs"
    title = "Signs of keys"
    paper = "none"
    kind = "retrieval"
    needs_queries = False

    sinks: int = 4
    recent: int = 1

    def build(self, layer: LayerContext, queries: Tensor, keys: Tensor, values: Tensor) -> SignState:
        """The signs of the prompt's keys; O(L·D)."""
        return SignState(layer, keys.shape[2], keys.shape[2], keys > 0)

    def extend(self, state: SignState, queries: Tensor, keys: Tensor, values: Tensor) -> SignState:
        """Adds the signs of the new keys."""
        state.above = torch.cat([state.above, keys > 0], dim=2)
        state.length += keys.shape[2]
        return state

    def select(self, state: SignState, queries: Tensor) -> Selection:
        """The best tokens between sinks and recent window, and both of these."""
        dense = self.dense_selection(state, queries)
        if dense is not None:
            return dense
        last = state.length - self.recent
        signs = torch.where(state.above[:, :, self.sinks : last], 1.0, -1.0)
        scores = group_scores(queries, signs, self.group)  # [B, KV heads, tokens]
        chosen = take_tokens(scores, self.step_budget(state) - self.reserved, details=state.layer.details)
        chosen.indices.add_(self.sinks)
        return add_sinks_and_recent(chosen, self.sinks, (last, state.length))
