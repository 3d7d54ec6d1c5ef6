"""Variable tracking: which variables hold a value, after chains of assignments scattered over noise?"""

from __future__ import annotations

import string
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, ClassVar

from ..base import Sample
from ..prompts import fit
from ..text import NOISE, distinct, random_number, repeated, woven
from .base import RulerTask, asked

if TYPE_CHECKING:
    from ...models import LanguageModel

NAME_LETTERS = 5
VALUE_DIGITS = 5
INTRO = "Variables are assigned in the following text. Keep track of the value of each one."


@dataclass
class VariableTracking(RulerTask):
    """Variable tracking: name all variables of a chain, where each is assigned the one before it, the first a number.

    `chains` chains with `hops` hops each are hidden, in order, in repeated sentences. The question gives the number of
    the first chain. Source: RULER, section 3, for the form of the assignments, names of five letters, numbers of five
    digits, one chain and four hops.

    `details`: "chains", "hops", and "first_depth" and "last_depth", the share of the sentences before the first and the
    last assignment of the chain asked for.
    """

    name: ClassVar[str] = "vt"
    title: ClassVar[str] = "variable tracking: all names of one value, over four hops"
    chance: ClassVar[float] = 0.0  # five random letters

    chains: int = 1
    hops: int = 4

    def __post_init__(self) -> None:
        super().__post_init__()
        self.at_least(chains=1, hops=1)

    def sample(self, lm: LanguageModel, length: int, index: int, seed: int) -> Sample:
        """A sample, as for every task. Raises InvalidInputError for a length without room for the assignments."""
        rng = self.drawn(length, index, seed)
        size = self.hops + 1
        names = distinct(lambda: "".join(rng.choices(string.ascii_uppercase, k=NAME_LETTERS)), self.chains * size)
        values = distinct(lambda: random_number(rng, VALUE_DIGITS), self.chains)
        statements: list[str] = []
        depths: list[float] = []
        for chain, value in enumerate(values):
            variables = names[chain * size : (chain + 1) * size]
            statements += [f"VAR {variables[0]} = {value}."]
            statements += [f"VAR {name} = VAR {before}." for before, name in pairwise(variables)]
            depths += sorted(rng.random() for _ in variables)
        question = f"Which {size} variables hold the value {values[0]}, whether directly or through other variables?"
        turn = asked(lm, question, names[:size], f"The {size} variables that hold the value {values[0]} are:")
        details = {
            "chains": self.chains, "hops": self.hops, "first_depth": round(depths[0], 4),
            "last_depth": round(depths[size - 1], 4),
        }  # fmt: skip

        def make(units: int) -> Sample:
            text = " ".join(woven(statements, depths, repeated(NOISE, units)))
            return Sample(f"{INTRO}\n\n{text}", (turn,), details)

        return fit(lm, length, self.placement, make)
