"""Metadata in host memory: what the device prefetches, when, and that no result changes."""

from __future__ import annotations

import threading
import weakref

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import kvviz
from kvviz.offload import DeviceStore, KVStore, background
from kvviz.offload.background import Pending
from kvviz.offload.prefetch import TAIL_TOKENS, PrefetchedTensor
from tests import tiny_models


def codes(count, seed, bits=8):
    drawn = torch.randint(0, 2**bits, (2, 3, count, 4), generator=torch.Generator().manual_seed(seed))
    return drawn.to(torch.uint8 if bits <= 8 else torch.uint16)


@settings(max_examples=60)
@given(
    length=st.sampled_from([1, 63, 100, 1000]),
    bits=st.sampled_from([1, 6, 8, 9, 16]),
    actions=st.lists(
        st.one_of(st.sampled_from(["start", "result", "release"]), st.integers(0, 3 * TAIL_TOKENS)), max_size=60
    ),
)
def test_any_order_of_appending_and_copying_gives_all_tokens(length, bits, actions):
    whole = codes(length, 0, bits)
    prefetched, store = PrefetchedTensor(whole, bits, DeviceStore()), DeviceStore()
    for seed, action in enumerate(actions):
        if isinstance(action, int):
            new = codes(action, seed, bits)
            prefetched.append(new)
            whole = torch.cat([whole, new], dim=2)
        elif action == "result":
            assert torch.equal(prefetched.result(), whole)
        else:
            getattr(prefetched, action)()
        assert prefetched.length == whole.shape[2]
        stored = prefetched.stored_bytes
        tail, code_bytes = whole.shape[2] - stored["host"] // (2 * 3 * 4 * bits) * 8, whole.element_size()
        assert 0 <= tail <= TAIL_TOKENS
        assert stored["device"] == 2 * 3 * 4 * tail * code_bytes
        assert stored["host"] == 2 * 3 * 4 * (whole.shape[2] - tail) * bits // 8
    assert torch.equal(prefetched.result(), whole)
    assert store.prefetched_bytes == 0


def test_tokens_appended_during_a_copy_are_part_of_it(monkeypatch):
    """The worker is blocked until enough tokens for a write to host memory are appended."""
    monkeypatch.setattr(background, "WORKER_BYTES", 0)
    gate, store, whole = threading.Event(), DeviceStore(), codes(104, 0)  # whole rows: the tail is empty
    prefetched = PrefetchedTensor(whole, 8, store)
    blocked = Pending(gate.wait, (torch.empty(0),), stream="transfer")
    prefetched.start()
    for step in range(TAIL_TOKENS):
        prefetched.append(codes(1, step + 1))
        whole = torch.cat([whole, codes(1, step + 1)], dim=2)
    threading.Timer(0.05, gate.set).start()
    prefetched.append(codes(1, 999))  # the tail is full and moves to the host
    whole = torch.cat([whole, codes(1, 999)], dim=2)
    assert blocked.result()
    assert torch.equal(prefetched.result(), whole)
    bytes_per_copy = store.prefetched_bytes
    prefetched.release()
    assert torch.equal(prefetched.result(), whole)
    assert store.prefetched_bytes == 2 * bytes_per_copy, "each copy is made and counted once"


@pytest.mark.parametrize("bits", [6, 8, 11])
def test_the_bytes_are_those_of_the_packed_codes_and_their_spare_room(bits):
    store = DeviceStore()
    prefetched = PrefetchedTensor(codes(4096, 0, bits), bits, store)
    for _ in range(3):
        prefetched.start()
        prefetched.start()
        prefetched.result()
        prefetched.release()
    code_bytes = 3 * 2 * 3 * 4096 * 4 * bits // 8
    assert code_bytes <= store.prefetched_bytes <= 1.125 * code_bytes


