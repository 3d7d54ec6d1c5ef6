"""LanguageModel: a transformers model with its tokenizer and the shape of its attention."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from ..errors import InvalidInputError, UnsupportedModelError
from ..trace.geometry import Geometry

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase


class LanguageModel:
    """A transformers causal language model and its tokenizer, with the shape of its attention.

    `name` is the model's name in plots and recordings; the default is the last part of the path or hub id that the
    model came from. The model is used as it is; `load` returns one in evaluation mode without gradients. `source` is
    the name, directory or file passed to `load`, or None for a model that `load` did not load.

    Raises UnsupportedModelError for a model that is not decoder-only, has no attention layer (Mamba), no rotary
    position embedding, or keys and values of different widths, and InvalidInputError for something else than a
    transformers model, no tokenizer, or one with more tokens than the model has embeddings.
    """

    def __init__(self, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, name: str | None = None) -> None:
        _check_parts(model, tokenizer)
        self.model = model
        self.tokenizer = tokenizer
        self.source: str | None = None
        self.name = name or Path(model.config._name_or_path).name or type(model).__name__
        self.geometry = geometry_of(model, self.name)

    def __repr__(self) -> str:
        return f"LanguageModel({self.name!r}, {self.geometry}, {self.model.dtype}, {self.device})"

    @property
    def device(self) -> torch.device:
        """The device of the model's inputs."""
        return self.model.device

    def encode(self, text: str) -> Tensor:
        """Token ids of `text` as int64 [1, L] on the model's device.

        Special tokens that are written in the text are recognised. A beginning-of-text token is added if the tokenizer
        does so by default and the text (for example from a chat template) does not begin with one.
        """
        bos = self.tokenizer.bos_token
        has_bos = isinstance(bos, str) and text.startswith(bos)
        ids = self.tokenizer(text, add_special_tokens=not has_bos, verbose=False)["input_ids"]
        return torch.tensor([ids], dtype=torch.int64, device=self.device)

    def tokens(self, ids: Tensor | Iterable[int]) -> list[str]:
        """The text of each token; joined, they are the decoded text.

        `ids` is int64 [L] or [1, L], or plain integers. A token that holds part of a character becomes "\\ufffd".
        """
        numbers = ids.flatten().tolist() if isinstance(ids, Tensor) else [int(number) for number in ids]
        if not numbers:
            return []
        # Sentencepiece decoders drop a leading space, so all tokens but the first are decoded after another one.
        before = self.tokenizer("a", add_special_tokens=False)["input_ids"]
        prefix = self._decode(before)
        text = {number: self._decode([*before, number]).removeprefix(prefix) for number in set(numbers)}
        return [self._decode(numbers[:1]), *(text[number] for number in numbers[1:])]

    def chat(self, user: str, system: str | None = None) -> str:
        """The text of one user message in the chat template, ready for the model's answer.

        Without `system`, the template's default system message is used, if it has one.
        Raises InvalidInputError for a tokenizer without a chat template.
        """
        if self.tokenizer.chat_template is None:
            got = "a tokenizer without a chat template"
            raise InvalidInputError(f"chat with {self.name}", got, "plain text: encode(text)")
        messages = [{"role": "system", "content": system}] if system is not None else []
        messages.append({"role": "user", "content": user})
        return str(self.tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True))

    def chat_parts(self, context: str, question: str) -> tuple[str, str]:
        """`(prompt, question)` of one user turn: the chat text of context + question, cut where the question begins.

        For `generate(lm, prompt, question=question)`, which compresses the prompt before the question is seen.
        Raises InvalidInputError for an empty question.
        """
        words = question.strip()
        if not words:
            raise InvalidInputError("chat_parts: question", repr(question), "a text with at least one character")
        turn = self.chat(context + question)
        start = turn.rindex(words) - (len(question.rstrip()) - len(words))
        return turn[:start], turn[start:]

    def _decode(self, ids: list[int]) -> str:
        return str(self.tokenizer.decode(ids, skip_special_tokens=False, clean_up_tokenization_spaces=False))


def _check_parts(model: Any, tokenizer: Any) -> None:
    """Raise InvalidInputError for parts that cannot be a language model."""
    if not hasattr(model, "config"):
        wanted = "a transformers model; kvviz.load(name) takes a name"
        raise InvalidInputError("LanguageModel: model", f"a {type(model).__name__}", wanted)
    if not callable(tokenizer):
        got = "None" if tokenizer is None else f"a {type(tokenizer).__name__}"
        wanted = "the model's tokenizer, such as transformers.AutoTokenizer.from_pretrained(name)"
        raise InvalidInputError("LanguageModel: tokenizer", got, wanted)
    vocabulary = getattr(model.config.get_text_config(), "vocab_size", None)
    # without added tokens: Gemma 3 has one for images, which its models for text have no embedding of
    if vocabulary is not None and getattr(tokenizer, "vocab_size", 0) > vocabulary:
        got = f"one of {tokenizer.vocab_size:,} tokens for a model of {vocabulary:,}"
        raise InvalidInputError("LanguageModel: tokenizer", got, "the tokenizer that belongs to the model")


def check_decoder(config: Any, name: str) -> None:
    """Raise UnsupportedModelError for a model with an encoder."""
    if config.is_encoder_decoder:
        got = f"an encoder-decoder model ({config.model_type})"
        raise UnsupportedModelError(f"load {name}", got, "a decoder-only model")


def geometry_of(model: PreTrainedModel, name: str) -> Geometry:
    """The shape of a model's attention. Raises the errors of `LanguageModel`, which name the model."""
    config = model.config.get_text_config()
    operation, kind = f"load {name}", f"a {config.model_type} model"
    check_decoder(model.config, name)
    attending = {
        getattr(module, "layer_idx", None) for module in model.modules() if type(module).__name__.endswith("Attention")
    }.intersection(range(config.num_hidden_layers))
    if not attending:
        raise UnsupportedModelError(operation, f"{kind}, which has no attention layer", "a model with attention layers")
    if not any(type(module).__name__.endswith("RotaryEmbedding") for module in model.modules()):
        got = f"{kind} without rotary position embedding"
        raise UnsupportedModelError(operation, got, "a model with RoPE")
    if getattr(config, "kv_lora_rank", None):
        got = f"{kind} with multi-head latent attention"
        raise UnsupportedModelError(operation, got, "keys and values of one width")
    return Geometry.of_config(operation, config)
