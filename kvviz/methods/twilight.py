"""Twilight: of the tokens that another method chooses, only those that have most of the attention."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch
from kvviz_kernels import gather_weights
from torch import Tensor

from ..errors import InvalidInputError
from ..offload.codec import pack_channels, unpack_channels
from ..offload.growing import GrowingTensor
from .attention import attention_weights
from .base import LayerContext, Method, State
from .fields import number, whole
from .ranking import Ranking, of_candidates
from .selection import Selection, packed_places, reduce_group
from .wrapper import Wrapper


@dataclass
class Twilight(Wrapper):
    """Top-p over a selector: the number of tokens follows the head and the step instead of being the same for all.

    The wrapped method chooses candidates, up to its budget. Their attention weights are estimated from keys in `bits`
    bits. Sinks, recent window and the step's own token stay, and so do the fewest others with which the weights add up
    to the share `p` of all candidates' weights. So `budget` is the most that a step attends to; the ledger and
    recordings count how many tokens it was. Source: Twilight (arXiv 2502.02770), section 4: a conservative selector,
    keys in 4 bits with one scale and minimum per token and head, and a threshold on the estimated weights.

    `bits=None` weighs the exact keys, which read_bytes then does not count.

    Deviations: weights are sorted, where the paper finds the threshold by bisection; the tokens are the same. The
    weights of a KV head's query heads are reduced by `group` before the threshold; the paper takes the union of the
    query heads' tokens. A step whose budget covers all tokens is pruned too.
    """

    name = "twilight"
    title = "Twilight"
    paper = "arXiv 2502.02770"
    wraps = "quest"
    score_name = "estimated attention weight"
    stages = ("kept", "ranking")
    expected_failures: ClassVar[Mapping[str, str]] = {
        "full_budget_attends_everything": "tokens beyond the share p of the weights are left out at any budget"
    }
    builds_for_any_budget = True

    p: float = number(0.95, 0, 1)
    bits: int | None = whole(4, 1, 8)

    @classmethod
    def check_wrapped(cls, method: type[Method]) -> None:
        """Raise InvalidInputError unless the method chooses among all tokens at every step."""
        if method.kind not in ("retrieval", "exact") or method.ignores_budget:
            wanted = "a method that chooses at every step, of kind retrieval or exact"
            raise InvalidInputError(f"{cls.name} over {method.name}", f"kind {method.kind}", wanted)

    def build(self, layer: LayerContext, queries: Tensor, keys: Tensor, values: Tensor) -> Any:
        """The state of the wrapped method, with all keys in few bits; O(L·D)."""
        state = super().build(layer, queries, keys, values)
        if self.bits is None:
            state.extras[Twilight.name] = layer.token_cache(keys, values)
        else:
            state.extras[Twilight.name] = [GrowingTensor(part, 2) for part in quantised(keys, self.bits)]
        return state

    def extend(self, state: Any, queries: Tensor, keys: Tensor, values: Tensor) -> Any:
        """The state of the wrapped method, with the new keys added."""
        state = super().extend(state, queries, keys, values)
        stored = state.extras[Twilight.name]
        if self.bits is None:
            stored.append(keys, values)
        else:
            for part, new in zip(stored, quantised(keys, self.bits), strict=True):
                part.append(new)
        return state

    def select(self, state: Any, queries: Tensor) -> Selection:
        """The fewest of the wrapped method's tokens whose estimated weights add up to `p`, padded per head."""
        candidates = super().select(state, queries)
        weights = self.estimated_weights(state, queries, candidates.indices)
        free = self._is_ranked(state, candidates.indices)
        staying = top_p(weights, self.p, ~free) & (candidates.indices >= 0)
        places, pads = packed_places(staying)

        def at_places(tensor: Tensor | None, fill: float) -> Tensor | None:
            return None if tensor is None else tensor.gather(-1, places).masked_fill(pads, fill)

        scores = weights.masked_fill(~free, torch.nan) if state.layer.details else None
        return replace(
            candidates,
            indices=candidates.indices.gather(-1, places).masked_fill(pads, -1),
            groups=at_places(candidates.groups, -1),
            scores=at_places(scores, torch.nan),
            bias=at_places(candidates.bias, 0.0),
            padded=bool(pads.any()),
            host_part=None,
        )

    def ranking(self, state: Any, queries: Tensor, keys: Tensor) -> Ranking:
        """The estimated weights of the candidates, -inf for tokens that the wrapped method did not choose."""
        layer = state.layer
        candidates = super().select(state, queries).indices
        weights = self.estimated_weights(state, queries, candidates)
        exact = reduce_group(attention_weights(queries, keys, layer.scale, layer.softcap), layer.n_kv_heads, self.group)
        middle = slice(self.sinks, state.length - max(self.recent, 1))
        return of_candidates(candidates, weights, exact, exact, middle)

    def estimated_weights(self, state: Any, queries: Tensor, positions: Tensor) -> Tensor:
        """Weights [B, R, S] of the tokens at `positions` [B, R, S] among themselves, 0 for pads of -1.

        queries [B, Q, D]; the weights of query heads are reduced by `group`.
        """
        stored, layer = state.extras[Twilight.name], state.layer
        if self.bits is None:
            keys = stored.take_keys(positions)
        else:
            packed, scale, low = (_rows_at(part.tensor, positions) for part in stored)
            keys = restored(packed, scale, low, self.bits, layer.head_dim)
        places = torch.arange(positions.shape[-1], device=positions.device).expand_as(positions)
        weights = gather_weights(
            queries, keys, places.masked_fill(positions < 0, -1), scale=layer.scale, group=self.group,
            softcap=layer.softcap,
        )  # fmt: skip
        return weights.clamp(min=0)

    def _is_ranked(self, state: State, positions: Tensor) -> Tensor:
        """Whether the tokens at `positions` may be left out: not sinks, recent window, the newest token or pads."""
        return (positions >= self.sinks) & (positions < state.length - max(self.recent, 1))


