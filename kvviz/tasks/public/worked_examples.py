"""Generated math word problems with worked solutions, in any number."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass

NAMES = ("Ana", "Ben", "Chiara", "Deniz", "Emil", "Farah", "Goran", "Hana", "Ivo", "Jana", "Kofi", "Lena")


@dataclass(frozen=True)
class Pattern:
    """A kind of problem: numbers a, b and c are drawn from the ranges; x, y and the result are computed from them."""

    question: str
    steps: str
    ranges: tuple[tuple[int, int], tuple[int, int], tuple[int, int]]
    compute: Callable[[int, int, int], tuple[int, int, int]]

    def written(self, rng: random.Random) -> str:
        """A question with its solution steps, which end with "The answer is ..."."""
        a, b, c = (rng.randint(least, most) for least, most in self.ranges)
        x, y, result = self.compute(a, b, c)
        words = f"Question: {self.question}\nAnswer: {self.steps} The answer is {result}."
        return words.format(name=rng.choice(NAMES), a=a, b=b, c=c, x=x, y=y)


PATTERNS = (
    Pattern(
        "{name} has {a} shelves with {b} books each and lends out {c} books. How many books are left?",
        "There are {a} * {b} = {x} books. Without those lent, {x} - {c} = {y}.",
        ((3, 9), (12, 40), (2, 20)),
        lambda a, b, c: (a * b, a * b - c, a * b - c),
    ),
    Pattern(
        "{name} buys {a} bags of pears at {b} dollars each and pays with {c} dollars. How much comes back?",
        "The pears cost {a} * {b} = {x} dollars. Back come {c} - {x} = {y} dollars.",
        ((3, 9), (2, 6), (60, 100)),
        lambda a, b, c: (a * b, c - a * b, c - a * b),
    ),
    Pattern(
        "{name} walks at {a} km an hour for {b} hours and then has {c} km to go. How long is the way?",
        "In {b} hours {name} walks {a} * {b} = {x} km. With the rest, {x} + {c} = {y} km.",
        ((3, 6), (2, 5), (2, 9)),
        lambda a, b, c: (a * b, a * b + c, a * b + c),
    ),
    Pattern(
        "{name} has {c} dollars and saves {a} dollars a week. How much is it after {b} weeks?",
        "In {b} weeks {a} * {b} = {x} dollars are saved. Together, {c} + {x} = {y}.",
        ((4, 15), (3, 12), (10, 60)),
        lambda a, b, c: (a * b, c + a * b, c + a * b),
    ),
    Pattern(
        "{name} packs {b} cups into each of {a} boxes. {c} of the boxes fall down. How many cups did not fall?",
        "{a} - {c} = {x} boxes did not fall. They hold {x} * {b} = {y} cups.",
        ((4, 12), (3, 8), (2, 3)),
        lambda a, b, c: (a - c, (a - c) * b, (a - c) * b),
    ),
    Pattern(
        "{name} eats {c} of {x} cherries and shares the rest among {a} friends. How many does each friend get?",
        "{x} - {c} = {y} cherries are left. Each friend gets {y} / {a} = {b}.",
        ((3, 7), (4, 12), (2, 9)),
        lambda a, b, c: (a * b + c, a * b, b),
    ),
    Pattern(
        "{name} is {a} years old, and an uncle is {b} times as old. How old will the uncle be in {c} years?",
        "The uncle is {a} * {b} = {x} years old. In {c} years he is {x} + {c} = {y}.",
        ((5, 12), (3, 5), (2, 10)),
        lambda a, b, c: (a * b, a * b + c, a * b + c),
    ),
    Pattern(
        "A garden of {name} is {a} m long and {b} m wide. How many metres of fence go around it {c} times?",
        "Once around it are 2 * ({a} + {b}) = {x} m. {c} times around it, {c} * {x} = {y} m.",
        ((6, 20), (3, 15), (2, 4)),
        lambda a, b, c: (2 * (a + b), 2 * (a + b) * c, 2 * (a + b) * c),
    ),
)


def worked_examples(rng: random.Random, count: int) -> list[str]:
    """`count` questions with steps and results; the patterns take turns, the numbers are random."""
    first = rng.randrange(len(PATTERNS))
    return [PATTERNS[(first + place) % len(PATTERNS)].written(rng) for place in range(count)]
