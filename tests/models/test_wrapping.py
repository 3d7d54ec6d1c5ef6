"""Transformers models in place of a LanguageModel, and parts that cannot be one."""

from __future__ import annotations

import gc
import weakref
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, PreTrainedModel

import kvviz
from kvviz.models import wrapping
from tests.tiny_models import letters_tokenizer, make

TEXT = "a text that is the prompt of each of them, and long enough for a small budget; " * 3


@pytest.fixture
def model(tmp_path: Path) -> PreTrainedModel:
    """A model from a directory with its tokenizer."""
    make("llama").save_pretrained(tmp_path / "tiny")
    letters_tokenizer().save_pretrained(tmp_path / "tiny")
    return AutoModelForCausalLM.from_pretrained(tmp_path / "tiny").eval()


def test_a_transformers_model_is_wrapped(model: PreTrainedModel) -> None:
    lm = kvviz.LanguageModel(model, letters_tokenizer())
    loaded = kvviz.load(model)
    assert (loaded.model, loaded.name, loaded.source) == (model, "tiny", None)
    assert kvviz.load(loaded) is loaded
    options = {"method": "quest", "budget": 64, "dense_layers": 0}
    out = kvviz.generate(model, TEXT, **options, max_new_tokens=8)
    assert out.token_ids == kvviz.generate(lm, TEXT, **options, max_new_tokens=8).token_ids
    assert kvviz.capture(model, TEXT).tokens == lm.tokens(lm.encode(TEXT))
    assert kvviz.score(model, TEXT, "answer", **options).total == kvviz.score(lm, TEXT, "answer", **options).total
    table = kvviz.compare(model, TEXT, ["quest"], [64], max_new_tokens=4, recordings=False)
    assert table.text[0] == kvviz.generate(lm, TEXT, "quest", 64, max_new_tokens=4).text
    diagnosis = kvviz.diagnose(
        model, TEXT, kvviz.generate(lm, TEXT, "full", max_new_tokens=2).text, max_passes=4, **options
    )
    assert diagnosis.model == "tiny"


def test_its_tokenizer_is_read_once_and_does_not_keep_it(monkeypatch: pytest.MonkeyPatch) -> None:
    model = make("qwen3")
    reads = []
    monkeypatch.setattr(wrapping, "_tokenizer_of", lambda *arguments: (reads.append(1), letters_tokenizer())[1])
    for _ in range(2):
        wrapping.language_model("test", model)
    assert len(reads) == 1
    layer = weakref.ref(model.model.layers[0])
    del model
    gc.collect()
    assert layer() is None


@pytest.mark.parametrize(
    "use",
    [
        lambda model: kvviz.generate(model, TEXT),
        lambda model: kvviz.capture(model, TEXT),
        lambda model: kvviz.score(model, TEXT, "answer"),
        lambda model: kvviz.compare(model, TEXT, ["full"], []),
        lambda model: kvviz.diagnose(model, TEXT, "answer"),
        lambda model: kvviz.evaluate(model, ["needle"], ["full"], [], [200]),
        kvviz.load,
    ],
)
def test_without_a_tokenizer_the_error_says_what_to_pass(use) -> None:
    with pytest.raises(kvviz.InvalidInputError, match=r"kvviz\.LanguageModel\(model, tokenizer\)"):
        use(make("llama"))


def test_a_directory_without_a_tokenizer(tmp_path: Path) -> None:
    make("llama").save_pretrained(tmp_path / "bare")
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "bare")
    with pytest.raises(kvviz.InvalidInputError, match=r"and none in .*bare; wanted kvviz\.LanguageModel"):
        kvviz.generate(model, TEXT)


@pytest.mark.parametrize(
    ("make_it", "words"),
    [
        (
            lambda: kvviz.generate("smollm2-135m", TEXT),
            r"generate: model: got 'smollm2-135m'; wanted .*kvviz\.load\(name\)",
        ),
        (lambda: kvviz.load(make("llama"), device="cpu"), r"model\.to\(...\)"),
        (lambda: kvviz.LanguageModel(make("llama"), None), r"tokenizer: got None; wanted .*AutoTokenizer"),
        (lambda: kvviz.LanguageModel("llama", letters_tokenizer()), "model: got a str; wanted a transformers model"),
    ],
)
def test_parts_that_cannot_be_a_language_model(make_it, words: str) -> None:
    with pytest.raises(kvviz.InvalidInputError, match=words):
        make_it()


def test_a_tokenizer_larger_than_the_vocabulary() -> None:
    model = make("llama")
    model.config.vocab_size = 90
    with pytest.raises(kvviz.InvalidInputError, match="97 tokens for a model of 90"):
        kvviz.LanguageModel(model, letters_tokenizer())


def test_an_added_token_without_an_embedding_is_refused_where_it_is_used() -> None:
    """Gemma 3's tokenizer has such a token, for images: a text without it is fine."""
    tokenizer = letters_tokenizer()
    tokenizer.add_tokens(["<image>"])
    lm = kvviz.LanguageModel(make("llama"), tokenizer)
    kvviz.generate(lm, TEXT, "full", max_new_tokens=1)
    for use, what in (
        (lambda: kvviz.generate(lm, "<image>" + TEXT), "generate: prompt"),
        (lambda: kvviz.generate(lm, TEXT, question="<image>"), "generate: question"),
        (lambda: kvviz.generate(lm, [TEXT, "<image>"]), "generate: prompt"),
        (lambda: kvviz.score(lm, TEXT, "<image>"), "score: answer"),
        (lambda: kvviz.capture(lm, "<image>"), "capture: prompt"),
    ):
        with pytest.raises(kvviz.InvalidInputError, match=rf"{what}: got token ids from \d+ to 97; wanted .* 0 to 96"):
            use()
    assert torch.equal(lm.encode("<image>"), torch.tensor([[97]]))
