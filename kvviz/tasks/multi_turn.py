"""Several needles in one haystack, asked for one after the other in one conversation."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from ..errors import InvalidInputError
from .base import Sample, Task, Turn
from .needle import PLACES, THINGS, hide_needles
from .prompts import fit
from .scores import found_any

if TYPE_CHECKING:
    from ..models import LanguageModel

MOST_TURNS = len(THINGS) * len(PLACES)


@dataclass
class MultiTurnNeedle(Task):
    """`turns` sentences, each with a number, hidden in prose; every turn asks for one, on the same cache.

    The depths are spread evenly over the text, one in each of `turns` equal parts, and are asked in random order;
    `details` name them by the column `turn`: depth_0, depth_1, ... A score is 1 where the turn's number occurs in the
    answer; guessing finds one of 90,000. `placement` is that of the first question; the others follow the answers.

    Source: CTkvr (arXiv 2512.15550), table 5, whose data come from RULER's generator with several questions a context.
    The sentences and the haystack, Python's reference manual, are kvviz's own.

    Raises InvalidInputError for turns below 1, or more than there are different sentences.
    """

    name: ClassVar[str] = "needle_multi_turn"
    title: ClassVar[str] = "several needles, a question a turn"
    source: ClassVar[str] = "CTkvr, table 5"
    metric: ClassVar[str] = "number found"

    turns: int = 3

    def __post_init__(self) -> None:
        super().__post_init__()
        if not isinstance(self.turns, int) or not 1 <= self.turns <= MOST_TURNS:
            raise InvalidInputError("needle_multi_turn: turns", repr(self.turns), f"an int from 1 to {MOST_TURNS}")

    def sample(self, lm: LanguageModel, length: int, index: int, seed: int) -> Sample:
        """A sample of the longest haystack that fits; raises InvalidInputError where none does."""
        drawn = self.drawn(length, index, seed)
        depths = [(part + drawn.random()) / self.turns for part in drawn.sample(range(self.turns), self.turns)]
        hide = hide_needles(lm, depths, length, index, seed, drawn)
        details = {f"depth_{turn}": depth for turn, depth in enumerate(depths)}
        return fit(lm, length, self.placement, lambda units: Sample(*hide(units), details))

    def score(self, turn: Turn, text: str) -> float:
        """1 where the turn's number occurs in the text, else 0."""
        return found_any(text, turn.answers)
