"""Tasks and a tiny model for the tests of grids; a module of its own, so that worker processes can import it."""

from __future__ import annotations

import os
import signal
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar
from unittest.mock import patch

import pandas as pd

from kvviz.evaluation import evaluate, results
from kvviz.methods import create
from kvviz.methods.base import Method
from kvviz.tasks import Sample, Task, Turn
from tests import tiny_models

LETTERS = "abcdefghijklmnopqrstuvwxyz "
BUDGETS, LENGTHS = [20, 0.75], [40, 60]
FIELDS = {"sinks": 2, "recent": 4, "dense_layers": 1}
SCORED: Counter[str] = Counter()  # of this process


@dataclass
class Letters(Task):
    """Random letters, two questions; the score is the share of distinct letters in what was written."""

    title = "Letters"
    source = "made for a test"
    metric = "share of distinct letters"
    name: ClassVar[str] = "letters"

    def sample(self, lm, length, index, seed):
        drawn = self.drawn(length, index, seed)
        context = "".join(drawn.choices(LETTERS, k=length - 10))
        depth = drawn.random()
        return Sample(context, (Turn(" what?", ("a",), max_new_tokens=3), Turn("so?", ("b",), max_new_tokens=2)),
                      {"depth": depth, "kind": "letters"})  # fmt: skip

    def score(self, turn, text):
        return len(set(text)) / max(len(text), 1)


@dataclass
class Guessing(Task):
    """As a likelihood task: the nats of the letters that follow."""

    title = "Guessing"
    source = "made for a test"
    metric = "nats a token"
    name: ClassVar[str] = "guessing"
    measures = "likelihood"
    higher_is_better = False

    def sample(self, lm, length, index, seed):
        text = "".join(self.drawn(length, index, seed).choices(LETTERS, k=length))
        return Sample(text[:-5], (Turn("", (text[-5:],)),))


@dataclass
class Deadly(Letters):
    """Sends its own process a signal when it has scored so many answers; once, of which the file `mark` tells."""

    name: ClassVar[str] = "deadly"
    mark: str = ""
    after: int = 7
    sent: int = int(signal.SIGKILL)

    def score(self, turn, text):
        SCORED[self.mark] += 1
        with open(f"{self.mark}.scored", "a") as scored:  # a line for each answer of any process
            scored.write(f"{os.getpid()}\n")
        if SCORED[self.mark] >= self.after:
            with suppress(FileExistsError):
                Path(self.mark).touch(exist_ok=False)
                os.kill(os.getpid(), self.sent)
        return super().score(turn, text)


@dataclass
class Wrong(Letters):
    """Scores the first samples, and gives `result` for those from number `first` on."""

    name: ClassVar[str] = "wrong"
    result: float = 2.0
    first: int = 1
    index: int = -1

    def sample(self, lm, length, index, seed):
        self.index = index
        return super().sample(lm, length, index, seed)

    def score(self, turn, text):
        return self.result if self.index >= self.first else 1.0


def methods() -> dict[str, Method]:
    """Eight methods that leave room to choose in 40 tokens, by label."""
    own = {
        "quest": {"page_size": 4}, "clusterkv": {"tokens_per_cluster": 8}, "pqcache": {}, "ctkvr": {}, "snapkv": {},
        "infinigen": {}, "centroidkv": {"chunk_size": 16}, "streaming_llm": {},
    }  # fmt: skip
    return {name: create(name, budget=20, **FIELDS, **fields) for name, fields in own.items()}


def few(*names: str) -> dict[str, Method]:
    """Some of these methods by label; without names one that retrieves and one that evicts."""
    return {name: methods()[name] for name in names or ("clusterkv", "snapkv")}


def interrupt_after(monkeypatch, finished: int) -> None:
    """Ctrl-C at the moment when the cell after so many is to be written."""
    appended = []

    def append(path, data):
        if len(appended) == finished:
            raise KeyboardInterrupt
        appended.append(path)
        own(path, data)

    own = results._append
    monkeypatch.setattr(results, "_append", append)


def save_model(folder: Path, seed: int = 0) -> str:
    """A directory that `kvviz.load` takes: a Llama of four layers that reads letters."""
    tiny_models.make("llama", seed).save_pretrained(folder)
    tiny_models.letters_tokenizer().save_pretrained(folder)
    return str(folder)


@patch("kvviz.evaluation.run.commit", lambda: "a commit")  # which may change between two processes of a test
def run_grid(folder: str, out: Path, jobs: int = 1) -> pd.DataFrame:
    """A grid of 56 cells: two tasks, two lengths, two samples, four methods."""
    some = few("clusterkv", "infinigen", "snapkv") | {"full": "full"}
    return evaluate(folder, [Letters(), Guessing()], some, BUDGETS, LENGTHS, samples=2, out=out, jobs=jobs)
