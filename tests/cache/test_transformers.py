"""SelectiveCache in plain `model.generate` on all architectures; also run with the oldest supported transformers."""

from __future__ import annotations

import threading

import pytest
import torch
from transformers import DynamicCache
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

import kvviz
from kvviz.cache.attachment import attention_observer
from kvviz.methods import checks
from tests.tiny_models import ARCHITECTURES, SLIDING_LAYERS, make, prompt

METHODS = [name for name in kvviz.methods.names() if kvviz.methods.get(name).kind != "quantised"]  # they are not exact
STORED = {"kvzip": {"preset": "prompt"}}  # transformers does not tell the prompt's tokens, which KVzip repeats
WITHOUT_PRUNING = {"twilight": {"p": 1.0}}  # it leaves tokens out at any budget
GREEDY = {"max_new_tokens": 24, "do_sample": False, "eos_token_id": None}


def cache_for(model, method="clusterkv", **fields):
    fields = {"budget": 4096, **STORED.get(method, {}), **WITHOUT_PRUNING.get(method, {}), **fields}
    if method != "full":
        fields = {"dense_layers": 0, **fields}
    return kvviz.SelectiveCache(model, kvviz.methods.create(method, **fields))


def small_cache(model, method):
    """A cache with a budget of 64 tokens, and fewer sinks and recent tokens for methods that would fill it."""
    needs_fewer_sinks = checks.smallest(kvviz.methods.get(method)).budget > 64
    return cache_for(model, method, budget=64, **({"sinks": 4, "recent": 8} if needs_fewer_sinks else {}))


@pytest.fixture
def llama():
    model = make("llama")
    kvviz.attach(model)
    return model


def quick_or_slow(architecture, method):
    """The parameters of a test; quick are all methods on one architecture, and one method on all of them."""
    quick = architecture == "llama" or method == "clusterkv"
    return pytest.param(architecture, method, marks=() if quick else pytest.mark.slow)


@pytest.mark.parametrize(
    ("architecture", "method"),
    [quick_or_slow(architecture, method) for architecture in ARCHITECTURES for method in METHODS],
)
def test_a_full_budget_does_not_change_the_text(architecture, method):
    model, ids = make(architecture), prompt(40)
    options = {**GREEDY, "max_new_tokens": 12}
    expected = model.generate(ids, **options)
    kvviz.attach(model)
    cache = cache_for(model, method)
    assert torch.equal(model.generate(ids, past_key_values=cache, **options), expected)
    assert cache.exact_layers == SLIDING_LAYERS.get(architecture, ()) == cache.ledger().exact_layers
    assert torch.equal(model.generate(ids, **options), expected), "an attached model with its own cache has changed"


def test_a_small_budget_changes_the_text(llama):
    """The test above would also pass if nothing were ever selected; this one would fail."""
    ids = prompt(300)
    expected = llama.generate(ids, **GREEDY)
    cache = cache_for(llama, "streaming_llm", budget=8)
    assert not torch.equal(llama.generate(ids, past_key_values=cache, **GREEDY), expected)
    assert cache.ledger().attended == 8


@pytest.mark.slow
@pytest.mark.parametrize("method", METHODS)
def test_left_padding_does_not_change_a_row(llama, method):
    short, long = prompt(150, seed=2), prompt(200, seed=3)
    padded = torch.cat([torch.cat([torch.zeros(1, 50, dtype=torch.long), short], 1), long])
    mask = (padded != 0).long()
    together = llama.generate(padded, attention_mask=mask, past_key_values=small_cache(llama, method), **GREEDY)
    for row, ids in enumerate((short, long)):
        alone = llama.generate(ids, past_key_values=small_cache(llama, method), **GREEDY)
        assert torch.equal(together[row, 200:], alone[0, ids.shape[1] :]), f"row {row}"


def test_sampling_follows_the_seed(llama):
    ids = prompt(200)
    options = {"max_new_tokens": 24, "do_sample": True, "eos_token_id": None, "top_k": 0}
    texts = []
    for seed in (0, 0, 1):
        torch.manual_seed(seed)
        texts.append(llama.generate(ids, past_key_values=cache_for(llama, budget=64), **options))
    assert torch.equal(texts[0], texts[1])
    assert not torch.equal(texts[0], texts[2])


