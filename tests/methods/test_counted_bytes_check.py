"""The common check of bytes: methods that hide bytes do not pass it."""

from __future__ import annotations

import pytest

from kvviz.methods.checks.counted_bytes import bytes_are_counted
from kvviz.methods.infllm import InfLLM, InfLLMState
from kvviz.methods.quest import Quest


class SendsToTheHost(Quest):
    def extend(self, state, queries, keys, values):
        keys.cpu()
        return super().extend(state, queries, keys, values)


class KeepsKeys(Quest):
    def build(self, layer, queries, keys, values):
        state = super().build(layer, queries, keys, values)
        state.hidden = {"keys": keys.clone()}
        return state


class CountsTwice(InfLLM):
    def build(self, layer, queries, keys, values):
        state = super().build(layer, queries, keys, values)
        state.__class__ = Twice
        return state


class Twice(InfLLMState):
    def metadata_bytes(self):
        return 2 * super().metadata_bytes()


@pytest.mark.parametrize(
    ("method", "message"),
    [
        (SendsToTheHost, r"quest: [\d,]+ bytes counted as moved or prefetched, but [\d,]+ were moved"),
        (KeepsKeys, r"quest: metadata_bytes is [\d,]+, but the state's tensors have [\d,]+ bytes"),
        (CountsTwice, r"infllm: metadata_bytes is [\d,]+, but the state's tensors have [\d,]+ bytes"),
    ],
)
def test_hidden_bytes_are_found(method, message):
    with pytest.raises(AssertionError, match=message):
        bytes_are_counted(method)
