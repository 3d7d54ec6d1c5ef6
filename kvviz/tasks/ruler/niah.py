"""Needles in a haystack, eight tasks of RULER: sentences with a key and its value, hidden in a long text."""

from __future__ import annotations

import random
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal

from ...errors import UnknownNameError
from ..base import Sample, Turn
from ..prompts import fit
from ..text import NOISE, distinct, prose, repeated, running, word_pair, woven
from .base import RulerTask, asked, depths, listed

if TYPE_CHECKING:
    from ...models import LanguageModel

Haystack = Literal["noise", "prose", "needles"]
Kind = Literal["words", "numbers", "uuids"]

HAYSTACKS = ("noise", "prose", "needles")
KINDS = ("words", "numbers", "uuids")
NUMBER_DIGITS = 7
NEEDLE_TOKENS = 8  # a lower bound for any tokenizer that splits at spaces


def _number(rng: random.Random) -> str:
    return str(rng.randrange(10 ** (NUMBER_DIGITS - 1), 10**NUMBER_DIGITS))


def _uuid(rng: random.Random) -> str:
    return str(uuid.UUID(int=rng.getrandbits(128), version=4))


DRAWS: Mapping[str, Callable[[random.Random], str]] = {"words": word_pair, "numbers": _number, "uuids": _uuid}
NOUNS = {"words": "word", "numbers": "number", "uuids": "code"}


@dataclass
class NeedleTask(RulerTask):
    """Needles in a haystack, as RULER configures them (section 3 and appendix B).

    `haystack`: "noise" repeats a few sentences, "prose" is running text, "needles" are needles with other keys.
    `key_kind` and `value_kind`: "words" (two, joined by a hyphen), "numbers" of seven digits, or "uuids". There are
    max(`keys`, `queries`) keys with `values` values each; `queries` of the keys are asked for. All keys, and all
    values, are different. Depths are uniformly random, where RULER draws one of 40.

    A haystack of needles grows by whole needles; noise sentences before them fill the rest of the length.

    `details`: "needles", their number, and the position of those asked for, as the share of the other text that comes
    before them: "depth" for one, "first_depth" and "last_depth" for several.
    """

    chance: ClassVar[float] = 0.0  # seven digits, or a UUID

    haystack: Haystack = "prose"
    key_kind: Kind = "words"
    value_kind: Kind = "numbers"
    keys: int = 1
    values: int = 1
    queries: int = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        self.at_least(keys=1, values=1, queries=1)
        for field, known in (("haystack", HAYSTACKS), ("key_kind", KINDS), ("value_kind", KINDS)):
            if getattr(self, field) not in known:
                raise UnknownNameError(f"{self.name}: {field}", str(getattr(self, field)), known)

    def sample(self, lm: LanguageModel, length: int, index: int, seed: int) -> Sample:
        """A sample, as for every task. Raises InvalidInputError for a length without room for the needles."""
        needles = _Needles(self, lm, length, self.drawn(length, index, seed))
        if self.haystack != "needles":
            return fit(lm, length, self.placement, needles.sample)
        sample = fit(lm, length, self.placement, needles.sample, most=len(needles.others))
        n_others = int(sample.details["needles"]) - len(needles.needles)
        return fit(lm, length, self.placement, lambda size: needles.sample(n_others, size - 1))


