"""Aggregation tasks of RULER: the most common words of a list, and the most frequent words of a coded text."""

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

LONG = 4096  # from this length on, words occur as often as in RULER's configuration; in shorter lists less often
OFTEN, SELDOM = 30, 3  # freq_cw, freq_ucw
OFTEN_IN_SHORT, SELDOM_IN_SHORT = 6, 1
ITEM_TOKENS = 3  # a lower bound for a number, its dot and a word
CODE_LETTERS = 6
FREQUENT = 3
DOTS = "..."


@dataclass
class CommonWords(RulerTask):
    """Common words: name the `common` words that occur most often in a numbered list.

    Each of them occurs 30 times, all others 3 times (RULER's freq_cw, freq_ucw and num_cw); 6 times and once if the
    length is below 4,096 tokens, as in RULER's code. More words fill the length. They are from `vocabulary`, then
    invented; none occurs in the question or is part of another. Source: RULER, section 3.

    `details`: "words", the number of different words.
    """

    name: ClassVar[str] = "cwe"
    title: ClassVar[str] = "the ten most common words of a list"
    chance: ClassVar[float] = 0.0  # which ten of a vocabulary of hundreds

    common: int = 10

    def __post_init__(self) -> None:
        super().__post_init__()
        self.at_least(common=1)

    def sample(self, lm: LanguageModel, length: int, index: int, seed: int) -> Sample:
        """A sample, as for every task. Raises InvalidInputError for a length without room for the common words."""
        rng = self.drawn(length, index, seed)
        often, seldom = (OFTEN, SELDOM) if length >= LONG else (OFTEN_IN_SHORT, SELDOM_IN_SHORT)
        question = f"Which {self.common} words come up most often in the list?"
        opening = f"The {self.common} words that come up most often are:"
        words = _words(rng, self.common + length // (ITEM_TOKENS * seldom) + 1, question + opening)
        common, others = words[: self.common], words[self.common :]
        order = rng.getrandbits(64)
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
    """Frequent words: name the three most frequent words of a text of random words with Zipf-distributed counts.

    Rank 1 is dots, which stand for noise; ranks 2 to 4 are the answers. There are length / 50 different words of six
    random letters; in a text of n words, the word of rank k occurs ⌊n / (zeta(alpha) k^alpha)⌋ times. Source: RULER,
    section 3, and its code for the counts and alpha=2.0. The text is always long enough for the words of ranks 4 and 5
    to differ in their counts.

    `details`: "words", the number of words in the text, dots included.
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
        """A sample, as for every task. Raises InvalidInputError for a length at which the counts would not differ."""
        from scipy.special import zeta

        rng = self.drawn(length, index, seed)
        count = max(length // 50, FREQUENT + 2)
        words = distinct(lambda: "".join(rng.choices(string.ascii_lowercase, k=CODE_LETTERS)), count - 1)
        order = rng.getrandbits(64)
        shares = [rank**-self.alpha / float(zeta(self.alpha)) for rank in range(1, count + 1)]
        least = math.ceil(1 / (shares[FREQUENT] - shares[FREQUENT + 1]))  # from here on the counts differ
        question = "Leave out the dots. Which three words come up most often in the text?"
        turn = asked(lm, question, words[:FREQUENT], "The three words that come up most often are:")

        def make(units: int) -> Sample:
            counts = [int((least - 1 + units) * share) for share in shares]
            text = [word for word, times in zip([DOTS, *words], counts, strict=True) for _ in range(times)]
            random.Random(order).shuffle(text)
            intro = "The words of the following text are in code. Keep count of how often each one comes up."
            return Sample(f"{intro}\n\n{' '.join(text)}", (turn,), {"words": len(text)})

        return fit(lm, length, self.placement, make)


def _words(rng: random.Random, count: int, question: str) -> list[str]:
    """Different words in random order: first from the vocabulary, then invented ones that contain none of these.

    None is in the question, which an answer may repeat.
    """
    known = [word for word in vocabulary() if word not in question]
    words = dict.fromkeys(rng.sample(known, min(count, len(known))))
    while len(words) < count:
        invented = invented_name(rng).lower()
        if not any(word in invented for word in known):
            words[invented] = None
    return list(words)
