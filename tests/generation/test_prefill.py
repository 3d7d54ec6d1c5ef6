"""One prefill for many methods and budgets; each gives the same result as alone."""

from __future__ import annotations

import pytest
import torch

import kvviz
from kvviz import methods
from kvviz.cache.attachment import attached
from kvviz.generation.generating import decode
from kvviz.generation.prefill import SharedPrefill
from kvviz.methods import checks
from kvviz.methods.base import Method
from tests.tiny_models import letters_tokenizer, make, prompt

NAMES = [name for name in methods.names() if methods.get(name).kind != "prefill"]


@pytest.fixture(scope="module")
def tiny():
    return kvviz.LanguageModel(make("llama"), letters_tokenizer(), name="tiny-llama")


def count_tokens_of_passes(lm, counted):
    """A hook that adds the number of tokens of each forward pass to `counted`."""

    def count(module, args, kwargs):
        counted.append((args[0] if args else kwargs["input_ids"]).shape[1])

    return lm.model.register_forward_pre_hook(count, with_kwargs=True)


@pytest.mark.slow
@torch.no_grad()
@pytest.mark.parametrize("name", NAMES)
def test_each_budget_gives_the_same_text_as_alone(tiny, name, monkeypatch):
    smallest = checks.smallest(methods.get(name)).budget
    smallest = smallest if isinstance(smallest, int) else 40
    ids = prompt(300)
    builds = []
    build = methods.get(name).build
    monkeypatch.setattr(methods.get(name), "build", lambda *args: builds.append(args[1].index) or build(*args))
    shared = SharedPrefill(tiny, ids, retain_queries=True, details=True)
    steps = 24
    for budget in (smallest, smallest + 60, smallest):  # the first again: decoding must not change it
        method = methods.create(name, budget=budget)
        with attached(tiny.model):
            cache, logits, seconds = shared.cache(method)
            generation = decode(tiny, cache, ids, int(logits.argmax()), [], steps, 0.0, True)
        assert seconds > 0
        alone = kvviz.generate(tiny, ids, name, budget, max_new_tokens=steps, record=True)
        assert generation.token_ids == alone.token_ids
        for layer, events in alone.recording.events.items():
            assert (generation.recording.events[layer].indices == events.indices).all()
    assert shared.count == 1
    shared_builds = 1 if methods.get(name).builds_for_any_budget else 3
    assert len(builds) == (shared_builds + 3) * len(set(builds))


@torch.no_grad()
def test_eight_methods_at_four_budgets_take_one_prefill(tiny):
    counted: list[int] = []
    names = ("full", "oracle", "clusterkv", "quest", "pqcache", "snapkv", "h2o", "streaming_llm")
    ids = prompt(280)
    hook = count_tokens_of_passes(tiny, counted)
    try:
        with attached(tiny.model):
            shared = SharedPrefill(tiny, ids, retain_queries=True, details=True)
            for name in names:
                for budget in (64, 96, 128, 160):
                    cache, logits, _ = shared.cache(methods.create(name, budget=budget))
                    decode(tiny, cache, ids, int(logits.argmax()), [], 3, 0.0, False)
    finally:
        hook.remove()
    assert [tokens for tokens in counted if tokens > 1] == [280]


def test_a_subclass_is_built_for_each_budget_by_default():
    class Own(methods.get("quest")):
        name = "own_quest_of_this_test"

    try:
        assert methods.get("quest").builds_for_any_budget
        assert not Own.builds_for_any_budget
        assert issubclass(Own, Method)
    finally:
        del methods.base.REGISTRY[Own.name]


@torch.no_grad()
def test_a_fork_that_reuses_a_state_copies_no_model(tiny, monkeypatch):
    """The prompt of a cache refers to the model, by which KVzip repeats it; a fork is a deep copy."""
    copied = []
    monkeypatch.setattr(type(tiny.model), "__deepcopy__", lambda *args: copied.append(args), raising=False)
    shared = SharedPrefill(tiny, prompt(60), retain_queries=False)
    with attached(tiny.model):
        for budget in (32, 48):
            cache, _, _ = shared.cache(methods.create("quest", budget=budget, page_size=4, dense_layers=0))
            assert cache.selective_layers[0].context.prompt.encode is not None
    assert not copied
