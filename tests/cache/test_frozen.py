"""One forward pass over given selections: the same as the decode steps they come from."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import kvviz
from kvviz.cache.attended import attended_by
from kvviz.cache.frozen import Change, FrozenCache
from kvviz.errors import InvalidInputError
from kvviz.generation import teacher_forcing
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
    np.testing.assert_allclose(forced.frozen_score(change=Change(hidden=hidden)).logprobs, expected, atol=1e-4)


@pytest.mark.parametrize("name", ["clusterkv", "quest", "snapkv", "centroidkv", "sparq", "pqcache"])
def test_restoring_the_last_layer_is_a_real_decode_with_the_oracle_there(forced, name):
    # no layer comes after it, so that no other selection can change
    last = LAYERS - 1
    method = smallest(name)
    _, selections = forced.selections(method)
    attended = attended_by(selections, forced.exact_cache()[0])
    restored = forced.frozen_score(attended, Change(restored=[(last, 1)])).logprobs
    np.testing.assert_allclose(restored, forced.score(method, kvviz.exact([last], [1])).logprobs, atol=1e-4)
    assert np.abs(restored - forced.frozen_score(attended).logprobs).max() > 1e-4


def test_restoring_all_heads_with_room_for_all_tokens_is_full_attention(forced):
    method = create("quest", budget=1024, dense_layers=0)
    _, selections = forced.selections(method)
    attended = attended_by(selections, forced.exact_cache()[0])
    heads = [(layer, head) for layer in range(LAYERS) for head in range(HEADS)]
    restored = forced.frozen_score(attended, Change(restored=heads)).logprobs
    np.testing.assert_allclose(restored, forced.frozen_score().logprobs, atol=1e-5)


@pytest.mark.parametrize("name", METHODS)
def test_changes_in_one_pass_do_not_touch_each_other(forced, name, monkeypatch):
    _, selections = forced.selections(smallest(name))
    attended = attended_by(selections, forced.exact_cache()[0])
    last = LAYERS - 1
    everything = torch.ones_like(attended[last].counts, dtype=torch.bool)[..., None].expand(-1, -1, LENGTH).clone()
    everything = torch.nn.functional.pad(everything, (0, everything.shape[1]))
    changes = [
        Change(), Change(hidden=range(30, LENGTH)), Change(restored=[(last, 1)]), Change(shown=range(20, 110)),
        Change(restored=[(last, 0)], choices={last: everything}, hidden=[5]),
    ]  # fmt: skip
    together = forced.frozen_scores(attended, changes)
    alone = [forced.frozen_score(attended, change) for change in changes]
    for one, other in zip(together, alone, strict=True):
        np.testing.assert_allclose(one.logprobs, other.logprobs, atol=1e-5)
    same = name == "oracle"  # restored, it attends to the same tokens
    assert len({round(score.total, 4) for score in together}) == len(changes) - same

    widths = []
    kept = FrozenCache.__init__
    monkeypatch.setattr(FrozenCache, "__init__", lambda *args: (widths.append(len(args[3])), kept(*args))[1])
    forced.frozen_scores(attended, changes)
    monkeypatch.setattr(teacher_forcing, "BATCH_BYTES", 1)
    in_turn = forced.frozen_scores(attended, changes)
    assert widths == [5, 1, 1, 1, 1, 1]
    np.testing.assert_allclose([score.total for score in in_turn], [score.total for score in alone], atol=1e-6)


def test_a_cache_that_lost_tokens_is_refused(forced):
    cache, _, _ = forced.shared.cache(smallest("snapkv"))
    with pytest.raises(InvalidInputError, match="FrozenCache: got a cache without all keys"):
        FrozenCache(cache)


@pytest.fixture(scope="module", params=["gemma2", "gemma3"])
def hybrid(request):
    """A prompt of a model of which every second layer has a sliding window, shorter than what is fed."""
    lm = kvviz.LanguageModel(make(request.param), letters_tokenizer(), name=request.param)
    return ForcedAnswer(lm, prompt(LENGTH), "seven four six three", " what is the code? ")


@pytest.mark.parametrize("name", ["quest", "clusterkv", "centroidkv"])
def test_a_sliding_window_stays_one_in_a_pass_over_all_steps(hybrid, name):
    score, selections = hybrid.selections(create(name, budget=96, dense_layers=0))
    assert sorted(selections) == [1, 3]
    attended = attended_by(selections, hybrid.exact_cache()[0])
    np.testing.assert_allclose(hybrid.frozen_score(attended).logprobs, score.logprobs, atol=1e-4)
    full = hybrid.frozen_score().logprobs
    assert np.abs(full - score.logprobs).max() > 1e-3
    np.testing.assert_allclose(full, hybrid.score(create("full")).logprobs, atol=1e-4)


def test_a_hidden_token_is_hidden_in_sliding_windows_too(hybrid):
    before = range(30, 80)  # in no window of a step
    expected = hybrid.score(create("full"), kvviz.drop(before)).logprobs
    np.testing.assert_allclose(hybrid.frozen_score(change=Change(hidden=before)).logprobs, expected, atol=1e-4)
    within = range(LENGTH - 10, LENGTH)  # an edit changes the other layers only
    edited = hybrid.score(create("full"), kvviz.drop(within)).logprobs
    assert np.abs(hybrid.frozen_score(change=Change(hidden=within)).logprobs - edited).max() > 1e-3
