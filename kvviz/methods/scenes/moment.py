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
from ...trace.step_scene import MOST_LETTERS, quoted, short
from ..attention import attention_weights, centroid_weights
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
    def exact_weights(self) -> NDArray[np.float32]:
        """The exact attention weights of all tokens by query head, float32 [G, N]."""
        layer = self.state.layer
        exact: NDArray[np.float32] = attention_weights(self.queries, self.keys, layer.scale, layer.softcap)[0].numpy()
        return exact

    @property
    def weights(self) -> NDArray[np.float32]:
        """The exact attention weights of all tokens, mean over the query heads, float32 [N]."""
        return np.asarray(self.exact_weights.mean(0))

    @cached_property
    def attended(self) -> NDArray[np.int64]:
        """The positions that any query head attends to, ascending."""
        chosen = self.selection.indices[0].unique().numpy()
        return np.asarray(chosen[chosen >= 0], np.int64)

    @property
    def centroids(self) -> int:
        """The number of centroids that the step attends to."""
        merged = self.selection.merged
        return 0 if merged is None else int((merged.degree > 0).sum())

    @cached_property
    def members(self) -> NDArray[np.int64]:
        """The centroid that each token is merged into, int64 [N], -1 for none."""
        merged = self.selection.merged
        if merged is None or merged.members is None:
            return np.full(len(self.tokens), -1, np.int64)
        return merged.members[0, 0].numpy().astype(np.int64)

    @cached_property
    def centroid_weights(self) -> NDArray[np.float32]:
        """The weight of each centroid in the step's attention by query head, float32 [G, C]."""
        selection, layer = self.selection, self.state.layer
        if selection.merged is None:
            return np.zeros((self.group_size, 0), np.float32)
        stored = self.keys, self.values, selection.indices
        weights: Tensor = centroid_weights(self.queries, *stored, selection, layer.scale, layer.softcap)
        return np.asarray(weights[0].numpy(), np.float32)

    @cached_property
    def merged_share(self) -> NDArray[np.float64]:
        """The share of each token's exact weight that its centroid gives it, [N]; see `metrics.merged_share`."""
        if not self.centroids:
            return np.zeros(len(self.tokens))
        return metrics.merged_share(self.exact_weights, self.centroid_weights, self.members)

    @property
    def merged_away(self) -> NDArray[np.bool_]:
        """Which tokens stand in a centroid that gives them enough of their weight not to count as missed, [N]."""
        return np.asarray((self.members >= 0) & (self.merged_share >= metrics.LEAST_SHARE))

    @cached_property
    def oracle(self) -> NDArray[np.int64]:
        """The positions with the largest exact weights, as many as the step attends to tokens and centroids."""
        return np.sort(metrics.top_tokens(self.weights[None], len(self.attended) + self.centroids)[0])

    @property
    def recall(self) -> float:
        """The share of the oracle's tokens that the step attends to; merged tokens count by their `merged_share`."""
        return float(metrics.recall(self.attended, self.oracle, self.merged_share))

    @property
    def mass(self) -> float:
        """The exact attention on the attended tokens; merged tokens count by their `merged_share`."""
        return float(metrics.attention_mass(self.weights, self.attended, self.merged_share))

    def quoted(self, position: int) -> str:
        """A token of the text in quotation marks, shortened, as the words of a sentence that refer to it."""
        return quoted(self.tokens, position)

    def short(self, position: int, letters: int = MOST_LETTERS) -> str:
        """The text of a token, shortened to so many letters, with line breaks made visible."""
        return short(self.tokens, position, letters)
