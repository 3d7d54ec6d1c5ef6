"""Samples as a model reads them: in its chat template, with the question where the task puts it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..errors import InvalidInputError
from ..models.encoding import fed_ids
from .base import Placement, Sample, Turn

if TYPE_CHECKING:
    from ..models import LanguageModel

_ANSWER = "\u241e answer \u241e"  # stands for an answer while a template is cut behind it; in no text


@dataclass(frozen=True)
class Prompt:
    """A prompt to prefill, and what is fed before each answer; the first of them is empty unless it comes "after"."""

    text: str
    turns: tuple[str, ...]


def render(lm: LanguageModel, sample: Sample, placement: Placement, *, plain: bool = False) -> Prompt:
    """The sample in the model's chat template; as plain text for `plain`, and for a model without a template.

    Every turn ends with its opening. Raises InvalidInputError for a sample without turns.
    """
    if not sample.turns:
        raise InvalidInputError("render a sample", "no turns", "at least one question")
    chats = lm.tokenizer.chat_template is not None and not plain
    opening = sample.turns[0]
    later = tuple(_later(lm, turn, chats) for turn in sample.turns[1:])
    if placement == "after":
        before, asked = sample.context, opening.question
        if chats and asked.strip():
            before, asked = lm.chat_parts(sample.context, asked)
        return Prompt(before, (asked + opening.opening, *later))
    parts = [sample.context, opening.question.strip()]
    words = "\n\n".join(part for part in (parts if placement == "last" else parts[::-1]) if part)
    text = lm.chat(words) if chats else words + "\n"
    return Prompt(text + opening.opening, ("", *later))


def count_tokens(lm: LanguageModel, sample: Sample, placement: Placement, *, plain: bool = False) -> int:
    """Tokens of the prompt and of all questions, the template's included, answers not."""
    prompt = render(lm, sample, placement, plain=plain)
    return lm.encode(prompt.text).shape[1] + sum(len(fed_ids(lm, turn)) for turn in prompt.turns)


def fit(
    lm: LanguageModel, length: int, placement: Placement, make: Callable[[int], Sample], *, most: int | None = None
) -> Sample:
    """The sample `make(n)` of the largest n, its units of filling, whose prompt has at most `length` tokens.

    `make` must give the same for the same n and more tokens for a larger one; `most` bounds n. Raises
    InvalidInputError where not even one unit fits.
    """

    def fits(units: int) -> bool:
        return count_tokens(lm, make(units), placement) <= length

    least, limit = 1, most or length
    if not fits(least):
        wanted = f"at least {count_tokens(lm, make(least), placement)} tokens"
        raise InvalidInputError("length of a sample", f"{length} tokens", wanted)
    step = 1
    while least < limit and fits(min(least + step, limit)):
        least, step = min(least + step, limit), 2 * step
    beyond = min(least + step, limit + 1)
    while beyond - least > 1:
        middle = (least + beyond) // 2
        least, beyond = (middle, beyond) if fits(middle) else (least, middle)
    return make(least)


def _later(lm: LanguageModel, turn: Turn, chats: bool) -> str:
    """What stands between an answer and the next one: the end of the turn, the next question, its opening."""
    if not chats:
        return f"\n\n{turn.question.strip()}\n{turn.opening}"
    messages = [
        {"role": "user", "content": "?"}, {"role": "assistant", "content": _ANSWER},
        {"role": "user", "content": turn.question.strip()},
    ]  # fmt: skip
    text = str(lm.tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True))
    return text[text.index(_ANSWER) + len(_ANSWER) :] + turn.opening
