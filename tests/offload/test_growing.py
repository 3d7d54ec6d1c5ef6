"""The growing buffer against torch.cat."""

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
def test_the_tensor_holds_all_appended_slots(dim, first, actions):
    """Earlier views do not change, and neither does the tensor that was cloned."""
    appended = slots(first, dim, 0)
    growing, earlier = GrowingTensor(appended.clone(), dim), []
    for seed, (action, count) in enumerate(actions):
        earlier.append((growing.tensor, appended))
        if action == "append":
            new = slots(count, dim, seed)
            growing.append(new)
            appended = torch.cat([appended, new], dim=dim)
        elif action == "reserve":
            growing.reserve(count)
            assert growing.capacity >= count
        else:
            growing = growing.clone()
        assert torch.equal(growing.tensor, appended)
        assert growing.buffer.shape[dim] == growing.capacity >= growing.used == appended.shape[dim]
    assert all(torch.equal(view, expected) for view, expected in earlier)


@pytest.mark.parametrize("least", [1, 64, 512])
def test_single_tokens_are_copied_few_times(least):
    growing, copied = GrowingTensor(torch.zeros(2, 0, 3), 1, least_spare=least), 0
    for step in range(5000):
        before = growing.capacity
        growing.append(torch.full((2, 1, 3), float(step)))
        copied += step if growing.capacity > before else 0
    assert torch.equal(growing.tensor[1, :, 2], torch.arange(5000.0))
    assert copied <= 10 * 5000, "the capacity grows by an eighth, not at each step"
    assert growing.capacity <= with_spare(5000, least)


def test_spare_room_has_limits():
    small = GrowingTensor(torch.zeros(10), 0)
    small.append(torch.ones(1))
    assert small.capacity == 11 + LEAST_SPARE
    large = GrowingTensor(torch.zeros(8000), 0, most_spare=100)
    large.append(torch.ones(1))
    assert large.capacity == 8001 + 100
    assert large.clone().capacity == 8101


def test_appended_slots_are_broadcast_and_converted():
    growing = GrowingTensor(torch.zeros(2, 3, 1, dtype=torch.uint8), 2)
    growing.append(torch.arange(5, 7))
    assert growing.tensor.dtype == torch.uint8
    assert growing.tensor.tolist() == [[[0, 5, 6]] * 3] * 2


def test_a_given_function_allocates_the_memory():
    allocated_shapes = []

    def allocate(shape):
        allocated_shapes.append(shape)
        return torch.zeros(shape)

    growing = GrowingTensor(torch.ones(1, 2), 0, allocate=allocate)
    growing.append(torch.full((1, 2), 2.0))
    duplicate = copy.deepcopy(growing)
    duplicate.append(torch.full((100, 2), 3.0))
    assert allocated_shapes == [[2 + LEAST_SPARE, 2], [102 + LEAST_SPARE, 2]]
    assert growing.tensor.tolist() == [[1, 1], [2, 2]]
    assert not growing.buffer[2:].any()