CASES = [
    ("llama", {}),
    ("llama", {"rebuild_interval": 7}),
    ("llama", {"cluster_each_turn": True}),
    ("llama", {"preset": "infinitebench"}),
    ("llama_mqa", {"group": "each"}),
    ("gpt_neox", {"softmax": False}),
]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("architecture", "fields", "worker_bytes"),
    [(*case, background.WORKER_BYTES) for case in CASES] + [(*CASES[1], 0)],  # 0: in a worker, however little it copies
)
def test_two_turns_of_a_padded_batch_give_the_same_tokens(architecture, fields, worker_bytes, monkeypatch):
    monkeypatch.setattr(background, "WORKER_BYTES", worker_bytes)
    model = tiny_models.make(architecture)
    kvviz.attach(model)
    method = kvviz.methods.create("pqcache", budget=48, **fields)
    ids, mask = tiny_models.prompt(100, batch=2), torch.ones(2, 100, dtype=torch.int64)
    ids[1, :37], mask[1, :37] = 0, 0
    outputs, ledgers = [], []
    for store in ("device", "host", KVStore("host", arena_tokens=9)):
        cache = kvviz.SelectiveCache(model, method, store=store)
        with torch.no_grad():
            first = model.generate(
                ids, attention_mask=mask, past_key_values=cache, max_new_tokens=10, do_sample=False, eos_token_id=None
            )
            longer = torch.cat([first, tiny_models.prompt(30, batch=2, seed=5)], dim=1)
            mask_of_all = torch.cat([mask, torch.ones(2, 40, dtype=torch.int64)], dim=1)
            outputs.append(
                model.generate(
                    longer, attention_mask=mask_of_all, past_key_values=cache, max_new_tokens=20, do_sample=False,
                    eos_token_id=None,
                )
            )  # fmt: skip
        ledgers.append(cache.ledger())
    assert torch.equal(outputs[0], outputs[1])
    assert torch.equal(outputs[0], outputs[2])
    device, host, _ = ledgers
    assert host.metadata_bytes <= device.metadata_bytes
    assert 0 < host.host_metadata_bytes < host.metadata_bytes
    assert host.prefetched_bytes > 0
    assert (device.prefetched_bytes, device.host_metadata_bytes) == (0, 0)


def test_a_layer_prefetches_the_codes_of_the_next_one(monkeypatch):
    """A layer's codes are being copied before it reads them, and codes of at most two layers are on the device."""
    model = tiny_models.make("llama")
    kvviz.attach(model)
    cache = kvviz.SelectiveCache(model, kvviz.methods.create("pqcache", budget=48), store="host")
    log = []
    for name in ("start", "result", "release"):
        original = getattr(PrefetchedTensor, name)

        def logged(self, name=name, original=original):
            log.append((name, self, self._copying is not None or self._copy is not None))
            return original(self)

        monkeypatch.setattr(PrefetchedTensor, name, logged)
    with torch.no_grad():
        model.generate(tiny_models.prompt(200), past_key_values=cache, max_new_tokens=6, do_sample=False)
    order = [layer.states[0].offloaded_codes[0] for layer in cache.selective_layers]
    reads = [(prefetched, was_started) for name, prefetched, was_started in log if name == "result"]
    assert [prefetched for prefetched, _ in reads] == order * 5
    assert not reads[0][1], "nothing starts the copy for the first layer of the first step"
    assert all(was_started for _, was_started in reads[4:]), "in the first step a state may still be built"
    on_device = set()
    for name, prefetched, _ in log:
        (on_device.discard if name == "release" else on_device.add)(prefetched)
        assert len(on_device) <= 2
    for book, prefetched in zip(cache.selective_layers[0].states[0].books, order, strict=False):
        assert book.codes.untyped_storage().nbytes() == 0
        assert prefetched._copy is None


def test_the_codes_of_a_layer_take_the_papers_share_of_its_keys():
    model = tiny_models.make("llama")
    kvviz.attach(model)
    method = kvviz.methods.create("pqcache", budget=48)
    cache = kvviz.SelectiveCache(model, method, store="host")
    with torch.no_grad():
        model.generate(tiny_models.prompt(1604), past_key_values=cache, max_new_tokens=3, do_sample=False)
    config = model.config
    head_dim = config.hidden_size // config.num_attention_heads
    keys_in_float16 = config.num_hidden_layers * config.num_key_value_heads * 1600 * head_dim * 2  # without 4 sinks
    assert cache.ledger().host_metadata_bytes == method.extra_communication(head_dim) * keys_in_float16


def test_the_ring_of_layers_does_not_keep_a_cache_alive():
    model = tiny_models.make("llama")
    kvviz.attach(model)
    cache = kvviz.SelectiveCache(model, kvviz.methods.create("pqcache", budget=48), store="host")
    with torch.no_grad():
        model.generate(tiny_models.prompt(100), past_key_values=cache, max_new_tokens=4, do_sample=False)
    layer = weakref.ref(cache.layers[0])
    following = cache.layers[1].following
    assert following is not None
    assert following() is cache.layers[2]
    del cache
    assert layer() is None


def test_short_prompts_have_no_codes():
    """All tokens are sinks, or all fit the budget."""
    model = tiny_models.make("llama")
    kvviz.attach(model)
    for length in (3, 5, 40):
        method = kvviz.methods.create("pqcache", budget=48)
        outputs = []
        for store in ("device", "host"):
            cache = kvviz.SelectiveCache(model, method, store=store)
            ids = tiny_models.prompt(length)
            with torch.no_grad():
                outputs.append(model.generate(ids, past_key_values=cache, max_new_tokens=20, do_sample=False))
        assert torch.equal(*outputs)
