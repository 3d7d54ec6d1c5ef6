"""Checks that every method must pass; run them on a new method with `run(MyMethod)`.

If a check does not apply to a method, the method names it in `expected_failures` with a reason, and must then fail it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from ..errors import InvalidInputError
from .base import LayerContext, Method, State
from .selection import GROUPS, Selection, member_mask

HEADS = ((4, 4), (6, 2), (3, 1))  # (query heads, KV heads): MHA, grouped, MQA
SHAPES = tuple((*heads, length) for heads in HEADS for length in (1, 17, 63, 100, 257))
DIM = 16
CONTEXT = LayerContext(index=5, n_layers=8, n_heads=0, n_kv_heads=0, head_dim=DIM, scale=DIM**-0.5, details=True)

Check = Callable[[type[Method]], None]


def run(method: type[Method]) -> dict[str, str]:
    """Run all checks on a method class; returns {check: "passed" or "expected failure: reason"}.

    Raises AssertionError if a check fails, or if an expected failure passes.
    """
    outcome = {}
    for name, check in CHECKS.items():
        reason = method.expected_failures.get(name)
        if reason is None:
            check(method)
            outcome[name] = "passed"
            continue
        try:
            check(method)
        except AssertionError:
            outcome[name] = f"expected failure: {reason}"
        else:
            raise AssertionError(f"{method.name} passes {name!r}, which it lists as an expected failure")
    return outcome


def selections_are_valid(method: type[Method]) -> None:
    """Indices are ascending, unique, in range and within the budget; details have their shape."""
    for n_heads, n_kv_heads, length in SHAPES:
        chosen = smallest(method)
        for state, selection in _steps(chosen, 3, n_heads, n_kv_heads, length):
            _assert_valid(chosen, state, selection)


def full_budget_attends_everything(method: type[Method]) -> None:
    """With a budget of the whole prompt, heads attend to all tokens, generated ones included: dense selection."""
    for n_heads, n_kv_heads, length in SHAPES:
        least = smallest(method)
        chosen = replace(least, budget=max(length, least.budget))
        for step, (_, selection) in enumerate(_steps(chosen, 3, n_heads, n_kv_heads, length)):
            expected = torch.arange(length + step + 1).expand_as(selection.indices)
            assert torch.equal(selection.indices, expected), f"{chosen.name}: a full budget left tokens out"


def generated_tokens_are_seen(method: type[Method]) -> None:
    """The step that feeds a token attends to it."""
    for n_heads, n_kv_heads, length in SHAPES:
        chosen = smallest(method)
        for step, (_, selection) in enumerate(_steps(chosen, 40, n_heads, n_kv_heads, length)):
            newest = (selection.indices == length + step).any(-1)
            assert bool(newest.all()), f"{chosen.name}: the step's own token is not attended"


def sinks_and_recent_are_kept(method: type[Method]) -> None:
    """The first `sinks` and the last `recent` tokens are always attended."""
    chosen = smallest(method)
    chosen = replace(chosen, sinks=chosen.sinks + 4, recent=8, budget=chosen.budget + 32)
    selection = _first_step(chosen)
    for position in (*range(chosen.sinks), *range(250, 258)):
        attended = bool((selection.indices == position).any(-1).all())
        assert attended, f"{chosen.name}: position {position} is not attended"


def extension_equals_one_build(method: type[Method]) -> None:
    """Decoding n tokens and building over all of them lead to the same choice."""
    n_heads, n_kv_heads, length, new = 6, 2, 200, 90
    queries, keys, values = _tensors(n_heads, n_kv_heads, length + new)
    least = smallest(method)
    larger = replace(least, budget=least.budget + new)  # generated tokens raise the step budget of `least` to this
    built = _build(larger, queries, keys, values)
    extended = _build(least, queries[:, :, :length], keys[:, :, :length], values[:, :, :length])
    for position in range(length, length + new):
        last = slice(position, position + 1)
        extended = least.extend(extended, queries[:, :, last], keys[:, :, last], values[:, :, last])
    query = queries[:, :, -1]
    assert torch.equal(larger.select(built, query).indices, least.select(extended, query).indices), (
        f"{least.name}: extending differs from building"
    )


def a_state_serves_every_budget(method: type[Method]) -> None:
    """If a class `builds_for_any_budget`, a state built for another budget gives the same selection."""
    if not method.builds_for_any_budget:
        return
    small = smallest(method)
    for budget in (small.budget + 16, small.budget + 100):
        large = replace(small, budget=budget)
        for builder, chosen in ((small, large), (large, small)):
            reference, state = (_build(by, *_tensors(6, 2, 400)) for by in (chosen, builder))
            for step in range(20):
                reference, expected = _step(chosen, reference, 6, 2, seed=step)
                state, selection = _step(chosen, state, 6, 2, seed=step)
                assert torch.equal(selection.indices, expected.indices), (
                    f"{method.name}: a state built for a budget of {builder.budget} differs at {chosen.budget}"
                )


def decoding_goes_on(method: type[Method]) -> None:
    """Hundreds of decoded tokens later, selections are still valid."""
    chosen = smallest(method)
    for step, (state, selection) in enumerate(_steps(chosen, 700)):
        if step % 70 == 69:
            _assert_valid(chosen, state, selection)


def dropped_tokens_stay_dropped(method: type[Method]) -> None:
    """No later step attends to a token that the method dropped; methods that drop none keep all tokens."""
    chosen = smallest(method)
    state = _build(chosen, *_tensors(6, 2, 600))
    dropped = torch.zeros(2, 1000, dtype=torch.bool)
    for step in range(150):
        kept = chosen.keeps(state)
        assert chosen.drops_tokens or kept is None, f"{chosen.name}: only eviction and merging drop tokens"
        if kept is not None:
            dropped[:, : state.length] |= ~member_mask(kept[0], 1000)[:, : state.length]
        state, selection = _step(chosen, state, 6, 2, seed=step)
        attended = member_mask(selection.indices[0], 1000).unflatten(0, (2, -1)).any(1)
        assert not bool((attended & dropped).any()), f"{chosen.name}: a dropped token is attended to"
    assert not chosen.drops_tokens or bool(dropped.any()), f"{chosen.name}: its kind drops tokens, but all were kept"


def later_prompts_are_taken_in(method: type[Method]) -> None:
    """A second prompt on the same state counts as prompt, is within the budget, and decoding goes on."""
    n_heads, n_kv_heads, first, second = 6, 2, 257, 120
    queries, keys, values = _tensors(n_heads, n_kv_heads, first + second)
    chosen = smallest(method)
    state = _build(chosen, queries[:, :, :first], keys[:, :, :first], values[:, :, :first])
    state, _ = _step(chosen, state, n_heads, n_kv_heads, seed=0)
    new = tuple(tensor[:, :, first:] for tensor in (queries, keys, values))
    later = chosen.continue_prompt(state, new[0] if method.needs_queries else new[0][:, :, :0], *new[1:])
    if later is None:
        assert not chosen.drops_tokens, f"{chosen.name}: drops tokens, so its state cannot be rebuilt"
        later = _build(chosen, queries, keys, values)
    else:
        assert later.length == first + 1 + second, f"{chosen.name}: the later prompt's tokens are not counted"
    assert later.prompt_length == later.length, f"{chosen.name}: the later prompt is counted as generated"
    for step in range(3):
        later, selection = _step(chosen, later, n_heads, n_kv_heads, seed=1 + step)
        _assert_valid(chosen, later, selection)


def inputs_are_unchanged(method: type[Method]) -> None:
    """Neither build, extend nor select writes into what it is given."""
    chosen = smallest(method)
    tensors = _tensors(6, 2, 257)
    copies = [tensor.clone() for tensor in tensors]
    state = _build(chosen, *tensors)
    new = _tensors(6, 2, 1, seed=9)
    new_copies = [tensor.clone() for tensor in new]
    state = chosen.extend(state, *new)
    chosen.select(state, new[0][:, :, 0])
    for before, after in zip([*copies, *new_copies], [*tensors, *new], strict=True):
        assert torch.equal(before, after), f"{chosen.name}: an input was changed"


def batches_are_independent(method: type[Method]) -> None:
    """A prompt's selection does not depend on what else is in the batch."""
    chosen = smallest(method)
    queries, keys, values = _tensors(6, 2, 257, batch=3)
    query = torch.randn(3, 6, DIM, generator=torch.Generator().manual_seed(5))
    together = chosen.select(_build(chosen, queries, keys, values), query).indices
    for index in range(3):
        row = slice(index, index + 1)
        alone = chosen.select(_build(chosen, queries[row], keys[row], values[row]), query[row]).indices
        assert torch.equal(together[row], alone), f"{chosen.name}: row {index} depends on its batch"


