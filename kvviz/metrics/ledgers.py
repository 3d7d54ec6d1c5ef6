"""Where attended tokens lie in the text, and how many of them the oracle would have left out."""

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
    """Attended tokens that are not among the true ones, by where they lie: the mean over KV heads of each part.

    `selected` and `true` [R, S] hold positions, -1 pads; R rows belong to `heads` KV heads (R by default), in order,
    and a head attends what any of its rows attends. The first `sinks` of the `prompt_length` tokens are "sinks", the
    last `recent` of them "recent", those after them "generated", all others "selected".

    Raises InvalidInputError for rows that are no multiple of the heads, or windows that do not fit the prompt.
    """
    selected, true = np.asarray(selected), np.asarray(true)
    heads = len(selected) if heads is None else heads
    if selected.ndim != 2 or true.ndim != 2 or len(selected) != len(true) or heads < 1 or len(selected) % heads:
        got = f"{list(selected.shape)} and {list(true.shape)} for {heads} heads"
        raise InvalidInputError("wasted_tokens: positions", got, "[R, S] each, R a multiple of the heads")
    if min(sinks, recent) < 0 or sinks + recent > prompt_length:
        raise InvalidInputError("wasted_tokens: windows", f"{sinks} sinks, {recent} recent", f"at most {prompt_length}")
    length = max(prompt_length, int(max(selected.max(initial=-1), true.max(initial=-1))) + 1)
    mine, wanted = (member_mask(rows, length).reshape(heads, -1, length).any(1) for rows in (selected, true))
    counts = (agreement(mine, wanted) == Verdict.WASTED).mean(0)  # [length]
    before = prompt_length - recent
    ranges = ((0, sinks), (before, prompt_length), (sinks, before), (prompt_length, length))
    return {part: float(counts[slice(*bounds)].sum()) for part, bounds in zip(PARTS, ranges, strict=True)}
