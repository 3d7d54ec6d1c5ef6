"""Running one sample: it is prefilled once, then answered by every method and budget."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from ..cache.attachment import attached
from ..cache.selective_cache import SelectiveCache
from ..errors import InvalidInputError
from ..generation.generating import decode, placed_edit
from ..generation.method_cells import Cell
from ..generation.prefill import SharedPrefill
from ..generation.teacher_forcing import forced_logprobs, logprob
from ..generation.writing import stop_tokens
from ..models.encoding import fed_ids, prompt_ids
from ..tasks.base import Sample, Task, Turn
from ..tasks.prompts import Prompt, render
from ..trace import Ledger
from .grid import Example

if TYPE_CHECKING:
    from ..models import LanguageModel

Row = dict[str, Any]
TIMES = ("ttft_s", "tt2t_s", "tpot_s")  # as in Generation.timings; of one run, with other processes beside it


@torch.no_grad()
def run_example(
    lm: LanguageModel,
    example: Example,
    cells: Iterable[Cell],
    provenance: Mapping[str, Any],
    save: Callable[[str, list[Row]], None],
) -> int:
    """Run the cells on one sample, which is prefilled once for all; call `save(key, rows)` after each cell.

    Returns the number of prefills. There is one row per turn, and one without a score if the method refuses the budget.
    Raises InvalidInputError for a sample without tokens or one that exceeds the model's positions, a score outside 0 to
    1, or nats per token that are not finite. Errors in a cell carry a note with its method and budget.
    """
    task, all_cells = example.task, list(cells)
    sample = task.sample(lm, example.length, example.index, example.seed)
    likelihood = task.measures == "likelihood"
    prompt = render(lm, sample, task.placement, plain=likelihood)
    ids = lm.encode(prompt.text)
    if likelihood:
        ids = ids[:, :-1]  # the last token is fed, so that every prediction uses the compressed cache
    fed, new = sum(len(fed_ids(lm, words)) for words in prompt.turns), sum(turn.max_new_tokens for turn in sample.turns)
    ids = prompt_ids("evaluate", lm, ids, question_tokens=fed, new_tokens=new)
    retain = any(cell.method is not None and cell.method.needs_queries for cell in all_cells)
    shared = SharedPrefill(lm, ids, retain_queries=retain)
    with attached(lm.model):
        for cell in all_cells:
            about = {**_about(example, cell), **provenance, "prompt_tokens": ids.shape[1]}
            reason = _refused(cell, ids.shape[1])
            if reason:
                save(example.key(cell), [{**about, **_row(0, sample.turns[0], sample), "refused": reason}])
                continue
            assert cell.method is not None
            measure = _likelihood if likelihood else _answers
            try:
                rows = measure(lm, shared, cell, task, sample, prompt)
            except Exception as error:
                error.add_note(f"By {cell.label} at budget {cell.budget}.")
                raise
            tokens = cell.method.budget_tokens(ids.shape[1])
            save(example.key(cell), [{**about, **row, "budget_tokens": tokens} for row in rows])
    return shared.count


def _answers(
    lm: LanguageModel, shared: SharedPrefill, cell: Cell, task: Task, sample: Sample, prompt: Prompt
) -> list[Row]:
    cache, logits, ready_s = _cache(lm, shared, cell)
    first = int(logits.argmax())
    rows: list[Row] = []
    pending: list[int] = []  # the last generated token, if it has not been fed
    for number, (turn, words) in enumerate(zip(sample.turns, prompt.turns, strict=True)):
        question_ids = [*pending, *fed_ids(lm, words)]
        before_s = 0.0 if number else ready_s  # prefill and build belong to the first turn
        out = decode(lm, cache, shared.ids, first, question_ids, turn.max_new_tokens, before_s, False)
        ended = out.token_ids[-1] in stop_tokens(lm)
        pending = [] if ended else out.token_ids[-1:]
        score = float(task.score(turn, out.text))
        if not 0 <= score <= 1:
            raise InvalidInputError(f"score of task {task.name}", score, "a number from 0 to 1")
        times = {name: getattr(out.timings, name) for name in TIMES}
        rows.append({**_row(number, turn, sample), **_kept(out.ledger), **times, "score": score, "text": out.text})
    if cell.logprob:
        rows[0]["logprob"] = _answer_logprob(lm, shared, cell, fed_ids(lm, prompt.turns[0]), sample.turns[0])
    return rows


def _answer_logprob(lm: LanguageModel, shared: SharedPrefill, cell: Cell, question_ids: list[int], turn: Turn) -> float:
    """The log-probability of the turn's first answer, after a space unless the question ends with one."""
    cache, logits, _ = _cache(lm, shared, cell)
    ends = str(lm.tokenizer.decode([*shared.ids[0].tolist(), *question_ids][-1:]))
    ids = fed_ids(lm, turn.answers[0] if ends.endswith((" ", "\n")) else f" {turn.answers[0]}")
    logprobs = [logprob(logits, [*question_ids, *ids][0]), *forced_logprobs(lm, cache, [*question_ids, *ids])]
    return sum(logprobs[len(question_ids) :])


