"""write(): decode steps that feed the questions and write the answers of all prompts in a cache."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from tqdm.auto import tqdm

from ..cache.accounting import ledger_of
from ..cache.recorder import Recorder
from ..cache.selective_cache import SelectiveCache
from ..errors import DamagedOffloadError, OutOfSpaceError
from ..trace import Ledger, Recording
from .batches import Batch
from .feeding import feed
from .result import Generation, Timings
from .written import WrittenText

if TYPE_CHECKING:
    from ..models import LanguageModel


@dataclass
class Writer:
    """One prompt's question, and what is written after it. `choose` is the next token for logits [V].

    `fed` are the tokens of the decode steps, `predicted` each step's prediction, and `clock` the time of each written
    token.
    """

    question: list[int]
    text: WrittenText
    choose: Callable[[Tensor], int]
    fed: list[int] = field(default_factory=list)
    written: list[int] = field(default_factory=list)
    predicted: list[int] = field(default_factory=list)
    clock: list[float] = field(default_factory=list)

    def begin(self, first: int, prefill_s: float) -> None:
        """Start with the question, or without one with the first token."""
        self.fed = list(self.question)
        if not self.question:
            self._write(first, prefill_s)

    def finished(self, stops: Collection[int], max_new_tokens: int) -> bool:
        """Whether the answer has ended."""
        if len(self.predicted) < len(self.question):
            return False
        return len(self.written) >= max_new_tokens or self.written[-1] in stops or self.text.stopped

    def next_token(self) -> int:
        """The token to feed in the next step."""
        if len(self.predicted) == len(self.fed):
            self.fed.append(self.written[-1])
        return self.fed[len(self.predicted)]

    def step(self, logits: Tensor, seconds: Callable[[], float]) -> None:
        """Take the logits [V] of a step; `seconds` since the start are asked for once its token is known."""
        writes = len(self.predicted) + 1 >= len(self.question)
        self.predicted.append(self.choose(logits) if writes else int(logits.argmax()))
        if writes:
            self._write(self.predicted[-1], seconds())

    def timings(self, build_s: float) -> Timings:
        """The times of the written tokens."""
        clock, nan = self.clock, float("nan")
        tpot = (clock[-1] - clock[0]) / (len(clock) - 1) if len(clock) > 1 else nan
        return Timings(clock[0] if clock else nan, clock[1] if len(clock) > 1 else nan, tpot, build_s)

    def _write(self, token: int, seconds: float) -> None:
        self.written.append(token)
        self.clock.append(seconds)
        self.text.add(self.written)


def write(
    lm: LanguageModel,
    cache: SelectiveCache,
    batch: Batch,
    firsts: Sequence[int],
    writers: Sequence[Writer],
    max_new_tokens: int,
    prefill_s: float,
    record: bool | Collection[int],
) -> list[Generation]:
    """The Generation of each prompt: its question is fed, then tokens are written until a stop or `max_new_tokens`.

    A prompt that has ended feeds its last token again until all have; nobody sees what comes of it.
    """
    recorder = None
    if record is not False:
        recorder = Recorder(None if record is True else record)
        recorder.watch([layer for layer in cache.selective_layers if not layer.dense])
    stops = stop_tokens(lm)
    started = time.perf_counter() - prefill_s

    def seconds() -> float:
        return time.perf_counter() - started - (recorder.spent_s if recorder else 0.0)

    for writer, first in zip(writers, firsts, strict=True):
        writer.begin(first, prefill_s)
    steps = max(len(writer.question) for writer in writers) + max_new_tokens
    with tqdm(total=steps, desc=cache.method.name, leave=False, disable=None) as progress:
        while not all(ended := [writer.finished(stops, max_new_tokens) for writer in writers]):
            tokens = [
                [writer.written[-1] if done else writer.next_token()]
                for writer, done in zip(writers, ended, strict=True)
            ]
            try:
                logits: Tensor = feed(lm, cache, torch.tensor(tokens, device=batch.ids.device), batch.starts).logits
            except (OutOfSpaceError, DamagedOffloadError) as error:
                made = _generations(lm, cache, batch, writers, recorder)
                error.generation = made if len(made) > 1 else made[0]
                count = sum(len(writer.written) for writer in writers)
                error.add_note(f"The generation so far ({count} tokens) is in the error's `generation`.")
                raise
            for writer, done, row_logits in zip(writers, ended, logits[:, -1], strict=True):
                if not done:
                    writer.step(row_logits, seconds)
            progress.update()
    return _generations(lm, cache, batch, writers, recorder)


def _generations(
    lm: LanguageModel, cache: SelectiveCache, batch: Batch, writers: Sequence[Writer], recorder: Recorder | None
) -> list[Generation]:
    """The Generations of all complete steps, with their recording; an interrupted step is left out."""
    build_s, ledger = sum(layer.build_s for layer in cache.selective_layers), cache.ledger()
    made = []
    for number, writer in enumerate(writers):
        text = writer.text.finish(writer.written)
        recording = None if recorder is None else _recording(lm, cache, batch.row(number), writer, text, recorder)
        made.append(Generation(text, writer.written, writer.timings(build_s), ledger, recording, cache.timeline))
    return made


def _recording(
    lm: LanguageModel, cache: SelectiveCache, ids: Tensor, writer: Writer, text: str, recorder: Recorder
) -> Recording:
    """The recording of one prompt [1, L] and its writer's steps."""
    steps = len(writer.predicted)
    recorder.keep_steps(steps)
    token_ids = [*ids[0].tolist(), *writer.fed[:steps]]
    ledgers: dict[int, Ledger] = {
        layer.context.index: ledger_of([layer], ())
        for layer in cache.selective_layers
        if layer.observer is recorder
    }  # fmt: skip
    return recorder.recording(
        cache.method,
        model=lm.name,
        geometry=lm.geometry,
        tokens=lm.tokens(token_ids),
        token_ids=token_ids,
        next_tokens=lm.tokens(writer.predicted),
        prompt_length=ids.shape[1],
        question_length=min(len(writer.question), steps),
        exact_layers=cache.exact_layers,
        answer=text,
        edit=cache.edit,
        ledgers=ledgers,
    )


def stop_tokens(lm: LanguageModel) -> set[int]:
    """Ids of the tokens that end an answer."""
    stops = lm.model.generation_config.eos_token_id
    return set() if stops is None else set(stops if isinstance(stops, list) else [stops])
