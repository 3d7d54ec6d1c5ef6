"""DuoAttention: retrieval heads attend to what another method chooses, streaming heads to sinks and recent window."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.nn.functional import pad

from ..errors import InvalidInputError
from ..trace.head_gates import Gates, HeadGates, checked_gates
from .attention import attention_received, attention_weights
from .base import Kind, LayerContext, Method
from .fields import number, whole
from .ranking import Ranking
from .selection import Selection, positions, reduce_group, to_selection_heads
from .wrapper import Wrapper

LAST_QUERIES = 64  # of the prompt, by which a layer's heads are compared if there are no gates


@dataclass
class DuoAttention(Wrapper):
    """Two kinds of KV heads: only retrieval heads need all tokens, streaming heads do with sinks and recent window.

    Retrieval heads attend to what the wrapped method chooses, by default to all tokens (`full`). Streaming heads attend
    to the first `sinks` and the last `recent` tokens. Generated tokens count within the budget of the wrapped method;
    over `full` there is no budget. Source: DuoAttention (arXiv 2410.10819), section 2, with its 64 sinks and window of
    256 for deployment (section 3.1), and `share` 0.5 for models with grouped heads (0.25 in the paper for a model
    without groups).

    `gates` has one number per layer and KV head, from a calibration of the model (`kvviz.find_retrieval_heads`): the
    numbers, or the path of a file of `HeadGates`, whose numbers are then stored in its place. The `share` of all heads
    with the largest gates are retrieval heads; ties go to the lower layer, then to the lower head.

    Without gates, the prompt decides: in each layer, the `share` of heads, rounded up, whose last 64 queries have the
    most attention outside sinks and window. This is not in the paper, and costs no calibration. But attention weights
    do not tell what the answer needs: for one of three hidden numbers, its log-probability fell by 9 (by gates 0.2).

    A step reads fewer keys and values: those of a streaming head are at most `sinks` + `recent`. It keeps as many: all
    heads of a layer share one rectangle of slots, so that dropping the tokens of some heads would free nothing unless
    all heads of the layer were streaming heads; this method drops none. The paper's caches of two lengths save memory
    too. The wrapped method still ranks the tokens of all heads.

    preset="official" gives streaming heads one token more: the published code keeps a window of 256 and the step's own
    token. Deviations: prompts are prefilled with full attention in all heads, as in the published code for a prompt of
    one chunk; between chunks, that code drops tokens of streaming heads. In layers that the wrapped method leaves
    dense, all heads attend to all tokens.
    """

    name = "duo_attention"
    title = "DuoAttention"
    paper = "arXiv 2410.10819"
    wraps = "full"
    kind: ClassVar[Kind] = "retrieval"
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "paper": {"sinks": 64, "recent": 256},
        "official": {"sinks": 64, "recent": 257},
    }
    least_recent = 1
    builds_for_any_budget = True

    sinks: int = whole(64, 0)
    recent: int = whole(256, 0)
    share: float = number(0.5, 0, 1)
    gates: Gates | None = None

    def __post_init__(self) -> None:
        given: object = self.gates
        if isinstance(given, str | os.PathLike):
            given = HeadGates.load(given)
        if isinstance(given, HeadGates):
            self.gates = given.gates
        elif given is not None:
            self.gates = checked_gates(f"{self.name}: gates", given)
        super().__post_init__()

    @classmethod
    def check_wrapped(cls, method: type[Method]) -> None:
        """Raise InvalidInputError unless the method chooses among all tokens at every step, or attends to all."""
        if method.kind not in ("retrieval", "exact"):
            wanted = "a method that chooses among all tokens at every step, of kind retrieval or exact"
            raise InvalidInputError(f"{cls.name} over {method.name}", f"kind {method.kind}", wanted)

    @property
    def needs_queries(self) -> bool:  # type: ignore[override]  # it depends on a field here
        """Whether `build` needs the prompt's queries: the wrapped method does, or there are no gates."""
        return self.gates is None or bool(super().needs_queries)

    @property
    def reserved(self) -> int:
        """What the wrapped method reserves; 0 if there is no budget to hold it."""
        return 0 if self.ignores_budget else super().reserved

    def is_dense(self, layer: int) -> bool:
        """Whether all heads attend to all tokens: as the wrapped method says, or over `full` by the gates."""
        if not self.ignores_budget:
            return super().is_dense(layer)
        by_gates = None if self.gates is None else retrieval_heads(self.gates, self.share)
        return layer < self.dense_layers or (by_gates is not None and layer < len(by_gates) and all(by_gates[layer]))

    def build(self, layer: LayerContext, queries: Tensor, keys: Tensor, values: Tensor) -> Any:
        """The state of the wrapped method, and which heads are retrieval heads; O(64·L·D) more without gates."""
        state = super().build(layer, queries, keys, values)
        state.extras[DuoAttention.name] = self._retrieving(layer, queries, keys)
        return state

    def continue_prompt(self, state: Any, queries: Tensor, keys: Tensor, values: Tensor) -> Any:
        """The wrapped method's state after a later prompt, with the same retrieval heads; None for a new build."""
        later = super().continue_prompt(state, queries, keys, values)
        if later is not None:
            later.extras[DuoAttention.name] = state.extras[DuoAttention.name]
        return later

    def select(self, state: Any, queries: Tensor) -> Selection:
        """The wrapped method's selection, in which streaming heads have sinks and recent window only."""
        chosen, heads = super().select(state, queries), state.extras[DuoAttention.name]
        batch, rows, slots = chosen.indices.shape
        streamed = self._streamed(state, batch, rows, queries.device)
        width = max(slots if self._any_retrieving(state.layer) else 0, streamed.shape[-1])
        retrieving = to_selection_heads(heads, rows)[..., None]  # [B, R, 1]

        def of_retrieving(tensor: Tensor | None, fill: float) -> Tensor | None:
            if tensor is None:
                return None
            return pad(tensor, (0, width - slots), value=fill).masked_fill(~retrieving, fill)

        indices = pad(chosen.indices, (0, width - slots), value=-1)
        merged, correction = chosen.merged, chosen.value_correction
        if merged is not None:
            streaming = ~to_selection_heads(heads, merged.degree.shape[1])[..., None]
            merged = replace(merged, degree=merged.degree.masked_fill(streaming, 0))
        if correction is not None:
            streaming = ~to_selection_heads(heads, correction.share.shape[1])
            correction = replace(correction, share=correction.share.masked_fill(streaming, 0))
        return Selection(
            torch.where(retrieving, indices, pad(streamed, (0, width - streamed.shape[-1]), value=-1)),
            of_retrieving(chosen.groups, -1),
            of_retrieving(chosen.scores, torch.nan),
            merged,
            padded=chosen.padded or width > min(slots, streamed.shape[-1]),
            bias=of_retrieving(chosen.bias, 0.0),
            value_correction=correction,
        )

    def ranking(self, state: Any, queries: Tensor, keys: Tensor) -> Ranking | None:
        """The wrapped method's ranking for retrieval heads; streaming heads rank no token."""
        told = super().ranking(state, queries, keys)
        layer = state.layer
        if told is None and not self.ignores_budget:
            return None
        if told is None:
            weights = attention_weights(queries, keys, layer.scale, layer.softcap)
            exact = reduce_group(weights, layer.n_kv_heads, self.group)
            told = Ranking(torch.full_like(exact, torch.nan), exact, exact)
        streaming = ~to_selection_heads(state.extras[DuoAttention.name], told.scores.shape[1])[..., None]
        groups = None if told.groups is None else told.groups.masked_fill(streaming, -1)
        return replace(told, scores=told.scores.masked_fill(streaming, torch.nan), groups=groups)

    def _streamed(self, state: Any, batch: int, rows: int, device: torch.device) -> Tensor:
        """The positions of sinks and recent window, int64 [B, R, n]."""
        sinks = min(self.sinks, state.length)
        first = positions(0, sinks, batch, rows, device)
        start = max(state.length - self.always_recent, sinks)
        return torch.cat([first, positions(start, state.length, batch, rows, device)], dim=-1)

    def _any_retrieving(self, layer: LayerContext) -> bool:
        """Whether a layer has a retrieval head; asks no device."""
        if self.gates is None:
            return self.share > 0
        return any(retrieval_heads(self.gates, self.share)[layer.index])

    def _retrieving(self, layer: LayerContext, queries: Tensor, keys: Tensor) -> Tensor:
        """Which KV heads are retrieval heads, bool [B, H]."""
        if self.gates is not None:
            shape, wanted = (len(self.gates), len(self.gates[0])), (layer.n_layers, layer.n_kv_heads)
            if shape != wanted:
                got = f"{shape[0]} layers of {shape[1]} heads"
                raise InvalidInputError(f"{self.name}: gates", got, f"the model's {wanted[0]} of {wanted[1]} KV heads")
            of_layer = retrieval_heads(self.gates, self.share)[layer.index]
            return torch.tensor(of_layer, device=keys.device).expand(keys.shape[0], -1).clone()
        last = queries[:, :, -LAST_QUERIES:]
        received = attention_received(last, keys, layer.scale, layer.softcap)  # [B, Q, L]
        end = max(keys.shape[2] - last.shape[2] - self.always_recent + 1, self.sinks)  # outside all their windows
        outside = reduce_group(received[..., self.sinks : end].sum(-1, keepdim=True), layer.n_kv_heads, "mean")[..., 0]
        count = math.ceil(round(self.share * layer.n_kv_heads, 9))
        best = outside.argsort(dim=-1, descending=True, stable=True)[:, :count]
        return torch.zeros_like(outside, dtype=torch.bool).scatter_(-1, best, True)


@lru_cache(maxsize=64)
def retrieval_heads(gates: Gates, share: float) -> tuple[tuple[bool, ...], ...]:
    """Whether each head of each layer is among the `share` of all heads with the largest gates."""
    heads = [(-gate, layer, head) for layer, row in enumerate(gates) for head, gate in enumerate(row)]
    best = {(layer, head) for _, layer, head in sorted(heads)[: math.floor(share * len(heads) + 0.5)]}
    return tuple(tuple((layer, head) in best for head in range(len(row))) for layer, row in enumerate(gates))
