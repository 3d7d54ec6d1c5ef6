"""Prompts from samples: the model's chat template, with the question where the task puts it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..errors import InvalidInputError
from ..models.encoding import fed_ids
from .base import Placement, Sample, Turn

if TYPE_CHECKING:
    from ..models import LanguageModel

_ANSWER = "\u241e answer \u241e"  # a placeholder answer, after which the template is cut; occurs in no text


@dataclass(frozen=True)
class Prompt:
    """A prompt to prefill, and the text fed before each answer; the first is empty unless placement is "after"."""

    text: str
    turns: tuple[str, ...]


def render(lm: LanguageModel, sample: Sample, placement: Placement, *, plain: bool = False) -> Prompt:
    """The prompt of a sample in the model's chat template; plain text if `plain`, or if the model has no template.

    Each turn ends with its opening. Raises InvalidInputError for a sample without turns.
    """
    if not sample.turns:
        raise InvalidInputError("render a sample", "no turns", "at least one question")
    chats = lm.tokenizer.chat_template is not None and not plain
    first = sample.turns[0]
    later = tuple(_later(lm, turn, chats) for turn in sample.turns[1:])
    if placement == "after":
        context, question = sample.context, first.question
        if chats and question.strip():
            context, question = lm.chat_parts(sample.context, question)
        return Prompt(context, (question + first.opening, *later))
    parts = [sample.context, first.question.strip()]
    words = "\n\n".join(part for part in (parts if placement == "last" else parts[::-1]) if part)
    text = lm.chat(words) if chats else words + "\n"
    return Prompt(text + first.opening, ("", *later))


def count_tokens(lm: LanguageModel, sample: Sample, placement: Placement, *, plain: bool = False) -> int:
    """Number of tokens of the prompt and all questions, with the template but without the answers."""
    prompt = render(lm, sample, placement, plain=plain)
    return lm.encode(prompt.text).shape[1] + sum(len(fed_ids(lm, turn)) for turn in prompt.turns)


def fit(
    lm: LanguageModel, length: int, placement: Placement, make: Callable[[int], Sample], *, most: int | None = None
) -> Sample:
    """The largest sample that fits: `make(n)` for the largest n whose prompt has at most `length` tokens.

    n counts units of filling, such as words or pairs. `make` must be deterministic, and grow with n; `most` limits n.
    Raises InvalidInputError if n = 1 does not fit.
    """

    def fits(size: int) -> bool:
        return count_tokens(lm, make(size), placement) <= length

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
    """The text between an answer and the next one: the end of the turn, the next question and its opening."""
    if not chats:
        return f"\n\n{turn.question.strip()}\n{turn.opening}"
    messages = [
        {"role": "user", "content": "?"}, {"role": "assistant", "content": _ANSWER},
        {"role": "user", "content": turn.question.strip()},
    ]  # fmt: skip
    text = str(lm.tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True))
    return text[text.index(_ANSWER) + len(_ANSWER) :] + turn.opening
