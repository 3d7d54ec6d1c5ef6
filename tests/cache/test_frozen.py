"""One forward pass over given selections: the same as the decode steps they come from."""

from __future__ import annotations

import numpy as np
import pytest

import kvviz
from kvviz.cache.frozen import FrozenCache, attended_by
from kvviz.errors import InvalidInputError
from kvviz.generation.teacher_forcing import ForcedAnswer
from kvviz.methods import create
from tests.cache.test_editing import HEADS, LAYERS, METHODS, smallest
from tests.tiny_models import letters_tokenizer, make, prompt

LENGTH = 150


@pytest.fixture(scope="module", params=["llama", "gpt_neox"])
def forced(request):
    lm = kvviz.LanguageModel(make(request.param), letters_tokenizer(), name=request.param)
    return ForcedAnswer(lm, prompt(LENGTH), "seven four six three", " what is the code? ")


@pytest.mark.parametrize("name", METHODS)
def test_one_pass_gives_the_log_probabilities_of_the_steps(forced, name):
    score, selections = forced.selections(smallest(name))
    attended = attended_by(selections, forced.exact_cache()[0])
    passes = forced.passes
    np.testing.assert_allclose(forced.frozen_score(attended).logprobs, score.logprobs, atol=1e-4)
    assert forced.passes == passes + 1
    full = forced.frozen_score().logprobs
    assert np.abs(full - score.logprobs).max() > 1e-3
    np.testing.assert_allclose(full, forced.score(create("full")).logprobs, atol=1e-4)


@pytest.mark.parametrize("hidden", [(5,), range(30, 80)])
def test_hidden_tokens_are_dropped_ones(forced, hidden):
    expected = forced.score(create("full"), kvviz.drop(hidden)).logprobs
    np.testing.assert_allclose(forced.frozen_score(hidden=hidden).logprobs, expected, atol=1e-4)


@pytest.mark.parametrize("name", ["clusterkv", "quest", "snapkv", "centroidkv", "sparq", "pqcache"])
def test_restoring_the_last_layer_is_a_real_decode_with_the_oracle_there(forced, name):
    # no layer comes after it, so that no other selection can change
    last = LAYERS - 1
    method = smallest(name)
    _, selections = forced.selections(method)
    attended = attended_by(selections, forced.exact_cache()[0])
    restored = forced.frozen_score(attended, restored=[(last, 1)]).logprobs
    np.testing.assert_allclose(restored, forced.score(method, kvviz.exact([last], [1])).logprobs, atol=1e-4)
    assert np.abs(restored - forced.frozen_score(attended).logprobs).max() > 1e-4


def test_restoring_all_heads_with_room_for_all_tokens_is_full_attention(forced):
    method = create("quest", budget=1024, dense_layers=0)
    _, selections = forced.selections(method)
    attended = attended_by(selections, forced.exact_cache()[0])
    heads = [(layer, head) for layer in range(LAYERS) for head in range(HEADS)]
    restored = forced.frozen_score(attended, restored=heads).logprobs
    np.testing.assert_allclose(restored, forced.frozen_score().logprobs, atol=1e-5)


def test_a_cache_that_lost_tokens_is_refused(forced):
    cache, _, _ = forced.shared.cache(smallest("snapkv"))
    with pytest.raises(InvalidInputError, match="FrozenCache: got a cache without all keys"):
        FrozenCache(cache)
