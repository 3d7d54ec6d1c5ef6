"""Tasks and a tiny model for the tests of grids, in a separate module that worker processes can import."""

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

from kvviz.evaluation import evaluate, load_results, results
from kvviz.evaluation.example_cells import TIMES
from kvviz.methods import create
from kvviz.methods.base import Method
from kvviz.tasks import Sample, Task, Turn
from tests import tiny_models

LETTERS = "abcdefghijklmnopqrstuvwxyz "
BUDGETS, LENGTHS = [20, 0.75], [40, 60]
FIELDS = {"sinks": 2, "recent": 4, "dense_layers": 1}
SCORED: Counter[str] = Counter()  # of this process


def without_times(table):
    """The table without its times, which differ between runs."""
    return table.drop(columns=list(TIMES))


def content(path):
    """All that a results file holds but the times."""
    table = load_results(path)
    return without_times(table).to_csv(index=False), table.attrs


@dataclass
class Letters(Task):
    """Random letters and two questions; the score is the share of distinct letters in the answer."""

    title = "Letters"
    source = "made for a test"
    metric = "share of distinct letters"
    name: ClassVar[str] = "letters"

    def sample(self, lm, length, index, seed):
        rng = self.drawn(length, index, seed)
        context = "".join(rng.choices(LETTERS, k=length - 10))
        depth = rng.random()
        return Sample(context, (Turn(" what?", ("a",), max_new_tokens=3), Turn("so?", ("b",), max_new_tokens=2)),
                      {"depth": depth, "kind": "letters"})  # fmt: skip

    def score(self, turn, text):
        return len(set(text)) / max(len(text), 1)


@dataclass
class Guessing(Task):
    """A likelihood task: the nats of the letters that follow."""

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
    """Sends a signal to its process after scoring `after` answers; only once, as the file `mark` records."""

    name: ClassVar[str] = "deadly"
    mark: str = ""
    after: int = 7
    sent: int = int(signal.SIGKILL)

    def score(self, turn, text):
        SCORED[self.mark] += 1
        with open(f"{self.mark}.scored", "a") as scored:  # one line per answer, of all processes
            scored.write(f"{os.getpid()}\n")
        if SCORED[self.mark] >= self.after:
            with suppress(FileExistsError):
                Path(self.mark).touch(exist_ok=False)
                os.kill(os.getpid(), self.sent)
        return super().score(turn, text)


@dataclass
class Wrong(Letters):
    """Scores the first samples with 1, and from sample `first` on with `result`."""

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
    """Eight methods by label, with fields that leave a choice in 40 tokens."""
    fields_of = {
        "quest": {"page_size": 4}, "clusterkv": {"tokens_per_cluster": 8}, "pqcache": {}, "ctkvr": {}, "snapkv": {},
        "infinigen": {}, "centroidkv": {"chunk_size": 16}, "streaming_llm": {},
    }  # fmt: skip
    return {name: create(name, budget=20, **FIELDS, **fields) for name, fields in fields_of.items()}


def few(*names: str) -> dict[str, Method]:
    """Some of these methods by label; by default one retrieval and one eviction method."""
    return {name: methods()[name] for name in names or ("clusterkv", "snapkv")}


def interrupt_after(monkeypatch, finished: int) -> None:
    """Simulate Ctrl-C after `finished` cells, when the next one is about to be written."""
    appended = []

    def append(path, data):
        if len(appended) == finished:
            raise KeyboardInterrupt
        appended.append(path)
        original(path, data)

    original = results._append
    monkeypatch.setattr(results, "_append", append)


def save_model(folder: Path, seed: int = 0, layers: int = 2) -> str:
    """Save a small Llama whose tokens are letters, for `kvviz.load`; returns its folder."""
    tiny_models.make("llama", seed, layers).save_pretrained(folder)
    tiny_models.letters_tokenizer().save_pretrained(folder)
    return str(folder)


@patch("kvviz.evaluation.run.commit", lambda: "a commit")  # the commit may change during a test
def run_grid(folder: str, out: Path, jobs: int = 1) -> pd.DataFrame:
    """A grid of 56 cells: two tasks, two lengths, two samples, four methods."""
    some = few("clusterkv", "infinigen", "snapkv") | {"full": "full"}
    return evaluate(folder, [Letters(), Guessing()], some, BUDGETS, LENGTHS, samples=2, out=out, jobs=jobs)
