"""KVzip against attention weights that transformers returns for a prompt and its repetition."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import kvviz
from kvviz.cache.attachment import attached
from kvviz.errors import InvalidInputError
from kvviz.generation.generating import fill
from tests.methods.eviction_reference import context, tensors
from tests.tiny_models import letters_tokenizer, make, prompt

LENGTH, SINKS = 90, 3
FIRST = "\n\nRepeat the previous context exactly."
FURTHER = "\n\nRepeat the part of the previous context exactly, starting with "


@pytest.fixture(scope="module")
def lm():
    return kvviz.LanguageModel(make("llama"), letters_tokenizer())


def filled(lm, method, ids):
    cache = kvviz.SelectiveCache(lm.model, method, details=True)
    with torch.no_grad(), attached(lm.model):
        fill(lm, cache, ids)
    return cache


def expected_scores(lm, ids, chunk, previous, suffix):
    """The definition: [layers][query head][L], from eager attention over the prompt and each repeated chunk."""
    lm.model.set_attn_implementation("eager")
    tokens = ids[0].tolist()

    def encode(text):
        return lm.tokenizer(text, add_special_tokens=False).input_ids

    scores = np.zeros((4, 6, len(tokens)))
    for start in range(SINKS, len(tokens), chunk):
        stop = min(start + chunk, len(tokens))
        before = tokens[max(start - previous, SINKS) : start]
        instruction = encode(FIRST) if start == SINKS else encode(FURTHER) + before
        text = instruction + encode(suffix) + tokens[start:stop]
        with torch.no_grad():
            attentions = lm.model(torch.tensor([tokens + text]), output_attentions=True).attentions
        columns = [*range(SINKS), *range(start, stop), *range(len(tokens), len(tokens) + len(text))]
        for layer, weights in enumerate(attentions):
            rows = weights[0, :, len(tokens) :].double()[..., columns]
            rows = rows / rows.sum(-1, keepdim=True)  # the softmax over these columns only
            scores[layer, :, start:stop] = rows.amax(1)[:, SINKS : SINKS + stop - start].numpy()
    lm.model.set_attn_implementation("sdpa")
    return scores


@pytest.mark.parametrize(("chunk", "previous"), [(2000, 8), (40, 5), (29, 0)])
@pytest.mark.parametrize("group", ["max", "mean", "each"])
def test_every_head_keeps_what_the_repetition_attends_to(lm, chunk, previous, group):
    ids = prompt(LENGTH)
    settings = {"chunk": chunk, "previous": previous, "suffix": " > ", "sinks": SINKS, "group": group}
    method = kvviz.methods.create("kvzip", budget=30, budgets="equal", **settings)
    cache = filled(lm, method, ids)
    scores = expected_scores(lm, ids, chunk, previous, " > ")
    if group != "each":
        scores = getattr(scores.reshape(4, 2, 3, LENGTH), group)(2)
    for layer, of_layer in zip(cache.selective_layers, scores, strict=True):
        state = layer.states[0]
        for row, of_row in enumerate(of_layer):
            best = np.argsort(-of_row[SINKS:], kind="stable")[: 30 - SINKS] + SINKS
            assert state.kept[0, row].tolist() == [*range(SINKS), *sorted(best.tolist())]
            assert np.allclose(state.scores[0, row, SINKS:].numpy(), of_row[sorted(best)], atol=1e-5)


@pytest.mark.parametrize("group", ["max", "each"])
def test_shared_budgets_keep_the_best_of_the_whole_model(lm, group):
    ids = prompt(LENGTH)
    method = kvviz.methods.create("kvzip", budget=30, group=group, sinks=SINKS)
    assert method.budgets == "shared"
    cache = filled(lm, method, ids)
    scores = expected_scores(lm, ids, 2000, 8, "\n")
    if group == "max":
        scores = scores.reshape(4, 2, 3, LENGTH).max(2)
    rankable = scores[..., SINKS:]
    count = (30 - SINKS) * rankable.shape[0] * rankable.shape[1]
    least = np.sort(rankable.ravel())[::-1][count - 1]
    counts = []
    for layer, of_layer in zip(cache.selective_layers, scores, strict=True):
        state = layer.states[0]
        for row, of_row in enumerate(of_layer):
            kept = [position for position in state.kept[0, row].tolist() if position >= 0]
            sure = [p for p in range(SINKS, LENGTH) if of_row[p] > least + 1e-6]
            possible = [p for p in range(SINKS, LENGTH) if of_row[p] > least - 1e-6]
            assert kept[:SINKS] == list(range(SINKS))
            assert set(sure) <= set(kept[SINKS:]) <= set(possible)
            assert kept == sorted(kept)
            counts.append(len(kept))
    assert sum(counts) == 30 * len(counts), "the budget holds on average"
    assert len(set(counts)) > 1, "and not for each head"


def test_generation_attends_to_the_kept_tokens_only_and_a_later_prompt_is_kept_whole(lm):
    ids = prompt(LENGTH)
    cache = filled(lm, kvviz.methods.create("kvzip", budget=30), ids)
    kept = [layer.states[0].kept.clone() for layer in cache.selective_layers]
    with torch.no_grad(), attached(lm.model):
        for token in range(70):  # long enough for the dropped tokens to be freed
            lm.model(torch.tensor([[5 + token % 50]]), past_key_values=cache)
        lm.model(prompt(6, seed=4), past_key_values=cache)
        lm.model(torch.tensor([[9]]), past_key_values=cache)
    for layer, before in zip(cache.selective_layers, kept, strict=True):
        last = layer.last.indices
        for head in range(2):
            expected = [p for p in before[0, head].tolist() if p >= 0] + [*range(LENGTH, LENGTH + 77)]
            assert [p for p in last[0, head].tolist() if p >= 0] == expected


def test_compare_and_diagnose_repeat_the_prompt_of_each_budget(lm):
    table = kvviz.compare(lm, prompt(LENGTH), methods=["kvzip"], budgets=[30, 60], max_new_tokens=3)
    assert table["attended_tokens"].between(30, 64).all()
    recording = kvviz.generate(lm, prompt(LENGTH), "kvzip", budget=30, max_new_tokens=3, record=True).recording
    assert np.isfinite(recording.summary()["recall"])


def test_the_repeated_chunk_must_have_positions(lm):
    method = kvviz.methods.create("kvzip", budget=100)
    with pytest.raises(InvalidInputError, match=r"kvzip: got 600 tokens of the prompt and 6\d\d of a repeated"):
        filled(lm, method, prompt(600))
    smaller = kvviz.methods.create("kvzip", budget=100, chunk=150)
    filled(lm, smaller, prompt(600))


def test_stored_tensors_are_refused_and_the_prompts_queries_serve_there():
    q, k, v = tensors(6, 2, 60)
    layer = context(6, 2)
    with pytest.raises(InvalidInputError, match=r'no model to repeat it to; wanted .* or preset="prompt"'):
        kvviz.methods.create("kvzip", budget=20).build(layer, q, k, v)
    state = kvviz.methods.create("kvzip", preset="prompt", budget=20, sinks=SINKS).build(layer, q, k, v)
    logits = torch.einsum("hgnd,hld->hgnl", q[0].unflatten(0, (2, 3)), k[0]).double() * layer.scale
    logits = logits.masked_fill(torch.ones(60, 60, dtype=torch.bool).triu(1), -torch.inf)
    most = logits.softmax(-1).amax((1, 2)).numpy()
    for head in range(2):
        best = np.argsort(-most[head, SINKS:], kind="stable")[: 20 - SINKS] + SINKS
        assert state.kept[0, head].tolist() == [*range(SINKS), *sorted(best.tolist())]


def test_a_prompt_filled_by_transformers_alone_is_refused(lm):
    cache = kvviz.SelectiveCache(lm.model, kvviz.methods.create("kvzip", budget=30))
    refused = pytest.raises(InvalidInputError, match="kvzip: got stored tensors, or a prompt of unknown tokens")
    with refused, torch.no_grad(), attached(lm.model):
        lm.model(prompt(LENGTH), past_key_values=cache)


@pytest.mark.parametrize(
    "fields",
    [
        {"queries": "prompt"},
        {"generated": "within"},
        {"recent": 4},
        {"queries": "prompt", "budgets": "equal", "chunk": 0},
        {"suffix": 3},
    ],
    ids=str,
)
def test_settings_that_do_not_fit_together_are_refused(fields):
    with pytest.raises(InvalidInputError, match="kvzip"):
        kvviz.methods.create("kvzip", **fields)
