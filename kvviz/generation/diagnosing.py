"""diagnose(): where a method lost the tokens that an answer needs, and which heads bring the answer back."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor
from tqdm.auto import tqdm

from ..cache.attachment import attached
from ..cache.attended import attended_by
from ..errors import InvalidInputError
from ..methods import resolve
from ..methods.base import Method
from ..metrics.byte_budgets import Budget
from ..models.wrapping import language_model
from ..trace import diagnosis
from ..trace.diagnosis import Diagnosis
from ..trace.edit_parts import Named
from ..trace.edits import pin
from ..trace.score import Score
from ..trace.tables import to_table
from ..trace.text_positions import token_positions
from .arguments import explained
from .evidence import find_evidence, given_evidence
from .generating import decode, placed_edit
from .lost_tokens import LossObserver
from .proof import BY_STAGE, Proof
from .teacher_forcing import ForcedAnswer

if TYPE_CHECKING:
    import pandas as pd
    from transformers import PreTrainedModel

    from ..models import LanguageModel
    from ..trace.edits import Edit


@torch.no_grad()
def diagnose(
    lm: LanguageModel | PreTrainedModel,
    prompt: str | Tensor,
    answer: str,
    method: str | Method = "clusterkv",
    budget: Budget | None = None,
    question: str | None = None,
    evidence: Named | None = None,
    *,
    max_passes: int = 96,
    controls: int = 3,
    **values: Any,
) -> Diagnosis:
    """Where the method lost each token that the answer needs, and which heads bring the answer back.

    `answer` is what full attention writes after the prompt, and after the question if there is one; a space before it
    is added if the model writes it so. `evidence` are the prompt's tokens that it needs, as for `kvviz.pin`; without
    it they are found in at most `max_passes` forward passes (those that cost full attention log-probability when they
    are dropped). `controls` is the number of random sets of heads that are tried for comparison, with the seeds 0, 1
    and so on. `values` are fields of the method, or `preset`. The prompt is prefilled once.

    Restoring a head lets it attend to the tokens with the largest exact weights, as many as before; all steps are then
    computed in one pass in which other heads keep their choices. The smallest set of heads is checked by a real decode.

    Of a method that does not tell how it ranked its tokens (`Method.ranking`), only what it attended to is known: what
    it missed then counts as "badly scored".

    Raises InvalidInputError if full attention does not give the answer either, since then there is nothing to explain,
    for evidence that does not occur in the prompt, or occurs twice, and the errors of `generate`.
    """
    lm = language_model("diagnose", lm)
    with explained(diagnose, values):
        chosen = resolve(method, **(values if budget is None else {**values, "budget": budget}))
    if controls < 0:
        raise InvalidInputError("diagnose: controls", controls, "an int >= 0")
    forced = ForcedAnswer(lm, prompt, answer, question, retain_queries=chosen.needs_queries, details=True)
    texts = lm.tokens(forced.ids)
    places = None if evidence is None else token_positions("diagnose: evidence", evidence, texts)
    forced, full = _answered(forced, answer)
    forced.progress = tqdm(desc=f"diagnose {chosen.name}", unit="pass", leave=False, disable=None)
    with forced.progress:
        return _diagnosed(forced, chosen, full, texts, places, max_passes, controls)


def _diagnosed(
    forced: ForcedAnswer,
    chosen: Method,
    full: Score,
    texts: list[str],
    places: tuple[int, ...] | None,
    max_passes: int,
    controls: int,
) -> Diagnosis:
    """The Diagnosis of an answer that full attention gives; `places` are the evidence, if it is known."""
    lm = forced.lm
    _expect(forced, chosen, max_passes if places is None else len(places), controls)
    needed = find_evidence(forced, max_passes=max_passes) if places is None else given_evidence(forced, places)
    _expect(forced, chosen, len(needed), controls)
    observer = LossObserver(needed["position"].tolist())
    score = forced.score(chosen, observer=observer)
    if not observer.selections:
        wanted = "a method that chooses in some layer: lower dense_layers, or use another method"
        raise InvalidInputError("diagnose: method", f"{chosen.name}, which attends to all tokens", wanted)
    proof = Proof(forced, chosen, score, attended_by(observer.selections, forced.exact_cache()[0]), observer.choices)
    needed["pinned"] = proof.pinned(needed["position"].tolist())
    restored = proof.restored()
    smallest, smallest_score = proof.smallest()
    control = proof.control(len(smallest or ()), controls)
    return Diagnosis(
        method_name=chosen.name, title=chosen.title, config=chosen.config,
        budget=observer.budget_tokens, stages=chosen.stages, group_name=chosen.group_name,
        style=chosen.style.completed(chosen.name, chosen.kind), model=lm.name, geometry=lm.geometry,
        tokens=[*texts, *lm.tokens(forced.fed)], token_ids=np.array([*forced.ids[0].tolist(), *forced.fed], np.int64),
        prompt_length=len(texts), question_length=len(forced.question_ids),
        full=full, method=score, evidence=needed, losses=to_table(diagnosis.LOSSES, observer.rows),
        restored=restored, waterfall=proof.waterfall(full), smallest=smallest, smallest_score=smallest_score,
        control=control,
        texts=_texts(forced, chosen, needed), passes=forced.passes,
    )  # fmt: skip


def _expect(forced: ForcedAnswer, method: Method, now: int, controls: int) -> None:
    """Tell the display about how many passes will have been made at the end: `now`, and the proof's after them."""
    if forced.progress is None:
        return
    heads = forced.lm.geometry.n_kv_heads * sum(not method.is_dense(i) for i in forced.lm.geometry.full_layers)
    stages, steps = len(method.stages), len(forced.fed) - 1
    restored = heads + stages * (1 + min(heads, BY_STAGE)) + heads.bit_length()
    written_steps = 2 * (len(forced.question_ids) + max(len(forced.answer_ids), 8))
    forced.progress.total = forced.progress.n + now + restored + (2 + controls) * steps + written_steps
    forced.progress.refresh()


