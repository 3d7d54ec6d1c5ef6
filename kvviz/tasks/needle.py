"""Needle in a haystack: a sentence with a number, hidden in a long text, and a question about that number."""

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
from .text import random_number
from .windows import manual, window

THINGS = ("special magic number", "secret access code", "lucky number", "locker number")
PLACES = (
    "Amsterdam", "Athens", "Berlin", "Cairo", "Delhi", "Dublin", "Lima", "Lisbon", "London", "Madrid", "Oslo", "Paris",
    "Prague", "Rome", "Tokyo", "Vienna",
)  # fmt: skip
DIGITS = 5
ROOM = 6  # tokens that may be generated beyond those of the number
SENTENCE_END = re.compile(r"(?<=[.!?])\s+")


@dataclass(frozen=True)
class Needle:
    """A hidden sentence, the question about its number, and the first words of the answer."""

    thing: str
    place: str
    number: str

    @property
    def opening(self) -> str:
        """The first words of the sentence and of the answer: everything except the number."""
        return f"The {self.thing} of {self.place} is"

    @property
    def sentence(self) -> str:
        """The sentence to hide."""
        return f"{self.opening} {self.number}."

    @property
    def question(self) -> str:
        """The question about the number."""
        return f"What is the {self.thing} of {self.place}?"


@dataclass(frozen=True)
class NeedleSample:
    """A context that holds `needle` once, the question about it, and the answer: digits that occur nowhere else.

    `question` ends with the first words of the answer, so that the model has to write only the number. It comes after
    the context, and may be fed after the context was compressed. `depth` is the needle's position: 0 is the beginning
    of the context, 1 its end. `seed` is the sample's seed.
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
    """`count` samples, with needles at evenly spaced depths and the seeds `seed`, `seed + 1`, ...

    Arguments and errors as for `needle_sample`.
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
    """A sample with a context of about `tokens` tokens, cut from the haystack, and a needle between two sentences.

    `haystack` is text, or its token ids [1, L]. The needle and the cut are drawn with `seed`. Cutting and joining text
    changes token boundaries, so that a context may be a few tokens longer or shorter. Source of the task: Kamradt,
    "Needle in a haystack" (2023); the wording is ours.

    Raises InvalidInputError for a haystack shorter than the context, or a depth outside 0 to 1.
    """
    if not 0 <= depth <= 1:
        raise InvalidInputError("needle_sample: depth", depth, "a number from 0 to 1")
    ids = lm.encode(haystack) if isinstance(haystack, str) else haystack
    rng = random.Random(seed)
    place, thing = PLACES[rng.randrange(len(PLACES))], THINGS[rng.randrange(len(THINGS))]
    needle = Needle(thing, place, random_number(rng, DIGITS))
    filling_tokens = tokens - lm.encode(needle.sentence).shape[1]
    if not 1 <= filling_tokens <= ids.shape[1]:
        raise InvalidInputError(
            "needle_sample: tokens", tokens, f"more than the needle's, and at most the haystack's {ids.shape[1]} more"
        )
    start = rng.randrange(ids.shape[1] - filling_tokens + 1)
    text = str(lm.tokenizer.decode(ids[0, start : start + filling_tokens], skip_special_tokens=True))
    while needle.number in text:  # a haystack may hold numbers too
        needle = Needle(thing, place, random_number(rng, DIGITS))
    context = _hidden([needle], [depth], text)
    question = f"\n\n{needle.question} {needle.opening}"
    return NeedleSample(context, question, needle.number, needle.sentence, depth, seed)


def hide_needles(
    lm: LanguageModel, depths: Sequence[float], length: int, index: int, seed: int, rng: random.Random
) -> Callable[[int], tuple[str, tuple[Turn, ...]]]:
    """A function of n that returns needles hidden in n tokens of Python's reference manual, and the turns about them.

    The haystack is window `index` of the manual, at least `length` tokens long; its first n tokens are used. The
    needles, one per depth, are drawn once: all have a different thing and place, and a different number. The same n
    always gives the same texts.
    """
    _, text = window(lm, manual(), length, index, seed)
    ids = fed_ids(lm, text)
    needles: list[Needle] = []
    for place, thing in rng.sample(list(itertools.product(PLACES, THINGS)), len(depths)):
        number = random_number(rng, DIGITS)
        while number in text or number in [needle.number for needle in needles]:
            number = random_number(rng, DIGITS)
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


def _hidden(needles: Sequence[Needle], depths: Sequence[float], text: str) -> str:
    """The text with each needle at the sentence end nearest to its depth."""
    ends = [0, *(match.end() for match in SENTENCE_END.finditer(text)), len(text)]
    places = [min(ends, key=lambda end: abs(end - depth * len(text))) for depth in depths]
    parts, start = [], 0
    for end, needle in sorted(zip(places, needles, strict=True), key=lambda pair: pair[0]):
        parts += [text[start:end].rstrip(), needle.sentence]
        start = end
    return " ".join(part for part in (*parts, text[start:].lstrip()) if part)
