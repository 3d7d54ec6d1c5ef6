"""compare(): methods and budgets side by side on one prompt."""

from __future__ import annotations

import warnings
from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from tqdm.auto import tqdm

from ..cache.attachment import attached
from ..errors import InvalidInputError
from ..methods import resolve
from ..methods.base import Method
from ..models.wrapping import language_model
from ..trace import Recording
from ..trace.edits import Edit
from .generating import decode, encoded, placed_edit
from .method_cells import method_cells, method_styles
from .prefill import SharedPrefill
from .result import Generation

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from ..models import LanguageModel
    from .comparison import Comparison


@torch.no_grad()
def compare(
    lm: LanguageModel | PreTrainedModel,
    prompt: str | Tensor,
    methods: Sequence[str | Method] | Mapping[str, str | Method],
    budgets: Sequence[int | float],
    question: str | None = None,
    answer: str | None = None,
    max_new_tokens: int = 64,
    recordings: bool | dict[tuple[str, int], Recording] = True,
    prefill: str | Method | None = None,
    layers: Collection[int] | None = None,
    edit: Edit | None = None,
) -> Comparison:
    """A table with one row per method and budget on one prompt; methods with the same prefill share one prefill.

    `methods` are names, names with a preset ("pqcache:official") or instances; an instance keeps its fields and runs at
    each budget. If `budgets` is empty, each method runs at its default budget. A mapping gives labels, for several
    configurations of one method. `full` and `minference` ignore the budget and have one row; `full` always has the
    exact prefill, since token_agreement compares with it. `prefill` as for `generate`. `layers` are the layers to
    record and measure, by default all that select. `edit`, as for `generate`, changes all rows, `full` included.

    Columns: method (the label), budget (tokens), recall, attention_mass and output_error (means over steps, layers that
    select and heads; in the first two, merged tokens count by `metrics.merged_share`), token_agreement (share of
    positions at which the written token equals full attention's), correct (whether the text contains `answer`, ignoring
    case; None without an answer), attended_tokens, metadata_bytes, moved_bytes, build_s, ttft_s, tpot_s, text.

    The table is a pandas DataFrame; its `recordings` holds the recording of each row by (label, budget in tokens).
    Recordings take memory: about 30 MB per row for 32 steps after 2,000 tokens of SmolLM2-135M, mostly for exact
    attention. `recordings=False` keeps none, `layers` only those of some layers. A dict passed as `recordings` receives
    them; this is deprecated.

    Raises InvalidInputError for two configurations under one label, and the errors of `generate`.
    """
    from .comparison import Comparison

    lm = language_model("compare", lm)
    ids, question_ids = encoded("compare", lm, prompt, question, max_new_tokens)
    placed = placed_edit(lm, ids, edit)
    cells = _cells(methods, budgets, ids.shape[1])
    kept: dict[tuple[str, int], Recording] = {}
    if isinstance(recordings, dict):
        message = "compare(recordings={...}) is deprecated: take them from the table, compare(...).recordings"
        warnings.warn(message, DeprecationWarning, stacklevel=3)  # torch.no_grad() wraps this function
        kept = recordings
    keep = recordings is not False
    rows: dict[tuple[str, int], dict[str, Any]] = {}
    retain_queries = any(method.needs_queries for method in cells.values())
    shared = SharedPrefill(lm, ids, retain_queries=retain_queries, prefill=prefill, details=True)

    with attached(lm.model):

        def run(method: Method) -> Generation:
            cache, logits, ready_s = shared.cache(method, placed)
            selects = any(not layer.dense for layer in cache.selective_layers)  # `full` has no layer to record
            record = layers if layers is not None and selects else True
            return decode(lm, cache, ids, int(logits.argmax()), question_ids, max_new_tokens, ready_s, record)

        full = run(resolve("full"))
        for (label, budget), method in tqdm(cells.items(), desc="compare", leave=False, disable=None):
            out = full if method == resolve("full") else run(method)
            assert out.recording is not None
            if keep:
                kept[label, budget] = out.recording
            rows[label, budget] = {"method": label, "budget": budget} | _measured(out, full.token_ids, answer)
    table = Comparison(list(rows.values()))
    styles = method_styles(cells.values())
    table.attrs = {"model": lm.name, "prompt_length": ids.shape[1], "styles": styles}  # what the figures need
    table._recordings = kept if keep else None
    return table


def _cells(
    methods: Sequence[str | Method] | Mapping[str, str | Method], budgets: Sequence[int | float], prompt_length: int
) -> dict[tuple[str, int], Method]:
    """All methods at all budgets, by label and budget in tokens."""
    cells: dict[tuple[str, int], Method] = {}
    for cell in method_cells("compare", methods, budgets):
        assert cell.method is not None  # a refusal raised an error
        key = (cell.label, cell.method.budget_tokens(prompt_length))
        if key in cells:
            got = f"two that are {key[1]} tokens of this prompt"
            raise InvalidInputError("compare: budgets", got, "budgets that differ")
        cells[key] = cell.method
    return cells


def _measured(out: Generation, reference: list[int], answer: str | None) -> dict[str, Any]:
    assert out.recording is not None
    recording, timings = out.recording, out.timings
    measured = recording.summary()
    if not recording.layers:  # all layers attended to all tokens
        attended = recording.prompt_length + (recording.steps + 1) / 2  # the mean over steps
        exact = {"recall": 1.0, "attention_mass": 1.0, "output_error": 0.0}
        measured |= exact | {"attended_tokens": attended, "moved_bytes": 0.0}
    equal = sum(token == expected for token, expected in zip(out.token_ids, reference, strict=False))
    return {
        **{name: measured[name] for name in ("recall", "attention_mass", "output_error")},
        "token_agreement": equal / max(len(out.token_ids), len(reference)),
        "correct": None if answer is None else answer.casefold() in out.text.casefold(),
        "attended_tokens": measured["attended_tokens"],
        "metadata_bytes": out.ledger.metadata_bytes,
        "moved_bytes": int(measured["moved_bytes"]),
        "build_s": timings.build_s,
        "ttft_s": timings.ttft_s,
        "tpot_s": timings.tpot_s,
        "text": out.text,
    }
