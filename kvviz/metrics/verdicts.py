"""What became of each token at a step: agreed, missed, wasted, and what is neither; the waste by part of the text."""

from __future__ import annotations

from enum import IntEnum
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ..errors import InvalidInputError
from .selected import member_mask

PARTS = ("sinks", "recent", "selected", "generated")
LEAST_SHARE = 0.5  # of its exact weight that a merged token gets from its centroid; with less, it is missed


class Verdict(IntEnum):
    """What a method and the oracle made of a token. Pages read the same numbers (js/map_colours.js)."""

    AGREED = 0  # attended to, as the oracle does
    WASTED = 1  # attended to, unlike the oracle
    KEPT = 2  # attended to without being chosen (sinks, recent window, generated tokens), unlike the oracle
    MISSED = 3  # not attended to, unlike the oracle
    MERGED_AWAY = 4  # attended to as a part of a centroid that gives it at least LEAST_SHARE of its weight
    UNMARKED = 255  # attended to by neither


def agreement(
    attended: ArrayLike, oracle: ArrayLike, *, always: ArrayLike = False, merged: ArrayLike = False
) -> NDArray[np.uint8]:
    """The `Verdict` of each token, uint8 in the common shape of all four, which are booleans by token.

    `attended`: by the method, `oracle`: by the oracle of the same size. `always`: attended without being chosen, which
    can agree but is no waste. `merged`: stands in a centroid that recalls it (its `merged_share` is at least 0.5), by
    which a token is not missed.

    >>> agreement([True, True, False, False], [True, False, True, False]).tolist()
    [0, 1, 3, 255]
    """
    mine, true, kept, joined = (np.asarray(mask, bool) for mask in (attended, oracle, always, merged))
    cases: list[NDArray[Any]] = [mine & true, mine & kept, mine, true & joined, true]
    verdicts = (Verdict.AGREED, Verdict.KEPT, Verdict.WASTED, Verdict.MERGED_AWAY, Verdict.MISSED)
    codes = [np.uint8(verdict) for verdict in verdicts]
    return np.asarray(np.select(cases, codes, np.uint8(Verdict.UNMARKED)), np.uint8)


class HeadUnion(NamedTuple):
    """What several heads made of each token: the number of heads, int64 [tokens], and the verdict on their union.

    A head attends to a token, its oracle would (`wanted`), it missed it, or it wasted it.
    """

    attended: NDArray[np.int64]
    wanted: NDArray[np.int64]
    missed: NDArray[np.int64]
    wasted: NDArray[np.int64]
    verdict: NDArray[np.uint8]  # of `Verdict`


def head_union(verdicts: ArrayLike) -> HeadUnion:
    """The union of heads whose `verdicts` are uint8 [heads, tokens] of `Verdict`.

    Agreed: at least one head attends to the token, and the oracle of at least one (this or another) would. Missed: no
    head attends to it, but the oracle of at least one would; merged away if none of these heads missed it. Wasted: at
    least one head chose it, and no oracle would; kept if the heads that attend to it did not choose it.

    >>> head_union([[0, 1, 3, 2, 255], [3, 2, 255, 2, 255]]).verdict.tolist()
    [0, 1, 3, 2, 255]
    """
    rows = np.asarray(verdicts, np.uint8)
    attended = np.isin(rows, (Verdict.AGREED, Verdict.WASTED, Verdict.KEPT)).sum(0)
    wanted = np.isin(rows, (Verdict.AGREED, Verdict.MISSED, Verdict.MERGED_AWAY)).sum(0)
    missed, wasted = ((rows == verdict).sum(0) for verdict in (Verdict.MISSED, Verdict.WASTED))
    verdict = agreement(attended > 0, wanted > 0, always=wasted == 0, merged=missed == 0)
    return HeadUnion(attended, wanted, missed, wasted, verdict)


def always_attended(unchosen: ArrayLike, *, prompt_length: int, sinks: int) -> NDArray[np.bool_]:
    """Which tokens are attended to whatever the method ranks: sinks, recent window and generated ones; [..., tokens].

    `unchosen`: attended to without a group and a score. The first `sinks` tokens of these are sinks; a run of them that
    ends with the prompt is the recent window.

    >>> always_attended([True, False, True, False, True, False], prompt_length=5, sinks=1).tolist()
    [True, False, False, False, True, True]
    """
    kept = np.asarray(unchosen, bool)
    positions = np.arange(kept.shape[-1])
    starts = window_starts(kept[..., :prompt_length])[..., None]
    windows = (positions < min(sinks, prompt_length)) | ((positions >= starts) & (positions < prompt_length))
    return np.asarray((kept & windows) | (positions >= prompt_length))


def window_starts(kept: NDArray[np.bool_]) -> NDArray[np.int64]:
    """First position [...] of the recent window: the run of tokens `kept` [..., prompt] that ends with the prompt.

    A method's field `recent` does not always give it: StreamingLLM's window is what the sinks leave of the budget.
    """
    length, backwards = kept.shape[-1], kept[..., ::-1]
    if not length:
        return np.zeros(kept.shape[:-1], np.int64)
    run = backwards.argmin(-1)  # up to the first that is not kept; 0 as well if all are
    whole = np.take_along_axis(backwards, run[..., None], axis=-1)[..., 0]
    return np.asarray(length - np.where(whole, length, run))


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
