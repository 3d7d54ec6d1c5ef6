"""Needle in a haystack: one sentence with a number, hidden in a long text, and the question for that number."""

from __future__ import annotations

import random
import re
from dataclasses import dataclass

from torch import Tensor

from ..errors import InvalidInputError
from ..models import LanguageModel

THINGS = ("special magic number", "secret access code", "lucky number", "locker number")
PLACES = (
    "Amsterdam", "Athens", "Berlin", "Cairo", "Delhi", "Dublin", "Lima", "Lisbon", "London", "Madrid", "Oslo", "Paris",
    "Prague", "Rome", "Tokyo", "Vienna",
)  # fmt: skip
DIGITS = 5
SENTENCE_END = re.compile(r"(?<=[.!?])\s+")


@dataclass(frozen=True)
class NeedleSample:
    """A context that holds `needle` once, the question for it, and the answer: digits that occur nowhere else.

    `question` ends with the first words of the answer, so that a model has only the number left to write; it is to be
    given after the context, and may be fed once the context is compressed. `depth` is where the needle was put: 0 at
    the beginning of the context, 1 at its end. `seed` made the sample.
    """

    context: str
    question: str
    answer: str
    needle: str
    depth: float
    seed: int


def needle_samples(
    lm: LanguageModel, haystack: str | Tensor, *, count: int = 16, tokens: int = 2000, seed: int = 0
) -> list[NeedleSample]:
    """`count` samples with their needles spread evenly over the depths, each with a seed of its own.

    Arguments and errors as for `needle_sample`; the seeds are seed, seed + 1, ...
    """
    if count < 1:
        raise InvalidInputError("needle_samples: count", count, "an int >= 1")
    ids = lm.encode(haystack) if isinstance(haystack, str) else haystack
    return [
        needle_sample(lm, ids, tokens=tokens, depth=(place + 0.5) / count, seed=seed + place) for place in range(count)
    ]


def needle_sample(
    lm: LanguageModel, haystack: str | Tensor, *, tokens: int = 2000, depth: float = 0.5, seed: int = 0
) -> NeedleSample:
    """A context of about `tokens` tokens, cut from the haystack at a random place, with a needle between two sentences.

    `haystack` is text, or its token ids [1, L]. What the number is of, the number and the cut are drawn with `seed`.
    Cutting and joining text moves token borders, so that a context may be a few tokens longer or shorter. Source of the
    task: Kamradt, "Needle in a haystack" (2023); the wording is kvviz's own.

    Raises InvalidInputError for a haystack shorter than the context, or a depth outside 0 to 1.
    """
    if not 0 <= depth <= 1:
        raise InvalidInputError("needle_sample: depth", depth, "a number from 0 to 1")
    ids = lm.encode(haystack) if isinstance(haystack, str) else haystack
    drawn = random.Random(seed)
    place, thing = PLACES[drawn.randrange(len(PLACES))], THINGS[drawn.randrange(len(THINGS))]
    number = str(drawn.randrange(10 ** (DIGITS - 1), 10**DIGITS))
    opening = f"The {thing} of {place} is"
    needle = f"{opening} {number}."
    wanted = tokens - lm.encode(needle).shape[1]
    if not 1 <= wanted <= ids.shape[1]:
        raise InvalidInputError(
            "needle_sample: tokens", tokens, f"more than the needle's, and at most the haystack's {ids.shape[1]} more"
        )
    start = drawn.randrange(ids.shape[1] - wanted + 1)
    text = str(lm.tokenizer.decode(ids[0, start : start + wanted], skip_special_tokens=True))
    while number in text:  # a haystack may hold numbers too
        number = str(drawn.randrange(10 ** (DIGITS - 1), 10**DIGITS))
        needle = f"{opening} {number}."
    question = f"\n\nWhat is the {thing} of {place}? {opening}"
    return NeedleSample(_hidden(needle, text, depth), question, number, needle, depth, seed)


def _hidden(needle: str, text: str, depth: float) -> str:
    """The text with the needle at the end of the sentence nearest to `depth`."""
    ends = [0, *(match.end() for match in SENTENCE_END.finditer(text)), len(text)]
    at = min(ends, key=lambda end: abs(end - depth * len(text)))
    return " ".join(part for part in (text[:at].rstrip(), needle, text[at:].lstrip()) if part)
