"""Batches: one prompt, or several with padding on the left, so that all end at the same place."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

import torch
from torch import Tensor

from ..errors import InvalidInputError
from ..models.encoding import prompt_ids

if TYPE_CHECKING:
    from ..models import LanguageModel

Prompts = str | Tensor | Sequence[str | Tensor]


@dataclass(frozen=True)
class Batch:
    """Token ids [B, L] of prompts; row `r` begins with `starts[r]` tokens of padding."""

    ids: Tensor
    starts: tuple[int, ...]

    @classmethod
    def of(cls, rows: Sequence[Tensor], padding: int) -> Batch:
        """The batch of these rows [1, L], padded with this token id."""
        length = max(row.shape[1] for row in rows)
        starts = tuple(length - row.shape[1] for row in rows)
        padded = [
            torch.nn.functional.pad(row, (start, 0), value=padding) for row, start in zip(rows, starts, strict=True)
        ]
        return cls(torch.cat(padded), starts)

    def row(self, number: int) -> Tensor:
        """The token ids [1, L] of one prompt, without padding."""
        return self.ids[number : number + 1, self.starts[number] :]


def several(prompt: Prompts) -> bool:
    """Whether these are several prompts: a list, even of one, or token ids of more than one row."""
    return prompt.dim() == 2 and prompt.shape[0] > 1 if isinstance(prompt, Tensor) else isinstance(prompt, list | tuple)


def rows_of(operation: str, lm: LanguageModel, prompt: Prompts) -> list[str | Tensor]:
    """The prompts one by one; ids [B, L] without the padding on the left, which is the tokenizer's padding token.

    Raises InvalidInputError for no prompts, padding on the right, and rows of nothing but padding.
    """
    if not several(prompt):
        return [cast("str | Tensor", prompt)]  # `batch_of` refuses everything else
    if not isinstance(prompt, Tensor):
        rows = [row[None] if isinstance(row, Tensor) and row.dim() == 1 else row for row in prompt]
        if not rows:
            raise InvalidInputError(f"{operation}: prompt", "no prompts", "at least one")
        return rows
    padding = lm.tokenizer.pad_token_id
    if padding is None:
        return list(prompt.split(1))
    real = prompt != padding
    if not bool(real[:, -1].all()):
        row = int((~real[:, -1]).nonzero()[0])
        got = f"padding at the end of row {row}"
        raise InvalidInputError(f"{operation}: prompt", got, "padding on the left (tokenizer.padding_side='left')")
    return [row[None, int(start) :] for row, start in zip(prompt, real.int().argmax(-1), strict=True)]


def questions_of(operation: str, question: str | Sequence[str] | None, count: int) -> list[str]:
    """A question for each of `count` prompts, "" for none. Raises InvalidInputError for another number of them."""
    if question is None or isinstance(question, str):
        return [question or ""] * count
    if len(question) != count:
        got = f"{len(question)} questions for {count} prompts"
        raise InvalidInputError(f"{operation}: question", got, "one question, or one for each prompt")
    return [text or "" for text in question]


def batch_of(
    operation: str, lm: LanguageModel, prompts: Sequence[str | Tensor], question_tokens: Sequence[int], new_tokens: int
) -> Batch:
    """The batch of these prompts. Raises the errors of `prompt_ids` for each of them."""
    rows = [
        prompt_ids(operation, lm, prompt, question_tokens=asked, new_tokens=new_tokens)
        for prompt, asked in zip(prompts, question_tokens, strict=True)
    ]
    return Batch.of(rows, lm.tokenizer.pad_token_id or 0)
