"""H2O: the tokens that gathered the most attention so far, and the most recent ones."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, cast

import torch
from torch import Tensor
from torch.nn.functional import pad

from ..trace.styles import Style
from .attention import attention_received
from .base import LayerContext, State, tensor_bytes
from .eviction import Eviction, EvictionState
from .selection import reduce_group, rows_of_heads


@dataclass
class H2OState(EvictionState):
    """Beside what is kept, the attention that it `received` so far: [B, Q, K] float32, summed over all queries."""

    received: Tensor

    def read_bytes(self) -> int:
        """Bytes of the attention received, which every step adds to."""
        return tensor_bytes(self.received)


@dataclass
class H2O(Eviction):
    """Keeps heavy hitters, the tokens with the largest sum of attention weights so far, and a recent window.

    `recent_share` of the budget is the window (at least `recent` tokens), half by default. Sums run over every query of
    the prompt and go on while decoding, over the tokens that are kept. They are held for each query head and reduced
    over the group when tokens are chosen. Source: H2O (arXiv 2306.14048), section 4 and algorithm 1.

    Building takes every query of the prompt: O(L²·D) operations, in blocks, beside the prefill's own attention, and
    until then the memory of the layer's queries. A decode step reads the kept keys once more.

    Deviation: the paper's cache has a fixed size, which every generated token costs an older one. Here, generated
    tokens come on top of the budget, as for every method, so that all attend as many tokens at a step, and nothing is
    dropped while decoding. `fixed_size` (preset="fixed") is the paper's algorithm: each step first drops the token with
    the lowest sum outside the window, the later one of equals, and then attends `budget` tokens, its own among them; a
    later prompt is not part of the paper. Sums are not divided by the number of queries that saw a token, as in the
    paper, which favours early tokens.
    """

    name = "h2o"
    title = "H2O"
    paper = "arXiv 2306.14048"
    style = Style(dash="solid", symbol="circle-open")
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {"paper": {}, "fixed": {"fixed_size": True}}

    recent_share: float = 0.5
    fixed_size: bool = False

    def __post_init__(self) -> None:
        self._check_between("recent_share", 0, 1)
        super().__post_init__()

    @property
    def reserved(self) -> int:
        """Sinks and the least window: the step's own token has to fit into a cache of fixed size."""
        return self.sinks + self._least_window

    def allowance(self, state: State) -> int:
        """Tokens a head may attend at this step; the budget alone where the size is fixed."""
        return self.budget_tokens(state.prompt_length) if self.fixed_size else super().allowance(state)

    def window(self, state: EvictionState) -> int:
        """The recent share of the budget, as far as the sinks leave room for it."""
        budget = self.budget_tokens(state.prompt_length)
        return max(self._least_window, min(int(self.recent_share * budget), budget - self.sinks))

    def recent_window(self, state: State) -> int:
        """The prompt's window and every token generated since; the window alone where the size is fixed."""
        return self.window(cast(H2OState, state)) if self.fixed_size else super().recent_window(state)

    def extend(self, state: State, queries: Tensor, keys: Tensor, values: Tensor) -> H2OState:
        """The state with the new tokens and the attention that they give; a fixed size drops others for them."""
        state, layer = cast(H2OState, state), state.layer
        for token in range(keys.shape[2]):
            now = slice(token, token + 1)
            if self.fixed_size:
                scores = reduce_group(state.received, layer.n_kv_heads, self.group)
                self.keep_best(state, scores, self.allowance(state) - 1, self.window(state) - 1)
            self.append(state, keys[:, :, now], values[:, :, now])
            of_kept = state.tokens.take_keys(state.kept)
            state.received += attention_received(queries[:, :, now], of_kept, layer.scale, layer.softcap)
        return state

    def rank(self, state: EvictionState, queries: Tensor, keys: Tensor) -> Tensor:
        """The attention received so far, the prompt's added to it."""
        state, layer = cast(H2OState, state), state.layer
        state.received += attention_received(queries, keys, layer.scale, layer.softcap)
        return reduce_group(state.received, layer.n_kv_heads, self.group)

    def whole(self, layer: LayerContext, keys: Tensor, values: Tensor) -> H2OState:
        """The state of a prompt before anything is dropped or attended."""
        state = super().whole(layer, keys, values)
        batch, _, length, _ = keys.shape
        received = torch.zeros((batch, layer.n_heads, length), device=keys.device)
        return H2OState(layer, length, length, state.tokens, state.kept, state.scores, received)

    def append(self, state: EvictionState, keys: Tensor, values: Tensor) -> None:
        """Keep new tokens, which have received nothing yet."""
        super().append(state, keys, values)
        state = cast(H2OState, state)
        state.received = pad(state.received, (0, keys.shape[2]))

    def keep_best(self, state: EvictionState, scores: Tensor, count: int, window: int) -> Tensor | None:
        """As every eviction; forgets what the dropped tokens received."""
        staying = super().keep_best(state, scores, count, window)
        if staying is not None:
            state = cast(H2OState, state)
            state.received = state.received.gather(-1, rows_of_heads(staying, state.received.shape[1]))
        return staying

    @property
    def _least_window(self) -> int:
        return max(self.recent, int(self.fixed_size))