@pytest.mark.parametrize("method", METHODS)
def test_a_conversation_continues_with_the_same_cache(llama, method):
    ids = prompt(100)
    caches = cache_for(llama, method), DynamicCache(config=llama.config)
    for turn in range(3):
        mask = torch.ones_like(ids)  # otherwise transformers takes a generated 0 for padding
        generated = [llama.generate(ids, attention_mask=mask, past_key_values=cache, **GREEDY) for cache in caches]
        assert torch.equal(*generated), f"turn {turn}"
        ids = torch.cat([generated[0], prompt(30, seed=10 + turn)], dim=1)
    assert caches[0].get_seq_length() == caches[1].get_seq_length()


@pytest.mark.slow
@pytest.mark.parametrize("method", [name for name in METHODS if not kvviz.methods.get(name)(budget=512).is_dense(3)])
def test_a_later_turn_is_compressed_too(llama, method):
    if kvviz.methods.get(method).ignores_budget:
        pytest.skip("its retrieval heads attend to all tokens")
    cache = small_cache(llama, method)
    ids = llama.generate(prompt(100), past_key_values=cache, **GREEDY)
    ids = torch.cat([ids, prompt(300, seed=9)], dim=1)
    llama.generate(ids, attention_mask=torch.ones_like(ids), past_key_values=cache, **GREEDY)
    selections_per_head = 3 if cache.method.group == "each" else 1
    assert 0 < cache.ledger().attended <= selections_per_head * 64 + 23
    if cache.method.drops_tokens:
        for layer in cache.selective_layers:
            kept = max(cache.method.keeps(state).shape[-1] for state in layer.states)
            assert layer.store.used <= max(64 + 23, kept) + 64, "evicted tokens are stored"


def test_a_chunked_prompt_gives_the_same_text(llama):
    ids = prompt(300)
    whole = llama.generate(ids, past_key_values=cache_for(llama, budget=64), **GREEDY)
    for chunk in (64, 299):  # with 299, the last chunk has one token
        cache = cache_for(llama, budget=64)
        cache.expect(300)
        assert torch.equal(llama.generate(ids, past_key_values=cache, prefill_chunk_size=chunk, **GREEDY), whole)


def test_a_prompt_of_one_token_works(llama):
    ids = prompt(1)
    assert torch.equal(llama.generate(ids, past_key_values=cache_for(llama), **GREEDY), llama.generate(ids, **GREEDY))