def runs_repeat(method: type[Method]) -> None:
    """The same inputs and fields give the same selection, details included."""
    selections = [_first_step(smallest(method)) for _ in range(2)]
    for name in ("indices", "groups", "scores"):
        first, second = (torch.nan_to_num(getattr(selection, name)) for selection in selections)
        assert torch.equal(first, second), f"{method.name}: {name} differ between two runs"


def every_group_works(method: type[Method]) -> None:
    """All four ways to reduce a group give valid selections of the right number of rows."""
    for group in GROUPS:
        selection = _first_step(replace(smallest(method), group=group))
        assert selection.indices.shape[1] == (6 if group == "each" else 2), f"{method.name}: heads of group={group!r}"


def degenerate_keys_work(method: type[Method]) -> None:
    """Constant, all-zero and duplicated keys give valid selections."""
    _, keys, _ = _tensors(6, 2, 257)
    for degenerate in (torch.zeros_like(keys), torch.ones_like(keys), keys[:, :, :4].repeat(1, 1, 65, 1)[:, :, :257]):
        _first_step(smallest(method), keys=degenerate)


def smallest(method: type[Method]) -> Method:
    """The method with the smallest power of 2 from 32 to 512 that its fields allow as budget."""
    for budget in (32, 64, 128, 256, 512):
        try:
            return method(budget=budget)
        except InvalidInputError:
            continue
    raise AssertionError(f"{method.name}: no budget up to 512 is allowed")


