"""score(): the log-probability of a given answer under a method (teacher forcing)."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ..cache.attachment import attached
from ..cache.selective_cache import SelectiveCache
from ..errors import InvalidInputError
from ..methods import resolve
from ..methods.base import Method
from ..models.encoding import fed_ids, prompt_ids
from ..trace.edits import Edit
from .generating import next_logits, placed_edit
from .prefill import SharedPrefill

if TYPE_CHECKING:
    from ..models import LanguageModel


@dataclass(frozen=True)
class Score:
    """Natural log-probabilities of an answer's tokens, each after the true tokens before it.

    `logprobs` float64 [n], one per token; `tokens` are their texts.
    """

    logprobs: NDArray[np.float64]
    tokens: list[str] = field(repr=False)

    @property
    def total(self) -> float:
        """The log-probability of the whole answer."""
        return float(self.logprobs.sum())


@torch.no_grad()
def score(
    lm: LanguageModel,
    prompt: str | Tensor,
    answer: str,
    method: str | Method = "clusterkv",
    budget: int | float | None = None,
    question: str | None = None,
    edit: Edit | None = None,
    prefill: str | Method | None = None,
    **values: Any,
) -> Score:
    """The log-probability of each token of `answer` after the prompt, and the question if there is one.

    Prompt and question are fed as in `generate`, then the answer's tokens, whatever the model predicts: so the score
    moves before the text that `generate` writes does. Without a question the first token's probability comes from the
    prompt's exact attention. `edit`, `prefill` and `values` as for `generate`.

    Raises InvalidInputError for an answer without tokens, and the errors of `generate`.
    """
    chosen = resolve(method, **(values if budget is None else {**values, "budget": budget}))
    forced = ForcedAnswer(lm, prompt, answer, question, retain_queries=chosen.needs_queries, prefill=prefill)
    return forced.score(chosen, edit)


class ForcedAnswer:
    """A prompt, a question and an answer that are scored with many methods and edits; the prompt is prefilled once.

    `passes` counts the forward passes of decoded tokens so far.
    """

    def __init__(
        self,
        lm: LanguageModel,
        prompt: str | Tensor,
        answer: str,
        question: str | None = None,
        *,
        retain_queries: bool = True,
        prefill: str | Method | None = None,
    ) -> None:
        self.lm = lm
        self.question_ids = fed_ids(lm, question or "")
        self.answer_ids = fed_ids(lm, answer) if isinstance(answer, str) else []
        if not self.answer_ids:
            raise InvalidInputError("score: answer", repr(answer), "text of at least one token")
        new = len(self.answer_ids)
        self.ids = prompt_ids("score", lm, prompt, question_tokens=len(self.question_ids), new_tokens=new)
        self.shared = SharedPrefill(lm, self.ids, retain_queries=retain_queries, prefill=prefill)
        self.passes = 0

    @torch.no_grad()
    def score(self, method: Method, edit: Edit | None = None) -> Score:
        """The answer's Score with a method, and with an edit. Raises the errors of `Edit.on`."""
        fed = [*self.question_ids, *self.answer_ids]
        with attached(self.lm.model):
            cache, logits, _ = self.shared.cache(method, placed_edit(self.lm, self.ids, edit))
            first = logprob(logits, fed[0])
            logprobs = [first, *forced_logprobs(self.lm, cache, fed)][len(self.question_ids) :]
        self.passes += len(fed) - 1
        return Score(np.array(logprobs, np.float64), self.lm.tokens(fed)[len(self.question_ids) :])


def forced_logprobs(lm: LanguageModel, cache: SelectiveCache, token_ids: Sequence[int]) -> list[float]:
    """Natural log-probabilities of all tokens but the first, each after a decode step that feeds the one before it."""
    logprobs = []
    for token, following in itertools.pairwise(token_ids):
        logits = next_logits(lm, cache, torch.tensor([[token]], device=lm.device))
        logprobs.append(logprob(logits, following))
    return logprobs


def logprob(logits: Tensor, token: int) -> float:
    """The natural log-probability of a token, from logits [V]."""
    return float(logits.float().log_softmax(-1)[token])
