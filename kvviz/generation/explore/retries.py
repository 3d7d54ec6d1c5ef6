"""A diagnosed answer decoded again with other edits."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch

from ... import methods
from ...errors import InvalidInputError
from ...trace.diagnosis import Diagnosis
from ...trace.edits import Edit, drop, exact, pin
from ..diagnosing import written
from ..teacher_forcing import ForcedAnswer

if TYPE_CHECKING:
    from ...models import LanguageModel

TOLERANCE = 0.5  # nats, for another dtype or device


def retry(lm: LanguageModel, diagnosis: Diagnosis) -> Callable[[Sequence[Mapping[str, Any]]], dict[str, Any]]:
    """A function that decodes the diagnosed answer with some changes, as MissInspector names them.

    It returns the answer's `logprob`, whether it is `answered`, and the `text` that greedy decoding writes. The prompt
    is prefilled at the first call. Raises InvalidInputError for another model than the diagnosed one: at once by its
    geometry, and the first call by the log-probability that full attention gives the answer.
    """
    if lm.geometry != diagnosis.geometry:
        wanted = f"the diagnosed one, {diagnosis.model}: {diagnosis.geometry}"
        raise InvalidInputError("MissInspector: lm", f"{lm.name}: {lm.geometry}", wanted)
    method = methods.create(diagnosis.method_name, **diagnosis.config)
    prefilled: list[ForcedAnswer] = []

    def decoded(changes: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        if not prefilled:
            prefilled.append(_forced(lm, diagnosis))
        (forced,) = prefilled
        edit = edit_of(changes)
        score = forced.score(method, edit)
        return {"logprob": score.total, "answered": score.answered, "text": written(forced, method, edit)}

    return decoded


def edit_of(changes: Sequence[Mapping[str, Any]]) -> Edit:
    """The edit of changes as MissInspector names them; pinned tokens come on top of the budget."""
    edit = Edit()
    for change in changes:
        if change["kind"] == "restore":
            edit |= exact(layers=[change["layer"]], heads=[change["head"]])
        else:
            place = change["position"]
            edit |= pin(place, budget="extra") if change["kind"] == "pin" else drop(place)
    return edit


def _forced(lm: LanguageModel, diagnosis: Diagnosis) -> ForcedAnswer:
    ids, asked = diagnosis.token_ids.tolist(), diagnosis.prompt_length + diagnosis.question_length
    prompt = torch.tensor([ids[: diagnosis.prompt_length]], device=lm.device)
    forced = ForcedAnswer(lm, prompt, diagnosis.answer, details=True)
    forced.question_ids, forced.answer_ids = ids[diagnosis.prompt_length : asked], ids[asked:]
    full = forced.frozen_score().total
    if abs(full - diagnosis.full.total) > TOLERANCE:
        got = f"{lm.name}, whose full attention gives the answer log-probability {full:.2f}"
        raise InvalidInputError("MissInspector: lm", got, f"{diagnosis.full.total:.2f}, as {diagnosis.model} does")
    return forced
