"""Budgets in bytes in a running model: generate, compare, replay, diagnose and what they show of the budgets."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import kvviz
from kvviz.cache.selective_cache import SelectiveCache
from kvviz.errors import BudgetTooSmallError
from tests.tiny_models import letters_tokenizer, make, prompt

LENGTH, LAYER_BYTES = 300, 300 * 2 * 2 * 8 * 4  # k and v, two heads, 8 dimensions, float32
HALF = kvviz.bytes(0.5)


@pytest.fixture(scope="module")
def tiny():
    return kvviz.LanguageModel(make("llama"), letters_tokenizer(), name="tiny-llama")


@pytest.fixture(scope="module")
def recorded(tiny):
    return kvviz.generate(tiny, prompt(LENGTH), "snapkv", HALF, max_new_tokens=5, record=True)


class TestGenerate:
    def test_each_layer_finds_its_tokens_and_holds_no_more_than_its_bytes(self, tiny, recorded):
        ledger, steps = recorded.ledger, len(recorded.token_ids) - 1
        assert set(ledger.budgets) == {0, 1, 2, 3}
        on_top = steps * (LAYER_BYTES // LENGTH + 2 * (8 + 4)) * 4  # SnapKV's generated tokens, their places and votes
        assert 0.95 * 4 * LAYER_BYTES / 2 < ledger.held_bytes - on_top <= 4 * LAYER_BYTES / 2
        as_tokens = kvviz.generate(tiny, prompt(LENGTH), "snapkv", int(ledger.budget_tokens), max_new_tokens=5)
        assert as_tokens.token_ids == recorded.token_ids

    def test_recording_does_not_change_the_budgets(self, tiny, recorded):
        assert kvviz.generate(tiny, prompt(LENGTH), "snapkv", HALF, max_new_tokens=2).ledger.budgets == (
            recorded.ledger.budgets
        )

    def test_full_attention_holds_and_reads_everything(self, tiny):
        ledger = kvviz.generate(tiny, prompt(LENGTH), "full", HALF, max_new_tokens=5).ledger
        everything = 4 * LAYER_BYTES * (LENGTH + 4) // LENGTH
        assert (ledger.held_bytes, ledger.read_bytes, ledger.budgets) == (everything, everything, {})

    def test_reading_is_what_a_step_attends_to_and_reads_to_choose(self, tiny):
        ledger = kvviz.generate(tiny, prompt(LENGTH), "oracle", kvviz.bytes(0.25), max_new_tokens=5).ledger
        assert set(ledger.budgets.values()) == {75}, "the oracle has no metadata"
        assert ledger.held_bytes == 4 * 75 * LAYER_BYTES // LENGTH
        assert ledger.read_bytes == ledger.held_bytes + 4 * (LENGTH + 4) * LAYER_BYTES // LENGTH // 2, "all keys"

    def test_the_budgets_are_shown_and_saved(self, recorded, tmp_path):
        recording, (tokens, *_) = recorded.recording, recorded.ledger.budgets.values()
        assert recording.budgets == dict.fromkeys(range(4), int(tokens))
        assert recording.budget == int(tokens)
        assert recording.budget_text == f"50 % of the bytes ({tokens:,.0f} tokens)"
        assert f"budget 50 % of the bytes ({tokens:,.0f} tokens)" in recorded._repr_html_()
        assert f"{tokens:,.0f} tokens" in recorded.ledger._repr_html_()
        again = kvviz.Recording.load(recording.save(tmp_path / "bytes.safetensors"))
        assert (again.budgets, again.budget_text) == (recording.budgets, recording.budget_text)

    def test_a_budget_in_tokens_is_recorded_as_before(self, tiny):
        recording = kvviz.generate(tiny, prompt(60), "snapkv", 50, recent=8, max_new_tokens=2, record=True).recording
        assert (recording.budget, recording.budgets, recording.budget_text) == (50, {}, "50")

    @pytest.mark.parametrize("method", ["quest", "infllm"])
    def test_an_offloaded_cache_attends_to_the_same(self, tiny, method):
        device, host = (
            kvviz.generate(tiny, prompt(LENGTH), method, HALF, store=store, max_new_tokens=5, dense_layers=0)
            for store in ("device", "host")
        )
        assert device.token_ids == host.token_ids
        assert device.ledger.budgets == host.ledger.budgets

    def test_what_does_not_fit_is_an_error(self, tiny):
        with pytest.raises(BudgetTooSmallError, match=r"snapkv: budget: got 100 B in layer 0; wanted at least"):
            kvviz.generate(tiny, prompt(LENGTH), "snapkv", kvviz.bytes("100 B"))

    def test_a_copied_state_finds_the_same_budget_as_a_new_one(self, tiny):
        """As for consecutive budgets of one method in `compare`."""
        method = kvviz.methods.create("pqcache", budget=HALF)
        other = kvviz.methods.create("pqcache", budget=120)
        with torch.no_grad(), kvviz.cache.attachment.attached(tiny.model):
            caches = [SelectiveCache(tiny.model, first) for first in (method, other)]
            for cache in caches:
                kvviz.generation.generating.fill(tiny, cache, prompt(LENGTH))
            built, forked = caches[0], caches[1].fork(method)
        assert forked.ledger().budgets == built.ledger().budgets
        assert forked.selective_layers[0].states[0] is not caches[1].selective_layers[0].states[0]


@pytest.fixture(scope="module")
def table(tiny):
    methods = ("full", "oracle", "snapkv", "magicpig")
    return kvviz.compare(tiny, prompt(LENGTH), methods, [0.5, 0.25], max_new_tokens=4, hold="bytes")


class TestCompare:
    def test_rows_of_one_budget_have_equal_bytes(self, table):
        half = table[table["budget"] == LAYER_BYTES // 2].set_index("method")
        assert set(half.index) == {"oracle", "snapkv", "magicpig"}
        assert half.loc["oracle", "held_bytes"] == 4 * LAYER_BYTES // 2
        assert half.loc["oracle", "budget_tokens"] == LENGTH // 2
        assert half.loc["snapkv", "budget_tokens"] < LENGTH // 2
        assert table.loc[table["method"] == "full", "budget"].tolist() == [LAYER_BYTES]
        assert table.attrs["hold"] == "bytes"

    def test_a_method_that_does_not_fit_has_a_row_that_says_so(self, table):
        refused = table[table["method"] == "magicpig"]
        assert (
            refused["refused"].str.match(r"magicpig: budget: got .* in layer 1, .* wanted at least .* metadata").all()
        )
        assert refused["recall"].isna().all()
        assert ("magicpig", LAYER_BYTES // 2) not in table.recordings
        assert (table[table["method"] != "magicpig"]["refused"] == "").all()

    def test_the_recordings_have_the_budgets(self, table):
        recording = table.recordings["snapkv", LAYER_BYTES // 4]
        assert set(recording.budgets.values()) == {recording.budget}

    def test_bytes_are_inferred_and_cannot_be_mixed_with_tokens(self, tiny):
        ids = prompt(60)
        assert kvviz.compare(tiny, ids, ["oracle"], [HALF], max_new_tokens=1).attrs["hold"] == "bytes"
        assert kvviz.compare(tiny, ids, ["oracle"], ["2 KiB"], max_new_tokens=1, hold="bytes")["budget"].tolist() == [
            2048
        ]
        assert kvviz.compare(tiny, ids, ["oracle"], [0.5], max_new_tokens=1).attrs["hold"] == "tokens"
        for budgets, hold, wanted in (
            ([HALF, 32], None, "budgets in bytes only"), ([HALF], "tokens", "tokens or shares"),
            ([256], "bytes", "a share such as 0.25"), (["2 KiB"], None, 'hold="bytes"'),
        ):  # fmt: skip
            with pytest.raises(kvviz.InvalidInputError, match=f"compare: budgets.*{wanted}"):
                kvviz.compare(tiny, ids, ["oracle"], budgets, hold=hold)
        with pytest.raises(kvviz.UnknownNameError, match="compare: hold"):
            kvviz.compare(tiny, ids, ["oracle"], [0.5], hold="byte")
        instances = {"a": kvviz.methods.create("oracle", budget=HALF), "b": kvviz.methods.create("oracle", budget=32)}
        with pytest.raises(kvviz.InvalidInputError, match="some in bytes and some in tokens"):
            kvviz.compare(tiny, ids, instances, [])


def test_replay_finds_the_budgets_of_the_layers(tiny):
    trace = kvviz.capture(tiny, prompt(LENGTH))
    recording = kvviz.replay(trace, "h2o", queries=10, budget=HALF)
    assert set(recording.budgets) == {0, 1, 2, 3}
    as_tokens = kvviz.replay(trace, "h2o", queries=10, budget=recording.budgets[2])
    assert np.array_equal(recording.indices(5, 2), as_tokens.indices(5, 2))
