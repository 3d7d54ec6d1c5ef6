"""The bytes that count in a budget in bytes: `kvviz.metrics.byte_budgets.Bytes` has the rule."""

from __future__ import annotations

import math
from typing import NamedTuple

from ..clustering.merged import Merged
from .base import Method, State
from .capabilities import Merging
from .state import tensor_bytes


class Held(NamedTuple):
    """Bytes that count of a batch's state: `tokens`, keys and values, merged tokens among them, and `metadata`."""

    tokens: int
    metadata: int

    @property
    def total(self) -> int:
        """All bytes."""
        return self.tokens + self.metadata


def held_at_most(method: Method, state: State, sequences: int, token_bytes: int) -> Held:
    """What counts of a state after a prompt, whatever a step will select: the rule of `Bytes`.

    `sequences` is the number of sequences in the state, `token_bytes` the bytes of a token's key and value in one KV
    head. A budget that generated tokens will fill, since the prompt is shorter or the method keeps fewer tokens at
    first, counts in full, with metadata in proportion. So does a layer whose budget differs from the mean over layers.
    """
    layer, prompt = state.layer, state.prompt_length
    heads = sequences * layer.n_kv_heads
    budget, of_layer = method.budget_tokens(prompt), method.layer_budget(layer, prompt)
    kept, metadata = held_tokens(method, state, sequences), state.metadata_bytes()
    if kept is None:
        extra = max(method.extra_tokens(prompt) - method.decode_window, 0)  # no token waits when the prompt ends
        per_kv_head = layer.selection_heads(method.group) // layer.n_kv_heads
        attended = min((of_layer + extra) * per_kv_head, max(state.length, of_layer))
        held = Held(heads * attended * token_bytes, metadata)
    else:
        merged = merged_of(method, state)
        entries = kept + (0 if merged is None else merged.degree.numel())
        filled = max(heads * of_layer, entries)
        missing = (filled - entries) * token_bytes
        held = Held(kept * token_bytes + merged_bytes(method, state) + missing, math.ceil(metadata * filled / entries))
    return held if of_layer == budget else Held(*(math.ceil(part * budget / of_layer) for part in held))


def held_tokens(method: Method, state: State, sequences: int) -> int | None:
    """The number of tokens that a method keeps, summed over KV heads and sequences; None if it drops none."""
    if not method.drops_tokens:
        return None
    kept = method.keeps(state)
    return sequences * state.layer.n_kv_heads * state.length if kept is None else int((kept >= 0).sum())


def merged_bytes(method: Method, state: State) -> int:
    """Bytes of the keys and values of merged tokens that replace others."""
    merged = merged_of(method, state)
    return 0 if merged is None else tensor_bytes([merged.keys, merged.values])


def merged_of(method: Method, state: State) -> Merged | None:
    """The merged tokens that replace others; None without any."""
    return method.merged(state) if isinstance(method, Merging) else None
