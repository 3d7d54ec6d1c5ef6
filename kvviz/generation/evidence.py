"""Evidence: the prompt's tokens that the exact model needs for an answer, found by dropping them."""

from __future__ import annotations

import heapq
from collections.abc import Collection, Sequence

import pandas as pd

from ..cache.frozen import Change
from ..errors import InvalidInputError
from .teacher_forcing import ForcedAnswer

SINKS = 4  # the first tokens take attention that no other token needs: without them nothing works, whatever they say
FIRST_SPANS = 16
LEAST_COST = 0.05  # nats: below it, dropping a token hardly matters
PIECES = 4  # into which a costly span is divided
SENTENCE_ENDS = (".", "!", "?", "\n", "。")


def find_evidence(
    forced: ForcedAnswer, *, max_passes: int = 96, least_cost: float = LEAST_COST, sinks: int = SINKS
) -> pd.DataFrame:
    """The tokens without which full attention gives the answer a lower log-probability, in the prompt's order.

    Columns: position, token, logprob (what dropping it alone costs, in nats). Spans of whole sentences are dropped
    first; the span that costs most is divided until single tokens are left, `max_passes` forward passes are used, or no
    span costs `least_cost` per answer. Only tokens that cost so much alone are returned. The first `sinks` tokens are
    not tried. What several places say is not found: without one of them the model still knows it.

    Raises InvalidInputError for less than one pass.
    """
    if max_passes < 1:
        raise InvalidInputError("evidence: max_passes", max_passes, "an int >= 1")
    texts = forced.lm.tokens(forced.ids)
    full, before = forced.frozen_score().total, forced.passes
    costs: dict[int, float] = {}
    spans: list[tuple[float, int, int]] = []  # minus the cost, start and stop: the costliest is divided first
    pieces = _pieces(texts, sinks, len(texts), FIRST_SPANS)
    while True:
        pieces = pieces[: max_passes - (forced.passes - before)]
        for (start, stop), cost in zip(pieces, _costs(forced, full, [range(*piece) for piece in pieces]), strict=True):
            if stop - start == 1:
                costs[start] = cost
            elif cost >= least_cost:
                heapq.heappush(spans, (-cost, start, stop))
        if not spans or forced.passes - before >= max_passes:
            break
        _, start, stop = heapq.heappop(spans)
        pieces = _pieces(texts, start, stop, PIECES)
    return evidence_table(forced, {place: cost for place, cost in costs.items() if cost >= least_cost})


def given_evidence(forced: ForcedAnswer, positions: Sequence[int]) -> pd.DataFrame:
    """The table of `find_evidence` for given tokens: what dropping each of them costs; one forward pass per token."""
    costs = _costs(forced, forced.frozen_score().total, [[place] for place in positions])
    return evidence_table(forced, dict(zip(positions, costs, strict=True)))


def evidence_table(forced: ForcedAnswer, costs: dict[int, float]) -> pd.DataFrame:
    """The table of positions and their costs."""
    texts, places = forced.lm.tokens(forced.ids), sorted(costs)
    return pd.DataFrame({
        "position": pd.Series(places, dtype="int64"),
        "token": pd.Series([texts[place] for place in places], dtype="object"),
        "logprob": pd.Series([costs[place] for place in places], dtype="float64"),
    })  # fmt: skip


def _costs(forced: ForcedAnswer, full: float, spans: Sequence[Collection[int]]) -> list[float]:
    """What dropping each span costs, of the log-probability `full`."""
    return [full - score.total for score in forced.frozen_scores(None, [Change(hidden=span) for span in spans])]


def _pieces(texts: Sequence[str], start: int, stop: int, count: int) -> list[tuple[int, int]]:
    """The span in at most `count` spans of about the same length: of sentences where it has several, else of tokens."""
    if stop - start <= 2 * count:
        return [(place, place + 1) for place in range(start, stop)]
    ends = [place + 1 for place in range(start, stop) if texts[place].rstrip(" ").endswith(SENTENCE_ENDS)]
    ends = [end for end in ends if start < end < stop]
    wanted = [start + (stop - start) * number // count for number in range(1, count)]
    cuts = sorted({min(ends, key=lambda end: abs(end - place)) for place in wanted} if ends else set(wanted))
    return list(zip([start, *cuts], [*cuts, stop], strict=True))
