"""generate(), compare() and replay(): a method at work on a model, several side by side, or one on a stored trace."""

from __future__ import annotations

import time
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from tqdm.auto import tqdm

from .errors import InvalidInputError
from .hf import SelectiveCache, attached
from .layer import LayerCache
from .ledger import Ledger
from .methods import resolve
from .methods.base import LayerContext, Method
from .recorder import Recorder
from .trace import Recording, Trace

if TYPE_CHECKING:
    import pandas as pd

    from .models import LanguageModel

PREFILL_CHUNK = 2048  # tokens a forward pass: bounds the mask and the activations of long prompts


@dataclass(frozen=True)
class Timings:
    """Seconds, recording left out. `ttft_s` until the first token (prefill, building, question), `tt2t_s` until the
    second, `tpot_s` a token after the first (NaN for one token), `build_s` of work that built the method's states,
    overlapped or not.
    """

    ttft_s: float
    tt2t_s: float
    tpot_s: float
    build_s: float


@dataclass(frozen=True)
class Generation:
    """What a prompt led to: text, token ids, timings, where tokens and bytes went, and what was recorded."""

    text: str
    token_ids: list[int]
    timings: Timings
    ledger: Ledger
    recording: Recording | None = field(default=None, repr=False)


@torch.no_grad()
def generate(
    lm: LanguageModel, prompt: str | Tensor, method: str | Method = "clusterkv", budget: int | float | None = None,
    question: str | None = None, max_new_tokens: int = 64, store: str = "device",
    record: bool | Collection[int] = False, **values: Any,
) -> Generation:  # fmt: skip
    """Greedy continuation of `prompt` with a method choosing what each step attends.

    With a `question`, the prompt is prefilled and indexed before the question is seen; the question is then fed as
    decode steps. `record` keeps every decode step as a Recording: True for all layers, or a collection of layers.
    `values` are fields of the method, or `preset`. Recording costs exact attention at every step; timings leave it out.

    Raises InvalidInputError for an empty prompt, one longer than the model's positions, or a field out of range, and
    UnknownNameError for an unknown method, preset or field. The model's attention implementation is put back whatever
    happens, Ctrl-C included.
    """
    chosen = _method(method, budget, values)
    ids, question_ids = _encoded(lm, prompt, question, max_new_tokens)
    cache = SelectiveCache(lm.model, chosen, store, details=bool(record))
    with attached(lm.model):
        started = time.perf_counter()
        first = _prefill(lm, cache, ids)
        _wait_for_states(cache)
        prefill_s = time.perf_counter() - started
        return _decode(lm, cache, ids, first, question_ids, max_new_tokens, prefill_s, record)


@torch.no_grad()
def compare(
    lm: LanguageModel, prompt: str | Tensor, methods: Sequence[str | Method], budgets: Sequence[int | float],
    question: str | None = None, answer: str | None = None, max_new_tokens: int = 64,
    recordings: dict[tuple[str, int], Recording] | None = None,
) -> pd.DataFrame:  # fmt: skip
    """One row for each method and budget on the same prompt, which is prefilled once.

    Columns: method, budget (tokens), recall, attention_mass and output_error (means over steps, layers that select and
    heads), token_agreement (share of positions at which the written token is full attention's), correct (whether
    `answer` occurs in the text, ignoring case; None without one), attended_tokens, metadata_bytes, moved_bytes,
    build_s, ttft_s, tpot_s, text. `full` ignores the budget and has one row. A dict given as `recordings` receives the
    recording of each cell under (method, budget in tokens).
    """
    import pandas as pd

    ids, question_ids = _encoded(lm, prompt, question, max_new_tokens)
    cells = _cells(methods, budgets)
    reference: list[int] | None = None
    rows = []
    with attached(lm.model):
        base = SelectiveCache(lm.model, "full", details=True, retain_queries=any(cell.needs_queries for cell in cells))
        started = time.perf_counter()
        first = _prefill(lm, base, ids)
        prefill_s = time.perf_counter() - started
        if "full" not in {cell.name for cell in cells}:
            plain = _decode(lm, base.fork("full"), ids, first, question_ids, max_new_tokens, prefill_s, False)
            reference = plain.token_ids
        for cell in tqdm(sorted(cells, key=lambda cell: cell.name != "full"), desc="compare", leave=False, disable=None):
            started = time.perf_counter()
            cache = base.fork(cell)
            _wait_for_states(cache)
            build_s = time.perf_counter() - started
            out = _decode(lm, cache, ids, first, question_ids, max_new_tokens, prefill_s + build_s, True)
            reference = reference or out.token_ids
            assert out.recording is not None
            if recordings is not None:
                recordings[cell.name, out.recording.budget] = out.recording
            rows.append(_row(out, reference, answer))
    order = {cell.name: position for position, cell in reversed(list(enumerate(cells)))}
    return pd.DataFrame(sorted(rows, key=lambda row: (order[row["method"]], row["budget"])))