def test_two_threads_on_one_model_do_not_mix(llama):
    prompts = [prompt(200, seed=seed) for seed in (4, 5)]
    expected = [llama.generate(ids, past_key_values=cache_for(llama, budget=64), **GREEDY) for ids in prompts]
    results: dict[int, torch.Tensor] = {}

    def generate(number):
        results[number] = llama.generate(prompts[number], past_key_values=cache_for(llama, budget=64), **GREEDY)

    threads = [threading.Thread(target=generate, args=(number,)) for number in (0, 1)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(torch.equal(results[number], expected[number]) for number in (0, 1))


def test_detach_restores_the_attention_implementation():
    model = make("llama")
    kvviz.attach(model)
    kvviz.attach(model)
    assert model.config._attn_implementation == "kvviz"
    with kvviz.cache.attachment.attached(model):
        kvviz.detach(model)
        assert model.config._attn_implementation == "kvviz", "a running generation keeps its attention"
    assert model.config._attn_implementation == "sdpa"


def test_the_observer_gets_all_layers_and_changes_nothing():
    model, ids = make("qwen3"), prompt(20)
    calls = []
    with torch.no_grad():
        expected = model(ids).logits
        with attention_observer(model, lambda layer, *tensors: calls.append((layer, *(t.shape for t in tensors[:3])))):
            observed = model(ids).logits
        model(ids)
    assert torch.equal(observed, expected)
    assert [layer for layer, *_ in calls] == [0, 1, 2, 3]
    assert calls[0][1:] == ((1, 6, 20, 8), (1, 3, 20, 8), (1, 3, 20, 8))


class TestRefusals:
    def test_beam_search(self, llama):
        with pytest.raises(kvviz.InvalidInputError, match="beam search"):
            llama.generate(prompt(40), past_key_values=cache_for(llama), num_beams=2, max_new_tokens=4)

    def test_assisted_decoding(self, llama):
        ids = torch.arange(3, 13).repeat(1, 6)  # so that a lookup in the prompt finds tokens, which are then cropped
        with pytest.raises(kvviz.InvalidInputError, match="assisted decoding"):
            llama.generate(ids, past_key_values=cache_for(llama), prompt_lookup_num_tokens=3, max_new_tokens=24)

    def test_they_are_what_is_said_beforehand(self, llama):
        uses = kvviz.inspect(llama).uses
        for (got, wanted), options in zip(uses, ({"num_beams": 2}, {"prompt_lookup_num_tokens": 3}), strict=True):
            with pytest.raises(kvviz.InvalidInputError) as error:
                llama.generate(prompt(40), past_key_values=cache_for(llama), max_new_tokens=24, **options)
            assert (error.value.got, error.value.wanted) == (got, wanted)

    def test_a_model_that_was_not_attached(self):
        model = make("llama")
        with pytest.raises(kvviz.CacheMismatchError, match="attach"):
            model.generate(prompt(40), past_key_values=cache_for(model), **GREEDY)

    def test_another_model_of_the_same_shape(self, llama):
        other_model = make("llama", seed=1)
        kvviz.attach(other_model)
        with pytest.raises(kvviz.CacheMismatchError, match="another model"):
            other_model.generate(prompt(40), past_key_values=cache_for(llama), **GREEDY)

    def test_a_model_of_another_shape(self, llama):
        other_model = make("qwen3")
        kvviz.attach(other_model)
        with pytest.raises(kvviz.CacheMismatchError, match="KV heads"):
            other_model.generate(prompt(40), past_key_values=cache_for(llama), **GREEDY)

    def test_another_batch_size(self, llama):
        cache = cache_for(llama)
        llama.generate(prompt(40), past_key_values=cache, **GREEDY)
        with pytest.raises(kvviz.CacheMismatchError, match="batch"), torch.no_grad():
            llama(prompt(3, batch=2), past_key_values=cache)

    def test_a_mask_with_gaps(self, llama):
        mask = torch.ones(1, 40, dtype=torch.long)
        mask[0, 20] = 0
        with pytest.raises(kvviz.InvalidInputError, match="gaps"):
            llama.generate(prompt(40), attention_mask=mask, past_key_values=cache_for(llama), **GREEDY)

    def test_an_unknown_store(self, llama):
        with pytest.raises(kvviz.InvalidInputError, match="store"):
            kvviz.SelectiveCache(llama, "clusterkv", store="attic")

    def test_keys_that_are_not_finite(self, llama):
        llama.model.layers[2].self_attn.k_proj.weight.data[0, 0] = torch.nan
        with pytest.raises(kvviz.InvalidInputError, match=r"layer 2.*NaN or infinity"):
            llama.generate(prompt(40), past_key_values=cache_for(llama, "quest", budget=64), **GREEDY)

    def test_a_model_whose_attention_cannot_be_replaced(self):
        from transformers import FalconConfig, FalconForCausalLM

        model = FalconForCausalLM(
            FalconConfig(vocab_size=97, hidden_size=16, num_hidden_layers=2, num_attention_heads=2)
        )
        before = model.config._attn_implementation
        with pytest.raises(kvviz.UnsupportedModelError, match="AttentionInterface"):
            kvviz.attach(model)
        assert model.config._attn_implementation == before

    def test_a_model_without_attention(self):
        from transformers import MambaConfig, MambaForCausalLM

        model = MambaForCausalLM(MambaConfig(vocab_size=97, hidden_size=16, num_hidden_layers=2, state_size=4))
        with pytest.raises(kvviz.UnsupportedModelError, match="attention"):
            kvviz.SelectiveCache(model, "clusterkv")

    @pytest.mark.parametrize(("change", "words"), [(True, "changes the cached values"), (False, "more than once")])
    def test_attention_with_other_values_or_twice(self, llama, change, words):
        """Decode steps read the store, so that a model that attends with something else would go wrong unnoticed."""
        cache, module = cache_for(llama), llama.model.layers[0].self_attn
        keys, values = cache.update(torch.rand(1, 2, 5, 8), torch.rand(1, 2, 5, 8), 0)
        arguments = module, torch.rand(1, 6, 5, 8), keys, values * 2 if change else values, None
        if not change:
            ALL_ATTENTION_FUNCTIONS["kvviz"](*arguments)
        with pytest.raises(kvviz.UnsupportedModelError, match=words):
            ALL_ATTENTION_FUNCTIONS["kvviz"](*arguments)
