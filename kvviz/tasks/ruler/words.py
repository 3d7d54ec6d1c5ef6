"""Words that occur often: a list in which ten words come up more often, and a coded text with three frequent words."""

from __future__ import annotations

import math
import random
import string
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from ...errors import InvalidInputError
from ..base import Sample
from ..prompts import fit
from ..text import distinct, invented_name, vocabulary
from .base import RulerTask, asked

if TYPE_CHECKING:
    from ...models import LanguageModel

LONG = 4096  # from this length on, RULER's words come up as often as its configuration says; in shorter lists less
OFTEN, SELDOM = 30, 3  # freq_cw, freq_ucw
OFTEN_IN_SHORT, SELDOM_IN_SHORT = 6, 1
ITEM_TOKENS = 3  # a number, its dot and a word are at least as many
CODE_LETTERS = 6
FREQUENT = 3
DOTS = "..."


@dataclass
class CommonWords(RulerTask):
    """The `common` words that come up most often in a numbered list.

    Each of them is there 30 times and all others 3 times (RULER's freq_cw, freq_ucw and num_cw); 6 times and once where
    the length is below 4,096 tokens, as in RULER's code. More words fill the length. They are from `vocabulary`, and
    invented once that is used up; none is in the question or a part of another. Source: RULER, section 3.

    `details`: "words", how many different ones.
    """

    name: ClassVar[str] = "cwe"
    title: ClassVar[str] = "the ten most common words of a list"
    chance: ClassVar[float] = 0.0  # which ten of a vocabulary of hundreds

    common: int = 10

    def __post_init__(self) -> None:
        super().__post_init__()
        self.at_least(common=1)

    def sample(self, lm: LanguageModel, length: int, index: int, seed: int) -> Sample:
        """As for every task; raises InvalidInputError for a length that has no room for the common words."""
        drawn = self.drawn(length, index, seed)
        often, seldom = (OFTEN, SELDOM) if length >= LONG else (OFTEN_IN_SHORT, SELDOM_IN_SHORT)
        question = f"Which {self.common} words come up most often in the list?"
        opening = f"The {self.common} words that come up most often are:"
        words = _words(drawn, self.common + length // (ITEM_TOKENS * seldom) + 1, question + opening)
        common, others = words[: self.common], words[self.common :]
        order = drawn.getrandbits(64)
        turn = asked(lm, question, common, opening)

        def make(units: int) -> Sample:
            items = common * often + others[:units] * seldom
            random.Random(order).shuffle(items)
            text = " ".join(f"{place}. {word}" for place, word in enumerate(items, 1))
            intro = "In the following numbered list some words come up more often than others. Remember those."
            return Sample(f"{intro}\n\n{text}", (turn,), {"words": self.common + units})

        return fit(lm, length, self.placement, make, most=len(others))


@dataclass
class FrequentWords(RulerTask):
    """The three most frequent words of a text of made-up words, whose counts fall with rank to the power `alpha`.

    The first rank is taken by dots, which stand for noise; the next three are the answers. There are length / 50
    different words of six random letters, and of `n` the word of rank k has the whole part of n / (zeta(alpha) k^alpha)
    places. Source: RULER, section 3, and its code for these counts; alpha=2.0 there too. A text is never so short that
    the fourth word and the fifth come up equally often.

    `details`: "words", how many there are in the text, dots included.
    """

    name: ClassVar[str] = "fwe"
    title: ClassVar[str] = "the three most frequent words of a coded text"
    chance: ClassVar[float] = 0.0  # six random letters

    alpha: float = 2.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if isinstance(self.alpha, bool) or not isinstance(self.alpha, (int, float)) or not 1 < self.alpha < math.inf:
            raise InvalidInputError(f"{self.name}: alpha", repr(self.alpha), "a number above 1")

    def sample(self, lm: LanguageModel, length: int, index: int, seed: int) -> Sample:
        """As for every task; raises InvalidInputError for a length in which the words' counts would not differ."""
        from scipy.special import zeta

        drawn = self.drawn(length, index, seed)
        count = max(length // 50, FREQUENT + 2)
        words = distinct(lambda: "".join(drawn.choices(string.ascii_lowercase, k=CODE_LETTERS)), count - 1)
        order = drawn.getrandbits(64)
        shares = [rank**-self.alpha / float(zeta(self.alpha)) for rank in range(1, count + 1)]
        least = math.ceil(1 / (shares[FREQUENT] - shares[FREQUENT + 1]))  # from here on the whole parts differ
        question = "Leave out the dots. Which three words come up most often in the text?"
        turn = asked(lm, question, words[:FREQUENT], "The three words that come up most often are:")

        def make(units: int) -> Sample:
            places = [int((least - 1 + units) * share) for share in shares]
            text = [word for word, times in zip([DOTS, *words], places, strict=True) for _ in range(times)]
            random.Random(order).shuffle(text)
            intro = "The words of the following text are in code. Keep count of how often each one comes up."
            return Sample(f"{intro}\n\n{' '.join(text)}", (turn,), {"words": len(text)})

        return fit(lm, length, self.placement, make)


def _words(drawn: random.Random, count: int, question: str) -> list[str]:
    """Different words in random order: the vocabulary's, then invented ones in which none of these occurs.

    None is in the question, which an answer may repeat.
    """
    known = [word for word in vocabulary() if word not in question]
    found = dict.fromkeys(drawn.sample(known, min(count, len(known))))
    while len(found) < count:
        word = invented_name(drawn).lower()
        if not any(one in word for one in known):
            found[word] = None
    return list(found)