def _tensors(
    n_heads: int, n_kv_heads: int, length: int, *, batch: int = 1, seed: int = 0
) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    queries = torch.randn(batch, n_heads, length, DIM, generator=generator)
    keys, values = (torch.randn(batch, n_kv_heads, length, DIM, generator=generator) for _ in range(2))
    return queries, keys, values


def _build(method: Method, queries: Tensor, keys: Tensor, values: Tensor) -> State:
    context = replace(CONTEXT, n_heads=queries.shape[1], n_kv_heads=keys.shape[1])
    state: State = method.build(context, queries if method.needs_queries else queries[:, :, :0], keys, values)
    return state


def _step(method: Method, state: State, n_heads: int, n_kv_heads: int, *, seed: int) -> tuple[State, Selection]:
    queries, keys, values = _tensors(n_heads, n_kv_heads, 1, seed=100 + seed)
    state = method.extend(state, queries, keys, values)
    return state, method.select(state, queries[:, :, 0])


def _steps(
    method: Method, count: int, n_heads: int = 6, n_kv_heads: int = 2, length: int = 257, *, keys: Tensor | None = None
) -> Iterator[tuple[State, Selection]]:
    """State and selection of each decode step after a prompt with `keys`, by default random."""
    queries, random_keys, values = _tensors(n_heads, n_kv_heads, length)
    state = _build(method, queries, random_keys if keys is None else keys, values)
    for step in range(count):
        state, selection = _step(method, state, n_heads, n_kv_heads, seed=step)
        yield state, selection


def _first_step(method: Method, *, keys: Tensor | None = None) -> Selection:
    """The selection of the first decode step, after checking it."""
    [(state, selection)] = _steps(method, 1, keys=keys)
    _assert_valid(method, state, selection)
    return selection


def _assert_valid(method: Method, state: State, selection: Selection) -> None:
    indices = selection.indices
    assert indices.dtype == torch.int64, f"{method.name}: indices are {indices.dtype}"
    merged = 0 if selection.merged is None else int((selection.merged.degree > 0).sum(-1).max())
    for row in indices.flatten(0, 1):
        tokens = row[row >= 0]
        assert bool((tokens.diff() > 0).all()), f"{method.name}: indices are not ascending and unique"
        assert bool((tokens < state.length).all()), f"{method.name}: an index is beyond the {state.length} tokens"
        most, count = min(method.step_budget(state), state.length), len(tokens)
        assert 0 < count + merged <= most, f"{method.name}: {count} + {merged} tokens attended, {most} allowed"
    if selection.bias is not None:
        assert selection.bias.shape == indices.shape, f"{method.name}: bias of shape {selection.bias.shape}"
        assert not bool(selection.bias.isnan().any()), f"{method.name}: NaN in the bias"
    assert selection.padded or bool((indices >= 0).all()), f"{method.name}: padding without padded=True"
    for name, dtype in (("groups", torch.int32), ("scores", torch.float32)):
        detail: Any = getattr(selection, name)
        assert detail is not None, f"{method.name}: no {name} although details were asked for"
        assert (detail.shape, detail.dtype) == (indices.shape, dtype), (
            f"{method.name}: {name} of shape {detail.shape}, {detail.dtype}"
        )


CHECKS: dict[str, Check] = {
    check.__name__: check
    for check in (
        selections_are_valid,
        full_budget_attends_everything,
        generated_tokens_are_seen,
        sinks_and_recent_are_kept,
        extension_equals_one_build,
        a_state_serves_every_budget,
        decoding_goes_on,
        dropped_tokens_stay_dropped,
        later_prompts_are_taken_in,
        inputs_are_unchanged,
        batches_are_independent,
        runs_repeat,
        every_group_works,
        degenerate_keys_work,
    )
}