class _Needles:
    """The random parts of a sample, from which the sample of any length is made."""

    def __init__(self, task: NeedleTask, lm: LanguageModel, length: int, rng: random.Random) -> None:
        self.task = task
        self.noun = NOUNS[task.value_kind]
        count = max(task.keys, task.queries)
        spare = length // NEEDLE_TOKENS + 1 if task.haystack == "needles" else 0
        keys = distinct(lambda: DRAWS[task.key_kind](rng), count + spare)
        values = distinct(lambda: DRAWS[task.value_kind](rng), count * task.values + spare)
        owners = [key for key in keys[:count] for _ in range(task.values)] + keys[count:]
        lines = [self._needle(key, value) for key, value in zip(owners, values, strict=True)]
        self.needles, self.others = lines[: count * task.values], lines[count * task.values :]
        self.depths = [rng.random() for _ in self.needles]
        self.start = rng.randrange(len(prose()))
        chosen = rng.sample(range(count), task.queries)
        places = [place for key in chosen for place in range(key * task.values, (key + 1) * task.values)]
        self.wanted = [self.needles[place] for place in places]
        self.turn = self._turn(lm, [keys[key] for key in chosen], [values[place] for place in places])

    def sample(self, units: int, noise: int = 0) -> Sample:
        """The sample with `units` units of filling, and `noise` noise sentences in front of it."""
        haystack = self.task.haystack
        if haystack == "needles":
            filling = self.others[:units]
        else:
            filling = running(prose(), units, self.start) if haystack == "prose" else repeated(NOISE, units)
        lines = [*repeated(NOISE, noise), *woven(self.needles, self.depths, filling)]
        text = ("\n" if haystack == "needles" else " ").join(lines)
        count = len(self.needles) + (len(filling) if haystack == "needles" else 0)
        intro = f"The following text tells hidden {self.noun}s. Remember them, for you will be asked about them."
        places = [text.index(needle) / (len(text) - len(needle)) for needle in self.wanted]
        return Sample(f"{intro}\n\n{text}", (self.turn,), {"needles": count, **depths(places)})

    def _needle(self, key: str, value: str) -> str:
        return f"{'A' if self.task.values > 1 else 'The'} hidden {self.noun} of {key} is {value}."

    def _turn(self, lm: LanguageModel, keys: list[str], answers: list[str]) -> Turn:
        what = f"hidden {self.noun}" if len(answers) == 1 else f"hidden {self.noun}s"
        verb, every, colon = ("is", "", "") if len(answers) == 1 else ("are", "all ", ":")
        question = f"What {verb} {every}the {what} of {listed(keys)} that the text tells?"
        return asked(lm, question, answers, f"The {what} of {listed(keys)} {verb}{colon}")


@dataclass
class SingleInNoise(NeedleTask):
    """One needle in repeated sentences."""

    name: ClassVar[str] = "niah_single_1"
    title: ClassVar[str] = "needle in noise: a word's number"

    haystack: Haystack = "noise"


@dataclass
class SingleInProse(NeedleTask):
    """One needle in running text."""

    name: ClassVar[str] = "niah_single_2"
    title: ClassVar[str] = "needle in prose: a word's number"


@dataclass
class SingleCode(NeedleTask):
    """One needle in running text, with a UUID as its value."""

    name: ClassVar[str] = "niah_single_3"
    title: ClassVar[str] = "needle in prose: a word's UUID"

    value_kind: Kind = "uuids"


@dataclass
class FourKeys(NeedleTask):
    """Four needles in running text; one is asked for."""

    name: ClassVar[str] = "niah_multikey_1"
    title: ClassVar[str] = "four needles in prose, one asked for"

    keys: int = 4


@dataclass
class AllNeedles(NeedleTask):
    """A haystack of needles; one is asked for."""

    name: ClassVar[str] = "niah_multikey_2"
    title: ClassVar[str] = "needles only, one asked for: a word's number"

    haystack: Haystack = "needles"


@dataclass
class AllCodes(NeedleTask):
    """A haystack of needles with UUIDs as keys and values; one is asked for."""

    name: ClassVar[str] = "niah_multikey_3"
    title: ClassVar[str] = "needles only, one asked for: a UUID's UUID"

    haystack: Haystack = "needles"
    key_kind: Kind = "uuids"
    value_kind: Kind = "uuids"


@dataclass
class FourValues(NeedleTask):
    """Four needles with one key; all are asked for."""

    name: ClassVar[str] = "niah_multivalue"
    title: ClassVar[str] = "four needles of one word in prose, all asked for"

    values: int = 4


@dataclass
class FourQueries(NeedleTask):
    """Four needles with four keys; all are asked for at once."""

    name: ClassVar[str] = "niah_multiquery"
    title: ClassVar[str] = "four needles of four words in prose, all asked for"

    queries: int = 4
