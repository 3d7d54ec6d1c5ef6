"""Filling text, words and invented names for tasks, from Python's own manual or made up here."""

from __future__ import annotations

import random
import re
import uuid
from collections import Counter
from collections.abc import Callable, Sequence
from functools import cache
from operator import itemgetter

# Short sentences without content, repeated in this order: RULER's "noise" (with other sentences).
NOISE = (
    "The lake is calm.", "The hills are far.", "Rain comes in the night.", "We walk on.", "Nobody is in a hurry.",
)  # fmt: skip
WORD_LETTERS = (4, 9)
_CONSONANTS, _VOWELS = "bdfgklmnprstvz", "aeiou"
_SENTENCE_END = re.compile(r"(?:(?<=[.!?])|(?<=[.!?][\"”)]))\s+(?=[A-Z])")
_WORD = re.compile(rf"(?<![\w\"'*.-])[a-z]{{{WORD_LETTERS[0]},{WORD_LETTERS[1]}}}(?![\w\"'*(-])")


@cache
def prose() -> tuple[str, ...]:
    """The sentences of Python's reference manual (`pydoc_data.topics`), with sections in alphabetical order.

    Running text only: no headings, lists, indented examples or grammar, and no sentence with a number of five or more
    digits, which could be mistaken for an answer. The text depends on the Python release.
    """
    from pydoc_data.topics import topics

    blocks = (block.strip("\n") for name in sorted(topics) for block in re.split(r"\n[ \t]*\n", topics[name]))
    paragraphs = (" ".join(block.split()) for block in blocks if block[:1].isupper() and block.rstrip().endswith("."))
    sentences = (sentence for paragraph in paragraphs for sentence in _SENTENCE_END.split(paragraph))
    return tuple(sentence for sentence in sentences if not re.search(r"\d{5}", sentence))


def repeated(sentences: Sequence[str], count: int, start: int = 0) -> list[str]:
    """`count` sentences, starting at number `start`; after the last one, the first one follows."""
    return [sentences[(start + place) % len(sentences)] for place in range(count)]


def running(sentences: Sequence[str], words: int, start: int = 0) -> list[str]:
    """Sentences with `words` words in total, starting at number `start`; the last one may be cut."""
    chosen: list[str] = []
    left = words
    while left > 0:
        sentence = sentences[(start + len(chosen)) % len(sentences)].split()[:left]
        chosen.append(" ".join(sentence))
        left -= len(sentence)
    return chosen


def woven(statements: Sequence[str], depths: Sequence[float], filling: Sequence[str]) -> list[str]:
    """The sentences of `filling` with each statement inserted at its depth (0 is the beginning, 1 the end).

    Statements at the same depth keep their order.
    """
    pieces: list[str] = []
    previous = 0
    for depth, statement in sorted(zip(depths, statements, strict=True), key=itemgetter(0)):
        place = round(depth * len(filling))
        pieces += [*filling[previous:place], statement]
        previous = place
    return [*pieces, *filling[previous:]]


@cache
def vocabulary() -> tuple[str, ...]:
    """English words of 4 to 9 letters that occur at least twice in `prose`, sorted; none is a part of another.

    A word that occurs in an answer is thus never part of another one. Scikit-learn's stop words ("that", "with") are
    left out, since any answer may contain them.
    """
    from sklearn.feature_extraction.text import ENGLISH_STOP_WORDS

    counts = Counter(word for sentence in prose() for word in _WORD.findall(sentence))
    chosen: set[str] = set()
    for word in sorted((word for word, count in counts.items() if count > 1), key=lambda word: (len(word), word)):
        if word not in ENGLISH_STOP_WORDS and not chosen & _parts(word):
            chosen.add(word)
    return tuple(sorted(chosen))


def word_pair(rng: random.Random) -> str:
    """Two words of `vocabulary`, joined by a hyphen."""
    return "-".join(rng.choice(vocabulary()) for _ in range(2))


def random_number(rng: random.Random, digits: int) -> str:
    """A number of that many digits, the first not 0."""
    return str(rng.randrange(10 ** (digits - 1), 10**digits))


def random_uuid(rng: random.Random) -> str:
    """A UUID, 36 characters."""
    return str(uuid.UUID(int=rng.getrandbits(128), version=4))


def invented_name(rng: random.Random) -> str:
    """An invented name of two syllables: six letters, the first in upper case, without repeated consonants."""
    consonants, vowels = rng.sample(_CONSONANTS, 4), rng.choices(_VOWELS, k=2)
    return "".join([consonants[0], vowels[0], *consonants[1:3], vowels[1], consonants[3]]).capitalize()


def distinct(make: Callable[[], str], count: int) -> list[str]:
    """`count` different texts from `make`."""
    texts: dict[str, None] = {}
    while len(texts) < count:
        texts[make()] = None
    return list(texts)


def _parts(word: str) -> set[str]:
    """All substrings of the word that are at least as long as the shortest word."""
    least = WORD_LETTERS[0]
    return {word[start:end] for start in range(len(word)) for end in range(start + least, len(word) + 1)}
