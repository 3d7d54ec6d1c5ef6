"""RulerTask, the base class of RULER's tasks: the score and the maximum length of an answer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from ...models.encoding import fed_ids
from ..base import Task, Turn
from ..scores import found_share

if TYPE_CHECKING:
    from ...models import LanguageModel

SPARE_TOKENS, SPARE_TOKENS_AN_ANSWER = 8, 4  # for a few more words, and for numbering


@dataclass
class RulerTask(Task):
    """A task of RULER. The score is the share of the answers that occur in the text, ignoring case (section 3)."""

    source: ClassVar[str] = "arXiv 2404.06654"
    metric: ClassVar[str] = "share of the answers found"

    def score(self, turn: Turn, text: str) -> float:
        """The share of the turn's answers that occur in the text, ignoring case."""
        return found_share(text, turn.answers)


def asked(lm: LanguageModel, question: str, answers: Sequence[str], opening: str) -> Turn:
    """The turn that asks a question after the context, with room for the answers and a few more tokens."""
    needed = len(fed_ids(lm, " " + listed(answers)))
    room = needed + SPARE_TOKENS_AN_ANSWER * len(answers) + SPARE_TOKENS
    return Turn(f"\n\n{question}", tuple(answers), opening, room)


def listed(parts: Sequence[str]) -> str:
    """The parts as a sentence lists them: "a", "a and b", "a, b and c"."""
    *others, last = parts
    return f"{', '.join(others)} and {last}" if others else last


def depths(places: Sequence[float]) -> dict[str, float]:
    """`details` of positions in a text, from 0 to 1: "depth" for one; "first_depth" and "last_depth" for several."""
    first, last = round(min(places), 4), round(max(places), 4)
    return {"depth": first} if len(places) == 1 else {"first_depth": first, "last_depth": last}
