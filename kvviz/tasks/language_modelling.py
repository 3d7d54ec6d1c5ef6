"""Perplexity: how well the tokens that follow a long text are predicted from what a method kept of it."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from ..errors import InvalidInputError, UnsupportedModelError
from ..models.encoding import fed_ids
from .base import Measure, Sample, Task, Turn
from .windows import running_text, window

if TYPE_CHECKING:
    from ..models import LanguageModel

MARGIN = 8  # tokens behind the answer, so that the end of the window does not cut a word of it
NEARLY = 0.93  # the shortest context, as a share of its length


@dataclass
class Perplexity(Task):
    """`tokens` tokens of running text behind a context of `length` tokens, fed one by one, whatever the model expects.

    The text is Python's reference manual (`pydoc_data.topics`), or `file`, a text file in UTF-8. Samples are windows of
    it that begin at different places, which `seed` moves; `details` have the place, in characters. The score is the
    mean negative log likelihood in nats; perplexity is its exponential. `chance` is NaN: guessing reaches the logarithm
    of the vocabulary's size.

    The cut between context and answer is where tokenising both together and apart agrees, so that the context may be
    a few tokens shorter than `length`. There is no question, which is why `placement` is always "after".

    Source: ClusterKV (arXiv 2412.03213), fig. 10. It feeds PG19 whole and shows perplexity at every length; here the
    tokens behind one length are measured, so that all methods predict from the same compressed context.

    Raises InvalidInputError for another placement, tokens below 1, a file that is missing, empty or no text, and, when
    a sample is made, for a text too short.
    """

    name: ClassVar[str] = "perplexity"
    title: ClassVar[str] = "language modelling: the tokens behind a long text"
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
        if not isinstance(self.tokens, int) or self.tokens < 1:
            raise InvalidInputError(f"{self.name}: tokens", repr(self.tokens), "an int >= 1")

    def sample(self, lm: LanguageModel, length: int, index: int, seed: int) -> Sample:
        """A window of the text: a context of at most `length` tokens, and the `tokens` tokens that follow it."""
        if length < 2:
            raise InvalidInputError(f"{self.name}: length", length, "at least 2 tokens")
        text = running_text(f"{self.name}: file", self.file)
        start, text = window(lm, text, length + self.tokens + MARGIN, index, seed)
        context, answer = self._cut(lm, text, length)
        return Sample(context, (Turn("", (answer,), max_new_tokens=self.tokens),), {"start": start})

    def _cut(self, lm: LanguageModel, text: str, length: int) -> tuple[str, str]:
        """Context and answer whose tokens are the same together and apart, the context as long as may be."""
        ids = fed_ids(lm, text)
        most = length - (lm.encode(text).shape[1] - len(ids))  # a beginning-of-text token takes its place
        for cut in range(most, math.ceil(NEARLY * length) - 2, -1):
            context, answer = _decoded(lm, ids[:cut]), _decoded(lm, ids[cut : cut + self.tokens])
            before, after = lm.encode(context)[0].tolist(), fed_ids(lm, answer)
            together = lm.encode(context + answer)[0].tolist()
            if len(before) <= length and len(after) == self.tokens and together == [*before, *after]:
                return context, answer
        got = f"a tokenizer that cuts this text ({text[:20]!r}...) otherwise when it comes in two parts"
        raise UnsupportedModelError(f"{self.name}: cut the text", got, "another text, or a byte-level tokenizer")


def _decoded(lm: LanguageModel, ids: list[int]) -> str:
    return str(lm.tokenizer.decode(ids, clean_up_tokenization_spaces=False))
