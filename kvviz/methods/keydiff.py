"""KeyDiff: the keys that are least similar to the mean key stay; no queries are needed."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import cosine_similarity, normalize

from .eviction import UNRANKED, Eviction, EvictionState
from .fields import whole
from .selection import positions, take_tokens


@dataclass
class KeyDiff(Eviction[EvictionState]):
    """Keeps the tokens whose keys have the lowest cosine similarity to the mean of all normalised keys.

    A key that points in an unusual direction tends to get much attention from some query, so the most distinctive keys
    stay. No queries and no attention weights are needed. A prompt is ranked block by block, as in the paper, which
    never holds more than the budget and one block: the cache is filled up to the budget, then each `block` of new
    tokens is added and as many tokens dropped, ranked by the mean of the keys held at that time. While decoding, each
    step drops one token before its own is added, so generated tokens count within the budget. `recent` is the sliding
    window of the paper's variant for chats, 0 otherwise. Source: KeyDiff (arXiv 2504.15364), section 3 (block 128).

    Building costs O(L·D) operations per token of the budget and block: L / `block` rankings of budget + block keys. A
    decode step reads the kept keys a second time. Deviation: the prompt's own attention is exact here; in the paper a
    block attends only to what was kept before it, which saves prefill and changes later keys. preset="kvpress" has the
    settings of KeyDiffPress, which ranks a whole prompt at once (block 0) and drops nothing while decoding.
    """

    name = "keydiff"
    title = "KeyDiff"
    paper = "arXiv 2504.15364"
    score_name = "negative cosine similarity to the mean key"
    presets = {"paper": {}, "kvpress": {"block": 0, "generated": "on_top"}}
    needs_queries = False
    keeps_votes = False

    block: int = whole(128, 0)

    def rank(self, state: EvictionState, queries: Tensor, keys: Tensor) -> Tensor:
        """Distinctiveness of the tokens that the blocks left; UNRANKED for those dropped before the last block."""
        batch, rows, total, dim = keys.shape
        count = self.step_budget(state)
        block = self.block or total
        left = positions(0, min(count, total), batch, rows, keys.device)
        scores = distinctiveness(keys[:, :, : left.shape[-1]])
        for start in range(left.shape[-1], total, block):
            if left.shape[-1] > count:
                places = self._best(scores, count, self.window(state))
                left = left.gather(-1, places)
            left = torch.cat([left, positions(start, min(start + block, total), batch, rows, keys.device)], dim=-1)
            scores = distinctiveness(keys.gather(2, left[..., None].expand(-1, -1, -1, dim)))
        return scores.new_full((batch, rows, total), UNRANKED).scatter_(-1, left, scores)

    def standing(self, state: EvictionState) -> Tensor:
        """Distinctiveness of the kept tokens among themselves."""
        return distinctiveness(state.tokens.take_keys(state.kept))

    def _best(self, scores: Tensor, count: int, window: int) -> Tensor:
        """The places [B, R, count] of sinks, window and the best tokens between them, by scores [B, R, N]."""
        batch, rows, total = scores.shape
        between = scores[..., self.sinks : total - window]
        chosen = take_tokens(between, count - self.sinks - window, start=self.sinks).indices
        first = positions(0, self.sinks, batch, rows, scores.device)
        return torch.cat([first, chosen, positions(total - window, total, batch, rows, scores.device)], dim=-1)


def distinctiveness(keys: Tensor) -> Tensor:
    """The negative cosine similarity of each key to the mean of all normalised keys: float32 [B, R, N].

    keys [B, R, N, D]; 0 for a key that is zero. Source: KeyDiff (arXiv 2504.15364), section 3.
    """
    mean = normalize(keys.float(), dim=-1).mean(2, keepdim=True)
    return -cosine_similarity(keys.float(), mean, dim=-1)
