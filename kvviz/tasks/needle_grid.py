"""Needle in a haystack over lengths and depths."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from ..errors import InvalidInputError
from .base import Sample, Task, Turn
from .needle import hide_needles
from .prompts import fit
from .scores import found_any

if TYPE_CHECKING:
    from ..models import LanguageModel


@dataclass
class NeedleGrid(Task):
    """One sentence with a number, hidden in prose at one of `depths` depths, and the question for the number.

    Sample `index` has the depth (index % depths + 0.5) / depths, 0 being the beginning of the text and 1 its end, so
    that `depths` samples, or a multiple, cover all of them evenly; `details` have it. The haystack is Python's
    reference manual (`pydoc_data.topics`). A score is 1 where the number occurs in the answer; guessing finds one of
    90,000.

    Source: Kamradt, "Needle in a haystack" (2023); PQCache (arXiv 2407.12820), section 4.2.3 and fig. 9. The sentences
    are kvviz's own: theirs is about San Francisco, in Paul Graham's essays.

    Raises InvalidInputError for depths below 1.
    """

    name: ClassVar[str] = "needle"
    title: ClassVar[str] = "needle in a haystack, length × depth"
    source: ClassVar[str] = "Kamradt (2023); PQCache, fig. 9"
    metric: ClassVar[str] = "number found"

    depths: int = 10

    def __post_init__(self) -> None:
        super().__post_init__()
        if not isinstance(self.depths, int) or self.depths < 1:
            raise InvalidInputError("needle: depths", repr(self.depths), "an int >= 1")

    def sample(self, lm: LanguageModel, length: int, index: int, seed: int) -> Sample:
        """A sample of the longest haystack that fits; raises InvalidInputError where none does."""
        depth = (index % self.depths + 0.5) / self.depths
        hide = hide_needles(lm, [depth], length, index, seed, self.drawn(length, index, seed))
        return fit(lm, length, self.placement, lambda units: Sample(*hide(units), {"depth": depth}))

    def score(self, turn: Turn, text: str) -> float:
        """1 where the number occurs in the text, else 0."""
        return found_any(text, turn.answers)
