"""compare(): several methods and budgets side by side on one prompt."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from tqdm.auto import tqdm

from .generation import Generation, decode, encoded, prefill, wait_for_states
from .hf import SelectiveCache, attached
from .methods import resolve
from .methods.base import Method
from .trace import Recording

if TYPE_CHECKING:
    import pandas as pd

    from .models import LanguageModel


@torch.no_grad()
def compare(
    lm: LanguageModel,
    prompt: str | Tensor,
    methods: Sequence[str | Method],
    budgets: Sequence[int | float],
    question: str | None = None,
    answer: str | None = None,
    max_new_tokens: int = 64,
    recordings: dict[tuple[str, int], Recording] | None = None,
) -> pd.DataFrame:
    """One row for each method and budget on the same prompt, which is prefilled once.

    Columns: method, budget (tokens), recall, attention_mass and output_error (means over steps, layers that select and
    heads), token_agreement (share of positions at which the written token is full attention's), correct (whether
    `answer` occurs in the text, ignoring case; None without one), attended_tokens, metadata_bytes, moved_bytes,
    build_s, ttft_s, tpot_s, text. `full` ignores the budget and has one row. A dict given as `recordings` receives the
    recording of each cell under (method, budget in tokens).
    """
    import pandas as pd

    ids, question_ids = encoded(lm, prompt, question, max_new_tokens)
    cells = _cells(methods, budgets)
    reference: list[int] | None = None
    rows = []
    with attached(lm.model):
        base = SelectiveCache(lm.model, "full", details=True, retain_queries=any(cell.needs_queries for cell in cells))
        started = time.perf_counter()
        first = prefill(lm, base, ids)
        prefill_s = time.perf_counter() - started
        if "full" not in {cell.name for cell in cells}:
            plain = decode(lm, base.fork("full"), ids, first, question_ids, max_new_tokens, prefill_s, False)
            reference = plain.token_ids
        for cell in tqdm(
            sorted(cells, key=lambda cell: cell.name != "full"), desc="compare", leave=False, disable=None
        ):
            started = time.perf_counter()
            cache = base.fork(cell)
            wait_for_states(cache)
            build_s = time.perf_counter() - started
            out = decode(lm, cache, ids, first, question_ids, max_new_tokens, prefill_s + build_s, True)
            reference = reference or out.token_ids
            assert out.recording is not None
            if recordings is not None:
                recordings[cell.name, out.recording.budget] = out.recording
            rows.append(_row(out, reference, answer))
    order = {cell.name: position for position, cell in reversed(list(enumerate(cells)))}
    return pd.DataFrame(sorted(rows, key=lambda row: (order[row["method"]], row["budget"])))


def _cells(methods: Sequence[str | Method], budgets: Sequence[int | float]) -> list[Method]:
    """Every method at every budget; an instance keeps its own, and `full` has none."""
    cells: list[Method] = []
    for method in methods:
        if isinstance(method, str) and method != "full":
            cells += [resolve(method, budget=budget) for budget in budgets]
        else:
            cells.append(resolve(method))
    return cells


def _row(out: Generation, reference: list[int], answer: str | None) -> dict[str, Any]:
    assert out.recording is not None
    recording, timings = out.recording, out.timings
    measured = recording.summary()
    if not recording.layers:  # every layer attended everything
        measured |= {
            "recall": 1.0,
            "attention_mass": 1.0,
            "output_error": 0.0,
            "attended_tokens": out.ledger.attended,
            "moved_bytes": 0.0,
        }
    same = sum(mine == theirs for mine, theirs in zip(out.token_ids, reference, strict=False))
    return {
        "method": recording.method,
        "budget": recording.budget,
        "recall": measured["recall"],
        "attention_mass": measured["attention_mass"],
        "output_error": measured["output_error"],
        "token_agreement": same / max(len(out.token_ids), len(reference)),
        "correct": None if answer is None else answer.casefold() in out.text.casefold(),
        "attended_tokens": measured["attended_tokens"],
        "metadata_bytes": out.ledger.metadata_bytes,
        "moved_bytes": int(measured["moved_bytes"]),
        "build_s": timings.build_s,
        "ttft_s": timings.ttft_s,
        "tpot_s": timings.tpot_s,
        "text": out.text,
    }
