"""Moment: the decode step of one KV head that a scene shows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from ... import metrics
from ...trace.step_scene import quoted, short
from ..attention import attention_weights
from ..selection import Selection


@dataclass(frozen=True, eq=False)
class Moment:
    """One decode step of one KV head, which is a layer of its own here: H = 1, Q = G query heads.

    `state` is the method's, after `extend` with the step's token and `select`; a scene must not change it. `token` is
    the position in the prompt that the scene follows where it shows a single token.
    """

    state: Any
    queries: Tensor  # [1, G, D] of the step
    keys: Tensor  # [1, 1, N, D] of all tokens up to the step's own
    values: Tensor  # [1, 1, N, D]
    all_queries: Tensor  # [1, G, N, D]
    prompt_length: int
    tokens: Sequence[str]  # N texts
    token: int
    selection: Selection
    earlier: Sequence[Selection] = ()  # of the steps before, from the first on

    @property
    def group_size(self) -> int:
        """The number of query heads, G."""
        return self.queries.shape[1]

    @cached_property
    def weights(self) -> NDArray[np.float32]:
        """The exact attention weights of all tokens, mean over the query heads, float32 [N]."""
        layer = self.state.layer
        exact = attention_weights(self.queries, self.keys, layer.scale, layer.softcap)
        mean: NDArray[np.float32] = exact[0].mean(0).numpy()
        return mean

    @cached_property
    def attended(self) -> NDArray[np.int64]:
        """The positions that any query head attends to, ascending."""
        chosen = self.selection.indices[0].unique().numpy()
        return np.asarray(chosen[chosen >= 0], np.int64)

    @cached_property
    def oracle(self) -> NDArray[np.int64]:
        """The positions with the largest exact weights, as many as the step attends to, ascending."""
        return np.sort(metrics.top_tokens(self.weights[None], len(self.attended))[0])

    @property
    def recall(self) -> float:
        """The share of the oracle's tokens that the step attends to."""
        return float(metrics.recall(self.attended, self.oracle))

    @property
    def mass(self) -> float:
        """The exact attention on the attended tokens."""
        return float(self.weights[self.attended].astype(np.float64).sum())

    def quoted(self, position: int) -> str:
        """A token of the text in quotation marks, shortened, as the words of a sentence that refer to it."""
        return quoted(self.tokens, position)

    def short(self, position: int) -> str:
        """The text of a token, shortened, with line breaks made visible."""
        return short(self.tokens, position)
