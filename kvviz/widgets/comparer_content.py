"""What several recordings have in common, how their columns are called, and the notes on what they do not share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any, Literal

import numpy as np

from ..errors import InvalidInputError, UnknownNameError
from ..trace import Recording
from . import content

_OPERATION = "MethodComparer"
_NUMBERS = ("recall", "mass", "attended", "read", "moved", "error")
SORTS = ("given", *_NUMBERS, *(f"mean {name}" for name in _NUMBERS))


@dataclass(frozen=True)
class Compared:
    """Recordings of one model and prompt, with the layers, steps and heads that all of them have."""

    recordings: tuple[Recording, ...]
    labels: tuple[str, ...]
    layers: tuple[int, ...]
    steps: int
    heads: int

    def row(self, number: int, head: int) -> int:
        """Row of recording `number` that stands for `head`: where it has several for one, the first of them."""
        return head * (content.rows(self.recordings[number]) // self.heads)

    @property
    def length(self) -> int:
        """Tokens of the prompt and of the common steps."""
        return self.recordings[0].prompt_length + self.steps

    def check(self, name: Literal["step", "layer", "head", "token"], value: int) -> int:
        """`value` if every recording has that step, layer, head or token, or no token (-1) is meant.

        Raises InvalidInputError otherwise.
        """
        if name == "layer":
            if value not in self.layers:
                wanted = f"a layer of every recording: {', '.join(map(str, self.layers))}"
                raise InvalidInputError(f"layer of a {_OPERATION}", repr(value), wanted)
            return int(value)
        least = -1 if name == "token" else 0
        count = {"step": self.steps, "head": self.heads, "token": self.length}[name]
        return content.between(f"{name} of a {_OPERATION}", value, least, count - 1)


def check_sort(sort: str) -> str:
    """`sort` if columns can be ordered by it; raises UnknownNameError otherwise."""
    if sort not in SORTS:
        raise UnknownNameError(f"{_OPERATION}: sort", sort, SORTS)
    return sort


def compared(recordings: Sequence[Recording] | Mapping[str, Recording]) -> Compared:
    """What is common to `recordings`; raises InvalidInputError where that is nothing to compare."""
    if not isinstance(recordings, Mapping | Sequence) or isinstance(recordings, str):
        wanted = "a list of kvviz.Recording, or a dict of them by label"
        raise InvalidInputError(_OPERATION, type(recordings).__name__, wanted)
    runs = tuple(recordings.values() if isinstance(recordings, Mapping) else recordings)
    if not runs:
        wanted = "at least one, such as [generate(..., record=True).recording for each method]"
        raise InvalidInputError(_OPERATION, "no recording", wanted)
    for number, run in enumerate(runs):
        content.check(run, f"{_OPERATION}: recording {number}")
    labels: tuple[str, ...] = tuple(recordings) if isinstance(recordings, Mapping) else _labels(runs)
    for label in labels:
        if not isinstance(label, str) or not label.strip():
            raise InvalidInputError(f"{_OPERATION}: label", repr(label), "text")
    for label, run in zip(labels, runs, strict=True):
        _check_beside(labels[0], runs[0], label, run)
    layers = sorted(set.intersection(*(set(run.layers) for run in runs)))
    if not layers:
        got = "; ".join(
            f"{label}: layers {', '.join(map(str, run.layers))}" for label, run in zip(labels, runs, strict=True)
        )
        raise InvalidInputError(_OPERATION, got, "a layer that every recording has: the same dense_layers, or trace")
    heads = min(content.rows(run) for run in runs)
    return Compared(runs, labels, tuple(layers), min(run.steps for run in runs), heads)


def describe(common: Compared, styles: Sequence[Mapping[str, str]]) -> dict[str, Any]:
    """Everything shown that does not depend on step, layer and head; JSON-able. `styles`: light and dark colours."""
    runs, first = common.recordings, common.recordings[0]
    of_kv_head = common.heads == first.geometry.n_kv_heads
    return {
        "description": _description(common),
        "prompt": content.texts(first.tokens[: first.prompt_length]),
        "steps": common.steps,
        "layers": list(common.layers),
        "heads": list(range(common.heads)),
        "head_name": "KV head" if of_kv_head else "query head",
        "sorts": list(SORTS),
        "methods": [
            {
                "label": content.texts([label])[0],
                "about": run.description,
                "budget": run.budget,
                "fed": content.texts(run.tokens[run.prompt_length :]),
                "next_token": content.texts(run.next_tokens[-1:])[0],
                "question_length": run.question_length,
                "group_name": run.group_name,
                "rows_a_head": content.rows(run) // common.heads,
                **style,
            }
            for label, run, style in zip(common.labels, runs, styles, strict=True)
        ],
        "merges": content.merges(runs),
        "notes": _notes(common),
    }


def _check_beside(first_label: str, first: Recording, label: str, run: Recording) -> None:
    if (run.model, run.geometry) != (first.model, first.geometry):
        got = f"{first_label} of {first.model} and {label} of {run.model}"
        if run.model == first.model:
            got += f" with another geometry: {first.geometry} and {run.geometry}"
        raise InvalidInputError(_OPERATION, got, "recordings of one model")
    ends = run.prompt_length, first.prompt_length
    if ends[0] != ends[1] or not np.array_equal(run.token_ids[: ends[0]], first.token_ids[: ends[1]]):
        got = f"another prompt in {label} ({ends[0]:,} tokens) than in {first_label} ({ends[1]:,})"
        raise InvalidInputError(_OPERATION, got, "recordings of one prompt")


def _labels(runs: Sequence[Recording]) -> tuple[str, ...]:
    """The method's name; where several share it, with the budget and fields in which they differ, or a number."""
    made = []
    for run in runs:
        same = [other for other in runs if other.method == run.method]
        parts = [run.method]
        if len({other.budget for other in same}) > 1:
            parts.append(f"budget {run.budget:,}")
        fields = sorted(set(chain.from_iterable(other.config for other in same)) - {"budget"})
        parts += [
            f"{name} {run.config.get(name)}"
            for name in fields
            if len({repr(other.config.get(name)) for other in same}) > 1
        ]
        made.append(" · ".join(parts))
    return tuple(
        f"{label} · #{made[: number + 1].count(label)}" if made.count(label) > 1 else label
        for number, label in enumerate(made)
    )


