"""R-KV: eviction while generating, by attention from the last queries and by how much a key repeats other keys."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor
from torch.nn.functional import max_pool1d, normalize, pad

from .buffered import BufferedEviction
from .eviction import EvictionState
from .fields import checked, number, whole
from .selection import Group, reduce_group, to_selection_heads

ROW_BLOCK = 256  # rows of the similarity matrix per block; limits the memory to 256 · L numbers per head


@dataclass
class RKVState(EvictionState):
    """A state with the queries `last_queries` [B, Q, w, D] of the newest tokens, at most a window of them."""

    last_queries: Tensor = field(init=False)

    def __post_init__(self) -> None:
        shape = (self.kept.shape[0], self.layer.n_heads, 0, self.layer.head_dim)
        self.last_queries = torch.empty(shape, device=self.kept.device)


@dataclass
class RKV(BufferedEviction[RKVState]):
    """Drops tokens of long reasoning that are little attended to, or whose keys repeat those of other tokens.

    Each time the buffer is full, the kept tokens before the window of the last `recent` tokens are ranked by
    Z = λ · importance − (1 − λ) · redundancy; λ is `mix`. Importance: the weights with which the window's queries
    attend to a token, averaged over these queries, then the maximum over `kernel` neighbours. Redundancy: the mean
    cosine similarity of a token's key to all kept keys, as a softmax over the tokens. Of the keys more similar than
    `threshold` to a key, the `spared` latest are not charged with that similarity, so that the latest of several
    repetitions stays. Source: R-KV (arXiv 2505.24133), section 3; buffer 128, window 8, λ = 0.1, and for grouped
    queries the maximum of a group's logits before the softmax (`group`). The kernel 7, the threshold 0.5 and the one
    spared key are those of the published code.

    The paper's budget is what a round leaves, and its buffer comes on top; here both are within the budget, generated
    tokens included. As in the code, weights are normalised over the ranked tokens only, and a prompt longer than the
    budget is compressed too. Any other `group` reduces the logits in place of the maximum. A later prompt is ranked
    together with what was kept. The similarity matrix is computed in blocks of rows: O(K²·D) operations for K kept
    tokens, with memory linear in K.

    preset="official": λ = 0.07, and `shields_first`, an effect of the code: each key without a similar one leaves out
    its similarity to the first token, which therefore looks the least redundant and stays, like an attention sink.
    """

    name = "r_kv"
    title = "R-KV"
    paper = "arXiv 2505.24133"
    score_name = "importance less redundancy"
    presets = {"paper": {}, "official": {"mix": 0.07, "shields_first": True}}
    state_class = RKVState

    recent: int = whole(8, 1)  # without a window there is no importance
    group: Group = "max"
    mix: float = number(0.1, 0, 1)
    kernel: int = checked(7, int, lambda kernel: kernel >= 1 and kernel % 2 == 1, "an odd int >= 1")
    threshold: float = number(0.5, 0, 1)
    spared: int = whole(1, 0)
    shields_first: bool = False

    def observe(self, state: RKVState, queries: Tensor) -> None:
        """Remember the queries [B, Q, n, D] of the newest tokens, at most a window of them."""
        newest = queries[:, :, -self.recent :]
        earlier = state.last_queries.to(queries.dtype)
        state.last_queries = torch.cat([earlier, newest], dim=2)[:, :, -self.recent :].clone()  # no view of a prompt

    def scores(self, state: RKVState, keys: Tensor) -> Tensor:
        """λ · importance − (1 − λ) · redundancy, [B, R, K]; 0 for the window's tokens."""
        ranked = keys.shape[2] - self.recent
        redundancy = to_selection_heads(self._redundancy(keys)[..., :ranked], state.kept.shape[1])
        scores = self.mix * self._importance(state, keys[:, :, :ranked]) - (1 - self.mix) * redundancy
        return pad(scores, (0, self.recent))

    def _importance(self, state: RKVState, keys: Tensor) -> Tensor:
        """Pooled attention weights [B, R, n] of the window's queries over the keys [B, H or R, n, D] before it."""
        layer, count = state.layer, state.last_queries.shape[2]
        by_head = state.last_queries.float().unflatten(1, (keys.shape[1], -1))  # [B, H or R, G, w, D]
        logits = layer.logits(by_head @ keys.float().mT[:, :, None]).flatten(1, 2)  # [B, Q, w, n]
        reduced = reduce_group(logits.flatten(2), layer.n_kv_heads, self.group).unflatten(-1, (count, -1))
        weights = reduced.softmax(-1).mean(2)  # [B, R, n]
        pooled: Tensor = max_pool1d(weights, self.kernel, stride=1, padding=self.kernel // 2)
        return pooled

    def _redundancy(self, keys: Tensor) -> Tensor:
        """Softmax over all tokens of the mean similarity with which other keys charge each key [B, H or R, K]."""
        directions = normalize(keys.float(), dim=-1)
        count, spared = keys.shape[2], min(self.spared, keys.shape[2])
        places = torch.arange(count, device=keys.device, dtype=torch.float32)  # amax takes a sixth of int64's time
        charged = torch.zeros(keys.shape[:3], device=keys.device)
        for start in range(0, count, ROW_BLOCK):
            stop = min(start + ROW_BLOCK, count)
            similarity = directions[:, :, start:stop] @ directions.mT  # [B, H, rows, K]
            similarity.diagonal(start, dim1=-2, dim2=-1).zero_()
            charged += similarity.sum(-2)
            if spared:
                similar = torch.where(similarity > self.threshold, places, -1.0)
                latest = similar.amax(-1, keepdim=True) if spared == 1 else similar.topk(spared, dim=-1).values
                latest = latest.long()  # [B, H, rows, spared]
                uncharged = similarity.gather(-1, latest.clamp(min=0))
                none = latest < 0  # no key, or no other one, is as similar
                if self.shields_first:
                    none[..., 0] = False
                charged.scatter_add_(-1, latest.clamp(min=0).flatten(-2), -uncharged.masked_fill(none, 0.0).flatten(-2))
        return (charged / count).softmax(-1)