@torch.no_grad()
def replay(trace: Trace, method: str | Method, queries: int = 64, **values: Any) -> Recording:
    """A recording without a model: the last `queries` positions of a trace play the decode steps.

    The tokens before them are the prompt; each step feeds the next token of the text. `values` as for `generate`.
    Raises InvalidInputError where `queries` leaves no prompt.
    """
    chosen = resolve(method, **values)
    length = len(trace)
    if not 1 <= queries < length:
        raise InvalidInputError("replay: queries", queries, f"1 to {length - 1} of the trace's {length} tokens")
    prompt, geometry = length - queries, trace.geometry
    recorder = Recorder()
    for index in trace.layers:
        if chosen.is_dense(index):
            continue
        context = LayerContext(index, geometry.n_layers, geometry.n_heads, geometry.n_kv_heads, geometry.head_dim,
                               geometry.head_dim**-0.5, details=True)  # fmt: skip
        layer = LayerCache(context, chosen)
        q, k, v = (torch.from_numpy(array[index].astype("float32"))[None] for array in (trace.queries, trace.keys, trace.values))
        layer.store.reserve(k, v, length)
        layer.store.append(k[:, :, :prompt], v[:, :, :prompt])
        layer.keep_queries(q[:, :, :prompt])
        layer.build()
        recorder.watch([layer])
        for step in range(prompt, length):
            layer.store.append(k[:, :, step : step + 1], v[:, :, step : step + 1])
            layer.decode(q[:, :, step])
    return recorder.recording(
        chosen, model=trace.model, geometry=geometry, tokens=trace.tokens, token_ids=trace.token_ids.tolist(),
        next_tokens=[*trace.tokens[prompt + 1 :], ""], prompt_length=prompt, question_length=queries,
    )  # fmt: skip


def _method(method: str | Method, budget: int | float | None, values: dict[str, Any]) -> Method:
    return resolve(method, **(values if budget is None else {**values, "budget": budget}))


def _cells(methods: Sequence[str | Method], budgets: Sequence[int | float]) -> list[Method]:
    """Every method at every budget; an instance keeps its own, and `full` has none."""
    cells: list[Method] = []
    for method in methods:
        if isinstance(method, str) and method != "full":
            cells += [resolve(method, budget=budget) for budget in budgets]
        else:
            cells.append(resolve(method))
    return cells


def _encoded(lm: LanguageModel, prompt: str | Tensor, question: str | None, max_new_tokens: int) -> tuple[Tensor, list[int]]:
    """Prompt ids [1, L] on the model's device and question ids, checked against the model's positions."""
    ids = lm.encode(prompt) if isinstance(prompt, str) else prompt
    if ids.dim() != 2 or ids.shape[0] != 1 or ids.shape[1] == 0:
        raise InvalidInputError("generate: prompt", f"token ids of shape {list(ids.shape)}", "one prompt with at least one token, [1, L]")
    if max_new_tokens < 1:
        raise InvalidInputError("generate: max_new_tokens", max_new_tokens, "an int >= 1")
    question_ids = lm.tokenizer(question, add_special_tokens=False).input_ids if question else []
    total, most = ids.shape[1] + len(question_ids) + max_new_tokens, lm.geometry.max_positions
    if total > most:
        got = f"{ids.shape[1]} prompt, {len(question_ids)} question and {max_new_tokens} new tokens = {total}"
        raise InvalidInputError("generate: length", got, f"at most the model's {most} positions")
    return ids.to(lm.device), question_ids


def _prefill(lm: LanguageModel, cache: SelectiveCache, ids: Tensor) -> int:
    """Fill the cache with the prompt, chunk by chunk; returns the most likely next token."""
    cache.expect(ids.shape[1])
    chunks = ids.split(PREFILL_CHUNK, dim=1)
    for chunk in tqdm(chunks, desc="prefill", leave=False, disable=None if len(chunks) > 1 else True):
        logits = lm.model(chunk, past_key_values=cache, use_cache=True, logits_to_keep=1).logits
    return int(logits[0, -1].argmax())


