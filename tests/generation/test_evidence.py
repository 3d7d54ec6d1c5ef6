"""Evidence: the tokens that full attention needs for an answer."""

from __future__ import annotations

import numpy as np
import pytest

from kvviz.errors import InvalidInputError
from kvviz.generation.evidence import find_evidence, given_evidence
from kvviz.generation.teacher_forcing import ForcedAnswer

pytestmark = pytest.mark.slow  # some 250 forward passes of the real model

FILLER = "The grass is green. The sky is blue. The sun is yellow. Here we go. There and back again. "
QUESTION = "\nQuestion: What is the secret number of the harbour? Answer: The secret number of the harbour is"


@pytest.fixture(scope="module")
def forced(lm):
    prompt = FILLER * 2 + "The secret number of the harbour is 7463. " + FILLER * 2
    return ForcedAnswer(lm, prompt, " 7463", QUESTION)


def test_the_needle_is_found_within_a_budget_of_passes(forced):
    before = forced.passes
    evidence = find_evidence(forced, max_passes=40)
    assert forced.passes - before <= 41  # and one with all tokens
    digits = [place for place, text in enumerate(forced.lm.tokens(forced.ids)) if text in "7463" and text.isdigit()]
    assert set(digits) <= set(evidence.position)
    assert set(evidence.nlargest(4, "logprob").position) == set(digits)
    assert evidence.position.is_monotonic_increasing


def test_the_ranking_is_that_of_dropping_every_token(forced):
    length = forced.ids.shape[1]
    every = given_evidence(forced, range(4, length)).set_index("position").logprob
    found = find_evidence(forced, max_passes=60)
    np.testing.assert_allclose(found.logprob, every[found.position], atol=1e-6)
    count = 5
    assert list(found.nlargest(count, "logprob").position) == list(every.nlargest(count).index)
    texts = forced.lm.tokens(forced.ids)
    assert list(found.token) == [texts[place] for place in found.position]


def test_more_passes_find_no_less(forced):
    few, many = (set(find_evidence(forced, max_passes=passes).position) for passes in (30, 80))
    assert few <= many


def test_at_least_one_pass(forced):
    with pytest.raises(InvalidInputError, match="evidence: max_passes: got 0; wanted an int >= 1"):
        find_evidence(forced, max_passes=0)
