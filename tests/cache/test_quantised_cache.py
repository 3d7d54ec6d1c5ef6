"""Keys and values in fewer bits in a running model and on stored traces."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import kvviz
from kvviz.cache.attended import attended_by
from kvviz.errors import InvalidInputError
from kvviz.generation.lost_tokens import LossObserver
from kvviz.generation.proof import Proof
from kvviz.generation.teacher_forcing import ForcedAnswer
from kvviz.methods import create
from tests.offload.test_quantised_store import tensors_of
from tests.tiny_models import letters_tokenizer, make, prompt

GREEDY = {"max_new_tokens": 24, "do_sample": False, "eos_token_id": None}
QUANTISED = ("kivi", "turboquant")
SMALL_WINDOW = {"turboquant(pqcache)": {"sinks": 4, "recent": 8}}


@pytest.fixture(scope="module")
def llama():
    model = make("llama")
    kvviz.attach(model)
    return model


@pytest.fixture(scope="module")
def tiny(llama):
    return kvviz.LanguageModel(llama, letters_tokenizer(), name="tiny-llama")


@pytest.fixture(scope="module")
def trace(tiny):
    return kvviz.capture(tiny, prompt(400))


@pytest.mark.parametrize("architecture", ["llama", "llama_mqa", "qwen3", "gemma2", "gpt_neox"])
@pytest.mark.parametrize("over", ["full", "quest", "minference"])
def test_tokens_in_full_precision_do_not_change_the_text(architecture, over):
    """A residual that covers all tokens: KIVI then attends to what the method over which it is does."""
    model, ids = make(architecture), prompt(200)
    kvviz.attach(model)
    fields = {} if over == "full" else {"budget": 64}
    caches = [
        kvviz.SelectiveCache(model, create(over, **fields)),
        kvviz.SelectiveCache(model, create("kivi", over=over, residual=1024, **fields)),
    ]
    assert torch.equal(*(model.generate(ids, past_key_values=cache, **GREEDY) for cache in caches))


@pytest.mark.parametrize("name", QUANTISED)
def test_generated_tokens_are_packed_and_the_ledger_has_the_bytes_of_all_tensors(llama, name):
    cache = kvviz.SelectiveCache(llama, name)
    llama.generate(prompt(150), past_key_values=cache, **{**GREEDY, "max_new_tokens": 320})
    ledger = cache.ledger()
    stores = [layer.store for layer in cache.selective_layers]
    tensors = tensors_of([[store._keys, store._values] for store in stores])
    assert ledger.kept_bytes == {"device": sum(tensors.values())}
    assert ledger.attended == 150 + 319
    assert ledger.metadata_bytes == 0
    length, width = 150 + 319, 8 * 4  # float32
    exact = len(stores) * 2 * 2 * length * width
    assert ledger.kept_bytes["device"] < 0.75 * exact
    assert all(store.length == length for store in stores)
    packed = {"kivi": (length // 128 * 128, length - 128), "turboquant": (length, length)}[name]
    assert all((store._keys.packed, store._values.packed) == packed for store in stores)


def test_a_dense_layer_of_the_other_method_is_packed_too(llama):
    cache = kvviz.SelectiveCache(llama, create("kivi(quest)", budget=64, residual=32))
    llama.generate(prompt(150), past_key_values=cache, **GREEDY)
    assert cache.ledger().dense_layers == (0, 1)
    for layer in cache.selective_layers:
        assert layer.store._keys.packed == (150 + 23) // 32 * 32
        assert layer.store._values.packed == 150 + 23 - 32


def test_left_padding_does_not_change_a_row(llama):
    """With TurboQuant, which encodes each token alone; KIVI's groups count from the start of the padded row."""
    short, long = prompt(150, seed=2), prompt(200, seed=3)
    padded = torch.cat([torch.cat([torch.zeros(1, 50, dtype=torch.long), short], 1), long])
    mask = (padded != 0).long()
    for name in ("turboquant", "turboquant(quest)", "kivi"):
        fields = {"residual": 512} if name == "kivi" else {"budget": 64}

        def generated(ids, name=name, fields=fields, **inputs):
            cache = kvviz.SelectiveCache(llama, create(name, **fields))
            return llama.generate(ids, past_key_values=cache, **inputs, **GREEDY)

        together = generated(padded, attention_mask=mask)
        for row, ids in enumerate((short, long)):
            assert torch.equal(together[row, 200:], generated(ids)[0, ids.shape[1] :]), (name, row)


@pytest.mark.parametrize("name", [*QUANTISED, "kivi(clusterkv)"])
def test_a_later_prompt_attends_to_stored_tokens_and_packs_its_own(llama, name):
    cache = kvviz.SelectiveCache(llama, create(name, **({"budget": 64} if "(" in name else {})))
    ids = llama.generate(prompt(200), past_key_values=cache, **GREEDY)
    before = [layer.store.keys.clone()[:, :, :128] for layer in cache.selective_layers]
    ids = torch.cat([ids, prompt(300, seed=9)], dim=1)
    llama.generate(ids, attention_mask=torch.ones_like(ids), past_key_values=cache, **GREEDY)
    for layer, keys in zip(cache.selective_layers, before, strict=True):
        assert layer.store.length == ids.shape[1] + 23
        assert layer.store._keys.packed >= 512
        assert torch.equal(layer.store.keys[:, :, :128], keys), "packed tokens are not encoded again"


