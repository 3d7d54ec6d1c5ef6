"""Methods that define one function, of each kind: checked, replayed and decoded. And a method in the long form."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch

import kvviz
from kvviz.methods import Eviction, Method, ScoringMethod, State, checks
from kvviz.methods.base import REGISTRY
from kvviz.methods.selection import add_sinks_and_recent, group_scores, take_tokens
from tests.methods.stepped import context, reduced, tensors
from tests.tiny_models import letters_tokenizer, make, prompt

GREEDY = {"do_sample": False, "max_new_tokens": 12}


@dataclass
class Products(ScoringMethod):
    """Retrieval: the tokens with the largest inner products."""

    name, title, paper = "test_products", "Products", "none"

    recent: int = 1

    def scores(self, state, queries):
        return group_scores(queries, state.tokens.keys, self.group)


@dataclass
class SmallKeys(Eviction):
    """Eviction: the tokens with the shortest keys."""

    name, title, paper = "test_small_keys", "Small keys", "none"

    needs_queries = False
    sinks: int = 4

    def rank(self, state, queries, keys):
        return -keys.norm(dim=-1)


@dataclass
class SmallKeysEachStep(ScoringMethod):
    """Retrieval by scores that the query heads of a KV head share, of the selectable tokens only."""

    name, title, paper = "test_small_keys_each_step", "Small keys", "none"

    sinks: int = 3
    recent: int = 2

    def scores(self, state, queries):
        return -state.tokens.keys[:, :, self.sinks : state.length - self.recent].norm(dim=-1)


@dataclass
class LongState(State):
    keys: torch.Tensor


@dataclass
class LongForm(Method):
    """`Products` in the long form."""

    name, title, paper, kind = "test_long_form", "Long form", "none", "retrieval"
    needs_queries = False

    recent: int = 1

    def build(self, layer, queries, keys, values):
        return LongState(layer, keys.shape[2], keys.shape[2], keys)

    def extend(self, state, queries, keys, values):
        state.keys = torch.cat([state.keys, keys], dim=2)
        state.length += keys.shape[2]
        return state

    def select(self, state, queries):
        dense = self.dense_selection(state, queries)
        if dense is not None:
            return dense
        last = state.length - self.recent
        scores = group_scores(queries, state.keys[:, :, self.sinks : last], self.group)
        chosen = take_tokens(scores, self.step_budget(state) - self.reserved, details=state.layer.details)
        chosen.indices.add_(self.sinks)
        return add_sinks_and_recent(chosen, self.sinks, (last, state.length))


SHORT = (Products, SmallKeys, SmallKeysEachStep)
for method in (*SHORT, LongForm):
    REGISTRY.pop(method.name)  # so that the tests of all methods of the package do not find them


@pytest.fixture(scope="module")
def lm():
    return kvviz.LanguageModel(make("llama"), letters_tokenizer(), "tiny")


@pytest.fixture(scope="module")
def trace(lm):
    return kvviz.capture(lm, prompt(300))


@pytest.mark.parametrize("method", SHORT)
def test_a_method_of_one_function_passes_all_checks(method):
    outcome = checks.run(method)
    assert set(outcome) == set(checks.CHECKS)
    failures = {"extension_equals_one_build"} if method is SmallKeys else set()
    assert {name for name, result in outcome.items() if result != "passed"} == failures


def best(scores, count, sinks, recent):
    """The sinks, the recent tokens, and the `count` best between them; ties go to the earlier token."""
    length, between = len(scores), scores[sinks : len(scores) - recent]
    chosen = sinks + np.argsort(-between, kind="stable")[:count]
    return sorted([*range(sinks), *chosen.tolist(), *range(length - recent, length)])


@pytest.mark.parametrize("group", ["mean", "max", "sum", "each"])
@pytest.mark.parametrize("method", SHORT)
def test_sinks_recent_tokens_and_the_best_by_its_function_are_selected(method, group):
    queries, keys, values = tensors(6, 2, 101)
    made = method(budget=20, sinks=4, recent=7, group=group)
    state = made.build(context(6, 2), queries[:, :, :0], keys[:, :, :100], values[:, :, :100])
    state = made.extend(state, queries[:, :, 100:], keys[:, :, 100:], values[:, :, 100:])
    chosen = made.select(state, queries[:, :, 100])
    norms, query = -keys[0].norm(dim=-1).numpy(), queries[0, :, 100]
    products = torch.einsum("qd,qld->ql", query, keys[0].repeat_interleave(3, 0)).numpy()
    heads = 6 if group == "each" else 2
    scores = reduced(products, 2, group) if method is Products else norms.repeat(heads // 2, 0)
    for head, indices in enumerate(chosen.indices[0].tolist()):
        if method is SmallKeys:  # chosen at the prompt's end; the generated token takes the place of the worst
            kept = best(scores[head, :100], 9, 4, 7)
            worst = min(kept[4:-6], key=lambda position: scores[head, position])
            assert indices == [*(position for position in kept if position != worst), 100]
            ranked = [position for position in indices[4:-7] if position != 93]  # 93 was in the window
        else:
            assert indices == best(scores[head], 9, 4, 7)
            ranked = indices[4:-7]
        between = chosen.scores[0, head, [indices.index(position) for position in ranked]]
        assert torch.allclose(between, torch.tensor(scores[head, ranked]), atol=1e-5)
    assert bool((chosen.groups == -1).all())


@pytest.mark.parametrize("method", SHORT)
def test_replay_and_decoding(method, lm, trace):
    made = method(budget=40)
    recording = kvviz.replay(trace, made, queries=16)
    for step in (0, 15):
        assert (recording.indices(step, 3) >= 0).sum(-1).tolist() == [40] * 2
    assert 0 < recording.summary()["recall"] <= 1
    kvviz.attach(lm.model)
    ids = prompt(200)
    cache = kvviz.SelectiveCache(lm.model, made)
    lm.model.generate(ids, past_key_values=cache, **GREEDY)
    assert cache.ledger().attended == 40
    full_budget = kvviz.SelectiveCache(lm.model, replace(made, budget=200, generated="on_top"))
    dense_ids = lm.model.generate(ids, **GREEDY)
    assert torch.equal(lm.model.generate(ids, past_key_values=full_budget, **GREEDY), dense_ids)


def test_scores_of_another_number_of_tokens_are_refused():
    @dataclass
    class Short(Products):
        def scores(self, state, queries):
            return super().scores(state, queries)[..., 1:]

    method = Short(budget=20, sinks=4)
    queries, keys, values = tensors(6, 2, 100)
    state = method.build(context(6, 2), queries[:, :, :0], keys, values)
    with pytest.raises(
        kvviz.InvalidInputError,
        match="test_products: scores: got 99 per head; wanted 100 per head, or 95 without",
    ):
        method.select(state, queries[:, :, -1])


@pytest.mark.parametrize(("base", "missing"), [(Method, "neither choose nor select"), (Eviction, "no rank")])
def test_a_method_without_its_function_says_so(base, missing):
    @dataclass
    class Without(base):
        title, paper, kind = "Without", "none", "eviction"

    Without.name = "test_without"
    queries, keys, values = tensors(6, 2, 100)
    with pytest.raises(NotImplementedError, match=f"Without has {missing}"):
        select_after_prompt(Without(budget=20), queries, keys, values)


def select_after_prompt(method, queries, keys, values):
    state = method.build(context(6, 2), queries[:, :, :0], keys, values)
    return method.select(state, queries[:, :, -1])


def test_a_method_in_the_long_form_passes_all_checks():
    assert set(checks.run(LongForm).values()) == {"passed"}


def test_the_long_and_the_short_form_select_the_same_tokens():
    fields, inputs = {"budget": 20, "sinks": 4, "recent": 7}, tensors(6, 2, 101)
    short = select_after_prompt(Products(**fields), *inputs)
    long = select_after_prompt(LongForm(**fields), *inputs)
    for name in ("indices", "groups", "scores"):
        first, second = (torch.nan_to_num(getattr(selection, name)) for selection in (long, short))
        assert torch.allclose(first, second)  # the order of summation differs
