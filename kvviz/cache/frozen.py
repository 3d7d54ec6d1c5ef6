"""FrozenCache: decode steps whose tokens are known, all in one forward pass over what each step attends to."""

from __future__ import annotations

import weakref
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from kvviz_kernels.softcap import softcap_
from torch import Tensor, nn
from transformers.cache_utils import Cache, DynamicLayer

from ..errors import InvalidInputError
from .attended import NEGATIVE_INFINITY, Attended
from .selective_cache import SelectiveCache
from .selective_layer import SelectiveLayer


@dataclass(frozen=True)
class Change:
    """What is different in one row of a FrozenCache's batch.

    In the `restored` heads (layer, KV head) a step attends to the tokens with the largest exact weights, as many as it
    attended to, or in a layer of `choices` to the tokens in these masks, bool [R, T, N]. `shown` positions are attended
    to in every head, in addition; `hidden` ones nowhere, nor in sliding windows, which no edit changes.
    """

    restored: Collection[tuple[int, int]] = ()
    hidden: Collection[int] = ()
    shown: Collection[int] = ()
    choices: Mapping[int, Tensor] | None = None


class FrozenCache(Cache):
    """A cache with which one forward pass computes many decode steps, since what they attend to is given.

    `prompt` is a SelectiveCache that has prefilled one sequence and still holds all its keys. `attended` says what each
    layer's steps attend to; a layer that is not in it attends to all tokens so far, or to its sliding window. The pass
    must feed the same tokens in as many rows as there are `changes`, and as many tokens as there are steps. It does not
    change the prompt's cache, whose keys and values all rows share, so that many passes can follow.

    In a real decode a later layer chooses by the queries that it then has; here its choice stays. So the effect of a
    change in one head is that of this head alone.
    """

    def __init__(
        self,
        prompt: SelectiveCache,
        attended: Mapping[int, Attended] | None = None,
        changes: Sequence[Change] = (Change(),),
    ) -> None:
        if any(not layer.store.complete for layer in prompt.selective_layers):
            raise InvalidInputError("FrozenCache", "a cache without all keys in every layer", "one of full attention")
        self.rows = len(changes)
        super().__init__(
            layers=[
                _FrozenLayer(_held(prompt, index), (attended or {}).get(index), index, changes)
                for index in range(len(prompt.layers))
            ]
        )


@dataclass(frozen=True)
class _Held:
    """The last tokens of a prompt of `length` tokens: keys and values [H, n, D]. `window` limits attention; 0: not."""

    keys: Tensor
    values: Tensor
    length: int
    window: int = 0

    @property
    def start(self) -> int:
        """The position of the first token held."""
        return self.length - self.keys.shape[1]


def _held(prompt: SelectiveCache, index: int) -> _Held:
    """What one layer of the prompt's cache holds. Raises InvalidInputError for a layer without keys."""
    layer: Any = prompt.layers[index]
    if isinstance(layer, SelectiveLayer):
        store = layer.cache.store
        return _Held(store.keys[0], store.values[0], store.length)
    window = prompt.windows.get(index, 0)
    if not window:
        got = f"layer {index}, a {type(layer).__name__}"
        raise InvalidInputError("FrozenCache", got, "layers of full attention or with a sliding window")
    return _Held(layer.keys[0], layer.values[0], layer.get_seq_length(), window)


