"""What recordings share (layers, steps, heads), the labels of their columns, and notes on what they do not share."""

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
    """Recordings of one model and prompt, with the layers, steps and heads that they share."""

    recordings: tuple[Recording, ...]
    labels: tuple[str, ...]
    layers: tuple[int, ...]
    steps: int
    heads: int

    def row(self, number: int, head: int) -> int:
        """The row of recording `number` that is shown for `head`: the first one if it has several per head."""
        return head * (content.rows(self.recordings[number]) // self.heads)

    @property
    def length(self) -> int:
        """Number of tokens in the prompt and the shared steps."""
        return self.recordings[0].prompt_length + self.steps

    def check(self, name: Literal["step", "layer", "head", "token"], value: int) -> int:
        """`value` if every recording has that step, layer, head or token; a token may be -1 (none).

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
    """`sort` if the columns can be sorted by it; raises UnknownNameError otherwise."""
    if sort not in SORTS:
        raise UnknownNameError(f"{_OPERATION}: sort", sort, SORTS)
    return sort


def compared(recordings: Sequence[Recording] | Mapping[str, Recording]) -> Compared:
    """The recordings with what they share; raises InvalidInputError if they cannot be compared."""
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
        _check_same_prompt(labels[0], runs[0], label, run)
    layers = sorted(set.intersection(*(set(run.layers) for run in runs)))
    if not layers:
        got = "; ".join(
            f"{label}: layers {', '.join(map(str, run.layers))}" for label, run in zip(labels, runs, strict=True)
        )
        raise InvalidInputError(_OPERATION, got, "a shared layer: record with the same dense_layers, or the same trace")
    heads = min(content.rows(run) for run in runs)
    return Compared(runs, labels, tuple(layers), min(run.steps for run in runs), heads)


def describe(common: Compared, styles: Sequence[Mapping[str, str]]) -> dict[str, Any]:
    """The page's content that does not depend on step, layer and head; JSON-able. `styles`: light and dark colours."""
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
        "windows": content.windows(first.geometry),
        "notes": [*content.window_notes(first.geometry), *_notes(common)],
    }


def _check_same_prompt(first_label: str, first: Recording, label: str, run: Recording) -> None:
    if (run.model, run.geometry) != (first.model, first.geometry):
        got = f"{first_label} of {first.model} and {label} of {run.model}"
        if run.model == first.model:
            got += f" with different geometries: {first.geometry} and {run.geometry}"
        raise InvalidInputError(_OPERATION, got, "recordings of one model")
    length, first_length = run.prompt_length, first.prompt_length
    if length != first_length or not np.array_equal(run.token_ids[:length], first.token_ids[:first_length]):
        got = f"different prompts: {first_label} ({first_length:,} tokens) and {label} ({length:,} tokens)"
        raise InvalidInputError(_OPERATION, got, "recordings of one prompt")


def _labels(runs: Sequence[Recording]) -> tuple[str, ...]:
    """The methods' names; runs of one method also get the budget and fields in which they differ, or a number."""
    labels = []
    for run in runs:
        same_method = [each for each in runs if each.method == run.method]
        parts = [run.method]
        if len({each.budget for each in same_method}) > 1:
            parts.append(f"budget {run.budget:,}")
        fields = sorted(set(chain.from_iterable(each.config for each in same_method)) - {"budget"})
        parts += [
            f"{name} {run.config.get(name)}"
            for name in fields
            if len({repr(each.config.get(name)) for each in same_method}) > 1
        ]
        labels.append(" · ".join(parts))
    return tuple(
        f"{label} · #{labels[: number + 1].count(label)}" if labels.count(label) > 1 else label
        for number, label in enumerate(labels)
    )


def _description(common: Compared) -> str:
    first, runs = common.recordings[0], common.recordings
    budgets = {run.budget_text for run in runs}
    seeds = {run.config["seed"] for run in runs if "seed" in run.config}
    parts = [
        f"{len(runs)} recordings compared" if len(runs) > 1 else "1 recording",
        f"budget {budgets.pop()}" if len(budgets) == 1 else "",
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
    not_shared = sorted({layer for run in runs for layer in run.layers} - set(common.layers))
    if not_shared:
        notes.append(f"Left out: {content.numbered('layer', not_shared)}, which not every recording has.")
    different = _first_different_step(common)
    if different is not None:
        notes.append(f"From step {different} on, the recordings feed different tokens: each continues its own answer.")
    no_members = [label for label, run in zip(labels, runs, strict=True) if _lacks_members(run)]
    if no_members:
        notes.append(f"{', '.join(no_members)}: it is not recorded which tokens were merged; they show as missed.")
    per_query_head = [label for number, label in enumerate(labels) if content.rows(runs[number]) > common.heads]
    if per_query_head:
        notes.append(
            f"{', '.join(per_query_head)} {'select' if len(per_query_head) > 1 else 'selects'} per query head: "
            "the first query head stands for its KV head. The last rows of the map show all of them as one."
        )
    return notes


def _lacks_members(run: Recording) -> bool:
    return any(events.merged.any() and events.members is None for events in run.events.values())


def _first_different_step(common: Compared) -> int | None:
    """The first step at which the recordings do not all feed the same token; None if there is none."""
    start = common.recordings[0].prompt_length
    fed = np.stack([run.token_ids[start : start + common.steps] for run in common.recordings])
    differs = (fed != fed[0]).any(0)
    return int(differs.argmax()) if differs.any() else None
