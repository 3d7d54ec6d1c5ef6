"""Transformers models in place of a LanguageModel: wrapped with the tokenizer from where they came from."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from ..errors import InvalidInputError
from .language_model import LanguageModel

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

WRAP = "kvviz.LanguageModel(model, tokenizer)"
_tokenizers: WeakKeyDictionary[Any, Any] = WeakKeyDictionary()  # the models' tokenizers, read once


def language_model(operation: str, model: LanguageModel | PreTrainedModel) -> LanguageModel:
    """A LanguageModel as it is; a transformers model with the tokenizer of the directory or hub id that it came from.

    Raises InvalidInputError, which names `operation`, for other objects and if there is no such tokenizer, and the
    errors of `LanguageModel`.
    """
    if isinstance(model, LanguageModel):
        return model
    from transformers import PreTrainedModel

    if not isinstance(model, PreTrainedModel):
        got = repr(model) if isinstance(model, str) else f"a {type(model).__name__}"
        wanted = f"a LanguageModel: kvviz.load(name), or {WRAP} of a transformers model"
        raise InvalidInputError(f"{operation}: model", got, wanted)
    if model not in _tokenizers:
        _tokenizers[model] = _tokenizer_of(operation, model)
    return LanguageModel(model, _tokenizers[model])


def _tokenizer_of(operation: str, model: PreTrainedModel) -> PreTrainedTokenizerBase:
    from transformers import AutoTokenizer

    origin, got = model.name_or_path, f"a {type(model).__name__} without a tokenizer"
    if not origin:
        raise InvalidInputError(f"{operation}: model", got, WRAP)
    try:
        tokenizer: PreTrainedTokenizerBase = AutoTokenizer.from_pretrained(origin, trust_remote_code=False)
    except (OSError, ValueError, KeyError) as error:
        raise InvalidInputError(f"{operation}: model", f"{got}, and none in {origin}", WRAP) from error
    return tokenizer
