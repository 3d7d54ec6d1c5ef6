"""Checks of what a step chooses."""

from __future__ import annotations

from dataclasses import replace

import torch

from ..base import Method
from ..selection import GROUPS, member_mask
from .steps import (
    DIM,
    SHAPES,
    assert_valid,
    build_state,
    decode_step,
    decode_steps,
    first_step,
    random_tensors,
    smallest,
)


def selections_are_valid(method: type[Method]) -> None:
    """Indices are ascending, unique, in range and within the budget; details have their shape."""
    for n_heads, n_kv_heads, length in SHAPES:
        chosen = smallest(method)
        for state, selection in decode_steps(chosen, 3, n_heads, n_kv_heads, length):
            assert_valid(chosen, state, selection)


def full_budget_attends_everything(method: type[Method]) -> None:
    """With a budget of the whole prompt, heads attend to all tokens, generated ones included: dense selection."""
    for n_heads, n_kv_heads, length in SHAPES:
        least = smallest(method)
        chosen = replace(least, budget=max(length + 3, least.budget))
        for number, (_, selection) in enumerate(decode_steps(chosen, 3, n_heads, n_kv_heads, length)):
            expected = torch.arange(length + number + 1).expand(*selection.indices.shape[:2], -1)
            assert torch.equal(selection.indices, expected), f"{chosen.name}: a full budget left tokens out"


def sinks_and_recent_are_kept(method: type[Method]) -> None:
    """The first `sinks` and the last `recent` tokens are always attended to."""
    chosen = smallest(method)
    chosen = replace(chosen, sinks=chosen.sinks + 4, recent=8, budget=chosen.budget + 32)
    selection = first_step(chosen)
    for position in (*range(chosen.sinks), *range(250, 258)):
        attended = bool((selection.indices == position).any(-1).all())
        assert attended, f"{chosen.name}: position {position} is not attended"


def a_state_serves_every_budget(method: type[Method]) -> None:
    """A state that a method reuses gives the same selection as one of its own.

    It is that of the method named by `reusable`, and any other if the class `builds_for_any_budget`.
    """
    small = smallest(method)
    budgets = [replace(small, budget=small.budget + more) for more in (0, 16, 100)]
    for chosen in budgets:
        builders = [*(budgets if method.builds_for_any_budget else []), chosen.reusable(400)]
        for builder in builders:
            if builder is None:
                continue
            reference, built = (build_state(by, *random_tensors(6, 2, 400)) for by in (chosen, builder))
            state = chosen.reuse(builder, built)
            assert state is not None, f"{method.name}: a state built for a budget of {builder.budget} is not reused"
            for number in range(20):
                reference, expected = decode_step(chosen, reference, 6, 2, seed=number)
                state, selection = decode_step(chosen, state, 6, 2, seed=number)
                assert torch.equal(selection.indices, expected.indices), (
                    f"{method.name}: a state built for a budget of {builder.budget} differs at {chosen.budget}"
                )


def inputs_are_unchanged(method: type[Method]) -> None:
    """Neither build, extend nor select writes into what it is given."""
    chosen = smallest(method)
    tensors = random_tensors(6, 2, 257)
    copies = [tensor.clone() for tensor in tensors]
    state = build_state(chosen, *tensors)
    new = random_tensors(6, 2, 1, seed=9)
    new_copies = [tensor.clone() for tensor in new]
    state = chosen.extend(state, *new)
    chosen.select(state, new[0][:, :, 0])
    for before, after in zip([*copies, *new_copies], [*tensors, *new], strict=True):
        assert torch.equal(before, after), f"{chosen.name}: an input was changed"


def batches_are_independent(method: type[Method]) -> None:
    """A prompt's selection does not depend on what else is in the batch."""
    chosen = smallest(method)
    queries, keys, values = random_tensors(6, 2, 257, batch=3)
    query = torch.randn(3, 6, DIM, generator=torch.Generator().manual_seed(5))
    together = chosen.select(build_state(chosen, queries, keys, values), query).indices
    for index in range(3):
        row = slice(index, index + 1)
        alone = chosen.select(build_state(chosen, queries[row], keys[row], values[row]), query[row]).indices
        same = torch.equal(member_mask(together[row], 257), member_mask(alone, 257))  # the number of pads may differ
        assert same, f"{chosen.name}: row {index} depends on its batch"


def runs_repeat(method: type[Method]) -> None:
    """The same inputs and fields give the same selection, details included."""
    selections = [first_step(smallest(method)) for _ in range(2)]
    for name in ("indices", "groups", "scores"):
        first, second = (torch.nan_to_num(getattr(selection, name)) for selection in selections)
        assert torch.equal(first, second), f"{method.name}: {name} differ between two runs"


def every_group_works(method: type[Method]) -> None:
    """All four ways to reduce a group give valid selections of the right number of rows."""
    for group in GROUPS:
        selection = first_step(replace(smallest(method), group=group))
        assert selection.indices.shape[1] == (6 if group == "each" else 2), f"{method.name}: heads of group={group!r}"


def degenerate_keys_work(method: type[Method]) -> None:
    """Constant, all-zero and duplicated keys give valid selections."""
    _, keys, _ = random_tensors(6, 2, 257)
    for degenerate in (torch.zeros_like(keys), torch.ones_like(keys), keys[:, :, :4].repeat(1, 1, 65, 1)[:, :, :257]):
        first_step(smallest(method), keys=degenerate)


def config_makes_the_same_method(method: type[Method]) -> None:
    """`create(name, **config)` makes an equal method, for the defaults and every preset."""
    for preset, fields in method.presets.items():
        chosen = method(**{"budget": 2048, **fields})
        again = method(**chosen.config)
        assert again == chosen, f"{method.name}: preset {preset!r} differs after a round trip through its config"