def _wait_for_states(cache: SelectiveCache) -> None:
    """Wait until every state is built, so that the time to build them is not counted to a decode step."""
    for layer in cache.selective_layers:
        _ = layer.states
    if cache.selective_layers and cache.selective_layers[0].store.keys.is_cuda:
        torch.cuda.synchronize()


def _decode(
    lm: LanguageModel, cache: SelectiveCache, ids: Tensor, first: int, question_ids: list[int], max_new_tokens: int,
    prefill_s: float, record: bool | Collection[int],
) -> Generation:  # fmt: skip
    """Feed the question, then write greedily until a stop token or `max_new_tokens`."""
    recorder = None
    if record is not False:
        recorder = Recorder(None if record is True else record)
        recorder.watch([layer for layer in cache.selective_layers if not layer.dense])
    stops = _stop_tokens(lm)
    fed, predicted = list(question_ids), []
    written: list[int] = [] if question_ids else [first]
    clock: list[float] = [prefill_s] if written else []
    started = time.perf_counter() - prefill_s
    progress = tqdm(total=len(fed) + max_new_tokens, desc=cache.method.name, leave=False, disable=None)
    step = 0
    while step < len(fed) or (len(written) < max_new_tokens and written[-1] not in stops):
        if step == len(fed):
            fed.append(written[-1])
        token = torch.tensor([[fed[step]]], device=ids.device)
        logits = lm.model(token, past_key_values=cache, use_cache=True, logits_to_keep=1).logits
        predicted.append(int(logits[0, -1].argmax()))
        step += 1
        if step >= len(question_ids):
            written.append(predicted[-1])
            clock.append(time.perf_counter() - started - (recorder.spent_s if recorder else 0.0))
        progress.update()
    progress.close()
    text = lm.tokenizer.decode(written, skip_special_tokens=True)
    recording = None
    if recorder is not None:
        recording = recorder.recording(
            cache.method, model=lm.name, geometry=lm.geometry, tokens=lm.tokens([*ids[0].tolist(), *fed]),
            token_ids=[*ids[0].tolist(), *fed], next_tokens=lm.tokens(predicted), prompt_length=ids.shape[1],
            question_length=len(question_ids), exact_layers=cache.exact_layers, answer=text,
        )  # fmt: skip
    return Generation(text, written, _timings(clock, cache), cache.ledger(), recording)


def _timings(clock: list[float], cache: SelectiveCache) -> Timings:
    nan = float("nan")
    tt2t = clock[1] if len(clock) > 1 else nan
    tpot = (clock[-1] - clock[0]) / (len(clock) - 1) if len(clock) > 1 else nan
    return Timings(clock[0], tt2t, tpot, sum(layer.build_s for layer in cache.selective_layers))


def _stop_tokens(lm: LanguageModel) -> set[int]:
    stops = lm.model.generation_config.eos_token_id
    return set() if stops is None else set(stops if isinstance(stops, list) else [stops])


def _row(out: Generation, reference: list[int], answer: str | None) -> dict[str, Any]:
    assert out.recording is not None
    recording, timings = out.recording, out.timings
    measured = recording.summary()
    if not recording.layers:  # every layer attended everything
        measured |= {"recall": 1.0, "attention_mass": 1.0, "output_error": 0.0, "attended_tokens": out.ledger.attended, "moved_bytes": 0.0}
    same = sum(mine == theirs for mine, theirs in zip(out.token_ids, reference, strict=False))
    return {
        "method": recording.method, "budget": recording.budget, "recall": measured["recall"],
        "attention_mass": measured["attention_mass"], "output_error": measured["output_error"],
        "token_agreement": same / max(len(out.token_ids), len(reference)),
        "correct": None if answer is None else answer.casefold() in out.text.casefold(),
        "attended_tokens": measured["attended_tokens"], "metadata_bytes": out.ledger.metadata_bytes,
        "moved_bytes": int(measured["moved_bytes"]), "build_s": timings.build_s, "ttft_s": timings.ttft_s,
        "tpot_s": timings.tpot_s, "text": out.text,
    }  # fmt: skip
