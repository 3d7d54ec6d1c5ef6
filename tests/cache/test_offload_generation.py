"""Models with offloaded tokens generate the same text as with all tokens on the device."""

from __future__ import annotations

import re

import numpy as np
import pytest
import torch

import kvviz
from kvviz.generation import generating as generation
from kvviz.methods import checks
from kvviz.offload import KVStore
from tests.tiny_models import letters_tokenizer, make, prompt

RETRIEVE = [name for name in kvviz.methods.names() if kvviz.methods.get(name).kind == "retrieval"] + ["oracle"]
QUANTISED = [name for name in kvviz.methods.names() if kvviz.methods.get(name).kind == "quantised"]
NOT_OFFLOADED = sorted({*kvviz.methods.names()} - {*RETRIEVE, *QUANTISED} - {"minference"})
GREEDY = {"max_new_tokens": 90, "do_sample": False, "eos_token_id": None}


def method_of(name, **fields):
    """The method at a small budget, in all layers."""
    needs_fewer_sinks = checks.smallest(kvviz.methods.get(name)).budget > 64
    smaller_window = {"sinks": 4, "recent": 8} if needs_fewer_sinks else {}
    return kvviz.methods.create(name, **{"budget": 64, "dense_layers": 0, **smaller_window, **fields})


def generated(model, ids, name, store, **inputs):
    cache = kvviz.SelectiveCache(model, method_of(name), store)
    return model.generate(ids, past_key_values=cache, **GREEDY, **inputs), cache


@pytest.fixture(scope="module")
def llama():
    model = make("llama", layers=2)
    kvviz.attach(model)
    return model


@pytest.mark.slow
@pytest.mark.parametrize("name", RETRIEVE)
def test_offloading_to_the_host_does_not_change_the_text(llama, name):
    """A prompt, 90 generated tokens (so that some leave the device), a second prompt, and 20 more tokens."""
    ids, later = prompt(300), prompt(50, seed=5)
    texts, caches = [], []
    for store in ("device", "host"):
        cache = kvviz.SelectiveCache(llama, method_of(name), store)
        first = llama.generate(ids, past_key_values=cache, **GREEDY)
        longer = torch.cat([first, later], 1)
        later_turn = {**GREEDY, "attention_mask": torch.ones_like(longer), "max_new_tokens": 20}
        texts.append(llama.generate(longer, past_key_values=cache, **later_turn))
        caches.append(cache)
    assert torch.equal(*texts)
    on_device, on_host = (cache.ledger() for cache in caches)
    assert on_host.moved_bytes > 0 == on_device.moved_bytes
    assert set(on_host.kept_bytes) == {"device", "host"}
    assert on_host.attended == on_device.attended


@pytest.mark.slow
@pytest.mark.parametrize("name", RETRIEVE)
def test_left_padded_rows_keep_their_own_sinks(llama, name):
    short, long = prompt(150, seed=2), prompt(200, seed=3)
    padded = torch.cat([torch.cat([torch.zeros(1, 50, dtype=torch.long), short], 1), long])
    mask = (padded != 0).long()
    texts = [generated(llama, padded, name, store, attention_mask=mask)[0] for store in ("device", "host")]
    assert torch.equal(*texts)


@pytest.mark.slow
@pytest.mark.parametrize("architecture", ["llama_mqa", "qwen3", "gemma2", "gpt_neox"])
@pytest.mark.parametrize("name", ["clusterkv", "pqcache", "ctkvr"])
def test_different_kinds_of_attention(architecture, name):
    model = make(architecture, layers=2)
    kvviz.attach(model)
    texts = [generated(model, prompt(200), name, store)[0] for store in ("device", KVStore("host", arena_tokens=9))]
    assert torch.equal(*texts)


@pytest.mark.parametrize("name", ["clusterkv", "quest", "ctkvr"])
def test_a_prompt_in_chunks(name, monkeypatch):
    tiny = kvviz.LanguageModel(make("llama"), letters_tokenizer(), name="tiny-llama")
    whole = kvviz.generate(tiny, prompt(300), method_of(name), max_new_tokens=20)
    monkeypatch.setattr(generation, "PREFILL_CHUNK", 77)
    chunked = kvviz.generate(tiny, prompt(300), method_of(name), max_new_tokens=20, store="host")
    assert chunked.token_ids == whole.token_ids
    assert chunked.ledger.kept_bytes["device"] < whole.ledger.kept_bytes["device"]


def test_a_recording_is_the_same_and_counts_moved_bytes():
    """Recording compares with exact attention over all tokens; the bytes that this reads do not count as moved."""
    tiny = kvviz.LanguageModel(make("llama"), letters_tokenizer(), name="tiny-llama")
    runs = [
        kvviz.generate(tiny, prompt(300), method_of("clusterkv"), max_new_tokens=12, store=store, record=record)
        for store, record in (("device", True), ("host", True), ("host", False))
    ]
    recordings = [run.recording for run in runs[:2]]
    for layer, events in recordings[0].events.items():
        for name in ("indices", "groups", "scores", "attention"):
            assert np.array_equal(getattr(events, name), getattr(recordings[1].events[layer], name), equal_nan=True)
        assert not events.moved_bytes.any()
    moved = sum(int(events.moved_bytes.sum()) for events in recordings[1].events.values())
    assert moved == runs[1].ledger.moved_bytes == runs[2].ledger.moved_bytes > 0


@pytest.mark.parametrize("name", NOT_OFFLOADED)
def test_methods_without_offloading_are_refused(llama, name):
    got = re.escape(kvviz.methods.get(name).name)
    with pytest.raises(kvviz.InvalidInputError, match=f"store='host': got {got}, which .* wanted a method that retr"):
        kvviz.SelectiveCache(llama, name, "host")


@pytest.mark.parametrize("name", [*QUANTISED, "kivi(quest)"])
def test_packed_tokens_stay_on_the_device(llama, name):
    with pytest.raises(kvviz.InvalidInputError, match="which stores keys and values in fewer bits; wanted"):
        kvviz.SelectiveCache(llama, name, "host")


def test_dense_layers_stay_on_the_device(llama):
    cache = kvviz.SelectiveCache(llama, method_of("clusterkv", dense_layers=1), "host")
    assert [layer.store.offloads for layer in cache.selective_layers] == [False, True]


def test_a_cache_can_be_used_again_after_reset(llama):
    ids = prompt(200)
    first, cache = generated(llama, ids, "clusterkv", "host")
    cache.reset()
    assert cache.ledger().kept_bytes == {"device": 0}
    assert torch.equal(llama.generate(ids, past_key_values=cache, **GREEDY), first)


def test_a_cache_with_offloaded_tokens_cannot_be_forked(llama):
    _, cache = generated(llama, prompt(200), "clusterkv", "host")
    with pytest.raises(kvviz.InvalidInputError, match="copy of a cache: got one whose tokens are offloaded"):
        cache.fork("quest")


def test_replaying_a_trace_with_offloading():
    tiny = kvviz.LanguageModel(make("llama"), letters_tokenizer(), name="tiny-llama")
    trace = kvviz.capture(tiny, prompt(300))
    device = kvviz.replay(trace, method_of("clusterkv"), queries=40)
    host = kvviz.replay(trace, method_of("clusterkv"), queries=40, store="host")
    for step in range(40):
        assert np.array_equal(device.indices(step, 2), host.indices(step, 2))
    assert host.ledgers[2].moved_bytes == int(host.events[2].moved_bytes.sum()) > 0
