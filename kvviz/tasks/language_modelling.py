"""Perplexity: how well the tokens after a long context are predicted from the compressed cache."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from ..errors import InvalidInputError, UnsupportedModelError
from ..models.encoding import decoded, fed_ids
from .base import Measure, Sample, Task, Turn
from .windows import running_text, window

if TYPE_CHECKING:
    from ..models import LanguageModel

MARGIN = 8  # tokens after the answer, so that the end of the window cuts none of its words
NEARLY = 0.93  # the shortest context allowed, as a share of the length


@dataclass
class Perplexity(Task):
    """Perplexity of the `tokens` tokens after a context of `length` tokens of running text, with teacher forcing.

    The text is Python's reference manual (`pydoc_data.topics`), or `file`, a text file in UTF-8. Samples are windows
    that start at different characters of the text (`details`: `start`), which depend on `seed`. The score is the mean
    negative log likelihood in nats; perplexity is its exponential. `chance` is NaN: guessing gives the logarithm of the
    vocabulary size.

    Context and answer are cut where tokenising them together or separately gives the same tokens, so that the context
    may be a few tokens shorter than `length`. There is no question, so `placement` is always "after".

    Source: ClusterKV (arXiv 2412.03213), fig. 10. It feeds all of PG19 and shows the perplexity at every length. Here
    the tokens after one length are measured, so that all methods predict from the same compressed context.

    Raises InvalidInputError for another placement, tokens below 1, a file that is missing, empty or not text, and, when
    a sample is made, for a text that is too short.
    """

    name: ClassVar[str] = "perplexity"
    title: ClassVar[str] = "language modelling: the tokens after a long text"
    source: ClassVar[str] = "ClusterKV, fig. 10"
    metric: ClassVar[str] = "nats per token"
    measures: ClassVar[Measure] = "likelihood"
    higher_is_better: ClassVar[bool] = False
    chance: ClassVar[float] = math.nan

    tokens: int = 64
    file: str | None = None

    def __post_init__(self) -> None:
        self._check_fields()
        if self.file is not None:
            running_text(f"{self.name}: file", self.file)

    def _check_fields(self) -> None:
        super().__post_init__()
        if self.placement != "after":
            raise InvalidInputError(f"{self.name}: placement", repr(self.placement), "'after': there is no question")
        self.at_least(tokens=1)

    def sample(self, lm: LanguageModel, length: int, index: int, seed: int) -> Sample:
        """A window of the text: a context of at most `length` tokens, and the `tokens` tokens that follow it."""
        if length < 2:
            raise InvalidInputError(f"{self.name}: length", length, "at least 2 tokens")
        text, number, details = self._source_text(index, seed)
        start, text = window(lm, text, length + self.tokens + MARGIN, number, seed)
        context, answer = self._cut(lm, text, length)
        return Sample(context, (Turn("", (answer,), max_new_tokens=self.tokens),), {**details, "start": start})

    def _source_text(self, index: int, seed: int) -> tuple[str, int, dict[str, int]]:
        """The text of sample `index`, the number of its window in it, and details."""
        return running_text(f"{self.name}: file", self.file), index, {}

    def _cut(self, lm: LanguageModel, text: str, length: int) -> tuple[str, str]:
        """The longest context, and its answer, that have the same tokens when encoded together and separately."""
        ids = fed_ids(lm, text)
        most = length - (lm.encode(text).shape[1] - len(ids))  # leaves room for a beginning-of-text token
        for cut in range(most, math.ceil(NEARLY * length) - 2, -1):
            context, answer = decoded(lm, ids[:cut]), decoded(lm, ids[cut : cut + self.tokens])
            before, after = lm.encode(context)[0].tolist(), fed_ids(lm, answer)
            together = lm.encode(context + answer)[0].tolist()
            if len(before) <= length and len(after) == self.tokens and together == [*before, *after]:
                return context, answer
        got = f"a tokenizer that splits this text ({text[:20]!r}...) differently when it comes in two parts"
        raise UnsupportedModelError(f"{self.name}: cut the text", got, "another text, or a byte-level tokenizer")
