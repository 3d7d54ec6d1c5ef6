"""Text to hide things in, words and invented names: all of it made from what Python ships, or made up here."""

from __future__ import annotations

import random
import re
from collections import Counter
from collections.abc import Callable, Sequence
from functools import cache
from operator import itemgetter

# Short sentences that say nothing, repeated in this order: what RULER calls noise (its own five are others).
NOISE = (
    "The lake is calm.", "The hills are far.", "Rain comes in the night.", "We walk on.", "Nobody is in a hurry.",
)  # fmt: skip
WORD_LETTERS = (4, 9)
_CONSONANTS, _VOWELS = "bdfgklmnprstvz", "aeiou"
_SENTENCE_END = re.compile(r"(?:(?<=[.!?])|(?<=[.!?][\"”)]))\s+(?=[A-Z])")
_WORD = re.compile(rf"(?<![\w\"'*.-])[a-z]{{{WORD_LETTERS[0]},{WORD_LETTERS[1]}}}(?![\w\"'*(-])")


@cache
def prose() -> tuple[str, ...]:
    """The sentences of Python's reference manual (`pydoc_data.topics`), its sections in alphabetical order.

    Running text only: no headings, lists, indented examples or grammar, no sentence with a number of five digits or
    more, which could be taken for an answer. Other releases of Python bring another text.
    """
    from pydoc_data.topics import topics

    blocks = (block.strip("\n") for name in sorted(topics) for block in re.split(r"\n[ \t]*\n", topics[name]))
    paragraphs = (" ".join(block.split()) for block in blocks if block[:1].isupper() and block.rstrip().endswith("."))
    sentences = (sentence for paragraph in paragraphs for sentence in _SENTENCE_END.split(paragraph))
    return tuple(sentence for sentence in sentences if not re.search(r"\d{5}", sentence))


def repeated(sentences: Sequence[str], count: int, start: int = 0) -> list[str]:
    """`count` sentences from number `start` on; after the last one comes the first again."""
    return [sentences[(start + place) % len(sentences)] for place in range(count)]


def running(sentences: Sequence[str], words: int, start: int = 0) -> list[str]:
    """Sentences from number `start` on, as many as hold `words` words; the last one is cut where they end."""
    found: list[str] = []
    left = words
    while left > 0:
        sentence = sentences[(start + len(found)) % len(sentences)].split()[:left]
        found.append(" ".join(sentence))
        left -= len(sentence)
    return found


def woven(statements: Sequence[str], depths: Sequence[float], filling: Sequence[str]) -> list[str]:
    """The filling with every statement between two of its sentences, at its depth: 0 the beginning, 1 the end.

    Statements of one depth keep their order.
    """
    pieces: list[str] = []
    done = 0
    for depth, statement in sorted(zip(depths, statements, strict=True), key=itemgetter(0)):
        place = round(depth * len(filling))
        pieces += [*filling[done:place], statement]
        done = place
    return [*pieces, *filling[done:]]


@cache
def vocabulary() -> tuple[str, ...]:
    """English words of 4 to 9 letters that `prose` has more than once, sorted; none is a part of another.

    So one of them that is found in an answer does not come from another of them. Scikit-learn's stop words ("that",
    "with"), which any answer may hold, are left out.
    """
    from sklearn.feature_extraction.text import ENGLISH_STOP_WORDS

    counted = Counter(word for sentence in prose() for word in _WORD.findall(sentence))
    kept: set[str] = set()
    for word in sorted((word for word, count in counted.items() if count > 1), key=lambda word: (len(word), word)):
        if word not in ENGLISH_STOP_WORDS and not kept & _parts(word):
            kept.add(word)
    return tuple(sorted(kept))


def word_pair(drawn: random.Random) -> str:
    """Two words of `vocabulary`, joined by a hyphen."""
    return "-".join(drawn.choice(vocabulary()) for _ in range(2))


def invented_name(drawn: random.Random) -> str:
    """A name of two syllables that means nothing: six letters, the first in upper case, no consonant twice."""
    consonants, vowels = drawn.sample(_CONSONANTS, 4), drawn.choices(_VOWELS, k=2)
    return "".join([consonants[0], vowels[0], *consonants[1:3], vowels[1], consonants[3]]).capitalize()


def distinct(make: Callable[[], str], count: int) -> list[str]:
    """`count` texts from `make`, no two the same."""
    found: dict[str, None] = {}
    while len(found) < count:
        found[make()] = None
    return list(found)


def _parts(word: str) -> set[str]:
    """All shorter runs of letters in the word, down to the shortest word there is."""
    least = WORD_LETTERS[0]
    return {word[start:end] for start in range(len(word)) for end in range(start + least, len(word) + 1)}
