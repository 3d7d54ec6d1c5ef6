"""Needles in a haystack, eight tasks of RULER: sentences with a key and its value, hidden in a long text."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, make_dataclass
from functools import partial
from typing import TYPE_CHECKING, ClassVar, Literal, get_args

from ...errors import UnknownNameError
from ..base import Sample, Turn
from ..prompts import fit
from ..text import NOISE, distinct, prose, random_number, random_uuid, repeated, running, word_pair, woven
from .base import RulerTask, asked, depths, listed

if TYPE_CHECKING:
    from ...models import LanguageModel

Haystack = Literal["noise", "prose", "needles"]
Kind = Literal["words", "numbers", "uuids"]

NUMBER_DIGITS = 7
NEEDLE_TOKENS = 8  # a lower bound for any tokenizer that splits at spaces

DRAWS: Mapping[str, Callable[[random.Random], str]] = {
    "words": word_pair, "numbers": partial(random_number, digits=NUMBER_DIGITS), "uuids": random_uuid,
}  # fmt: skip
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
        for field, known in (("haystack", Haystack), ("key_kind", Kind), ("value_kind", Kind)):
            if getattr(self, field) not in get_args(known):
                raise UnknownNameError(f"{self.name}: {field}", str(getattr(self, field)), get_args(known))

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


def _variant(cls: str, name: str, title: str, **defaults: str | int) -> type[NeedleTask]:
    """A task of its own, a dataclass called `cls`: NeedleTask with other defaults."""
    fields = [(field, NeedleTask.__annotations__[field], value) for field, value in defaults.items()]
    members = {"__module__": __name__, "__doc__": f"RULER's {name}: {title}.", "name": name, "title": title}
    return make_dataclass(cls, fields, bases=(NeedleTask,), namespace=members)


SingleInNoise = _variant("SingleInNoise", "niah_single_1", "needle in noise: a word's number", haystack="noise")
SingleInProse = _variant("SingleInProse", "niah_single_2", "needle in prose: a word's number")
SingleCode = _variant("SingleCode", "niah_single_3", "needle in prose: a word's UUID", value_kind="uuids")
FourKeys = _variant("FourKeys", "niah_multikey_1", "four needles in prose, one asked for", keys=4)
AllNeedles = _variant(
    "AllNeedles", "niah_multikey_2", "needles only, one asked for: a word's number", haystack="needles"
)
AllCodes = _variant(
    "AllCodes", "niah_multikey_3", "needles only, one asked for: a UUID's UUID",
    haystack="needles", key_kind="uuids", value_kind="uuids",
)  # fmt: skip
FourValues = _variant("FourValues", "niah_multivalue", "four needles of one word in prose, all asked for", values=4)
FourQueries = _variant(
    "FourQueries", "niah_multiquery", "four needles of four words in prose, all asked for", queries=4
)
