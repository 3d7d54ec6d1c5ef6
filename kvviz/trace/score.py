"""Score: the log-probabilities of a given answer's tokens."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class Score:
    """Natural log-probabilities of an answer's tokens, each after the true tokens before it.

    `logprobs` float64 [n], one per token; `tokens` are their texts. `likeliest` bool [n] says whether each token is the
    most probable one in its place.
    """

    logprobs: NDArray[np.float64]
    tokens: list[str] = field(repr=False)
    likeliest: NDArray[np.bool_]

    @property
    def total(self) -> float:
        """The log-probability of the whole answer."""
        return float(self.logprobs.sum())

    @property
    def answered(self) -> bool:
        """Whether greedy decoding writes this answer: each of its tokens is the likeliest one."""
        return bool(self.likeliest.all())
