"""score(): the log-probability of a given answer under a method (teacher forcing)."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from copy import copy
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from ..cache.attachment import attached
from ..cache.frozen import Attended, FrozenCache
from ..cache.layer_cache import LayerCache
from ..cache.selective_cache import SelectiveCache
from ..errors import InvalidInputError
from ..methods import resolve
from ..methods.base import Method
from ..methods.selection import Selection
from ..models.encoding import fed_ids, prompt_ids
from ..trace.edits import Edit
from ..trace.score import Score
from .generating import next_logits, placed_edit
from .prefill import SharedPrefill

if TYPE_CHECKING:
    from ..models import LanguageModel

Observer = Callable[[LayerCache, Tensor, Selection, Tensor, float], None]


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
        self.question_ids = fed_ids(lm, question or "")
        self.answer_ids = _answer_ids(lm, answer)
        new = len(self.answer_ids)
        self.ids = prompt_ids("score", lm, prompt, question_tokens=len(self.question_ids), new_tokens=new)
        self.shared = SharedPrefill(lm, self.ids, retain_queries=retain_queries, prefill=prefill, details=details)
        self._sparse = prefill is not None
        self.passes = 0

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
        self.passes += len(self.fed) - 1
        return self._score(predictions[len(self.question_ids) :])

    def selections(self, method: Method) -> tuple[Score, dict[int, list[Selection]]]:
        """The Score with a method, and the selections of all steps by layer, without layers that attend to all."""
        selections: dict[int, list[Selection]] = defaultdict(list)

        def note(layer: LayerCache, queries: Tensor, selection: Selection, output: Tensor, select_s: float) -> None:
            selections[layer.context.index].append(selection)

        return self.score(method, observer=note), dict(selections)

    @torch.no_grad()
    def frozen_score(
        self,
        attended: Mapping[int, Attended] | None = None,
        restored: Collection[tuple[int, int]] = (),
        hidden: Collection[int] = (),
        shown: Collection[int] = (),
        choices: Mapping[int, Tensor] | None = None,
    ) -> Score:
        """The Score of all steps in one forward pass over what they attend to (see `FrozenCache`).

        Raises InvalidInputError with a `prefill`: the pass goes on from the exactly prefilled prompt.
        """
        if self._sparse:
            raise InvalidInputError("frozen_score", "a prompt with a sparse prefill", "one without `prefill`")
        cache, first = self.exact_cache()
        fed = torch.tensor([self.fed[:-1]], device=self.ids.device)
        predictions = [first]
        if len(self.fed) > 1:
            frozen = FrozenCache(cache, attended, restored, hidden, shown, choices)
            with attached(self.lm.model):
                kept = min(len(self.answer_ids), len(self.fed) - 1)  # only the answer's predictions are needed
                logits = self.lm.model(fed, past_key_values=frozen, use_cache=True, logits_to_keep=kept).logits[0]
            predictions = [*predictions, *logits][-len(self.answer_ids) :]
            self.passes += 1
        return self._score(predictions)

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
    ids = fed_ids(lm, answer) if isinstance(answer, str) else []
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