class _FrozenLayer(DynamicLayer):
    """The prompt's keys and values of one layer, and what the steps attend to."""

    def __init__(self, held: _Held, attended: Attended | None, index: int, changes: Sequence[Change]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # not annotated there
        self._held, self._attended, self._changes = held, attended, changes
        self._choices = [None if change.choices is None else change.choices.get(index) for change in changes]
        self._restored = [sorted(head for layer, head in change.restored if layer == index) for change in changes]
        if attended is None:  # the layer attends to everything
            self._restored = [[] for _ in changes]
        self.is_initialized = True

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        """The keys and values [B, H, T, D] of the steps alone, which are not stored; `attend` adds the prompt's."""
        keys = key_states.view_as(key_states)  # the attribute must not stay on a tensor of the model
        keys.kv_layer = weakref.ref(self)  # type: ignore[attr-defined]  # our attribute
        return keys, value_states

    def get_seq_length(self) -> int:
        """Number of the prompt's tokens."""
        return self._held.length

    def attend(
        self,
        module: nn.Module,
        query: Tensor,
        keys: Tensor,
        values: Tensor,
        mask: Tensor | None,
        scaling: float | None,
        softcap: float | None,
        **kwargs: Any,
    ) -> Tensor:
        """Attention output [B, T, Q, D] of all steps; see the class for what they attend to."""
        scale, heads = scaling or query.shape[-1] ** -0.5, keys.shape[1]
        by_head = query.unflatten(1, (heads, -1)).float()  # [B, H, G, T, D]
        logits = softcap_(self._products(by_head, keys.float()).mul_(scale), softcap).flatten(1, 2)  # [B, Q, T, N]
        steps, prompt = keys.shape[2], self._held.keys.shape[1]
        unseen = self._out_of_sight(steps, keys.device)
        logits[..., -unseen.shape[-1] :].masked_fill_(unseen, NEGATIVE_INFINITY)
        seen = self._seen(logits, heads)
        if self._attended is not None and self._attended.merged is not None:
            seen = torch.cat([seen, self._centroid_logits(self._attended, by_head, scale, softcap)], dim=-1)
        weights = seen.softmax(-1).nan_to_num_().unflatten(1, (heads, -1))  # 0 in a step that attends to nothing
        output = torch.einsum("bhgtn,hnd->bhgtd", weights[..., :prompt], self._held.values.float())
        output += torch.einsum("bhgtn,bhnd->bhgtd", weights[..., prompt : prompt + steps], values.float())
        if self._attended is not None and self._attended.merged is not None:
            centroids = self._attended.merged.values[0].float()
            output += torch.einsum("bhgtc,hcd->bhgtd", weights[..., prompt + steps :], centroids)
        output = output.flatten(1, 2)
        if self._attended is not None and self._attended.corrections is not None:
            output = self._corrected(self._attended.corrections, output, heads)
        return output.transpose(1, 2).to(query.dtype)

    def _out_of_sight(self, steps: int, device: torch.device) -> Tensor:
        """Whether a token comes after a step, or before its window: bool [T, n] of the last n tokens, as needed."""
        held = self._held
        places = torch.arange(held.start if held.window else held.length, held.length + steps, device=device)
        asking = places[-steps:, None]
        later = places > asking
        return later | (places <= asking - held.window) if held.window else later

    def _products(self, by_head: Tensor, keys: Tensor) -> Tensor:
        """Products of queries [B, H, G, T, D] with the prompt's keys and the steps' [B, H, T, D]: [B, H, G, T, N]."""
        with_prompt = torch.einsum("bhgtd,hnd->bhgtn", by_head, self._held.keys.float())
        return torch.cat([with_prompt, torch.einsum("bhgtd,bhnd->bhgtn", by_head, keys)], dim=-1)

    def _seen(self, logits: Tensor, heads: int) -> Tensor:
        """The logits [B, Q, T, N] with -inf for tokens that a step does not attend to."""
        seen = logits if self._attended is None else logits + self._attended.mask
        for row, change in enumerate(self._changes):
            for head in self._restored[row]:
                self._restore(seen[row], logits[row], head, heads, self._choices[row])
            if self._attended is not None and change.shown:
                shown = sorted(change.shown)
                seen[row, ..., shown] = logits[row, ..., shown]
            if hidden := [place - self._held.start for place in sorted(change.hidden) if place >= self._held.start]:
                seen[row, ..., hidden] = NEGATIVE_INFINITY
        return seen

    def _restore(self, seen: Tensor, logits: Tensor, head: int, heads: int, choice: Tensor | None) -> None:
        """Let one KV head of `seen` [Q, T, N] attend to the tokens of a choice, or of the largest exact weights."""
        group = len(logits) // heads
        of_head, queries = logits[head * group : (head + 1) * group], slice(head * group, (head + 1) * group)
        if choice is None:
            best = self._best(of_head, head, heads)
        else:
            rows = len(choice) // heads
            best = choice[head * rows : (head + 1) * rows]
        seen[queries] = of_head.masked_fill(~best, NEGATIVE_INFINITY)

    def _best(self, logits: Tensor, head: int, heads: int) -> Tensor:
        """The tokens of a KV head's largest exact weights, bool [G or 1, T, N], as many as each row attended to."""
        assert self._attended is not None
        rows = len(self._attended.counts) // heads
        counts = self._attended.counts[head * rows : (head + 1) * rows]
        weights = logits.softmax(-1)  # [G, T, N]
        if rows < len(weights):
            weights = weights.mean(0, keepdim=True)
        order = weights.argsort(dim=-1, descending=True, stable=True)
        first = torch.arange(order.shape[-1], device=order.device) < counts[..., None]
        return torch.zeros_like(first).scatter_(-1, order, first)

    def _centroid_logits(self, attended: Attended, by_head: Tensor, scale: float, softcap: float | None) -> Tensor:
        """Logits [B, Q, T, C] of the centroids; -inf in restored heads."""
        merged, mask = attended.merged, attended.merged_mask
        assert merged is not None
        assert mask is not None
        logits = torch.einsum("bhgtd,hcd->bhgtc", by_head, merged.keys[0].float()).mul_(scale)
        logits = softcap_(logits, softcap)
        for row, restored in enumerate(self._restored):
            logits[row, restored] = NEGATIVE_INFINITY
        return logits.flatten(1, 2) + mask

    def _corrected(self, corrections: tuple[Tensor, Tensor], output: Tensor, heads: int) -> Tensor:
        """Outputs [B, Q, T, D] with the share of a fixed vector that the method mixes in, but in restored heads."""
        share, values = corrections[0].T[..., None], corrections[1].transpose(0, 1)  # [Q, T, 1], [Q, T, D]
        shares = share.repeat(len(output), 1, 1, 1).unflatten(1, (heads, -1))
        for row, restored in enumerate(self._restored):
            shares[row, restored] = 0.0
        shares = shares.flatten(1, 2)
        corrected: Tensor = output * (1 - shares) + values * shares
        return corrected
