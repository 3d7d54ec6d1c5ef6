"""Attended: what the decode steps of one layer attended to, as masks over all tokens."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ..clustering.merged import Merged
from ..methods.selection import Selection, to_selection_heads
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
    """The counts with each step's centroids, all different sets of centroids, and their mask.

    Steps that choose among the same centroids, by degree, share them.
    """
    sets: list[Merged] = []
    of_step = []
    for entry in merged:
        if entry is not None and not (sets and _same(entry, sets[-1])):
            sets.append(entry)
        of_step.append(-1 if entry is None else len(sets) - 1)
    if not sets:
        return counts, None, None
    widths = [entry.degree.shape[-1] for entry in sets]
    mask = counts.new_full((n_heads, len(merged), sum(widths)), 0, dtype=torch.float32).fill_(NEGATIVE_INFINITY)
    for step, (number, entry) in enumerate(zip(of_step, merged, strict=True)):
        if entry is not None:
            start, degree = sum(widths[:number]), entry.degree  # [1, H or Q, C]
            mask[:, step, start : start + widths[number]] = to_selection_heads(degree, n_heads)[0].float().log()
            counts[:, step] += to_selection_heads((degree > 0).sum(-1), counts.shape[0])[0]
    joined = Merged(*(torch.cat([getattr(e, part) for e in sets], dim=2) for part in ("keys", "values", "degree")))
    return counts, joined, mask


def _same(one: Merged, two: Merged) -> bool:
    pairs = ((one.keys, two.keys), (one.values, two.values))
    return all(first is second or torch.equal(first, second) for first, second in pairs)


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


def attended_by(selections: Mapping[int, Sequence[Selection]], prompt: SelectiveCache) -> dict[int, Attended]:
    """What the steps of each layer attended to, after the prompt."""
    context = prompt.selective_layers[0].context
    length = prompt.get_seq_length()
    return {layer: Attended.of(of_layer, context.n_heads, length) for layer, of_layer in selections.items()}
