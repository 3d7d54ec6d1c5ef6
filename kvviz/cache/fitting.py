"""The budget in tokens that a layer finds for a budget in bytes."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from torch import Tensor

from ..errors import BudgetTooSmallError, InvalidInputError
from ..methods.base import Method, State
from ..methods.held import Held, held_at_most
from ..methods.selection import positions
from ..metrics.byte_budgets import Bytes
from ..metrics.memory import bytes_text
from ..offload.layer_store import LayerStore

SECANTS = 8  # guesses by linear interpolation, before the search halves what is left


@dataclass(frozen=True)
class Room:
    """What a budget in bytes has to hold: `prompt_length` tokens of `sequences` sequences.

    A token's key and value take `token_bytes` in one KV head of the store, and `surplus` more bytes in all if some are
    stored in more bits than others. Those of the whole prompt take `full_bytes` as the model computed them, in one
    sequence.
    """

    prompt_length: int
    sequences: int
    token_bytes: int
    full_bytes: int
    surplus: int = 0

    @classmethod
    def of(cls, keys: Tensor, values: Tensor, store: LayerStore, starts: list[int], length: int | None = None) -> Room:
        """The room for a prompt of `length` tokens (default: n) with keys and values like these [B, H, n, D].

        `starts` is the left padding of the store's rows. A store that encodes tokens after the prompt is weighed by a
        copy in which they are.
        """
        of_token = keys[0, :, 0].nbytes + values[0, :, 0].nbytes
        length, sequences, surplus = length or keys.shape[2], keys.shape[0], 0
        if not store.exact:
            store = store.clone()
            store.compress(starts if any(starts) else None)
            every = positions(0, store.length, store.batch, keys.shape[1], keys.device)
            surplus = store.read_bytes(every) - every.numel() * store.token_bytes
            surplus = max(surplus, 0) * sequences // store.batch
        return cls(length, sequences, store.token_bytes, length * of_token, surplus)


def fit(method: Method, build: Callable[[Method], State], room: Room) -> tuple[Method, State]:
    """The method with the largest budget in tokens that fits into its budget in bytes, and its state.

    `build` makes the state of the prompt for a method. The search needs it twice for a method whose metadata do not
    depend on the budget, and three or four times for one that keeps, say, a vote per token.

    Raises BudgetTooSmallError if the least budget in tokens does not fit.
    """
    assert isinstance(method.budget, Bytes)
    wanted = method.budget.of_cache(room.full_bytes) * room.sequences
    least = least_of(method)
    reusable = least.reusable(room.prompt_length)
    if reusable is not None:
        build = _reusing(reusable, build(reusable), build)

    def tried(attempt: Method) -> tuple[Method, State, Held]:
        state = build(attempt)
        held = held_at_most(attempt, state, room.sequences, room.token_bytes)
        return attempt, state, Held(held.tokens + room.surplus, held.metadata)

    fitting, state, held = tried(least)
    low = least.budget_tokens(room.prompt_length)
    if held.total > wanted:
        raise _too_small(method, state, low, held, wanted, room)
    of_token = room.sequences * state.layer.n_kv_heads * room.token_bytes  # the least that one token more takes
    high, too_much = 1 + max(low, wanted // of_token), None  # an exclusive bound, its bytes if known
    for number in range(high.bit_length() + SECANTS):
        free = wanted - held.total
        if high - low <= 1 or free < of_token:
            break
        slope = of_token if too_much is None else (too_much - held.total) / (high - low)
        guess = low + int(free / max(slope, 1)) if number < SECANTS else (low + high) // 2
        guess = min(max(guess, low + 1), high - 1)
        attempt = tried(replace(method, budget=guess))
        if attempt[2].total > wanted:
            high, too_much = guess, attempt[2].total
        else:
            low, (fitting, state, held) = guess, attempt
    return fitting, state


def fit_reused(method: Method, built: Method, state: State, room: Room | None) -> tuple[Method, State] | None:
    """The method, fitted if there is a room, and its state from that of `built`; None if it has to build."""
    if room is None:
        found = method.reuse(built, state)
        return None if found is None else (method, found)
    if not method.builds_for_any_budget or least_of(method).reuse(built, state) is None:
        return None
    return fit(method, lambda _: state, room)


def fit_continued(
    method: Method, last: Method, state: State, new: Sequence[Tensor], room: Room, shared: Sequence[object]
) -> tuple[Method, State | None]:
    """The fitted method and its state after a later prompt's queries, keys and values `new`.

    `last` is the fitted method of the prompts before, and the state is None if the method has to build a new one. Each
    attempt begins from a copy of the state, without copies of the `shared` objects.
    """

    def continued(attempt: Method) -> State | None:
        copied = copy.deepcopy(state, {id(part): part for part in shared})
        found: State | None = attempt.continue_prompt(copied, *new)
        return found

    def built(attempt: Method) -> State:
        found = continued(attempt)
        assert found is not None  # as it was not with another budget
        return found

    return (last, None) if continued(last) is None else fit(method, built, room)


def _reusing(built: Method, state: State, build: Callable[[Method], State]) -> Callable[[Method], State]:
    def reused(method: Method) -> State:
        found: State | None = method.reuse(built, state)
        return build(method) if found is None else found

    return reused


def least_of(method: Method) -> Method:
    """The method with the smallest budget in tokens that its fields accept."""

    def accepts(tokens: int) -> bool:
        try:
            replace(method, budget=tokens)
        except InvalidInputError:
            return False
        return True

    refused, accepted = 0, max(method.reserved, 1)
    while not accepts(accepted):
        refused, accepted = accepted, 2 * accepted
    while accepted - refused > 1:
        middle = (refused + accepted) // 2
        refused, accepted = (refused, middle) if accepts(middle) else (middle, accepted)
    return replace(method, budget=accepted)


def _too_small(method: Method, state: State, tokens: int, held: Held, wanted: int, room: Room) -> BudgetTooSmallError:
    budget, per_sequence = method.budget, room.sequences
    size = bytes_text(wanted / per_sequence)
    share = f", {budget}" if isinstance(budget, Bytes) and budget.is_share else ""
    got = f"{size} in layer {state.layer.index}{share}"
    parts = (
        f"{bytes_text(held.metadata / per_sequence)} of metadata and {bytes_text(held.tokens / per_sequence)} of keys "
        f"and values at its least budget, {tokens} tokens"
    )
    return BudgetTooSmallError(
        f"{method.name}: budget", got, f"at least {bytes_text(held.total / per_sequence)}: {parts}"
    )
