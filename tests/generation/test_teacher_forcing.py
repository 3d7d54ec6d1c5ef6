"""score(): log-probabilities of a given answer."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import kvviz
from kvviz.errors import InvalidInputError
from kvviz.generation.teacher_forcing import ForcedAnswer
from tests.tiny_models import letters_tokenizer, make, prompt

METHOD = {"method": "quest", "budget": 48, "dense_layers": 0, "page_size": 4}


@pytest.fixture(scope="module")
def tiny():
    return kvviz.LanguageModel(make("llama"), letters_tokenizer(), name="tiny-llama")


@pytest.mark.parametrize("question", [None, " what? "])
def test_full_attention_gives_the_models_own_log_probabilities(tiny, question):
    fed = "".join([question or "", "an answer"])
    ids = torch.cat([prompt(120), tiny.encode(fed)], dim=1)
    with torch.no_grad():
        expected = tiny.model(ids).logits[0, :-1].double().log_softmax(-1).gather(-1, ids[0, 1:, None])[-9:, 0]
    score = kvviz.score(tiny, prompt(120), "an answer", "full", question=question)
    np.testing.assert_allclose(score.logprobs, expected.numpy(), atol=1e-5)
    assert score.logprobs.dtype == np.float64
    assert score.tokens == list("an answer")
    assert score.total == pytest.approx(float(expected.sum()), abs=1e-4)


def test_a_generated_text_scores_as_the_most_likely_one(tiny):
    text = kvviz.generate(tiny, prompt(120), question="so: ", max_new_tokens=5, **METHOD).text
    best = kvviz.score(tiny, prompt(120), text, question="so: ", **METHOD)
    assert len(best.tokens) == len(text) >= 3
    for place, letter in enumerate(text):
        other = "x" if letter != "x" else "y"
        changed = text[:place] + other + text[place + 1 :]
        score = kvviz.score(tiny, prompt(120), changed, question="so: ", **METHOD)
        assert score.logprobs[place] < best.logprobs[place]
        np.testing.assert_array_equal(score.logprobs[:place], best.logprobs[:place])


def test_the_prompt_is_prefilled_once_for_many_scores(tiny):
    forced = ForcedAnswer(tiny, prompt(120), "four", "q: ")
    method = kvviz.methods.create("quest", budget=48, page_size=4)
    scores = [forced.score(method), forced.score(kvviz.methods.create("full")), forced.score(method)]
    assert forced.shared.count == 1
    assert forced.passes == 3 * (3 + 4 - 1)
    np.testing.assert_array_equal(scores[0].logprobs, scores[2].logprobs)
    assert not np.array_equal(scores[0].logprobs, scores[1].logprobs)


def test_one_pass_does_not_pass_over_a_sparse_prefill(tiny):
    forced = ForcedAnswer(tiny, prompt(120), "four", prefill="minference")
    with pytest.raises(InvalidInputError, match="frozen_score: got a prompt with a sparse prefill"):
        forced.frozen_score()


@pytest.mark.parametrize("answer", ["", None])
def test_an_answer_needs_tokens(tiny, answer):
    with pytest.raises(InvalidInputError, match=r"score: answer: got .*wanted text of at least one token"):
        kvviz.score(tiny, prompt(20), answer)


def test_an_edit_of_another_model_is_refused(tiny):
    with pytest.raises(InvalidInputError, match="exact: layers: got 9; wanted 0 to 3: the model has 4 layers"):
        kvviz.score(tiny, prompt(20), "a", edit=kvviz.exact(layers=[9]))
