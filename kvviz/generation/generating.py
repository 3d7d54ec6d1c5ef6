"""generate(): greedy generation with a method."""

from __future__ import annotations

import time
import traceback
from collections.abc import Collection
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from tqdm.auto import tqdm

from ..cache.accounting import ledger_of
from ..cache.attachment import attached
from ..cache.recorder import Recorder
from ..cache.selective_cache import SelectiveCache
from ..errors import DamagedOffloadError, InvalidInputError, OutOfSpaceError
from ..methods import resolve
from ..methods.base import Method
from ..models.encoding import fed_ids, prompt_ids
from ..offload.kvstore import KVStore, resolve_store
from ..trace import Ledger, Recording
from ..trace.cards import card, layers_text
from ..trace.edits import Edit
from ..trace.timeline import Timeline

if TYPE_CHECKING:
    from ..models import LanguageModel

PREFILL_CHUNK = 2048  # tokens per forward pass: limits the mask and the activations of long prompts


@dataclass(frozen=True)
class Timings:
    """Seconds, without recording: `ttft_s` to the first token (prefill, building, question), `tt2t_s` to the second,
    `tpot_s` per token after the first (NaN for one token), `build_s` to build the method's states, overlapped or not.
    """

    ttft_s: float
    tt2t_s: float
    tpot_s: float
    build_s: float


@dataclass(frozen=True)
class Generation:
    """The result of a generation: text, token ids, timings, ledger, recording and timeline.

    `ledger` says where tokens and bytes are, `recording` what each step attended to, and `timeline` when compute,
    clustering and transfers ran. The last two are None unless requested.
    """

    text: str
    token_ids: list[int]
    timings: Timings
    ledger: Ledger
    recording: Recording | None = field(default=None, repr=False)
    timeline: Timeline | None = field(default=None, repr=False)

    def _repr_html_(self) -> str:
        recording, times = self.recording, self.timings
        recorded: dict[str, str] = {}
        if recording is not None:
            recorded = {
                "method": f"{recording.title}, {recording.budget_text}", "model": recording.model,
                "prompt": f"{recording.prompt_length:,} tokens",
                "layers": layers_text(recording.layers, recording.geometry.n_layers),
            }  # fmt: skip
        look = ("kvviz.widgets.DecodeStepper(out.recording)", "what each step attended to")
        again = ("kvviz.generate(…, record=True)", "keep what each step attends to")
        return card("Generation", "the result of a generation", {
            "text": self.text, **recorded, "length": f"{len(self.token_ids):,} new tokens",
            "times": f"{times.ttft_s:.2f} s to the first token, {times.tpot_s:.3f} s per token after it",
            "attended per KV head": f"{self.ledger.attended:,.0f} tokens at the last step",
        }, [look if recording is not None else again, ("out.ledger", "where tokens and bytes are")])  # fmt: skip


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
    timeline: bool = False,
    edit: Edit | None = None,
    **values: Any,
) -> Generation:
    """Greedy continuation of `prompt`, whose decode steps attend to a method's selection.

    With a `question`, the prompt is prefilled and indexed before the question is seen; the question is then fed as
    decode steps. `record` keeps every decode step as a Recording: True for all layers, or a collection of layers.
    `prefill` names a method whose sparse attention the prompt uses ("minference"); it combines with every method.
    `timeline` records when compute, clustering and transfers ran. `edit` changes what decode steps attend to: see
    `kvviz.pin`, `drop`, `exact` and `only`.
    `values` are fields of the method, or `preset`. Recording needs exact attention at every step; timings exclude it.

    Raises InvalidInputError for an empty prompt, one longer than the model's positions, one that is not a single row of
    the model's token ids, or a field out of range, and UnknownNameError for an unknown method, preset or field. If a
    tier runs out of space, or its keys and values are damaged, raises OutOfSpaceError or DamagedOffloadError, with the
    Generation so far as `error.generation`. It is None during the prefill; a tier too small for the prompt and
    `max_new_tokens` fails there already. The model's attention implementation is always restored, also after Ctrl-C.
    """
    chosen = resolve(method, **(values if budget is None else {**values, "budget": budget}))
    ids, question_ids = encoded("generate", lm, prompt, question, max_new_tokens)
    events = Timeline(_description(lm, chosen, ids.shape[1], store)) if timeline else None
    placed = placed_edit(lm, ids, edit)
    if placed is not None and placed.grouped:
        placed = placed.with_groups(_indexed(lm, chosen, prefill, ids).group_tokens)
    cache = SelectiveCache(
        lm.model, chosen, store, prefill=prefill, details=bool(record), timeline=events, edit=placed
    )  # fmt: skip
    try:
        with attached(lm.model):
            started = time.perf_counter()
            first = int(fill(lm, cache, ids, len(question_ids) + max_new_tokens).argmax())
            wait_for_states(cache)
            prefill_s = time.perf_counter() - started
            return decode(lm, cache, ids, first, question_ids, max_new_tokens, prefill_s, record)
    except (OutOfSpaceError, DamagedOffloadError) as error:
        del cache  # Jupyter keeps the last traceback, and with it the cache and its part of the full tier
        traceback.clear_frames(error.__traceback__)
        raise


def _indexed(lm: LanguageModel, method: Method, prefill: str | Method | None, ids: Tensor) -> SelectiveCache:
    """A cache of the prompt [1, L] that is indexed for the method."""
    cache = SelectiveCache(lm.model, method, prefill=prefill)
    with attached(lm.model):
        fill(lm, cache, ids)
        wait_for_states(cache)
    return cache