@pytest.mark.parametrize("name", [*QUANTISED, "kivi(quest)", "turboquant(pqcache)"])
def test_compare_and_generate_agree(tiny, name):
    """compare copies an exactly prefilled prompt for each method; generate fills its own cache."""
    fields = {} if name in QUANTISED else {"budget": 64, "dense_layers": 0, **SMALL_WINDOW.get(name, {})}
    table = kvviz.compare(tiny, prompt(300), [create(name, **fields)], [64], max_new_tokens=12)
    out = kvviz.generate(tiny, prompt(300), name, max_new_tokens=12, record=True, **fields)
    row = table.iloc[-1]
    assert row["output_error"] == pytest.approx(out.recording.summary()["output_error"], rel=1e-3)
    assert row["output_error"] > 0.01
    assert row["attended_tokens"] == pytest.approx(out.recording.summary()["attended_tokens"])


@pytest.mark.parametrize("name", ["kivi(quest)", "kivi(ctkvr)"])
def test_several_budgets_share_one_prompt(tiny, name):
    """Quest builds one state for all budgets, CTkvr one for each; dense layers are copied as they are stored."""
    table = kvviz.compare(tiny, prompt(300), [name], [180, 220], max_new_tokens=8)
    for budget in (180, 220):
        out = kvviz.generate(tiny, prompt(300), name, budget, max_new_tokens=8, record=True)
        error = table.set_index("budget").loc[budget, "output_error"]
        assert error == pytest.approx(out.recording.summary()["output_error"], rel=1e-3)


@pytest.mark.parametrize("name", QUANTISED)
def test_a_replay_attends_to_all_tokens_as_they_are_stored(trace, name):
    """Recall is 1, and the output error is that of attention over the stored tokens, computed by hand."""
    queries, layer = 20, 2
    recording = kvviz.replay(trace, name, queries=queries)
    assert recording.layers == (0, 1, 2, 3)
    assert recording.summary()["recall"] == 1
    keys, values = (
        torch.from_numpy(getattr(trace, kind)[layer].astype(np.float32))[None] for kind in ("keys", "values")
    )
    store = kvviz.cache.tiers.make_store(kvviz.cache.tiers.DEVICE, None, create(name))
    prompt_length = len(trace) - queries
    store.append(keys[:, :, :prompt_length], values[:, :, :prompt_length])
    store.compress()
    for step in range(queries):
        place = prompt_length + step
        store.append(keys[:, :, place : place + 1], values[:, :, place : place + 1])
        errors = []
        for head in range(6):
            query = trace.queries[layer][head, place].astype(np.float64)
            outputs = []
            for of_keys, of_values in ((keys, values), (store.keys, store.values)):
                logits = of_keys[0, head // 3, : place + 1].double().numpy() @ query * query.size**-0.5
                weights = np.exp(logits - logits.max())
                outputs.append(weights / weights.sum() @ of_values[0, head // 3, : place + 1].double().numpy())
            errors.append(np.linalg.norm(outputs[1] - outputs[0]) / np.linalg.norm(outputs[0]))
        assert recording.events[layer].output_error[step] == pytest.approx(np.mean(errors), rel=1e-3)
        indices = torch.arange(place + 1).expand(1, 2, -1)
        assert recording.events[layer].read_bytes[step] == store.read_bytes(indices)
        store.compress()


def test_more_bits_mean_less_error_on_a_trace(trace):
    errors = [
        kvviz.replay(trace, "kivi", queries=20, key_bits=bits, value_bits=bits).summary()["output_error"]
        for bits in (1, 2, 4, 8)
    ]
    assert errors == sorted(errors, reverse=True)
    assert errors[-1] < 0.02


def test_exact_tokens_do_not_come_back_from_a_packed_cache(llama):
    cache = kvviz.SelectiveCache(llama, "kivi")
    llama.generate(prompt(200), past_key_values=cache, **GREEDY)
    with pytest.raises(InvalidInputError, match="stored in fewer bits; wanted a cache with exact keys and values"):
        cache.fork("quest")


def test_a_diagnosis_tells_what_fewer_bits_cost(tiny):
    """One pass over stored tokens gives the scores of the steps; reading them exactly is a row of the waterfall.

    Values that are encoded during the steps are exact in the pass: with 8 bits, this makes no difference.
    """
    forced = ForcedAnswer(tiny, prompt(258), "seven four six three", " what is the code? ", details=True)
    full = forced.frozen_score()
    for name, fields in (("kivi", {}), ("kivi(quest)", {"budget": 80, "dense_layers": 0})):
        method, observer = create(name, residual=64, value_bits=8, **fields), LossObserver([40, 200])
        score = forced.score(method, observer=observer)
        proof = Proof(
            forced, method, score, attended_by(observer.selections, forced.exact_cache()[0]), observer.choices
        )
        chain = proof.waterfall(full).set_index("stage")["logprob"]
        assert chain["method"] == pytest.approx(score.total, abs=0.1)
        assert list(chain.index[-3:]) == ["kept", "storage", "full"]
        if name == "kivi":
            assert chain["storage"] == pytest.approx(chain["full"], abs=1e-3)
            assert abs(chain["kept"] - chain["storage"]) > 0.5
            assert {row["stage"] for row in observer.rows} == {"attended"}
        weights = [(row["weight"], row["exact_weight"]) for row in observer.rows if row["stage"] == "attended"]
        assert any(abs(given - exact) > 1e-4 for given, exact in weights)