def top_p(weights: Tensor, p: float, always: Tensor) -> Tensor:
    """`always` bool [..., N], and the fewest others with which a row of weights adds up to the share `p` of its sum.

    Bool [..., N]. Ties go to the earlier element.
    """
    weights = weights.double()
    order = weights.masked_fill(always, torch.inf).argsort(dim=-1, descending=True, stable=True)
    largest = weights.gather(-1, order)
    before = largest.cumsum(-1) - largest
    taken = before < p * weights.sum(-1, keepdim=True)
    return torch.zeros_like(always).scatter_(-1, order, taken) | always


def quantised(keys: Tensor, bits: int) -> tuple[Tensor, Tensor, Tensor]:
    """Keys [B, H, n, D] in few bits: packed codes uint8 [B, H, n, ·], scale and minimum float16 [B, H, n, 1]."""
    low, high = keys.float().aminmax(dim=-1, keepdim=True)
    largest = torch.finfo(torch.float16).max
    low = low.clamp(-largest, largest).half()
    scale = ((high - low) / (2**bits - 1)).clamp(max=largest).half()
    steps = ((keys.float() - low) / scale).nan_to_num_(0.0, 0.0, 0.0)  # equal numbers have scale 0
    codes = steps.round_().clamp_(0, 2**bits - 1).to(torch.uint8)
    return pack_channels(codes, bits), scale, low


def restored(packed: Tensor, scale: Tensor, low: Tensor, bits: int, width: int) -> Tensor:
    """Keys float32 [..., D] from what `quantised` returns."""
    return unpack_channels(packed, bits, width).float() * scale + low


def _rows_at(tensor: Tensor, positions: Tensor) -> Tensor:
    """Rows [B, R, S, ·] of a tensor [B, H, L, ·] at `positions` [B, R, S], R a multiple of H; a pad reads a row."""
    batch, heads = tensor.shape[:2]
    by_head = positions.clamp(min=0).unflatten(1, (heads, -1)).flatten(2)  # [B, H, R/H * S]
    rows = tensor.gather(2, by_head[..., None].expand(*by_head.shape, tensor.shape[-1]))
    return rows.view(batch, *positions.shape[1:], tensor.shape[-1])
