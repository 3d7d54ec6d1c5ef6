"""Prompts as token ids: encoded and checked in one place for every operation that feeds them to a model."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from ..errors import InvalidInputError

if TYPE_CHECKING:
    from .language_model import LanguageModel


def prompt_ids(
    operation: str,
    lm: LanguageModel,
    prompt: str | Tensor,
    *,
    max_tokens: int | None = None,
    question_tokens: int = 0,
    new_tokens: int = 0,
) -> Tensor:
    """Token ids of one prompt, int64 [1, L], on the model's device.

    `prompt` is text, or token ids [1, L]; `max_tokens` cuts it to its first tokens. `question_tokens` and `new_tokens`
    follow it and need positions too.

    Raises InvalidInputError, which names `operation`, for an empty prompt, several rows, ids that are no integers or
    not in the model's vocabulary, and more tokens than the model has positions.
    """
    ids = lm.encode(prompt) if isinstance(prompt, str) else prompt
    wanted = "text, or token ids of one prompt with at least one token, int64 [1, L]"
    if not isinstance(ids, Tensor):
        raise InvalidInputError(f"{operation}: prompt", f"a {type(ids).__name__}", wanted)
    if ids.dim() != 2 or ids.shape[0] != 1 or ids.is_floating_point() or ids.is_complex() or ids.dtype == torch.bool:
        raise InvalidInputError(f"{operation}: prompt", f"{ids.dtype} of shape {list(ids.shape)}", wanted)
    if ids.shape[1] == 0:
        raise InvalidInputError(f"{operation}: prompt", "an empty prompt", wanted)
    ids = ids[:, :max_tokens].to(lm.device, torch.int64)
    _check_vocabulary(f"{operation}: prompt", lm, int(ids.min()), int(ids.max()))
    length, most = ids.shape[1], lm.geometry.max_positions
    if (total := length + question_tokens + new_tokens) > most:
        of_all = f" ({length} of the prompt, {question_tokens} of the question, {new_tokens} new)"
        got = f"{total} tokens{of_all if total > length else ''}"
        raise InvalidInputError(f"{operation}: length", got, f"at most the model's {most} positions")
    return ids


def fed_ids(lm: LanguageModel, text: str, operation: str = "text behind a prompt") -> list[int]:
    """Token ids of what is fed behind a prompt, such as a question: without a beginning-of-text token.

    Raises InvalidInputError, which names `operation`, for a token that is not in the model's vocabulary.
    """
    ids = list(lm.tokenizer(text, add_special_tokens=False, verbose=False).input_ids) if text else []
    if ids:
        _check_vocabulary(operation, lm, min(ids), max(ids))
    return ids


def _check_vocabulary(operation: str, lm: LanguageModel, lowest: int, highest: int) -> None:
    vocabulary: int = lm.model.config.get_text_config().vocab_size
    if not 0 <= lowest <= highest < vocabulary:
        got = f"token ids from {lowest} to {highest}"
        raise InvalidInputError(operation, got, f"token ids from 0 to {vocabulary - 1}, the model's vocabulary")


def decoded(lm: LanguageModel, ids: list[int]) -> str:
    """The text of token ids, special tokens included, as it is."""
    return str(lm.tokenizer.decode(ids, clean_up_tokenization_spaces=False))
