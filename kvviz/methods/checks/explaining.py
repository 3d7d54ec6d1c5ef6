"""A check of what a method tells about how it ranked tokens."""

from __future__ import annotations

import torch

from ...trace.outcomes import OUTCOMES, VERDICTS
from ..attention import attention_weights
from ..base import Method
from ..selection import member_mask, reduce_group
from ..stages import StepStages, take
from .steps import build_state, random_tensors, smallest

STEPS = 3


def the_ranking_explains_the_selection(method: type[Method]) -> None:
    """The best tokens by the told scores and groups are those chosen, and every lost token has one outcome."""
    chosen = smallest(method)
    assert set(method.stages) <= set(VERDICTS), f"{method.name}: unknown stages {method.stages}"
    for n_heads, n_kv_heads in ((4, 4), (6, 2)):
        queries, keys, values = random_tensors(n_heads, n_kv_heads, 257 + STEPS)
        prompt = slice(0, 257)
        state = build_state(chosen, queries[:, :, prompt], keys[:, :, prompt], values[:, :, prompt])
        for end in range(258, 258 + STEPS):
            new = slice(end - 1, end)
            state = chosen.extend(state, queries[:, :, new], keys[:, :, new], values[:, :, new])
            selection = chosen.select(state, queries[:, :, end - 1])
            ranking = chosen.ranking(state, queries[:, :, end - 1], keys[:, :, :end])
            if ranking is None:
                return
            attended = member_mask(selection.indices, end)[0]
            weights = attention_weights(queries[:, :, end - 1], keys[:, :, :end], state.layer.scale)
            group = "each" if chosen.group == "each" else "mean"
            exact = reduce_group(weights, n_kv_heads, group)[0]
            stages = StepStages(ranking, attended, torch.ones_like(attended), exact, attended.sum(-1))
            counts = (attended & stages.ranked).sum(-1)
            groups = None if ranking.groups is None else ranking.groups[0]
            best = take(ranking.scores[0], stages.ranked, counts, groups)
            assert torch.equal(best, attended & stages.ranked), f"{chosen.name}: other tokens than its ranking says"
            outcome = stages.outcome(list(range(end)))
            assert set(outcome.ravel()) <= set(OUTCOMES), f"{chosen.name}: a token without an outcome"
            assert ((outcome == "attended") == attended.numpy()).all(), f"{chosen.name}: attended tokens called lost"
