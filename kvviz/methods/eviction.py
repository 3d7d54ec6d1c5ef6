"""What eviction methods share: the tokens that stay, chosen once at the end of each prompt."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, cast

import torch
from torch import Tensor
from torch.nn.functional import pad

from ..offload.store import TokenCache
from .base import LayerContext, Method, State
from .selection import Selection, positions, surround, take_tokens


@dataclass
class EvictionState(State):
    """Beside the counts, the positions `kept` [B, R, K] int64 of each row of choice, ascending.

    `scores` [B, R, K] float32 is what each was ranked by when it was chosen, NaN where it stayed without being ranked;
    None where the layer's context asks for no details.
    """

    tokens: TokenCache
    kept: Tensor
    scores: Tensor | None

    def read_bytes(self) -> int:
        """None: a step attends what is kept, and chooses nothing."""
        return 0


@dataclass
class Eviction(Method):
    """A method that ranks a prompt's tokens at its end and drops all but the best, for good.

    A subclass says how tokens rank (`rank`) and how many of the last ones stay without being ranked (`window`). Sinks
    stay too. Tokens generated later are attended in full. A later prompt of the session ranks what was kept beside its
    own tokens, by its own queries, and the budget holds for all of them together.
    """

    kind = "eviction"
    expected_failures: ClassVar[Mapping[str, str]] = {
        "extension_equals_one_build": "what was dropped at the prompt's end cannot come back"
    }

    @abstractmethod
    def rank(self, state: EvictionState, queries: Tensor, keys: Tensor) -> Tensor:
        """Scores [B, R, N] of the tokens that are kept so far, from a prompt's queries [B, Q, n, D].

        keys [B, H or R, N, D] are those tokens' own; the last n of them are the prompt's.
        """

    @abstractmethod
    def window(self, state: EvictionState) -> int:
        """How many of a prompt's last tokens stay without being ranked."""

    def recent_window(self, state: State) -> int:
        """The prompt's window and every token generated since."""
        return self.window(cast(EvictionState, state)) + state.generated

    def build(self, layer: LayerContext, queries: Tensor, keys: Tensor, values: Tensor) -> EvictionState:
        """The state with the prompt's best tokens; O(n·L·D) for the n queries that rank them, all L for H2O."""
        state = self.whole(layer, keys, values)
        self.keep_best(state, self.rank(state, queries, keys), self.allowance(state), self.window(state))
        return state

    def extend(self, state: State, queries: Tensor, keys: Tensor, values: Tensor) -> EvictionState:
        """The state with the new tokens, all of them kept."""
        state = cast(EvictionState, state)
        self.append(state, keys, values)
        return state

    def continue_prompt(self, state: State, queries: Tensor, keys: Tensor, values: Tensor) -> EvictionState:
        """The state with the best of what was kept and of the later prompt's tokens."""
        state = cast(EvictionState, state)
        self.append(state, keys, values)
        state.prompt_length = state.length
        scores = self.rank(state, queries, state.tokens.take_keys(state.kept))
        self.keep_best(state, scores, self.allowance(state), self.window(state))
        return state

    def select(self, state: State, queries: Tensor) -> Selection:
        """Every token that is kept."""
        state = cast(EvictionState, state)
        if state.scores is None:
            return Selection(state.kept)
        return Selection(state.kept, torch.full_like(state.kept, -1, dtype=torch.int32), state.scores)

    def keeps(self, state: State) -> Tensor:
        """What is kept, for a KV head whose query heads choose apart the union of theirs."""
        kept = cast(EvictionState, state).kept
        heads = state.layer.n_kv_heads
        return kept if kept.shape[1] == heads else union(kept, heads)

    def whole(self, layer: LayerContext, keys: Tensor, values: Tensor) -> EvictionState:
        """The state of a prompt before anything is dropped."""
        batch, _, length, _ = keys.shape
        kept = positions(0, length, batch, layer.rows(self.group), keys.device)
        scores = torch.full_like(kept, torch.nan, dtype=torch.float32) if layer.details else None
        return EvictionState(layer, length, length, layer.token_cache(keys, values), kept, scores)

    def append(self, state: EvictionState, keys: Tensor, values: Tensor) -> None:
        """Keep new tokens, keys and values [B, H, n, D], without ranking them."""
        batch, rows, _ = state.kept.shape
        end = state.length + keys.shape[2]
        state.tokens.append(keys, values)
        state.kept = torch.cat([state.kept, positions(state.length, end, batch, rows, keys.device)], dim=-1)
        if state.scores is not None:
            state.scores = pad(state.scores, (0, keys.shape[2]), value=torch.nan)
        state.length = end

    def keep_best(self, state: EvictionState, scores: Tensor, count: int, window: int) -> Tensor | None:
        """Drop all but `count` of the kept tokens: the sinks, the last `window`, and between them the best by scores.

        scores [B, R, N] rank the tokens kept so far. Returns the places [B, R, count] among them of those that stay,
        None where all do.
        """
        total = state.kept.shape[-1]
        if count >= total:
            return None
        between = scores[..., self.sinks : total - window]
        chosen = take_tokens(between, count - self.sinks - window, details=state.layer.details)
        chosen.indices.add_(self.sinks)
        staying = surround(chosen, before=self.sinks, after=(total - window, total))
        state.kept = state.kept.gather(-1, staying.indices)
        state.scores = staying.scores
        return staying.indices


def union(kept: Tensor, heads: int) -> Tensor:
    """The different positions of each KV head's query heads: [B, Q, K] -> [B, H, K'], ascending, -1 pads at the end."""
    ordered = kept.unflatten(1, (heads, -1)).flatten(2).sort(-1).values  # [B, H, G * K]
    first = torch.ones_like(ordered, dtype=torch.bool)
    first[..., 1:] = ordered[..., 1:] != ordered[..., :-1]
    beyond = torch.iinfo(ordered.dtype).max  # sorts behind every position
    width = int(first.sum(-1).max())
    different: Tensor = ordered.masked_fill(~first, beyond).sort(-1).values[..., :width]
    return different.masked_fill(different == beyond, -1)
