"""Prompt formats and metrics of benchmark subsets, and the truncation of long texts in the middle."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ...errors import UnknownNameError
from ...models.encoding import decoded, fed_ids
from .. import scores
from ..base import Placement, Sample
from ..prompts import fit

if TYPE_CHECKING:
    from ...models import LanguageModel

F1, ROUGE, LINE, CLASS = "token F1", "ROUGE-L", "edit similarity of a line", "class found"
NUMBERS, NUMBER, WORD, LETTER = "right numbers", "first number", "words found", "letter chosen"
METRICS: Mapping[str, Callable[..., float]] = {
    F1: scores.token_f1, ROUGE: scores.rouge_l, LINE: scores.line_similarity, CLASS: scores.class_found,
    NUMBERS: scores.number_share, NUMBER: scores.first_number, WORD: scores.found_words, LETTER: scores.chosen_letter,
}  # fmt: skip
NEEDS = {ROUGE: ("rouge_score",), LINE: ("rapidfuzz",)}
HALF_CHARACTER = "\ufffd"  # the decoded text of a token that holds part of a character


@dataclass(frozen=True)
class Form:
    """The prompt of one subset, and how its answer is scored.

    `lead` comes before the text, `ask` after it, with the row's input in place of {input}; `cue` begins the answer. If
    there is no cue, and the last line of the question ends with a colon, that line is the cue: rows that continue a
    list of examples end so. `first_line`: only the answer's first line is scored, since more examples may follow.

    Raises UnknownNameError, with near matches, for a metric that is not in METRICS.
    """

    metric: str
    max_new_tokens: int
    lead: str
    ask: str = "{input}"
    cue: str = ""
    chance: float = 0.0
    first_line: bool = False

    def __post_init__(self) -> None:
        if self.metric not in METRICS:
            raise UnknownNameError("form of a subset: metric", self.metric, METRICS)

    def asked(self, row_input: str) -> tuple[str, str]:
        """The question for a row's input, and the first words of the answer."""
        question = f"\n\n{self.ask.replace('{input}', row_input)}"
        last = question.rstrip().rpartition("\n")[2]
        if self.cue or not last.endswith(":"):
            return question, self.cue
        return question.rstrip().removesuffix(last).rstrip(" "), last.strip()


def cut_middle(
    lm: LanguageModel, text: str, length: int, placement: Placement, make: Callable[[str, int], Sample]
) -> Sample:
    """The sample `make(text, dropped)` of at most `length` tokens with as much of the text as fits.

    If the text is too long, `dropped` tokens in its middle are cut out; both ends keep half of the rest. Source:
    LongBench (arXiv 2308.14508), section 4.1, which truncates the whole prompt; here the instruction and the question
    stay complete. Raises InvalidInputError if they alone are too long.
    """
    ids = fed_ids(lm, text)

    def shortened(tokens: int) -> Sample:
        if tokens >= len(ids):
            return make(text, 0)
        head, tail = ids[: tokens - tokens // 2], ids[len(ids) - tokens // 2 :]
        ends = decoded(lm, head).rstrip(HALF_CHARACTER) + decoded(lm, tail).lstrip(HALF_CHARACTER)
        return make(ends, len(ids) - tokens)

    return fit(lm, length, placement, shortened, most=max(1, len(ids)))
