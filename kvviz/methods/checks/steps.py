"""What the checks share: random inputs, the decode steps of a method, and what makes a selection valid."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from ...errors import InvalidInputError
from ..base import LayerContext, Method, State
from ..rotation import Rotation
from ..selection import Selection

HEADS = ((4, 4), (6, 2), (3, 1))  # (query heads, KV heads): MHA, grouped, MQA
SHAPES = tuple((*heads, length) for heads in HEADS for length in (1, 17, 63, 100, 257))
DIM = 16
ROTATION = Rotation(tuple(10_000 ** (-pair / 8) for pair in range(8)))  # RoPE of DIM channels, as in Llama
CONTEXT = LayerContext(
    index=5, n_layers=8, n_heads=0, n_kv_heads=0, head_dim=DIM, scale=DIM**-0.5, details=True, rotation=ROTATION
)


def smallest(method: type[Method]) -> Method:
    """The method with the smallest power of 2 from 32 to 512 that its fields allow as budget."""
    for budget in (32, 64, 128, 256, 512):
        try:
            return method(budget=budget)
        except InvalidInputError:
            continue
    raise AssertionError(f"{method.name}: no budget up to 512 is allowed")


def random_tensors(
    n_heads: int, n_kv_heads: int, length: int, *, batch: int = 1, seed: int = 0
) -> tuple[Tensor, Tensor, Tensor]:
    """Random queries, keys and values."""
    generator = torch.Generator().manual_seed(seed)
    queries = torch.randn(batch, n_heads, length, DIM, generator=generator)
    keys, values = (torch.randn(batch, n_kv_heads, length, DIM, generator=generator) for _ in range(2))
    return queries, keys, values


def build_state(method: Method, queries: Tensor, keys: Tensor, values: Tensor) -> State:
    """The method's state of a prompt."""
    context = replace(CONTEXT, n_heads=queries.shape[1], n_kv_heads=keys.shape[1])
    state: State = method.build(context, queries if method.needs_queries else queries[:, :, :0], keys, values)
    return state


def decode_step(method: Method, state: State, n_heads: int, n_kv_heads: int, *, seed: int) -> tuple[State, Selection]:
    """State and selection of one more decode step with random tensors."""
    queries, keys, values = random_tensors(n_heads, n_kv_heads, 1, seed=100 + seed)
    state = method.extend(state, queries, keys, values)
    return state, method.select(state, queries[:, :, 0])


def decode_steps(
    method: Method, count: int, n_heads: int = 6, n_kv_heads: int = 2, length: int = 257, *, keys: Tensor | None = None
) -> Iterator[tuple[State, Selection]]:
    """State and selection of each decode step after a prompt with `keys`, by default random."""
    queries, random_keys, values = random_tensors(n_heads, n_kv_heads, length)
    state = build_state(method, queries, random_keys if keys is None else keys, values)
    for step in range(count):
        state, selection = decode_step(method, state, n_heads, n_kv_heads, seed=step)
        yield state, selection


def first_step(method: Method, *, keys: Tensor | None = None) -> Selection:
    """The selection of the first decode step, after checking it."""
    [(state, selection)] = decode_steps(method, 1, keys=keys)
    assert_valid(method, state, selection)
    return selection


def assert_valid(method: Method, state: State, selection: Selection) -> None:
    """Raise AssertionError for a selection that is not valid."""
    indices = selection.indices
    assert indices.dtype == torch.int64, f"{method.name}: indices are {indices.dtype}"
    for row, entries in zip(indices.flatten(0, 1), selection.entries.flatten().tolist(), strict=True):
        tokens = row[row >= 0]
        assert bool((tokens.diff() > 0).all()), f"{method.name}: indices are not ascending and unique"
        assert bool((tokens < state.length).all()), f"{method.name}: an index is beyond the {state.length} tokens"
        most = min(method.step_budget(state) + method.extra_tokens(state.prompt_length), state.length)
        count = len(tokens)
        assert 0 < entries <= most, f"{method.name}: {count} + {entries - count} tokens attended, {most} allowed"
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
