"""Needle in a haystack: one sentence with a number, hidden in a long text, and the question for that number."""

from __future__ import annotations

import itertools
import random
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from torch import Tensor

from ..errors import InvalidInputError
from ..models import LanguageModel
from ..models.encoding import fed_ids
from .base import Turn
from .windows import manual, window

THINGS = ("special magic number", "secret access code", "lucky number", "locker number")
PLACES = (
    "Amsterdam", "Athens", "Berlin", "Cairo", "Delhi", "Dublin", "Lima", "Lisbon", "London", "Madrid", "Oslo", "Paris",
    "Prague", "Rome", "Tokyo", "Vienna",
)  # fmt: skip
DIGITS = 5
ROOM = 6  # tokens to write beyond the number's
SENTENCE_END = re.compile(r"(?<=[.!?])\s+")


@dataclass(frozen=True)
class Needle:
    """What a hidden sentence says, with the question for its number and the first words of the answer."""

    thing: str
    place: str
    number: str

    @property
    def opening(self) -> str:
        """The first words of the sentence, and of the answer: all but the number."""
        return f"The {self.thing} of {self.place} is"

    @property
    def sentence(self) -> str:
        """The sentence that is hidden."""
        return f"{self.opening} {self.number}."

    @property
    def question(self) -> str:
        """The question for the number."""
        return f"What is the {self.thing} of {self.place}?"


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
    needle = Needle(thing, place, _number(drawn))
    wanted = tokens - lm.encode(needle.sentence).shape[1]
    if not 1 <= wanted <= ids.shape[1]:
        raise InvalidInputError(
            "needle_sample: tokens", tokens, f"more than the needle's, and at most the haystack's {ids.shape[1]} more"
        )
    start = drawn.randrange(ids.shape[1] - wanted + 1)
    text = str(lm.tokenizer.decode(ids[0, start : start + wanted], skip_special_tokens=True))
    while needle.number in text:  # a haystack may hold numbers too
        needle = Needle(thing, place, _number(drawn))
    context = _hidden([needle], [depth], text)
    question = f"\n\n{needle.question} {needle.opening}"
    return NeedleSample(context, question, needle.number, needle.sentence, depth, seed)


def hide_needles(
    lm: LanguageModel, depths: Sequence[float], length: int, index: int, seed: int, drawn: random.Random
) -> Callable[[int], tuple[str, tuple[Turn, ...]]]:
    """A function that hides needles in n tokens of Python's reference manual, and the turns that ask for them.

    The haystack is window `index` of the manual, at least `length` tokens long, from its beginning on. The needles, one
    for each of the depths, are drawn once: no two are of the same thing and place, or have the same number. All the
    texts are the same for the same n.
    """
    _, text = window(lm, manual(), length, index, seed)
    ids = fed_ids(lm, text)
    needles: list[Needle] = []
    for place, thing in drawn.sample(list(itertools.product(PLACES, THINGS)), len(depths)):
        number = _number(drawn)
        while number in text or number in [needle.number for needle in needles]:
            number = _number(drawn)
        needles.append(Needle(thing, place, number))
    turns = tuple(
        Turn(
            f"\n\n{needle.question}", (needle.number,), needle.opening,
            max_new_tokens=len(fed_ids(lm, f" {needle.number}.")) + ROOM,
        )
        for needle in needles
    )  # fmt: skip

    def hide(tokens: int) -> tuple[str, tuple[Turn, ...]]:
        cut = str(lm.tokenizer.decode(ids[:tokens], skip_special_tokens=True))
        return _hidden(needles, depths, cut), turns

    return hide


def _number(drawn: random.Random) -> str:
    return str(drawn.randrange(10 ** (DIGITS - 1), 10**DIGITS))


def _hidden(needles: Sequence[Needle], depths: Sequence[float], text: str) -> str:
    """The text with every needle at the end of the sentence nearest to its depth."""
    ends = [0, *(match.end() for match in SENTENCE_END.finditer(text)), len(text)]
    places = [min(ends, key=lambda end: abs(end - depth * len(text))) for depth in depths]
    parts, done = [], 0
    for at, needle in sorted(zip(places, needles, strict=True), key=lambda pair: pair[0]):
        parts += [text[done:at].rstrip(), needle.sentence]
        done = at
    return " ".join(part for part in (*parts, text[done:].lstrip()) if part)
