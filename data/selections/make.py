"""Records what every method writes and selects on one prompt; tests/repository/test_selections.py holds the code to it.

    python data/selections/make.py                 all methods, with every preset of each
    python data/selections/make.py --out FILE      into another file

For each case it prints whether it is the same as in the file before, new, or changed. A case that changed on the same
processor with the same packages is another algorithm: know why before you commit the file.

The prompt is prose with one sentence hidden in it. The question, words of that sentence, is fed as decode steps. One
thread computes, since sums of several would be rounded by how many there are.
"""

from __future__ import annotations

import argparse
import hashlib
import io
import json
import os
import platform
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

import kvviz

DATA = Path(__file__).resolve().parents[1]
FILE = Path(__file__).resolve().with_name("selections.npz")
KIND, VERSION = "kvviz.selections", 1

MODEL = "smollm2-135m"
PROSE, HIDDEN_AT = slice(421, 609), 80  # tokens of data/traces/prose.safetensors
NEEDLE, QUESTION = " The key to Oslo is 48213.", " to Oslo is"
BUDGET, NEW_TOKENS, THREADS = 80, 6, 1
LAYERS = (5, 15, 25)  # whose indices are kept; of the others the checksum of every step
# Fields whose defaults are for prompts of thousands of tokens, and would here leave nothing to choose.
FIELDS: Mapping[str, Mapping[str, Any]] = {
    "adakv:paper": {"recent": 16},
    "adakv:official": {"recent": 16},
    "centroidkv:paper": {"recent": 16, "chunk_size": 64},
    "clusterkv:paper": {"tokens_per_cluster": 16},
    "clusterkv:official": {"n_clusters": 24},
    "ctkvr:paper": {"sinks": 16, "recent": 16},
    "infllm:paper": {"block_size": 16},
    "infllm:official": {"block_size": 16},
    "magicpig:paper": {"recent": 16},
    "magicpig:official": {"recent": 16},
    "minference:paper": {"dense_length": 0, "sinks": 4, "recent": 16},
    "minference:official": {"dense_length": 0},
    "multipole:official": {"recent": 16},
    "pyramidkv:paper": {"recent": 16},
    "quest:paper": {"page_size": 8},
    "retrieval_attention:128k": {"sinks": 8, "recent": 24},
    "shadowkv:paper": {"recent": 16, "n_outliers": 16},
    "snapkv:paper": {"recent": 16},
    "snapkv:official": {"recent": 16},
    "squeezed_attention:official": {"recent": 16},
}
PACKAGES = ("torch", "transformers", "numpy", "faiss-cpu")

Array = NDArray[Any]


@dataclass(frozen=True)
class Case:
    """What a method wrote and selected: T steps, R selection heads, S slots."""

    text: str
    token_ids: list[int]
    steps: list[str]  # [T] SHA-256 of what all layers attended to
    indices: Array  # int16 [layers, T, R, S] of LAYERS, ascending, then -1 (see `_chosen`); [0] where all are dense
    config: Mapping[str, Any]  # the method's fields

    def agreement(self, other: Case) -> float:
        """The share of the indices that are also the other's, over the steps that were fed the same tokens.

        Of cases without indices, the share of the tokens written that are the same.
        """
        pairs = list(zip(self.token_ids, other.token_ids, strict=False))
        same = next((place for place, (mine, theirs) in enumerate(pairs) if mine != theirs), len(pairs))
        if not self.indices.size or not other.indices.size:
            return same / len(self.token_ids) if self.indices.shape == other.indices.shape else 0.0
        if self.indices.shape[2] != other.indices.shape[2]:
            return 0.0  # other selection heads
        question = len(self.steps) - len(self.token_ids) + 1
        fed = min(question + same, len(self.steps), len(other.steps))  # the last token written is not fed
        common = total = 0
        for mine, theirs in zip(_sets(self.indices[:, :fed]), _sets(other.indices[:, :fed]), strict=True):
            common += len(mine & theirs)
            total += max(len(mine), len(theirs))
        return common / total


def _sets(indices: Array) -> Iterator[set[int]]:
    for row in indices.reshape(-1, indices.shape[-1]).tolist():
        yield set(row) - {-1}


def cases() -> list[str]:
    """The names of all cases, method:preset, of kvviz's own methods."""
    methods = {name: kvviz.methods.get(name) for name in kvviz.methods.names()}
    own = {name: method for name, method in methods.items() if method.__module__.startswith("kvviz.methods.")}
    return [f"{name}:{preset}" for name, method in own.items() for preset in method.presets]


def environment() -> dict[str, str]:
    """What rounding depends on: processor, instruction set, versions."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return {
        "processor": names[0] if names else platform.processor() or platform.machine(),
        "capability": torch.backends.cpu.get_cpu_capability(),
        **{package: version(package) for package in PACKAGES},
    }


@contextmanager
def reproducible() -> Iterator[None]:
    """One thread and deterministic algorithms; what was set before is set again at the end."""
    threads, deterministic = torch.get_num_threads(), torch.are_deterministic_algorithms_enabled()
    warn_only = torch.is_deterministic_algorithms_warn_only_enabled()
    torch.set_num_threads(THREADS)
    torch.use_deterministic_algorithms(True, warn_only=warn_only)
    try:
        yield
    finally:
        torch.set_num_threads(threads)
        torch.use_deterministic_algorithms(deterministic, warn_only=warn_only)


def prompt(lm: kvviz.LanguageModel) -> list[int]:
    """The ids of the prompt's tokens: prose, with a sentence hidden in it."""
    prose = kvviz.Trace.load(DATA / "traces" / "prose.safetensors").token_ids[PROSE].tolist()
    return [*prose[:HIDDEN_AT], *lm.encode(NEEDLE)[0].tolist(), *prose[HIDDEN_AT:]]


