"""The one growing buffer, against torch.cat."""

from __future__ import annotations

import copy

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kvviz.offload.growing import LEAST_SPARE, GrowingTensor, with_spare


def slots(count, dim, seed):
    shape = [2, 3, 4]
    shape[dim] = count
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


@settings(max_examples=60, deadline=None)
@given(
    dim=st.sampled_from([0, 1, 2, -1, -2]),
    first=st.integers(0, 5),
    actions=st.lists(st.tuples(st.sampled_from(["append", "reserve", "clone"]), st.integers(0, 150)), max_size=12),
)
def test_what_is_in_use_is_all_that_was_appended(dim, first, actions):
    """Views taken before stay as they were, and so does the tensor that a clone was taken of."""
    whole = slots(first, dim, 0)
    growing, before = GrowingTensor(whole.clone(), dim), []
    for seed, (action, count) in enumerate(actions):
        before.append((growing.tensor, whole))
        if action == "append":
            new = slots(count, dim, seed)
            growing.append(new)
            whole = torch.cat([whole, new], dim=dim)
        elif action == "reserve":
            growing.reserve(count)
            assert growing.capacity >= count
        else:
            growing = growing.clone()
        assert torch.equal(growing.tensor, whole)
        assert growing.buffer.shape[dim] == growing.capacity >= growing.used == whole.shape[dim]
    assert all(torch.equal(view, held) for view, held in before)


@pytest.mark.parametrize("least", [1, 64, 512])
def test_many_single_tokens_are_copied_few_times(least):
    growing, copied = GrowingTensor(torch.zeros(2, 0, 3), 1, least_spare=least), 0
    for step in range(5000):
        before = growing.capacity
        growing.append(torch.full((2, 1, 3), float(step)))
        copied += step if growing.capacity > before else 0
    assert torch.equal(growing.tensor[1, :, 2], torch.arange(5000.0))
    assert copied <= 10 * 5000, "each token some times, as the room grows by an eighth, and not at each step"
    assert growing.capacity <= with_spare(5000, least)


def test_the_room_has_bounds():
    small = GrowingTensor(torch.zeros(10), 0)
    small.append(torch.ones(1))
    assert small.capacity == 11 + LEAST_SPARE
    large = GrowingTensor(torch.zeros(8000), 0, most_spare=100)
    large.append(torch.ones(1))
    assert large.capacity == 8001 + 100
    assert large.clone().capacity == 8101


def test_what_broadcasts_is_written_into_every_row_in_the_dtype_of_the_first():
    growing = GrowingTensor(torch.zeros(2, 3, 1, dtype=torch.uint8), 2)
    growing.append(torch.arange(5, 7))
    assert growing.tensor.dtype == torch.uint8
    assert growing.tensor.tolist() == [[[0, 5, 6]] * 3] * 2


def test_memory_is_made_where_it_is_wanted():
    made = []

    def allocate(shape):
        made.append(shape)
        return torch.zeros(shape)

    growing = GrowingTensor(torch.ones(1, 2), 0, allocate=allocate)
    growing.append(torch.full((1, 2), 2.0))
    twin = copy.deepcopy(growing)
    twin.append(torch.full((100, 2), 3.0))
    assert made == [[2 + LEAST_SPARE, 2], [102 + LEAST_SPARE, 2]]
    assert growing.tensor.tolist() == [[1, 1], [2, 2]]
    assert not growing.buffer[2:].any()
