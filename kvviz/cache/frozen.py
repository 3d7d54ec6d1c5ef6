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

from ..clustering.merged import Merged
from ..errors import InvalidInputError
from ..methods.selection import Selection
from .selective_cache import SelectiveCache

NEGATIVE_INFINITY = float("-inf")


@dataclass(frozen=True)
class Attended:
    """What the steps of one layer attended to, from their selections.

    `mask` float32 [Q, T, N] is added to the logits of the N tokens of prompt and steps: 0, a method's bias, or -inf.
    `counts` int64 [R, T] are the entries that each row attended to, centroids included. `merged` are the centroids of
    all steps one after the other, and `merged_mask` float32 [Q, T, C] the logarithm of their degree, -inf for the
    centroids of other steps; both None if nothing was merged. `corrections` are the steps' shares [T, Q] and values
    [T, Q, D] of a `ValueCorrection`; None if no step has one.
    """

    mask: Tensor
    counts: Tensor
    merged: Merged | None = None
    merged_mask: Tensor | None = None
    corrections: tuple[Tensor, Tensor] | None = None

    @classmethod
    def of(cls, selections: Sequence[Selection], n_heads: int, prompt_length: int) -> Attended:
        """From the selections of all steps, each of one sequence."""
        steps, device = len(selections), selections[0].indices.device
        rows = selections[0].indices.shape[1]
        total = prompt_length + steps
        mask = torch.full((n_heads, steps, total), NEGATIVE_INFINITY, device=device)
        counts = torch.zeros((rows, steps), dtype=torch.int64, device=device)
        for step, selection in enumerate(selections):
            indices = selection.indices[0]
            bias = torch.zeros(indices.shape, device=device) if selection.bias is None else selection.bias[0].float()
            of_row = torch.full((rows, total + 1), NEGATIVE_INFINITY, device=device)
            of_row.scatter_(-1, torch.where(indices < 0, total, indices), bias)
            mask[:, step] = of_row[:, :total].repeat_interleave(n_heads // rows, dim=0)
            counts[:, step] = (indices >= 0).sum(-1)
        merged = [selection.merged for selection in selections]
        return cls(mask, *_with_centroids(merged, counts, n_heads), _corrections(selections, n_heads))


def _with_centroids(
    merged: Sequence[Merged | None], counts: Tensor, n_heads: int
) -> tuple[Tensor, Merged | None, Tensor | None]:
    """The counts with each step's centroids, all different sets of centroids, and their mask."""
    sets: list[Merged] = []
    of_step = []
    for entry in merged:
        if entry is not None and not (sets and _same(entry, sets[-1])):
            sets.append(entry)
        of_step.append(-1 if entry is None else len(sets) - 1)
    if not sets:
        return counts, None, None
    heads = sets[0].degree.shape[1]
    widths = [entry.degree.shape[-1] for entry in sets]
    mask = counts.new_full((n_heads, len(merged), sum(widths)), 0, dtype=torch.float32).fill_(NEGATIVE_INFINITY)
    for step, number in enumerate(of_step):
        if number >= 0:
            start, degree = sum(widths[:number]), sets[number].degree[0]  # [H, C]
            logs = degree.float().log().repeat_interleave(n_heads // heads, dim=0)
            mask[:, step, start : start + widths[number]] = logs
            counts[:, step] += (degree > 0).sum(-1).repeat_interleave(counts.shape[0] // heads)
    joined = Merged(*(torch.cat([getattr(e, part) for e in sets], dim=2) for part in ("keys", "values", "degree")))
    return counts, joined, mask


def _same(one: Merged, two: Merged) -> bool:
    return one is two or (torch.equal(one.degree, two.degree) and torch.equal(one.keys, two.keys))


def _corrections(selections: Sequence[Selection], n_heads: int) -> tuple[Tensor, Tensor] | None:
    found = [selection.value_correction for selection in selections]
    if all(correction is None for correction in found):
        return None
    one = next(correction for correction in found if correction is not None)
    heads, width = one.values.shape[1:]
    shares, values = one.share.new_zeros(len(found), n_heads), one.values.new_zeros(len(found), heads, width)
    for step, correction in enumerate(found):
        if correction is not None:
            shares[step], values[step] = correction.share[0], correction.values[0]
    return shares, values.repeat_interleave(n_heads // heads, dim=1)


class FrozenCache(Cache):
    """A cache with which one forward pass computes many decode steps, since what they attend to is given.

    `prompt` is a SelectiveCache that has prefilled one sequence and still holds all its keys. `attended` says what each
    layer's steps attend to; a layer that is not in it attends to all tokens so far. In the `restored` heads (layer, KV
    head) a step attends to the tokens with the largest exact weights instead, as many as it attended to, or in a layer
    of `choices` to the tokens in these masks, bool [R, T, N]. `shown` positions are attended to in every head, in
    addition; `hidden` ones nowhere. The pass must feed as many tokens as there are steps; it does not change the
    prompt's cache, so that many can follow.

    In a real decode a later layer chooses by the queries that it then has; here its choice stays. So the effect of a
    change in one head is that of this head alone.
    """

    def __init__(
        self,
        prompt: SelectiveCache,
        attended: Mapping[int, Attended] | None = None,
        restored: Collection[tuple[int, int]] = (),
        hidden: Collection[int] = (),
        shown: Collection[int] = (),
        choices: Mapping[int, Tensor] | None = None,
    ) -> None:
        if prompt.exact_layers or any(not layer.store.complete for layer in prompt.selective_layers):
            raise InvalidInputError("FrozenCache", "a cache without all keys in every layer", "one of full attention")
        super().__init__(
            layers=[
                _FrozenLayer(
                    layer.store.keys, layer.store.values, (attended or {}).get(layer.context.index),
                    sorted(head for index, head in restored if index == layer.context.index),
                    (choices or {}).get(layer.context.index), sorted(hidden), sorted(shown),
                )
                for layer in prompt.selective_layers
            ]
        )  # fmt: skip


class _FrozenLayer(DynamicLayer):
    """The prompt's keys and values of one layer, and what the steps attend to."""

    def __init__(
        self,
        keys: Tensor,
        values: Tensor,
        attended: Attended | None,
        restored: list[int],
        choice: Tensor | None,
        hidden: list[int],
        shown: list[int],
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # not annotated there
        self._prompt, self._attended = (keys, values), attended
        self._restored, self._choice, self._hidden, self._shown = restored, choice, hidden, shown
        self.is_initialized = True

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        """The prompt's keys and values with the steps' [1, H, T, D], which are not stored."""
        keys = torch.cat([self._prompt[0], key_states], dim=2)
        keys.kv_layer = weakref.ref(self)  # type: ignore[attr-defined]  # our attribute
        return keys, torch.cat([self._prompt[1], value_states], dim=2)

    def get_seq_length(self) -> int:
        """Number of the prompt's tokens."""
        return self._prompt[0].shape[2]

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
        """Attention output [1, T, Q, D] of all steps."""
        steps, width = query.shape[2:]
        heads, total = keys.shape[1:3]
        scale = scaling or width**-0.5
        by_head = query[0].unflatten(0, (heads, -1)).float()  # [H, G, T, D]
        logits = softcap_(torch.einsum("hgtd,hnd->hgtn", by_head, keys[0].float()) * scale, softcap).flatten(0, 1)
        later = (
            torch.arange(total, device=keys.device) > torch.arange(total - steps, total, device=keys.device)[:, None]
        )
        logits.masked_fill_(later, NEGATIVE_INFINITY)
        seen = logits if self._attended is None else logits + self._attended.mask
        if self._attended is not None and self._restored:
            seen = self._with_restored(logits, seen, heads)
        if self._shown:
            seen = seen.clone()
            seen[..., self._shown] = logits[..., self._shown]
        if self._hidden:
            seen[..., self._hidden] = NEGATIVE_INFINITY
        all_values = values[0].float()
        if self._attended is not None and self._attended.merged is not None:
            seen, all_values = self._with_merged(self._attended, by_head, seen, all_values, scale, softcap)
        weights = seen.softmax(-1).nan_to_num_()  # a step that attends to nothing
        output = torch.einsum("hgtn,hnd->hgtd", weights.unflatten(0, (heads, -1)), all_values).flatten(0, 1)
        if self._attended is not None and self._attended.corrections is not None:
            output = self._corrected(self._attended.corrections, output, heads)
        return output.transpose(0, 1)[None].to(query.dtype)

    def _with_restored(self, logits: Tensor, seen: Tensor, heads: int) -> Tensor:
        """The logits [Q, T, N] with those of the given choice, or of the largest exact weights, in restored heads."""
        best = self._best(logits, heads) if self._choice is None else self._choice
        best = best.repeat_interleave(len(logits) // len(best), dim=0)
        group, seen = len(logits) // heads, seen.clone()
        for head in self._restored:
            rows = slice(head * group, (head + 1) * group)
            seen[rows] = logits[rows].masked_fill(~best[rows], NEGATIVE_INFINITY)
        return seen

    def _best(self, logits: Tensor, heads: int) -> Tensor:
        """The tokens of the largest exact weights, bool [R, T, N], as many as each row attended to."""
        assert self._attended is not None
        counts = self._attended.counts
        weights = logits.softmax(-1)
        if counts.shape[0] == heads:
            weights = weights.unflatten(0, (heads, -1)).mean(1)  # [H, T, N]
        order = weights.argsort(dim=-1, descending=True, stable=True)
        first = torch.arange(order.shape[-1], device=order.device) < counts[..., None]
        return torch.zeros_like(first).scatter_(-1, order, first)

    def _with_merged(
        self, attended: Attended, by_head: Tensor, seen: Tensor, values: Tensor, scale: float, softcap: float | None
    ) -> tuple[Tensor, Tensor]:
        """Logits [Q, T, N + C] and values [H, N + C, D] with the centroids; restored heads have none."""
        merged, mask = attended.merged, attended.merged_mask
        assert merged is not None
        assert mask is not None
        logits = softcap_(torch.einsum("hgtd,hcd->hgtc", by_head, merged.keys[0].float()) * scale, softcap)
        logits = logits.flatten(0, 1) + mask
        group = by_head.shape[1]
        for head in self._restored:
            logits[head * group : (head + 1) * group] = NEGATIVE_INFINITY
        return torch.cat([seen, logits], dim=-1), torch.cat([values, merged.values[0].float()], dim=1)

    def _corrected(self, corrections: tuple[Tensor, Tensor], output: Tensor, heads: int) -> Tensor:
        """Outputs [Q, T, D] with the share of a fixed vector that the method mixes in, but in restored heads."""
        share, values = corrections[0].T[..., None].clone(), corrections[1].transpose(0, 1)  # [Q, T, 1], [Q, T, D]
        group = len(output) // heads
        for head in self._restored:
            share[head * group : (head + 1) * group] = 0.0
        return output * (1 - share) + values * share


def attended_by(selections: Mapping[int, Sequence[Selection]], prompt: SelectiveCache) -> dict[int, Attended]:
    """What the steps of each layer attended to, after the prompt."""
    context = prompt.selective_layers[0].context
    length = prompt.get_seq_length()
    return {layer: Attended.of(of_layer, context.n_heads, length) for layer, of_layer in selections.items()}