def _likelihood(
    lm: LanguageModel, shared: SharedPrefill, cell: Cell, task: Task, sample: Sample, prompt: Prompt
) -> list[Row]:
    """One row with the mean negative log likelihood of the answer's tokens, each fed after it was predicted."""
    cache, _, _ = _cache(lm, shared, cell)
    (turn,) = sample.turns
    last = lm.encode(prompt.text)[:, -1:].tolist()[0]
    ids = [*last, *fed_ids(lm, turn.answers[0])][: turn.max_new_tokens + 1]
    score = -sum(forced_logprobs(lm, cache, ids)) / (len(ids) - 1)
    if not math.isfinite(score):
        raise InvalidInputError(f"score of task {task.name}", score, "a finite number of nats per token")
    return [{**_row(0, turn, sample), **_kept(cache.ledger()), "score": score, "text": ""}]


def _cache(lm: LanguageModel, shared: SharedPrefill, cell: Cell) -> tuple[SelectiveCache, Tensor, float]:
    assert cell.method is not None
    return shared.cache(cell.method, placed_edit(lm, shared.ids, cell.edit))


def _kept(ledger: Ledger) -> Row:
    return {
        "attended_tokens": ledger.attended, "metadata_bytes": ledger.metadata_bytes,
        "kept_bytes": sum(ledger.kept_bytes.values()), "peak_bytes": ledger.peak_bytes,
    }  # fmt: skip


def _about(example: Example, cell: Cell) -> Row:
    return {
        "task": example.task.name, "placement": example.task.placement, "metric": example.task.metric,
        "chance": float(example.task.chance),
        "higher_is_better": example.task.higher_is_better,
        "task_config": json.dumps(example.task.config, sort_keys=True), "length": example.length,
        "sample": example.index, "seed": example.seed,
        "method": cell.label, "method_name": cell.name, "preset": cell.preset,
        "method_config": json.dumps(dict(cell.config), sort_keys=True, default=str),
        "budget": math.nan if cell.budget is None else float(cell.budget),
    }  # fmt: skip


def _row(number: int, turn: Turn, sample: Sample) -> Row:
    return {
        "turn": number, "answers": json.dumps(turn.answers, ensure_ascii=False),
        "details": json.dumps(dict(sample.details), sort_keys=True), "refused": "", "budget_tokens": 0,
        "score": math.nan, "text": "", "attended_tokens": math.nan, "metadata_bytes": 0, "kept_bytes": 0,
        "peak_bytes": 0, **dict.fromkeys(TIMES, math.nan), "logprob": math.nan,
    }  # fmt: skip


def _refused(cell: Cell, prompt_length: int) -> str:
    """Why the method refuses this budget, or ""; a share of a short prompt may be too small for its sinks."""
    if cell.method is None:
        return cell.refused
    try:
        cell.method.budget_tokens(prompt_length)
    except InvalidInputError as error:
        return str(error)
    return ""
