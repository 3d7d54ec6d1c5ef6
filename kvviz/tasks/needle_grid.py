"""Needle in a haystack, over lengths and depths."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from .base import Sample, Task, Turn
from .needle import hide_needles
from .prompts import fit
from .scores import found_any

if TYPE_CHECKING:
    from ..models import LanguageModel


@dataclass
class NeedleGrid(Task):
    """Needle in a haystack: a sentence with a number, hidden in prose at one of `depths` depths.

    Sample `index` has the depth (index % depths + 0.5) / depths, where 0 is the beginning of the text and 1 its end;
    `depths` samples, or a multiple, cover all depths evenly. `details`: `depth`. The haystack is Python's reference
    manual (`pydoc_data.topics`). The score is 1 if the number occurs in the answer; the chance of guessing it is 1 in
    90,000.

    Source: Kamradt, "Needle in a haystack" (2023); PQCache (arXiv 2407.12820), section 4.2.3 and fig. 9. The sentences
    are ours; the original is about San Francisco and hidden in Paul Graham's essays.

    Raises InvalidInputError for depths below 1.
    """

    name: ClassVar[str] = "needle"
    title: ClassVar[str] = "needle in a haystack, length × depth"
    source: ClassVar[str] = "Kamradt (2023); PQCache, fig. 9"
    metric: ClassVar[str] = "number found"

    depths: int = 10

    def __post_init__(self) -> None:
        super().__post_init__()
        self.at_least(depths=1)

    def sample(self, lm: LanguageModel, length: int, index: int, seed: int) -> Sample:
        """A sample with the longest haystack that fits. Raises InvalidInputError if none fits."""
        depth = (index % self.depths + 0.5) / self.depths
        hide = hide_needles(lm, [depth], length, index, seed, self.drawn(length, index, seed))
        return fit(lm, length, self.placement, lambda tokens: Sample(*hide(tokens), {"depth": depth}))

    def score(self, turn: Turn, text: str) -> float:
        """1 if the number occurs in the text, else 0."""
        return found_any(text, turn.answers)
