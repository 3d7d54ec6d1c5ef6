"""generate(): a method at work on a model."""

from __future__ import annotations

import time
from collections.abc import Collection
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from tqdm.auto import tqdm

from .errors import InvalidInputError
from .hf import SelectiveCache, attached
from .ledger import Ledger
from .methods import resolve
from .methods.base import Method
from .offload.kvstore import KVStore
from .recorder import Recorder
from .trace import Recording

if TYPE_CHECKING:
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
    lm: LanguageModel,
    prompt: str | Tensor,
    method: str | Method = "clusterkv",
    budget: int | float | None = None,
    question: str | None = None,
    max_new_tokens: int = 64,
    store: str | KVStore = "device",
    record: bool | Collection[int] = False,
    prefill: str | Method | None = None,
    **values: Any,
) -> Generation:
    """Greedy continuation of `prompt` with a method choosing what each step attends.

    With a `question`, the prompt is prefilled and indexed before the question is seen; the question is then fed as
    decode steps. `record` keeps every decode step as a Recording: True for all layers, or a collection of layers.
    `prefill` names a method whose sparse attention the prompt uses ("minference"); it combines with every method.
    `values` are fields of the method, or `preset`. Recording costs exact attention at every step; timings leave it out.

    Raises InvalidInputError for an empty prompt, one longer than the model's positions, or a field out of range, and
    UnknownNameError for an unknown method, preset or field. The model's attention implementation is put back whatever
    happens, Ctrl-C included.
    """
    chosen = _method(method, budget, values)
    ids, question_ids = encoded(lm, prompt, question, max_new_tokens)
    cache = SelectiveCache(lm.model, chosen, store, prefill=prefill, details=bool(record))
    with attached(lm.model):
        started = time.perf_counter()
        first = fill(lm, cache, ids)
        wait_for_states(cache)
        prefill_s = time.perf_counter() - started
        return decode(lm, cache, ids, first, question_ids, max_new_tokens, prefill_s, record)


def _method(method: str | Method, budget: int | float | None, values: dict[str, Any]) -> Method:
    return resolve(method, **(values if budget is None else {**values, "budget": budget}))


def encoded(
    lm: LanguageModel, prompt: str | Tensor, question: str | None, max_new_tokens: int
) -> tuple[Tensor, list[int]]:
    """Prompt ids [1, L] on the model's device and question ids, checked against the model's positions."""
    ids = lm.encode(prompt) if isinstance(prompt, str) else prompt
    if ids.dim() != 2 or ids.shape[0] != 1 or ids.shape[1] == 0:
        raise InvalidInputError(
            "generate: prompt", f"token ids of shape {list(ids.shape)}", "one prompt with at least one token, [1, L]"
        )
    if max_new_tokens < 1:
        raise InvalidInputError("generate: max_new_tokens", max_new_tokens, "an int >= 1")
    question_ids = lm.tokenizer(question, add_special_tokens=False).input_ids if question else []
    total, most = ids.shape[1] + len(question_ids) + max_new_tokens, lm.geometry.max_positions
    if total > most:
        got = f"{ids.shape[1]} prompt, {len(question_ids)} question and {max_new_tokens} new tokens = {total}"
        raise InvalidInputError("generate: length", got, f"at most the model's {most} positions")
    return ids.to(lm.device), question_ids


def fill(lm: LanguageModel, cache: SelectiveCache, ids: Tensor) -> int:
    """Fill the cache with the prompt, chunk by chunk; returns the most likely next token."""
    cache.expect(ids.shape[1])
    chunks = ids.split(PREFILL_CHUNK, dim=1)
    for chunk in tqdm(chunks, desc="prefill", leave=False, disable=None if len(chunks) > 1 else True):
        logits = lm.model(chunk, past_key_values=cache, use_cache=True, logits_to_keep=1).logits
    return int(logits[0, -1].argmax())


def wait_for_states(cache: SelectiveCache) -> None:
    """Wait for what runs beside the prefill, so that its time is not counted to a decode step."""
    cache.wait()
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def decode(
    lm: LanguageModel,
    cache: SelectiveCache,
    ids: Tensor,
    first: int,
    question_ids: list[int],
    max_new_tokens: int,
    prefill_s: float,
    record: bool | Collection[int],
) -> Generation:
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
    text = str(lm.tokenizer.decode(written, skip_special_tokens=True))
    recording = None
    if recorder is not None:
        recording = recorder.recording(
            cache.method,
            model=lm.name,
            geometry=lm.geometry,
            tokens=lm.tokens([*ids[0].tolist(), *fed]),
            token_ids=[*ids[0].tolist(), *fed],
            next_tokens=lm.tokens(predicted),
            prompt_length=ids.shape[1],
            question_length=len(question_ids),
            exact_layers=cache.exact_layers,
            answer=text,
        )
    return Generation(text, written, _timings(clock, cache), cache.ledger(), recording)


def _timings(clock: list[float], cache: SelectiveCache) -> Timings:
    nan = float("nan")
    tt2t = clock[1] if len(clock) > 1 else nan
    tpot = (clock[-1] - clock[0]) / (len(clock) - 1) if len(clock) > 1 else nan
    return Timings(clock[0], tt2t, tpot, sum(layer.build_s for layer in cache.selective_layers))


def _stop_tokens(lm: LanguageModel) -> set[int]:
    stops = lm.model.generation_config.eos_token_id
    return set() if stops is None else set(stops if isinstance(stops, list) else [stops])
