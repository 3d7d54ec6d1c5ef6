"""EditedChoice: a selection as masks over all tokens, which parts of an edit change."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import cast

import torch
from torch import Tensor

from ..clustering.merged import Merged
from ..errors import InvalidInputError
from ..methods.attention import attention_weights
from ..methods.base import LayerContext, Method
from ..methods.selection import Selection, member_mask, reduce_group, to_selection_heads
from ..offload.layer_store import LayerStore
from ..trace.edit_parts import Drop, Exact, Only, Part, Pin


class EditedChoice:
    """A selection as masks over all tokens [B, R, N], which are simple to change."""

    def __init__(self, selection: Selection, history: LayerStore, context: LayerContext, starts: Sequence[int]) -> None:
        indices, length = selection.indices, history.length
        assert selection.groups is not None  # a cache with an edit asks for details
        assert selection.scores is not None
        self._selection, self._history, self._context = selection, history, context
        self._starts = torch.tensor(starts, device=indices.device)[:, None, None]  # [B, 1, 1]
        self._places = torch.arange(length, device=indices.device) - self._starts  # [B, 1, N] from the first real token
        self._rows = torch.arange(indices.shape[1], device=indices.device) // (indices.shape[1] // context.n_kv_heads)
        self.attended = member_mask(indices, length)
        self._scores = _spread(selection.scores, indices, length, torch.nan)
        self._groups = _spread(selection.groups, indices, length, -1)
        self._bias = None if selection.bias is None else _spread(selection.bias, indices, length, 0.0)
        self._merged, self._correction = selection.merged, selection.value_correction

    def make_exact(self, parts: Sequence[Part], queries: Tensor, method: Method) -> None:
        """Let heads attend to all tokens, or to those with the largest exact weights."""
        visible = (self._places >= 0).expand_as(self.attended)
        for part in sorted((p for p in parts if isinstance(p, Only | Exact)), key=lambda p: isinstance(p, Exact)):
            if isinstance(part, Exact):
                chosen = visible if part.by == "full" else self._best(queries, method)
                self.set_heads(part, chosen)
            elif part.layers is None or self._context.index in part.layers:
                self._set(self._in_batch(part) & ~self._of_heads(part), visible)
            else:
                self._set(self._in_batch(part).expand(-1, len(self._rows)), visible)

    def pin_and_drop(self, parts: Sequence[Part], method: Method) -> None:
        """Add pinned tokens, which may displace others, and remove dropped ones."""
        within, extra, dropped = (
            self._named([part for part in parts if isinstance(part, kind) and accepts(part)])
            for kind, accepts in _PIN_OR_DROP
        )
        taken_out = within | extra | dropped
        if self._merged is not None and bool(taken_out.any()):
            self._merged = _without(self._merged, _by_head(taken_out, self._context.n_kv_heads), self._history)
        missing = within & ~self.attended
        self._displace(missing.sum(-1, keepdim=True), within | extra, method)
        self.attended = (self.attended | within | extra) & ~dropped

    def selection(self) -> Selection:
        """The changed selection."""
        indices = positions_in(self.attended)
        pads, slots = indices < 0, indices.clamp(min=0)
        return replace(
            self._selection,
            indices=indices,
            groups=self._groups.gather(-1, slots).masked_fill(pads, -1),
            scores=self._scores.gather(-1, slots).masked_fill(pads, torch.nan),
            bias=None if self._bias is None else self._bias.gather(-1, slots),
            merged=self._merged,
            value_correction=self._correction,
            host_part=None,  # its slots are no longer a range
            padded=True,
        )

    def _best(self, queries: Tensor, method: Method) -> Tensor:
        """The tokens with the largest exact weights [B, R, N], as many as each row attends to, centroids included.

        Weights are averaged over a group's query heads, as for the oracle and in recordings.
        """
        context, group = self._context, "each" if method.group == "each" else "mean"
        seen = (self._places >= 0).expand(-1, context.n_kv_heads, -1)
        weights = attention_weights(queries, self._history.keys, context.scale, context.softcap, visible=seen)
        ranked = reduce_group(weights, context.n_kv_heads, group).argsort(dim=-1, descending=True, stable=True)
        counts = self.attended.sum(-1, keepdim=True)
        if self._merged is not None:
            counts = counts + to_selection_heads((self._merged.degree > 0).sum(-1), len(self._rows))[..., None]
        first = torch.arange(ranked.shape[-1], device=ranked.device) < counts
        return torch.zeros_like(self.attended).scatter_(-1, ranked, first.expand_as(ranked))

    def set_heads(self, part: Part, chosen: Tensor) -> None:
        """Let the part's heads attend to the `chosen` tokens [B, R, N] only."""
        self._set(self._in_batch(part) & self._of_heads(part), chosen)

    def _set(self, changed: Tensor, chosen: Tensor) -> None:
        """Let the `changed` rows [B, R] attend to the `chosen` tokens [B, R, N] only, by their plain weights."""
        of_tokens = changed[..., None]
        self.attended = torch.where(of_tokens, chosen, self.attended)
        self._scores = self._scores.masked_fill(of_tokens, torch.nan)
        self._groups = self._groups.masked_fill(of_tokens, -1)
        self._bias = None if self._bias is None else self._bias.masked_fill(of_tokens, 0.0)
        heads: Tensor = changed.unflatten(1, (self._context.n_kv_heads, -1))  # [B, H, R/H]
        heads = heads.any(2)
        if self._merged is not None:
            self._merged = _unmerged(self._merged, changed if self._merged.degree.shape[1] > len(heads[0]) else heads)
        if self._correction is not None:
            queries = heads.repeat_interleave(self._context.n_heads // self._context.n_kv_heads, dim=1)
            self._correction = replace(self._correction, share=self._correction.share.masked_fill(queries, 0.0))

    def _displace(self, counts: Tensor, pinned: Tensor, method: Method) -> None:
        """Remove as many tokens [B, R, 1] from each row: the lowest-ranked, then the oldest of those without a rank.

        Sinks, the step's own token and pinned tokens stay.
        """
        newest = self._places == self._places[..., -1:]
        candidates = self.attended & ~pinned & ~newest & (self._places >= method.sinks)
        rank = self._scores.nan_to_num(nan=torch.inf, posinf=torch.inf, neginf=-torch.inf)
        order = rank.argsort(dim=-1, stable=True)  # [B, R, N]
        order = order.gather(-1, (~candidates.gather(-1, order)).to(torch.uint8).argsort(dim=-1, stable=True))
        first = torch.arange(order.shape[-1], device=order.device) < counts
        displaced = torch.zeros_like(self.attended).scatter_(-1, order, first.expand_as(order))
        self.attended = self.attended & ~(displaced & candidates)

    def _in_batch(self, part: Part) -> Tensor:
        """Whether the part acts in each sequence of the batch, bool [B, 1]."""
        sequences = torch.arange(len(self.attended), device=self._rows.device)[:, None]
        if part.rows is None:
            return torch.ones_like(sequences, dtype=torch.bool)
        return torch.isin(sequences, torch.tensor(part.rows, device=sequences.device))

    def _of_heads(self, part: Part) -> Tensor:
        """Whether each row [R] of a selection belongs to the part's heads."""
        if part.heads is None:
            return torch.ones_like(self._rows, dtype=torch.bool)
        return torch.isin(self._rows, torch.tensor(part.heads, device=self._rows.device))

    def _named(self, parts: Sequence[Part]) -> Tensor:
        """Whether a part names the token in this row, bool [B, R, N]."""
        named = torch.zeros_like(self.attended)
        for part in parts:
            tokens = torch.tensor(positions_of(part), device=named.device)
            rows = self._in_batch(part) & self._of_heads(part)  # [B, R]
            named |= torch.isin(self._places, tokens) & rows[..., None]
        return named


_PIN_OR_DROP: tuple[tuple[type[Part], Callable[[Part], bool]], ...] = (
    (Pin, lambda part: cast(Pin, part).budget == "same"),
    (Pin, lambda part: cast(Pin, part).budget == "extra"),
    (Drop, lambda part: True),
)


def positions_of(part: Part) -> tuple[int, ...]:
    """The tokens that a pin or drop names."""
    assert isinstance(part, Pin | Drop)
    return cast("tuple[int, ...]", part.tokens)


def _spread(values: Tensor, indices: Tensor, length: int, fill: float) -> Tensor:
    """The values of slots [B, R, S] at their tokens, [B, R, length]; `fill` elsewhere."""
    spread = values.new_full((*indices.shape[:-1], length + 1), fill)  # the last place is for pads
    return spread.scatter_(-1, torch.where(indices < 0, length, indices), values)[..., :-1]


def positions_in(mask: Tensor) -> Tensor:
    """The positions [..., S] of a mask [..., N], ascending, padded with -1."""
    counts = mask.sum(-1, keepdim=True)
    width = int(counts.max()) if counts.numel() else 0
    order = (~mask).to(torch.uint8).argsort(dim=-1, stable=True)[..., :width]
    return torch.where(torch.arange(width, device=mask.device) < counts, order, -1)


def _by_head(rows: Tensor, heads: int) -> Tensor:
    """A mask per row [B, R, N] as one per KV head [B, H, N]: of any of its rows."""
    by_head: Tensor = rows.unflatten(1, (heads, -1))  # [B, H, R/H, N]
    return by_head.any(2)


def _without(merged: Merged, tokens: Tensor, history: LayerStore) -> Merged:
    """The centroids without the `tokens` [B, H, N], which are taken out of the weighted means they are in."""
    if merged.members is None:
        raise InvalidInputError("edit", "merged tokens of a method that does not tell its members", "Merged.members")
    heads, count = tokens.shape[1], merged.members.shape[-1]
    places = tokens[..., :count].any(1).any(0).nonzero()[:, 0]  # [T], positions of the tokens
    named: Tensor = merged.members[..., places].unflatten(1, (heads, -1))  # [B, H, R/H, T]
    numbers = torch.arange(merged.keys.shape[2], device=named.device)
    joined = (named[..., None] == numbers).any(2) & tokens[..., places, None]  # [B, H, T, C]
    removed = joined.sum(2)  # [B, H, C]
    sizes: Tensor = merged.degree.unflatten(1, (heads, -1)).amax(2)  # of all rows that attend to it

    def mean(means: Tensor, raw: Tensor) -> Tensor:
        sums = means.float() * sizes[..., None] - joined.float().mT @ raw[:, :, places].float()
        kept = sums / (sizes - removed).clamp(min=1)[..., None]
        return torch.where((removed > 0)[..., None], kept, means.float()).to(means.dtype)

    of_rows = to_selection_heads(removed.to(merged.degree.dtype), merged.degree.shape[1])
    out = to_selection_heads(tokens[..., :count], merged.members.shape[1])
    return Merged(
        mean(merged.keys, history.keys), mean(merged.values, history.values),
        (merged.degree - of_rows).clamp(min=0), merged.members.masked_fill(out, -1),
    )  # fmt: skip


def _unmerged(merged: Merged, rows: Tensor) -> Merged:
    """The centroids of all rows but these, bool [B, H or Q]; theirs get degree 0."""
    members = None if merged.members is None else merged.members.masked_fill(rows[..., None], -1)
    return replace(merged, degree=merged.degree.masked_fill(rows[..., None], 0), members=members)
