"""Checks of what happens while tokens are decoded and prompts follow."""

from __future__ import annotations

import torch

from ..base import Method
from ..selection import member_mask
from .steps import SHAPES, assert_valid, build_state, decode_step, decode_steps, random_tensors, smallest


def generated_tokens_are_seen(method: type[Method]) -> None:
    """The step that feeds a token attends to it, also in the steps in which waiting tokens are indexed."""
    chosen = smallest(method)
    runs = [(40, *shape) for shape in SHAPES] + [(max(700, 2 * chosen.decode_window + 10), 6, 2, 100)]
    for count, n_heads, n_kv_heads, length in runs:
        for number, (_, selection) in enumerate(decode_steps(chosen, count, n_heads, n_kv_heads, length)):
            newest = (selection.indices == length + number).any(-1)
            assert bool(newest.all()), f"{chosen.name}: step {number} does not attend to its own token"


def extension_equals_one_build(method: type[Method]) -> None:
    """Decoding n tokens and building over all of them lead to the same choice."""
    n_heads, n_kv_heads, length, new = 6, 2, 200, 90
    queries, keys, values = random_tensors(n_heads, n_kv_heads, length + new)
    chosen = smallest(method)
    built = build_state(chosen, queries, keys, values)
    extended = build_state(chosen, queries[:, :, :length], keys[:, :, :length], values[:, :, :length])
    for position in range(length, length + new):
        last = slice(position, position + 1)
        extended = chosen.extend(extended, queries[:, :, last], keys[:, :, last], values[:, :, last])
    query = queries[:, :, -1]
    assert torch.equal(chosen.select(built, query).indices, chosen.select(extended, query).indices), (
        f"{chosen.name}: extending differs from building"
    )


def decoding_goes_on(method: type[Method]) -> None:
    """Hundreds of decoded tokens later, selections are still valid."""
    chosen = smallest(method)
    for length in (1, 257):
        for number, (state, selection) in enumerate(decode_steps(chosen, 700, length=length)):
            if number % 70 == 69:
                assert_valid(chosen, state, selection)


def the_budget_holds(method: type[Method]) -> None:
    """Over 2,000 decoded tokens, no step attends to more than the budget and `extra_tokens`, and no more are kept.

    `extra_tokens`, by default the `decode_window`, must be declared and may not depend on what was generated.
    """
    chosen = smallest(method)
    if chosen.ignores_budget:
        return
    for number, (state, selection) in enumerate(decode_steps(chosen, 2000, n_heads=2, n_kv_heads=1)):
        most = chosen.budget_tokens(state.prompt_length) + chosen.extra_tokens(state.prompt_length)
        attended = int(selection.entries.max())
        assert attended <= most, f"{chosen.name}: step {number} attends to {attended} tokens, {most} are allowed"
        kept = chosen.keeps(state) if chosen.drops_tokens else None
        if kept is not None:
            merged = selection.merged
            centroids = torch.zeros(1) if merged is None else (merged.degree > 0).sum(-1)
            count = int((kept >= 0).sum(-1).max() + centroids.max())
            assert count <= most, f"{chosen.name}: {count} tokens are kept after step {number}, {most} are allowed"


def the_prompt_stays_in_reach(method: type[Method]) -> None:
    """After 2,000 decoded tokens, a retrieval method still attends to tokens of the prompt beyond the sinks.

    Keys and queries are random, so that prompt and generated tokens are equally good: each head must attend to the
    prompt in one of the last 50 steps at least. Methods that drop tokens need not.
    """
    chosen, prompt = smallest(method), 257
    if chosen.kind != "retrieval" or chosen.ignores_budget:
        return
    reached = torch.tensor(False)
    for number, (_, selection) in enumerate(decode_steps(chosen, 2000, n_heads=2, n_kv_heads=1, length=prompt)):
        if number >= 1950:
            reached = reached | ((selection.indices >= chosen.sinks) & (selection.indices < prompt)).any(-1)[0]
    assert bool(reached.all()), f"{chosen.name}: no token of the prompt is found after 2,000 decoded tokens"


def dropped_tokens_stay_dropped(method: type[Method]) -> None:
    """No later step attends to a token that the method dropped; methods that drop none keep all tokens."""
    chosen = smallest(method)
    state = build_state(chosen, *random_tensors(6, 2, 600))
    dropped = torch.zeros(2, 1000, dtype=torch.bool)
    for number in range(150):
        kept = chosen.keeps(state)
        assert chosen.drops_tokens or kept is None, f"{chosen.name}: only eviction and merging drop tokens"
        if kept is not None:
            dropped[:, : state.length] |= ~member_mask(kept[0], 1000)[:, : state.length]
        state, selection = decode_step(chosen, state, 6, 2, seed=number)
        attended = member_mask(selection.indices[0], 1000).unflatten(0, (2, -1)).any(1)
        assert not bool((attended & dropped).any()), f"{chosen.name}: a dropped token is attended to"
    assert not chosen.drops_tokens or bool(dropped.any()), f"{chosen.name}: its kind drops tokens, but all were kept"


def later_prompts_are_taken_in(method: type[Method]) -> None:
    """A second prompt on the same state counts as prompt, is within the budget, and decoding goes on."""
    n_heads, n_kv_heads, first, second = 6, 2, 257, 120
    queries, keys, values = random_tensors(n_heads, n_kv_heads, first + second)
    chosen = smallest(method)
    state = build_state(chosen, queries[:, :, :first], keys[:, :, :first], values[:, :, :first])
    state, _ = decode_step(chosen, state, n_heads, n_kv_heads, seed=0)
    new = tuple(tensor[:, :, first:] for tensor in (queries, keys, values))
    later = chosen.continue_prompt(state, new[0] if method.needs_queries else new[0][:, :, :0], *new[1:])
    if later is None:
        assert not chosen.drops_tokens, f"{chosen.name}: drops tokens, so its state cannot be rebuilt"
        later = build_state(chosen, queries, keys, values)
    else:
        assert later.length == first + 1 + second, f"{chosen.name}: the later prompt's tokens are not counted"
    assert later.prompt_length == later.length, f"{chosen.name}: the later prompt is counted as generated"
    for number in range(3):
        later, selection = decode_step(chosen, later, n_heads, n_kv_heads, seed=1 + number)
        assert_valid(chosen, later, selection)