def _description(common: Compared) -> str:
    first, runs = common.recordings[0], common.recordings
    budgets = {run.budget for run in runs}
    seeds = {run.config["seed"] for run in runs if "seed" in run.config}
    parts = [
        f"{len(runs)} recordings compared" if len(runs) > 1 else "1 recording",
        f"budget {budgets.pop():,}" if len(budgets) == 1 else "",
        first.model,
        f"{first.prompt_length:,} tokens",
        f"seed {seeds.pop()}" if len(seeds) == 1 else "",
    ]
    return " · ".join(part for part in parts if part)


def _notes(common: Compared) -> list[str]:
    runs, labels, notes = common.recordings, common.labels, []
    longer = [f"{label} has {run.steps}" for label, run in zip(labels, runs, strict=True) if run.steps > common.steps]
    if longer:
        notes.append(f"Compared over the first {common.steps} steps, which every recording has; {', '.join(longer)}.")
    partial = sorted({layer for run in runs for layer in run.layers} - set(common.layers))
    if partial:
        notes.append(f"Not every recording has {content.numbered('layer', partial)}: left out.")
    parts = _parting(common)
    if parts is not None:
        notes.append(f"From step {parts} on the recordings feed different tokens: each continues its own answer.")
    untold = [label for label, run in zip(labels, runs, strict=True) if _merged_untold(run)]
    if untold:
        notes.append(f"{', '.join(untold)}: merged tokens, but not which; they show as missed.")
    by_query = [label for number, label in enumerate(labels) if content.rows(runs[number]) > common.heads]
    if by_query:
        notes.append(
            f"{', '.join(by_query)} {'choose' if len(by_query) > 1 else 'chooses'} for each query head: "
            "the first query head of the KV head is shown."
        )
    return notes


def _merged_untold(run: Recording) -> bool:
    return any(events.merged.any() and events.members is None for events in run.events.values())


def _parting(common: Compared) -> int | None:
    """The first step that does not feed the same token in every recording, None where all do."""
    start = common.recordings[0].prompt_length
    fed = np.stack([run.token_ids[start : start + common.steps] for run in common.recordings])
    apart = (fed != fed[0]).any(0)
    return int(apart.argmax()) if apart.any() else None
