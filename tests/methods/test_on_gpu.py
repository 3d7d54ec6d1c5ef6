"""Every method on a real GPU: the same choices as on the CPU, and so the same log-probabilities."""

from __future__ import annotations

import numpy as np
import pytest

import kvviz
from kvviz.errors import MissingDependencyError
from tests.cache.test_offload_generation import method_of
from tests.tiny_models import letters_tokenizer, make, prompt

pytestmark = pytest.mark.gpu
ANSWER = "the quick brown fox jumps over the lazy dog and runs on"


@pytest.mark.parametrize("name", kvviz.methods.names())
def test_a_gpu_gives_an_answer_the_log_probabilities_of_a_cpu(name):
    try:
        method = method_of(name)
    except MissingDependencyError as error:
        pytest.skip(str(error))
    model, ids = make("llama"), prompt(300)
    on_cpu = kvviz.score(kvviz.LanguageModel(model, letters_tokenizer()), ids, ANSWER, method)
    lm = kvviz.LanguageModel(model.cuda(), letters_tokenizer())
    on_gpu = kvviz.score(lm, ids, ANSWER, method)
    full = kvviz.score(lm, ids, ANSWER, "full")
    assert np.abs(on_gpu.logprobs - on_cpu.logprobs).max() < 1e-3
    if name not in ("full", "minference"):
        assert np.abs(on_gpu.logprobs - full.logprobs).max() > 1e-4, "the method had an effect"