def run(lm: kvviz.LanguageModel, ids: list[int], name: str) -> Case:
    """What the method of a case writes and selects behind a prompt. To be called where it is `reproducible`."""
    method, _, preset = name.partition(":")
    fields = FIELDS.get(name, {})
    out = kvviz.generate(
        lm, torch.tensor([ids]), method, BUDGET, QUESTION, NEW_TOKENS, record=True, preset=preset, **fields
    )
    assert out.recording is not None
    steps = [_checksum(out.recording, step) for step in range(out.recording.steps)]
    return Case(out.text, out.token_ids, steps, _indices(out.recording), dict(out.recording.config))


def _checksum(recording: kvviz.Recording, step: int) -> str:
    """SHA-256 of what all layers attended to at a step: positions, and the tokens behind merged ones; pads left out."""
    digest = hashlib.sha256()

    def add(numbers: Any) -> None:
        array = np.asarray(numbers, "<i8").ravel()
        digest.update(len(array).to_bytes(8, "little") + array.tobytes())

    for layer in recording.layers:
        add(layer)
        for row in recording.indices(step, layer):
            add(row[row >= 0])
        add(recording.attended_tokens(step, layer))
        members = recording.members(step, layer)
        add([] if members is None else members)
    return digest.hexdigest()


def _indices(recording: kvviz.Recording) -> Array:
    """What was chosen in LAYERS, int16 [layers, T, R, S], with the pads at the end and no slot of pads alone."""
    if not recording.layers:
        return np.empty(0, np.int16)
    rows = [row for layer in LAYERS for step in range(recording.steps) for row in _chosen(recording, step, layer)]
    indices = np.full((len(rows), max(map(len, rows))), -1, np.int16)
    for place, row in enumerate(rows):
        indices[place, : len(row)] = row
    heads = len(rows) // (len(LAYERS) * recording.steps)
    return indices.reshape(len(LAYERS), recording.steps, heads, -1)


def _chosen(recording: kvviz.Recording, step: int, layer: int) -> list[Array]:
    """Each selection head's positions: the tokens attended to, and the first of the tokens behind each merged one."""
    rows = [row[row >= 0] for row in recording.indices(step, layer)]
    members = recording.members(step, layer)
    if members is None:
        return rows
    merged = [np.unique(head, return_index=True) for head in members.repeat(len(rows) // len(members), axis=0)]
    return [np.union1d(row, first[centroids >= 0]) for row, (centroids, first) in zip(rows, merged, strict=True)]


@dataclass(frozen=True)
class Recorded:
    """A file's cases by name, the prompt they are of, and the environment they were made in."""

    prompt: list[int]
    environment: Mapping[str, str]
    cases: Mapping[str, Case]


def save(path: Path, recorded: Recorded) -> None:
    """Write a file: arrays by name of the case, and all else as JSON under "json". Whole or not at all."""
    described = {
        name: {"text": case.text, "token_ids": case.token_ids, "steps": case.steps, "config": dict(case.config)}
        for name, case in recorded.cases.items()
    }
    described = {
        "kind": KIND, "version": VERSION, "model": MODEL, "question": QUESTION, "budget": BUDGET,
        "layers": LAYERS, "threads": THREADS, "prompt": recorded.prompt, "environment": recorded.environment,
        "cases": described,
    }  # fmt: skip
    arrays = {name: case.indices for name, case in recorded.cases.items()}
    arrays["json"] = np.frombuffer(json.dumps(described, ensure_ascii=False).encode(), np.uint8)
    partial = path.with_suffix(".part")
    with partial.open("wb") as opened:
        np.savez_compressed(opened, **arrays)
    os.replace(partial, path)


def load(path: Path = FILE) -> Recorded:
    """What a file holds; raises IncompatibleFileError for a file of another kind or version."""
    with np.load(io.BytesIO(path.read_bytes()), allow_pickle=False) as arrays:
        described = json.loads(arrays["json"].tobytes())
        if (described["kind"], described["version"]) != (KIND, VERSION):
            got = f"{described['kind']} of version {described['version']}"
            raise kvviz.IncompatibleFileError(f"read {path}", got, f"{KIND} of version {VERSION}: make selections")
        found = {name: Case(**case, indices=arrays[name]) for name, case in described["cases"].items()}
    return Recorded(described["prompt"], described["environment"], found)


def main() -> int:
    """Record all cases and say which of them changed; returns the exit status."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument(
        "--out", type=Path, default=FILE, help="the file to write, by default the one beside this script"
    )
    path = parser.parse_args().out
    before = load(path).cases if path.exists() else {}
    lm = kvviz.load(MODEL, device="cpu", dtype=torch.float32)
    ids, made = prompt(lm), {}
    with reproducible():
        for name in cases():
            case = made[name] = run(lm, ids, name)
            old = before.get(name)
            same = old is not None and (old.token_ids, old.steps) == (case.token_ids, case.steps)
            state = "new" if old is None else "the same" if same else f"changed ({old.agreement(case):.1%} agree)"
            print(f"{name:30} {state:25} {case.text!r}", flush=True)
    for name in before.keys() - made.keys():
        print(f"{name:30} gone")
    save(path, Recorded(ids, environment(), made))
    print(f"{path.name}: {path.stat().st_size:,} bytes")
    return 0


if __name__ == "__main__":
    sys.exit(main())
