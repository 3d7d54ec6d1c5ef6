"""The budget that compensates for a method's extra communication, against bytes counted by hand."""

from __future__ import annotations

import pytest

import kvviz
from kvviz import metrics


def test_bytes_are_those_of_the_budget_and_the_extra_communication():
    """float16, head dimension 128, one KV head, 32,768 tokens, PQCache's m=4 and b=8, counted in bytes."""
    codes, key = 32_768 * 4 * 8 // 8, 128 * 2
    method = kvviz.methods.create("pqcache", preset="infinitebench")
    budget = metrics.compensated_budget(1024, method.extra_communication(128), prompt_length=32_768)
    assert budget * 2 * key == 1024 * 2 * key + codes
    assert type(budget) is int


@pytest.mark.parametrize("length", [1024, 102_400])
def test_a_share_stays_a_share(length):
    tokens = metrics.compensated_budget(length // 8, 1 / 64, prompt_length=length)
    assert tokens == int(metrics.compensated_budget(0.125, 1 / 64) * length)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((100, 1 / 64), "prompt_length"),
        ((100, 1 / 64, 0), "prompt_length"),
        ((0, 1 / 64, 100), "budget"),
        ((0.999, 1 / 64), "budget"),
        ((-0.1, 1 / 64), "budget"),
        ((100, 1.5, 100), "extra_communication"),
        ((100, float("nan"), 100), "extra_communication"),
    ],
)
def test_refuses(arguments, message):
    with pytest.raises(kvviz.InvalidInputError, match=message):
        metrics.compensated_budget(*arguments)