def _answered(forced: ForcedAnswer, answer: str) -> tuple[ForcedAnswer, Score]:
    """The forced answer that full attention gives, and its Score. Raises InvalidInputError if it gives another one."""
    found = given_answer(forced, answer)
    if found is None:
        raise InvalidInputError(
            "diagnose: answer",
            f"{answer!r}, but full attention writes {written(forced, resolve('full'))!r}: there is nothing to explain",
            "the answer that full attention gives, from its first token on",
        )
    return found


def given_answer(forced: ForcedAnswer, answer: str) -> tuple[ForcedAnswer, Score] | None:
    """The forced answer as full attention gives it, with or without a space before it, and its Score; None if not."""
    for text in (answer, f" {answer}"):
        attempt = forced.with_answer(text)
        score = attempt.frozen_score()
        forced.passes = attempt.passes
        if score.answered:
            return attempt, score
    return None


def _texts(forced: ForcedAnswer, method: Method, needed: pd.DataFrame) -> dict[str, str]:
    """What greedy decoding writes with the method, and with all evidence pinned on top of its budget."""
    texts = {"method": written(forced, method)}
    if len(needed):
        texts["pinned"] = written(forced, method, pin(needed["position"], budget="extra"))
    return texts


def written(forced: ForcedAnswer, method: Method, edit: Edit | None = None) -> str:
    """What greedy decoding writes, in as many tokens as the answer has, at least 8."""
    with attached(forced.lm.model):
        cache, logits, _ = forced.shared.cache(method, placed_edit(forced.lm, forced.ids, edit))
        count, first = max(len(forced.answer_ids), 8), int(logits.argmax())
        out = decode(forced.lm, cache, forced.ids, first, forced.question_ids, count, 0.0, False)
    forced.count(len(forced.question_ids) + len(out.token_ids) - 1)
    return out.text
