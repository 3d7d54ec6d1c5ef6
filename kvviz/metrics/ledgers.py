"""Wasted budget: attended tokens that the oracle would not have selected, by where they are in the text."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..errors import InvalidInputError
from .selected import member_mask
from .verdicts import Verdict, agreement

PARTS = ("sinks", "recent", "selected", "generated")


def wasted_tokens(
    selected: NDArray[Any], true: NDArray[Any], *, prompt_length: int, sinks: int, recent: int, heads: int | None = None
) -> dict[str, float]:
    """Attended tokens that are not among the true ones, per part of the text: the mean over KV heads.

    `selected` and `true` [R, S] hold positions, padded with -1. The R rows belong to `heads` KV heads (R by default),
    in order; a head attends to all tokens of its rows. Of the prompt, the first `sinks` tokens are "sinks", the last
    `recent` tokens "recent", and the rest "selected"; tokens after the prompt are "generated".

    Raises InvalidInputError if R is not a multiple of the heads, or the windows do not fit into the prompt.
    """
    selected, true = np.asarray(selected), np.asarray(true)
    heads = len(selected) if heads is None else heads
    if selected.ndim != 2 or true.ndim != 2 or len(selected) != len(true) or heads < 1 or len(selected) % heads:
        got = f"{list(selected.shape)} and {list(true.shape)} for {heads} heads"
        raise InvalidInputError("wasted_tokens: positions", got, "[R, S] each, R a multiple of the heads")
    if min(sinks, recent) < 0 or sinks + recent > prompt_length:
        raise InvalidInputError("wasted_tokens: windows", f"{sinks} sinks, {recent} recent", f"at most {prompt_length}")
    length = max(prompt_length, int(max(selected.max(initial=-1), true.max(initial=-1))) + 1)
    attended, best = (member_mask(rows, length).reshape(heads, -1, length).any(1) for rows in (selected, true))
    counts = (agreement(attended, best) == Verdict.WASTED).mean(0)  # [length]
    window = prompt_length - recent
    ranges = ((0, sinks), (window, prompt_length), (sinks, window), (prompt_length, length))
    return {part: float(counts[slice(*bounds)].sum()) for part, bounds in zip(PARTS, ranges, strict=True)}
