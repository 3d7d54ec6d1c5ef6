"""generate(): generation with a method."""

from __future__ import annotations

import time
import traceback
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from tqdm.auto import tqdm

from ..cache.attachment import attached
from ..cache.selective_cache import SelectiveCache
from ..errors import DamagedOffloadError, InvalidInputError, OutOfSpaceError
from ..methods import resolve
from ..methods.base import Method
from ..metrics.byte_budgets import Budget, Bytes
from ..models.encoding import fed_ids, prompt_ids
from ..models.wrapping import language_model
from ..offload.kvstore import KVStore, resolve_store
from ..trace.edits import Edit
from ..trace.timeline import Timeline
from .arguments import explained, with_seed
from .batches import Batch, batch_of, questions_of, rows_of, several
from .feeding import feed
from .result import Generation
from .sampling import Sampler
from .writing import Writer, write
from .written import Stream, WrittenText, check_stream, stop_strings

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from ..models import LanguageModel

PREFILL_CHUNK = 2048  # tokens per forward pass: limits the mask and the activations of long prompts


@torch.no_grad()
def generate(
    lm: LanguageModel | PreTrainedModel,
    prompt: str | Tensor | Sequence[str | Tensor],
    method: str | Method = "clusterkv",
    budget: Budget | None = None,
    question: str | Sequence[str] | None = None,
    max_new_tokens: int = 64,
    store: str | KVStore = "device",
    record: bool | Collection[int] = False,
    prefill: str | Method | None = None,
    timeline: bool = False,
    edit: Edit | None = None,
    temperature: float = 0.0,
    top_p: float = 1.0,
    seed: int | None = None,
    stop: str | Sequence[str] = (),
    stream: Stream | None = None,
    **values: Any,
) -> Any:
    """A Generation: a continuation of `prompt` whose decode steps attend to a method's selection. A list for a list.

    With a `question`, the prompt is prefilled and indexed before the question is seen; the question is then fed as
    decode steps. `record` keeps every decode step as a Recording: True for all layers, or a collection of layers.
    `prefill` names a method whose sparse attention the prompt uses ("minference"); it combines with every method.
    `timeline` records when compute, clustering and transfers ran. `edit` changes what decode steps attend to: see
    `kvviz.pin`, `drop`, `exact` and `only`.
    `budget`: tokens per step, a share of the prompt, or bytes (`kvviz.bytes`), for which the ledger's `budgets` has the
    tokens that each layer found. `values` are fields of the method, or `preset`. Recording needs exact attention at
    every step; timings exclude it.

    Writing is greedy. Above `temperature` 0 tokens are sampled, from the most likely ones that together have the
    probability `top_p`; `seed` makes it reproducible, and is also the seed of a method that has one. The text ends
    before the first `stop` string. `stream` gets the text as it is written: a function of pieces of text, or a
    transformers streamer.

    Several prompts, a list or token ids [B, L] with padding on the left (the tokenizer's padding token), run together
    and give a list of Generations, each with its own text, and with the ledger of their one cache. A list may have a
    list of questions. Row `r` is sampled with `seed + r`, and `stream` is a function of a piece and `r`. With `record`
    or `edit` the prompts run one after the other, since both are about one prompt.

    `lm` is a LanguageModel, or a transformers model whose tokenizer is where the model came from.

    Raises InvalidInputError for an empty prompt, one longer than the model's positions, one that is not of the model's
    token ids, or a value out of range, BudgetTooSmallError for bytes into which the method does not fit, and
    UnknownNameError for an unknown method, preset or argument. If a tier runs out of space, or its keys and values are
    damaged, raises OutOfSpaceError or DamagedOffloadError, with the Generation so far (or the list) as
    `error.generation`. It is None during the prefill; a tier too small for the prompt and `max_new_tokens` fails there
    already. The model's attention implementation is always restored, also after Ctrl-C.
    """
    lm = language_model("generate", lm)
    sampler, stops = Sampler("generate", temperature, top_p, seed), stop_strings("generate", stop)
    with explained(generate, values):
        fields = with_seed(method, values, seed)
        chosen = resolve(method, **(fields if budget is None else {**fields, "budget": budget}))
    prompts = rows_of("generate", lm, prompt)
    questions = questions_of("generate", question, len(prompts))
    check_stream("generate", stream, len(prompts))
    check_new_tokens("generate", max_new_tokens)
    run = _Run(lm, chosen, store, prefill, timeline, edit, record, max_new_tokens, sampler, stops)
    streams = _streams(stream, len(prompts) if several(prompt) else None)
    if record is not False or edit is not None:  # of one prompt each
        made = [
            run.together([text], [asked], [to], first_row=row)[0]
            for row, (text, asked, to) in enumerate(zip(prompts, questions, streams, strict=True))
        ]
    else:
        made = run.together(prompts, questions, streams)
    return made if several(prompt) else made[0]


def _streams(stream: Stream | None, prompts: int | None) -> list[Stream | None]:
    """The stream of each of several prompts, or of one (None)."""
    if prompts is None or stream is None:
        return [stream] * (prompts or 1)
    return [lambda piece, row=row: stream(piece, row) for row in range(prompts)]