def _description(lm: LanguageModel, method: Method, prompt_length: int, store: str | KVStore) -> str:
    """A description of the run, for titles."""
    budget, tier = lm.geometry.budget_text(method.budget_tokens(prompt_length)), resolve_store(store).tier
    return f"{method.name} · {budget} · {lm.name} · {prompt_length:,} tokens · store {tier}"


def encoded(
    operation: str, lm: LanguageModel, prompt: str | Tensor, question: str | None, max_new_tokens: int
) -> tuple[Tensor, list[int]]:
    """Prompt ids [1, L] on the model's device, and question ids. Raises the errors of `prompt_ids`."""
    if max_new_tokens < 1:
        raise InvalidInputError(f"{operation}: max_new_tokens", max_new_tokens, "an int >= 1")
    question_ids = fed_ids(lm, question or "")
    ids = prompt_ids(operation, lm, prompt, question_tokens=len(question_ids), new_tokens=max_new_tokens)
    return ids, question_ids


def placed_edit(lm: LanguageModel, ids: Tensor, edit: Edit | None) -> Edit | None:
    """The edit with its tokens as positions in the prompt [1, L]. Raises the errors of `Edit.on`."""
    return None if edit is None else edit.on(lm.tokens(ids), lm.geometry)


def fill(lm: LanguageModel, cache: SelectiveCache, ids: Tensor, new_tokens: int = 0) -> Tensor:
    """Fill the cache with the prompt, chunk by chunk; returns the logits [V] of the next token.

    `new_tokens` is how many tokens will follow, if known.
    """
    if cache.get_seq_length() == 0:
        cache.prompt.ids, cache.prompt.encode = ids, partial(fed_ids, lm)
    cache.expect(ids.shape[1], new_tokens)
    chunks = ids.split(PREFILL_CHUNK, dim=1)
    for chunk in tqdm(chunks, desc="prefill", leave=False, disable=None if len(chunks) > 1 else True):
        logits = next_logits(lm, cache, chunk)
    return logits


def next_logits(lm: LanguageModel, cache: SelectiveCache, ids: Tensor) -> Tensor:
    """Logits [V] of the token after `ids` [1, n], which are added to the cache."""
    logits: Tensor = lm.model(ids, past_key_values=cache, use_cache=True, logits_to_keep=1).logits
    return logits[0, -1]


def wait_for_states(cache: SelectiveCache) -> None:
    """Wait for work that overlaps the prefill, so that its time does not count as a decode step."""
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
    stops = stop_tokens(lm)
    clock = [] if question_ids else [prefill_s]
    decoded = _Decoded(list(question_ids), [] if question_ids else [first], clock)
    written, started, step = decoded.written, time.perf_counter() - prefill_s, 0
    with tqdm(total=len(question_ids) + max_new_tokens, desc=cache.method.name, leave=False, disable=None) as progress:
        while step < len(decoded.fed) or (len(written) < max_new_tokens and written[-1] not in stops):
            if step == len(decoded.fed):
                decoded.fed.append(written[-1])
            token = torch.tensor([[decoded.fed[step]]], device=ids.device)
            try:
                logits = next_logits(lm, cache, token)
            except (OutOfSpaceError, DamagedOffloadError) as error:
                error.generation = decoded.generation(lm, cache, ids, len(question_ids), recorder)
                error.add_note(f"The generation so far ({len(written)} tokens) is in the error's `generation`.")
                raise
            decoded.predicted.append(int(logits.argmax()))
            step += 1
            if step >= len(question_ids):
                written.append(decoded.predicted[-1])
                decoded.clock.append(time.perf_counter() - started - (recorder.spent_s if recorder else 0.0))
            progress.update()
    return decoded.generation(lm, cache, ids, len(question_ids), recorder)


@dataclass
class _Decoded:
    """The tokens fed and written after the prompt, the time of each written token, and each step's prediction."""

    fed: list[int]
    written: list[int]
    clock: list[float]
    predicted: list[int] = field(default_factory=list)

    def generation(
        self, lm: LanguageModel, cache: SelectiveCache, ids: Tensor, question_length: int, recorder: Recorder | None
    ) -> Generation:
        """The Generation of all complete steps, with their recording; an interrupted step is left out."""
        text = str(lm.tokenizer.decode(self.written, skip_special_tokens=True))
        recording = None
        if recorder is not None:
            recorder.keep_steps(len(self.predicted))
            token_ids = [*ids[0].tolist(), *self.fed[: len(self.predicted)]]
            recording = recorder.recording(
                cache.method,
                model=lm.name,
                geometry=lm.geometry,
                tokens=lm.tokens(token_ids),
                token_ids=token_ids,
                next_tokens=lm.tokens(self.predicted),
                prompt_length=ids.shape[1],
                question_length=min(question_length, len(self.predicted)),
                exact_layers=cache.exact_layers,
                answer=text,
                edit=cache.edit,
                ledgers={
                    layer.context.index: ledger_of([layer], ())
                    for layer in cache.selective_layers
                    if layer.observer is recorder
                },
            )
        clock, nan = self.clock, float("nan")
        tpot = (clock[-1] - clock[0]) / (len(clock) - 1) if len(clock) > 1 else nan
        build_s = sum(layer.build_s for layer in cache.selective_layers)
        timings = Timings(clock[0] if clock else nan, clock[1] if len(clock) > 1 else nan, tpot, build_s)
        return Generation(text, self.written, timings, cache.ledger(), recording, cache.timeline)


def stop_tokens(lm: LanguageModel) -> set[int]:
    """Ids of the tokens that end an answer."""
    stops = lm.model.generation_config.eos_token_id
    return set() if stops is None else set(stops if isinstance(stops, list) else [stops])
