"""Multi-turn needles: several needles in one haystack, asked for one after another in one conversation."""

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
    """Needles over several turns: `turns` sentences with numbers are hidden in prose; each turn asks for one of them.

    All turns use the same cache. There is one needle at a random depth in each of `turns` equal parts of the text, and
    they are asked for in random order; `details` has the depth per turn: depth_0, depth_1, ... The score is 1 if the
    turn's number occurs in the answer; the chance of guessing it is 1 in 90,000. `placement` is that of the first
    question; the others follow the answers.

    Source: CTkvr (arXiv 2512.15550), table 5, with data from RULER's generator and several questions per context. The
    sentences and the haystack (Python's reference manual) are ours.

    Raises InvalidInputError for turns below 1, or more than there are different sentences.
    """

    name: ClassVar[str] = "needle_multi_turn"
    title: ClassVar[str] = "several needles, one question per turn"
    source: ClassVar[str] = "CTkvr, table 5"
    metric: ClassVar[str] = "number found"

    turns: int = 3

    def __post_init__(self) -> None:
        super().__post_init__()
        if not isinstance(self.turns, int) or not 1 <= self.turns <= MOST_TURNS:
            raise InvalidInputError("needle_multi_turn: turns", repr(self.turns), f"an int from 1 to {MOST_TURNS}")

    def sample(self, lm: LanguageModel, length: int, index: int, seed: int) -> Sample:
        """A sample with the longest haystack that fits. Raises InvalidInputError if none fits."""
        rng = self.drawn(length, index, seed)
        depths = [(part + rng.random()) / self.turns for part in rng.sample(range(self.turns), self.turns)]
        hide = hide_needles(lm, depths, length, index, seed, rng)
        details = {f"depth_{turn}": depth for turn, depth in enumerate(depths)}
        return fit(lm, length, self.placement, lambda tokens: Sample(*hide(tokens), details))

    def score(self, turn: Turn, text: str) -> float:
        """1 if the turn's number occurs in the text, else 0."""
        return found_any(text, turn.answers)
