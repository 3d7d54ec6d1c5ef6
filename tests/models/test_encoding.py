"""Valid prompts: the same for every operation that feeds one to a model. Error messages name the operation."""

from __future__ import annotations

import pytest
import torch

import kvviz
from kvviz.evaluation import evaluate
from kvviz.models.encoding import fed_ids, prompt_ids
from kvviz.tasks import Sample, Turn
from tests.evaluation.evaluation_tasks import Letters
from tests.tiny_models import VOCABULARY, letters_tokenizer, make, prompt

OPERATIONS = {
    "generate": lambda lm, text: kvviz.generate(lm, text, "quest", 64, max_new_tokens=2),
    "compare": lambda lm, text: kvviz.compare(lm, text, ["quest"], [64], max_new_tokens=2),
    "capture": lambda lm, text: kvviz.capture(lm, text, layers=[0]),
}
TOO_LONG = "1025 tokens.*; wanted at most the model's 1024 positions"
REFUSED = {
    "empty text": ("", "prompt: got an empty prompt"),
    "no ids": (torch.zeros(1, 0, dtype=torch.long), "prompt: got an empty prompt"),
    "rows": (torch.ones(2, 5, dtype=torch.long), r"prompt: got torch.int64 of shape \[2, 5\]; wanted .*one prompt"),
    "flat": (torch.ones(5, dtype=torch.long), r"prompt: got torch.int64 of shape \[5\]"),
    "floats": (torch.ones(1, 5), "prompt: got torch.float32"),
    "truth values": (torch.ones(1, 5, dtype=torch.bool), "prompt: got torch.bool"),
    "a list": ([[3, 4]], "prompt: got a list; wanted text, or token ids"),
    "nothing": (None, "prompt: got a NoneType"),
    "unknown ids": (torch.tensor([[3, VOCABULARY]]), "prompt: got token ids from 3 to 97; wanted .* 0 to 96"),
    "negative ids": (torch.tensor([[-1, 3]]), "prompt: got token ids from -1 to 3"),
}


@pytest.fixture(scope="module")
def tiny():
    return kvviz.LanguageModel(make("llama"), letters_tokenizer(), name="tiny")


@pytest.mark.parametrize(
    ("operation", "case"),
    [(name, case) for name in OPERATIONS for case in REFUSED if (name, case) != ("generate", "rows")],  # it takes them
)
def test_every_operation_refuses_the_same_prompts_and_names_itself(tiny, operation, case):
    wrong_prompt, message = REFUSED[case]
    with pytest.raises(kvviz.InvalidInputError, match=f"^{operation}: {message}"):
        OPERATIONS[operation](tiny, wrong_prompt)


@pytest.mark.parametrize(("operation", "length"), [("generate", 1023), ("compare", 1023), ("capture", 1025)])
def test_every_operation_checks_the_length_that_it_needs(tiny, operation, length):
    with pytest.raises(kvviz.InvalidInputError, match=f"^{operation}: length: got {TOO_LONG}"):
        OPERATIONS[operation](tiny, prompt(length))


def test_a_sample_of_a_task_is_checked_too(tiny):
    class Empty(Letters):
        """A task with an empty text."""

        def sample(self, lm, length, index, seed):
            return Sample("", (Turn("a?", ("a",), max_new_tokens=2),))

    with pytest.raises(kvviz.InvalidInputError, match=r"^evaluate: prompt: got an empty prompt"):
        evaluate(tiny, [Empty()], ["quest"], [64], [40], samples=1)


def test_ids_of_other_integer_dtypes_are_accepted(tiny):
    ids = prompt(40)
    expected = OPERATIONS["generate"](tiny, ids).token_ids
    assert OPERATIONS["generate"](tiny, ids.to(torch.int32)).token_ids == expected
    assert prompt_ids("test", tiny, ids.to(torch.uint8)).dtype == torch.int64


def test_the_message_counts_prompt_question_and_new_tokens(tiny):
    with pytest.raises(kvviz.InvalidInputError, match=r"1028 tokens \(1020 of the prompt, 6 of the question, 2 new\)"):
        kvviz.generate(tiny, prompt(1020), "quest", 64, question="what? ", max_new_tokens=2)
    assert len(fed_ids(tiny, "what? ")) == 6
    assert fed_ids(tiny, "") == []