@dataclass(frozen=True)
class _Run:
    """How `generate` runs prompts."""

    lm: LanguageModel
    method: Method
    store: str | KVStore
    prefill: str | Method | None
    timeline: bool
    edit: Edit | None
    record: bool | Collection[int]
    max_new_tokens: int
    sampler: Sampler
    stops: tuple[str, ...]

    def together(
        self,
        prompts: Sequence[str | Tensor],
        questions: Sequence[str],
        streams: Sequence[Stream | None],
        first_row: int = 0,
    ) -> list[Generation]:
        """The Generations of these prompts in one cache; they are the rows from `first_row` for the sampler."""
        lm, new_tokens = self.lm, self.max_new_tokens
        question_ids = [fed_ids(lm, question, "generate: question") for question in questions]
        asked = [len(ids) for ids in question_ids]
        batch = batch_of("generate", lm, prompts, asked, new_tokens)
        cache = self._cache(batch.ids)
        try:
            with attached(lm.model):
                started = time.perf_counter()
                logits = fill_batch(lm, cache, batch, max(asked) + new_tokens)
                wait_for_states(cache)
                prefill_s = time.perf_counter() - started
                writers = [
                    Writer(
                        ids, WrittenText(lm, batch.row(at), self.stops, streams[at]),
                        partial(self.sampler.token, row=first_row + at),
                    )
                    for at, ids in enumerate(question_ids)
                ]  # fmt: skip
                firsts = [0 if w.question else w.choose(after) for w, after in zip(writers, logits, strict=True)]
                return write(lm, cache, batch, firsts, writers, new_tokens, prefill_s, self.record)
        except (OutOfSpaceError, DamagedOffloadError) as error:
            del cache  # Jupyter keeps the last traceback, and with it the cache and its part of the full tier
            traceback.clear_frames(error.__traceback__)
            raise

    def _cache(self, ids: Tensor) -> SelectiveCache:
        """An empty cache for prompts [B, L], with the timeline and the edit at its places."""
        events = Timeline(_description(self.lm, self.method, ids.shape[1], self.store)) if self.timeline else None
        placed = placed_edit(self.lm, ids, self.edit)
        if placed is not None and placed.grouped:
            placed = placed.with_groups(_indexed(self.lm, self.method, self.prefill, ids).group_tokens)
        return SelectiveCache(
            self.lm.model, self.method, self.store, prefill=self.prefill, details=bool(self.record), timeline=events,
            edit=placed,
        )  # fmt: skip


def _indexed(lm: LanguageModel, method: Method, prefill: str | Method | None, ids: Tensor) -> SelectiveCache:
    """A cache of the prompt [1, L] that is indexed for the method."""
    cache = SelectiveCache(lm.model, method, prefill=prefill)
    with attached(lm.model):
        fill(lm, cache, ids)
        wait_for_states(cache)
    return cache


def _description(lm: LanguageModel, method: Method, prompt_length: int, store: str | KVStore) -> str:
    """A description of the run, for titles."""
    in_bytes, tier = isinstance(method.budget, Bytes), resolve_store(store).tier
    budget = str(method.budget) if in_bytes else f"{method.budget_tokens(prompt_length):,}"
    governed = lm.geometry.governed_text()
    return f"{method.name} · budget {budget}{governed} · {lm.name} · {prompt_length:,} tokens · store {tier}"


def encoded(
    operation: str, lm: LanguageModel, prompt: str | Tensor, question: str | None, max_new_tokens: int
) -> tuple[Tensor, list[int]]:
    """Prompt ids [1, L] on the model's device, and question ids. Raises the errors of `prompt_ids`."""
    check_new_tokens(operation, max_new_tokens)
    question_ids = fed_ids(lm, question or "", f"{operation}: question")
    ids = prompt_ids(operation, lm, prompt, question_tokens=len(question_ids), new_tokens=max_new_tokens)
    return ids, question_ids


def check_new_tokens(operation: str, max_new_tokens: int) -> None:
    """Raise InvalidInputError for a number of new tokens below 1."""
    if max_new_tokens < 1:
        raise InvalidInputError(f"{operation}: max_new_tokens", max_new_tokens, "an int >= 1")


def placed_edit(lm: LanguageModel, ids: Tensor, edit: Edit | None) -> Edit | None:
    """The edit with its tokens as positions in the prompt [1, L]. Raises the errors of `Edit.on`."""
    return None if edit is None else edit.on(lm.tokens(ids), lm.geometry)


def fill(lm: LanguageModel, cache: SelectiveCache, ids: Tensor, new_tokens: int = 0) -> Tensor:
    """Fill the cache with the prompt [1, L], chunk by chunk; returns the logits [V] of the next token.

    `new_tokens` is how many tokens will follow, if known.
    """
    return fill_batch(lm, cache, Batch(ids, (0,)), new_tokens)[0]


def fill_batch(lm: LanguageModel, cache: SelectiveCache, batch: Batch, new_tokens: int = 0) -> Tensor:
    """As `fill`, with the prompts of a batch; returns logits [B, V]."""
    if cache.get_seq_length() == 0:
        cache.prompt.ids = batch.ids if len(batch.starts) == 1 else None
        cache.prompt.encode = partial(fed_ids, lm)
    cache.expect(batch.ids.shape[1], new_tokens)
    chunks = batch.ids.split(PREFILL_CHUNK, dim=1)
    for chunk in tqdm(chunks, desc="prefill", leave=False, disable=None if len(chunks) > 1 else True):
        logits: Tensor = feed(lm, cache, chunk, batch.starts).logits
    return logits[:, -1]


def next_logits(lm: LanguageModel, cache: SelectiveCache, ids: Tensor) -> Tensor:
    """Logits [V] of the token after `ids` [1, n], which are added to the cache."""
    logits: Tensor = feed(lm, cache, ids).logits
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
    """Feed the question, then write greedily until a stop token or `max_new_tokens`. `first` is the first token."""
    writer = Writer(question_ids, WrittenText(lm, ids), Sampler("decode").token)
    return write(lm, cache, Batch(ids, (0,)), [first], [writer], max_new_tokens, prefill_s, record)[0]
