"""score(): the log-probability of a given answer under a method (teacher forcing)."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import copy
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor
from tqdm.auto import tqdm

from ..cache.attachment import attached
from ..cache.attended import Attended
from ..cache.frozen import Change, FrozenCache
from ..cache.layer_cache import LayerCache
from ..cache.selective_cache import SelectiveCache
from ..errors import InvalidInputError
from ..methods import resolve
from ..methods.base import Method
from ..methods.capabilities import Quantising
from ..methods.selection import Selection
from ..metrics.byte_budgets import Budget
from ..models.encoding import fed_ids, prompt_ids
from ..models.wrapping import language_model
from ..trace.edits import Edit
from ..trace.score import Score
from .arguments import explained
from .feeding import feed
from .generating import next_logits, placed_edit
from .prefill import SharedPrefill

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from ..models import LanguageModel

NO_CHANGE = Change()
BATCH_BYTES = 2**24  # of one layer's logits; a step of attention holds a few such tensors
MOST_ROWS = 16
Observer = Callable[[LayerCache, Tensor, Selection, Tensor, float], None]


@torch.no_grad()
def score(
    lm: LanguageModel | PreTrainedModel,
    prompt: str | Tensor,
    answer: str,
    method: str | Method = "clusterkv",
    budget: Budget | None = None,
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
    lm = language_model("score", lm)
    with explained(score, values):
        chosen = resolve(method, **(values if budget is None else {**values, "budget": budget}))
    forced = ForcedAnswer(lm, prompt, answer, question, retain_queries=chosen.needs_queries, prefill=prefill)
    return forced.score(chosen, edit)


class ForcedAnswer:
    """A prompt, a question and an answer that are scored with many methods and edits; the prompt is prefilled once.

    `details` as for `SelectiveCache`. `passes` counts the forward passes after the prefill.
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
        details: bool = False,
    ) -> None:
        self.lm = lm
        self.question_ids = fed_ids(lm, question or "", "score: question")
        self.answer_ids = _answer_ids(lm, answer)
        new = len(self.answer_ids)
        self.ids = prompt_ids("score", lm, prompt, question_tokens=len(self.question_ids), new_tokens=new)
        self.shared = SharedPrefill(lm, self.ids, retain_queries=retain_queries, prefill=prefill, details=details)
        self._sparse = prefill is not None
        self.passes = 0
        self.progress: tqdm[Any] | None = None  # a display that counts the passes

    def count(self, passes: int) -> None:
        """Count forward passes."""
        self.passes += passes
        if self.progress is not None:
            self.progress.update(passes)

    def with_answer(self, answer: str) -> ForcedAnswer:
        """The same prompt and question with another answer, without a new prefill."""
        other = copy(self)
        other.answer_ids = _answer_ids(self.lm, answer)
        return other

    @torch.no_grad()
    def exact_cache(self) -> tuple[SelectiveCache, Tensor]:
        """The prompt's cache under exact attention, not to be changed, and the next token's logits [V]."""
        with attached(self.lm.model):
            return self.shared.exact()

    def stored_cache(self, method: Method) -> SelectiveCache | None:
        """The prompt's cache as the method stores it, not to be changed; None for a method that stores it exactly."""
        if not isinstance(method, Quantising):
            return None
        with attached(self.lm.model):
            return self.shared.cache(method)[0]

    @property
    def fed(self) -> list[int]:
        """The ids of the question and the answer; all but the last are fed, one per decode step."""
        return [*self.question_ids, *self.answer_ids]

    @torch.no_grad()
    def score(self, method: Method, edit: Edit | None = None, observer: Observer | None = None) -> Score:
        """The answer's Score with a method, and with an edit, by real decode steps. Raises the errors of `Edit.on`.

        `observer` is called after each step of each layer that selects (see `LayerCache.observer`).
        """
        with attached(self.lm.model):
            cache, logits, _ = self.shared.cache(method, placed_edit(self.lm, self.ids, edit))
            for layer in cache.selective_layers:
                layer.observer = observer
            predictions = [logits, *forced_predictions(self.lm, cache, self.fed[:-1])]
        self.count(len(self.fed) - 1)
        return self._score(predictions[len(self.question_ids) :])

    def selections(self, method: Method) -> tuple[Score, dict[int, list[Selection]]]:
        """The Score with a method, and the selections of all steps by layer, without layers that attend to all."""
        selections: dict[int, list[Selection]] = defaultdict(list)

        def note(layer: LayerCache, queries: Tensor, selection: Selection, output: Tensor, select_s: float) -> None:
            selections[layer.context.index].append(selection)

        return self.score(method, observer=note), dict(selections)

    def frozen_score(
        self,
        attended: Mapping[int, Attended] | None = None,
        change: Change = NO_CHANGE,
        stored: SelectiveCache | None = None,
    ) -> Score:
        """As `frozen_scores`, for one change."""
        return self.frozen_scores(attended, [change], stored)[0]

    @torch.no_grad()
    def frozen_scores(
        self,
        attended: Mapping[int, Attended] | None,
        changes: Sequence[Change],
        stored: SelectiveCache | None = None,
    ) -> list[Score]:
        """The Score of each change, from passes that compute all steps over what they attend to (see `FrozenCache`).

        They read the prompt's tokens from `stored`, a cache of `stored_cache`, or by default exactly.
        Several changes are computed in one pass, a row each, as far as memory allows; `passes` counts the rows. Raises
        InvalidInputError with a `prefill`: a pass goes on from the exactly prefilled prompt.
        """
        if self._sparse:
            raise InvalidInputError("frozen_score", "a prompt with a sparse prefill", "one without `prefill`")
        cache, first = self.exact_cache()
        if len(self.fed) == 1:  # the prompt's own prediction is all there is to score
            return [self._score([first]) for _ in changes]
        width = self._rows_at_once()
        scores = []
        for start in range(0, len(changes), width):
            frozen = FrozenCache(stored or cache, attended, changes[start : start + width])
            scores += [self._score([first, *logits][-len(self.answer_ids) :]) for logits in self._fed_to(frozen)]
        return scores

    def _rows_at_once(self) -> int:
        """How many changes a pass computes: their logits of one layer fit in BATCH_BYTES."""
        steps = len(self.fed) - 1
        of_row = 4 * self.lm.geometry.n_heads * steps * (self.ids.shape[1] + steps)
        return min(max(BATCH_BYTES // of_row, 1), MOST_ROWS)

    def _fed_to(self, frozen: FrozenCache) -> Tensor:
        """The logits [B, n, V] that predict the answer, or all of it but its first token."""
        fed = torch.tensor([self.fed[:-1]], device=self.ids.device).expand(frozen.rows, -1)
        kept = min(len(self.answer_ids), fed.shape[1])  # only the answer's predictions are needed
        with attached(self.lm.model):
            found = feed(self.lm, frozen, fed, kept=kept)
        self.count(frozen.rows)
        logits: Tensor = found.logits
        return logits

    def _score(self, predictions: Sequence[Tensor]) -> Score:
        """The answer's Score, from the logits [V] before each of its tokens."""
        asked = len(self.question_ids)
        of_answer = list(zip(predictions, self.answer_ids, strict=True))
        return Score(
            np.array([logprob(logits, token) for logits, token in of_answer], np.float64),
            self.lm.tokens(self.fed)[asked:],
            np.array([int(logits.argmax()) == token for logits, token in of_answer]),
        )


def _answer_ids(lm: LanguageModel, answer: str) -> list[int]:
    ids = fed_ids(lm, answer, "score: answer") if isinstance(answer, str) else []
    if not ids:
        raise InvalidInputError("score: answer", repr(answer), "text of at least one token")
    return ids


def forced_predictions(lm: LanguageModel, cache: SelectiveCache, token_ids: Sequence[int]) -> Iterator[Tensor]:
    """The logits [V] after each token, which a decode step feeds."""
    for token in token_ids:
        yield next_logits(lm, cache, torch.tensor([[token]], device=lm.device))


def forced_logprobs(lm: LanguageModel, cache: SelectiveCache, token_ids: Sequence[int]) -> list[float]:
    """Natural log-probabilities of all tokens but the first, each after a decode step that feeds the one before it."""
    predictions = forced_predictions(lm, cache, token_ids[:-1])
    return [logprob(logits, following) for logits, following in zip(predictions, token_ids[1:], strict=True)]


def logprob(logits: Tensor, token: int) -> float:
    """The natural log-probability of a token, from logits [V]."""
    return float(logits.float().log_softmax(-1)[token])
