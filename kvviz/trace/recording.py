"""Recording: what a method attended to at each decode step of a run."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .. import metrics
from ..errors import IncompatibleFileError, InvalidInputError, UnknownNameError
from ..metrics.byte_budgets import Bytes
from ..metrics.memory import bytes_text
from .cards import card, layers_text
from .earlier import GROUP_NAMES
from .edits import Edit, load_edit
from .events import LayerEvents
from .geometry import Geometry, check_layers, load_geometry
from .ledger import Ledger, budgets_text
from .storage import by_layer, check_metadata, check_shape, read_arrays, take, write_arrays
from .styles import Style, load_style

Array = NDArray[Any]


_RECORDING_METADATA = {
    "method": "text", "title": "text", "config": "object", "budget": "integer", "model": "text", "geometry": "object",
    "tokens": "texts", "next_tokens": "texts", "prompt_length": "integer", "question_length": "integer",
    "dense_layers": "integers", "exact_layers": "integers", "answer": "text",
}  # fmt: skip
# Older files have none of them.
_OPTIONAL = {"group_name": "text", "style": "object", "edit": "objects", "budgets": "object"}


@dataclass(frozen=True)
class Recording:
    """The tokens a method attended to at each layer, head and decode step, with the exact attention weights.

    Positions count from the first prompt token. Step `s` feeds token `prompt_length + s` and sees
    `prompt_length + s + 1` tokens. The first `question_length` steps feed the question; the rest feed the generated
    tokens. `dense_layers` attended to all tokens by the method's choice, `exact_layers` because it cannot serve them.
    `ledgers[layer]` is that layer's ledger after the last step; `save` leaves the ledgers out, so that a recording read
    from a file has none. `edit` is what a person changed in the method's choice. `budgets[layer]` is the budget in
    tokens that a layer found for a budget in bytes; {} for other budgets. Made by `kvviz.generate(..., record=True)`
    and `kvviz.replay`.
    """

    KIND = "kvviz.recording"
    VERSION = 1

    method: str  # registry name
    title: str  # the method's name in print
    config: Mapping[str, Any]  # the method's fields
    # Tokens that a head may attend to, without what comes on top (decode window, generated="on_top"); of a budget in
    # bytes the mean over layers.
    budget: int
    model: str
    geometry: Geometry
    tokens: list[str] = field(repr=False)  # prompt and fed tokens, N = prompt_length + steps
    token_ids: NDArray[np.int64] = field(repr=False)  # [N]
    next_tokens: list[str] = field(repr=False)  # [T] the token that each step predicted
    prompt_length: int
    events: Mapping[int, LayerEvents] = field(repr=False)
    question_length: int = 0
    dense_layers: tuple[int, ...] = ()
    exact_layers: tuple[int, ...] = ()
    answer: str = ""
    group_name: str = "cluster"  # the name of one of the method's groups
    style: Style | None = None  # how the method is drawn; None: the style of its name
    ledgers: Mapping[int, Ledger] = field(default_factory=dict, repr=False)
    edit: Edit | None = None
    budgets: Mapping[int, int] = field(default_factory=dict, repr=False)

    def __post_init__(self) -> None:
        steps, length = self.steps, len(self.tokens)
        if steps != length - self.prompt_length:
            raise IncompatibleFileError(
                "Recording", f"{steps} steps after a prompt of {self.prompt_length}", f"{length} tokens in all"
            )
        if self.prompt_length < 1 or not 0 <= self.question_length <= steps:
            got = f"a prompt of {self.prompt_length} and a question of {self.question_length} tokens"
            raise IncompatibleFileError("Recording", got, f"a prompt of at least 1 token, a question of 0 to {steps}")
        check_shape("Recording.token_ids", self.token_ids, (length,), np.int64)
        check_layers("Recording", [*self.events, *self.dense_layers, *self.exact_layers], self.geometry)
        for layer, events in self.events.items():
            events.check(f"Recording.events[{layer}]", steps, length, self.geometry)

    @property
    def steps(self) -> int:
        """Number of decode steps."""
        return len(self.next_tokens)

    @property
    def layers(self) -> tuple[int, ...]:
        """The layers with events, ascending."""
        return tuple(sorted(self.events))

    @property
    def budget_text(self) -> str:
        """The budget in words: a number of tokens, or "12.5 % of the bytes (221 to 230 tokens)" as the layers found.

        For a model with sliding windows, also in how many layers it holds.
        """
        given, governed = self.config.get("budget"), self.geometry.governed_text(len(self.dense_layers))
        if not self.budgets or not isinstance(given, Mapping):
            return f"{self.budget:,}{governed}"
        return f"{Bytes(**given)} ({budgets_text(self.budgets)}){governed}"

    @property
    def description(self) -> str:
        """Method, budget, model and prompt length, for titles."""
        return f"{self.method} · budget {self.budget_text} · {self.model} · {self.prompt_length:,} tokens"

    def _repr_html_(self) -> str:
        arrays = [array for events in self.events.values() for array in events.arrays().values()]
        return card("Recording", "what a method attended to at each decode step", {
            "method": f"{self.title}, budget {self.budget_text}", "model": self.model,
            "length": f"{self.prompt_length:,} tokens, then {self.steps:,} steps",
            "layers": layers_text(self.layers, self.geometry.n_layers),
            "size": bytes_text(sum(array.nbytes for array in arrays)), "answer": self.answer,
        }, [
            ("kvviz.widgets.DecodeStepper(recording)", "each step, in the text"),
            ("recording.summary()", "means of recall, attention mass and error"),
            ("kvviz.widgets.MethodComparer([recording, …])", "beside recordings of the same prompt"),
        ])  # fmt: skip

    def visible(self, step: int) -> int:
        """Number of tokens that a step can see, including the one it feeds."""
        return self.prompt_length + self._check(step) + 1

    def indices(self, step: int, layer: int) -> NDArray[np.int64]:
        """Attended positions at a step, int64 [R, S], ascending, -1 pads."""
        return np.asarray(self._at(layer).indices[self._check(step)], np.int64)

    def groups(self, step: int, layer: int) -> NDArray[np.int32]:
        """Cluster or page of each attended position, int32 [R, S]; -1 for sinks, recent and generated tokens."""
        return np.asarray(self._at(layer).groups[self._check(step)])

    def scores(self, step: int, layer: int) -> NDArray[np.float32]:
        """The method's ranking score of each attended position, float32 [R, S]; NaN if nothing was ranked."""
        return np.asarray(self._at(layer).scores[self._check(step)])

    def attention(self, step: int, layer: int) -> NDArray[np.float32]:
        """Exact attention weights, float32 [R, visible]; each row sums to 1."""
        return np.asarray(self._at(layer).attention[self._check(step), :, : self.visible(step)])

    def oracle(self, step: int, layer: int) -> NDArray[np.int64]:
        """The tokens with the largest exact weights, as many as the method attended to, int64 [R, S], -1 pads.

        A centroid counts as one, so that the oracle attends to as many entries of the cache as a method that merges.
        """
        attended, merged = self.indices(step, layer), self._at(layer).merged[step]
        counts = (attended >= 0).sum(-1) + np.repeat(merged, len(attended) // len(merged))
        slots = attended.shape[-1] + int(merged.max())
        ranked = metrics.ranked_tokens(self.attention(step, layer), slots)
        best = np.full((len(attended), slots), -1, np.int64)  # there may be more slots than visible tokens
        best[:, : ranked.shape[-1]] = np.where(np.arange(ranked.shape[-1]) < counts[:, None], ranked, -1)
        return best

    def agreement(self, step: int, layer: int) -> NDArray[np.uint8]:
        """The verdict on each visible token, uint8 [R, visible] of `metrics.Verdict`.

        Agreed, missed, wasted, or merged away: the centroid of an oracle's token gives it at least half of its weight.
        Sinks, recent window and generated tokens are never wasted, but kept, since no method chooses them.
        """
        visible = self.visible(step)
        attended, oracle = self.indices(step, layer), self.oracle(step, layer)
        recalled = self.merged_share(step, layer) >= metrics.LEAST_SHARE
        unchosen = (self.groups(step, layer) < 0) & np.isnan(self.scores(step, layer))
        kept = metrics.member_mask(np.where(unchosen, attended, -1), visible)
        sinks = int(self.config.get("sinks", 0))
        always = metrics.always_attended(kept, prompt_length=self.prompt_length, sinks=sinks)
        masks = (metrics.member_mask(tokens, visible) for tokens in (attended, oracle))
        return metrics.agreement(*masks, always=always, merged=recalled)

    def union(self, step: int, layer: int, rows: Sequence[int] | None = None) -> metrics.HeadUnion:
        """How many heads attended to each visible token, missed it or wasted it, and the verdict on their union.

        `rows` are the heads (default: all of the layer); a method that selects per query head has one row for each.
        """
        verdicts = self.agreement(step, layer)
        return metrics.head_union(verdicts if rows is None else verdicts[list(rows)])

    def attended_tokens(self, step: int, layer: int) -> NDArray[np.int64]:
        """Number of different tokens that each KV head's query heads attended to, merged centroids included, [H]."""
        attended = metrics.member_mask(self.indices(step, layer), self.visible(step))
        by_head = attended.reshape(self.geometry.n_kv_heads, -1, attended.shape[-1])
        rows = np.arange(len(attended)).reshape(len(by_head), -1)
        centroids = [self.attended_centroids(step, layer, of_head.tolist()) for of_head in rows]
        return np.asarray(by_head.any(1).sum(-1) + centroids, dtype=np.int64)

    def attended_centroids(self, step: int, layer: int, rows: Sequence[int]) -> int:
        """The number of different centroids that some rows attended to at a step: those of a KV head are shared.

        If its query heads chose different ones and the members are unknown, it is the number of the one with most.
        """
        counts, total = self._at(layer).merged[step], self._at(layer).indices.shape[1]
        heads, members = self.geometry.n_kv_heads, self.members(step, layer)
        of_head: dict[int, list[int]] = {}
        for row in rows:
            of_head.setdefault(row * heads // total, []).append(row)
        if len(counts) == heads:
            return int(counts[list(of_head)].sum())
        if members is None:
            return sum(int(counts[of_rows].max()) for of_rows in of_head.values())
        return sum(int((np.unique(members[of_rows]) >= 0).sum()) for of_rows in of_head.values())

    def recall(self, step: int, layer: int) -> NDArray[np.float64]:
        """Share of the oracle's tokens that were attended to, [R]; merged tokens count by their `merged_share`."""
        return metrics.recall(self.indices(step, layer), self.oracle(step, layer), self.merged_share(step, layer))

    def attention_mass(self, step: int, layer: int) -> NDArray[np.float64]:
        """Share of the exact attention on the attended tokens, [R]; merged tokens count by their `merged_share`."""
        share = self.merged_share(step, layer)
        return metrics.attention_mass(self.attention(step, layer), self.indices(step, layer), share)

    def merged_share(self, step: int, layer: int) -> NDArray[np.float64]:
        """Share of each visible token's exact weight that its centroid gives it, [R, visible]; 0 if it has none.

        See `metrics.merged_share`. 0 also for merged tokens whose share was not recorded, as in older files: recall and
        attention mass then count them as lost.
        """
        share, visible = self._at(layer).merged_share, self.visible(step)
        if share is None:
            return np.zeros((self._at(layer).indices.shape[1], visible))
        return np.asarray(share[step, :, :visible], np.float64)

    def members(self, step: int, layer: int) -> NDArray[np.int32] | None:
        """The centroid that each visible token was merged into at a step, int32 [R, visible], -1 for none.

        Centroids are numbered per KV head; the number of tokens that name a centroid is its degree. The numbers are
        valid until tokens are merged again. None if tokens were merged but the recording does not say which, as in
        older files and for methods that give no `Merged.members`.
        """
        events, visible = self._at(layer), self.visible(step)
        rows = events.indices.shape[1]
        if events.members is None or events.members_of_step is None:
            return None if events.merged[step].any() else np.full((rows, visible), -1, np.int32)
        merge = events.members_of_step[step]
        if merge < 0:
            return np.full((rows, visible), -1, np.int32)
        return np.repeat(events.members[merge, :, :visible], rows // events.members.shape[1], axis=0)

    def by_head(self, number: str, tokens: Sequence[int] = (), *, steps: int = 8) -> NDArray[np.float64]:
        """A number of each layer and row, float64 [layers, R]: the mean over at most `steps` steps, evenly spread.

        "recall", "attention_mass", "output_error" (the same in all rows of a layer), or "attention", the share of the
        exact attention on the positions `tokens`. Raises UnknownNameError for another number.
        """
        measures: dict[str, Callable[[int, int], NDArray[Any]]] = {
            "recall": self.recall,
            "attention_mass": self.attention_mass,
            "output_error": lambda step, layer: np.full(
                len(self.indices(step, layer)), self._at(layer).output_error[step], np.float64
            ),
            "attention": lambda step, layer: self.attention(step, layer)[:, list(tokens)].sum(-1, dtype=np.float64),
        }
        if number not in measures:
            raise UnknownNameError("Recording.by_head", number, tuple(measures))
        some = np.unique(np.linspace(0, self.steps - 1, min(steps, self.steps)).astype(int)).tolist()
        return np.array([np.mean([measures[number](step, layer) for step in some], axis=0) for layer in self.layers])

    def summary(self) -> dict[str, float]:
        """Means over steps, layers and rows, by name; moved_bytes is the sum over steps and layers."""
        names = ("recall", "attention_mass", "output_error", "attended_tokens", "moved_bytes")
        cells = [(step, layer) for layer in self.layers for step in range(self.steps)]
        if not cells:
            return dict.fromkeys(names, float("nan"))
        values: tuple[Any, ...] = (
            np.mean([self.recall(*cell) for cell in cells]),
            np.mean([self.attention_mass(*cell) for cell in cells]),
            np.mean([events.output_error for events in self.events.values()]),
            np.mean([self.attended_tokens(*cell) for cell in cells]),
            sum(int(events.moved_bytes.sum()) for events in self.events.values()),
        )
        return {name: float(value) for name, value in zip(names, values, strict=True)}

    def replace(self, **changes: Any) -> Recording:
        """A copy with some fields changed."""
        return replace(self, **changes)

    def cut(self, start: int, stop: int) -> Recording:
        """A copy with only the steps `start` to `stop` - 1; tokens fed before count as prompt, later ones are dropped.

        `question_length` counts the rest of the question; `ledgers` are left out, because they are for all steps.
        Raises InvalidInputError unless 0 <= start < stop <= steps.
        """
        if not 0 <= start < stop <= self.steps:
            raise InvalidInputError("cut of a recording", f"{start} to {stop}", f"a part of 0 to {self.steps}")
        length = self.prompt_length + stop
        return self.replace(
            tokens=self.tokens[:length],
            token_ids=self.token_ids[:length],
            next_tokens=self.next_tokens[start:stop],
            prompt_length=self.prompt_length + start,
            question_length=min(max(self.question_length - start, 0), stop - start),
            events={layer: events.cut(start, stop, length) for layer, events in self.events.items()},
            ledgers={},
        )

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write the recording, without its ledgers, to one safetensors file, whole or not at all; returns its path."""
        arrays: dict[str, Array] = {"token_ids": self.token_ids}
        for layer, events in self.events.items():
            arrays |= {f"{name}.{layer}": array for name, array in events.arrays().items()}
        metadata = {name: getattr(self, name) for name in _RECORDING_METADATA}
        metadata |= {"config": dict(self.config), "geometry": self.geometry.metadata(), "group_name": self.group_name}
        metadata |= {"style": asdict(self.style)} if self.style is not None else {}
        metadata |= {"edit": self.edit.config} if self.edit is not None else {}
        metadata |= {"budgets": {str(layer): tokens for layer, tokens in self.budgets.items()}} if self.budgets else {}
        return write_arrays(path, self.KIND, self.VERSION, arrays, metadata)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Recording:
        """Open a saved recording, memory-mapped.

        Raises IncompatibleFileError for a damaged file, another version, or arrays of wrong shapes.
        """
        arrays, metadata = read_arrays(path, cls.KIND, cls.VERSION)
        check_metadata(metadata, f"read {path}", _RECORDING_METADATA, _OPTIONAL)
        metadata = {"group_name": GROUP_NAMES.get(metadata["method"], "cluster")} | metadata
        if "style" in metadata:
            metadata["style"] = load_style(metadata["style"], f"read {path}: style")
        if "edit" in metadata:
            metadata["edit"] = load_edit(metadata["edit"], f"read {path}: edit")
        if "budgets" in metadata:
            metadata["budgets"] = _load_budgets(metadata["budgets"], f"read {path}: budgets")
        columns = {name: by_layer(arrays, name, path) for name in LayerEvents.FIELDS}
        layers = set(columns["indices"])
        if any(set(column) != layers for column in columns.values()):
            wanted = f"{', '.join(LayerEvents.FIELDS)} of every layer"
            raise IncompatibleFileError(f"read {path}", "events with missing parts", wanted)
        for name in LayerEvents.MERGED_FIELDS:
            columns[name] = by_layer(arrays, name, path)
            if not layers.issuperset(columns[name]):
                raise IncompatibleFileError(f"read {path}", f"{name} of other layers", f"layers {sorted(layers)}")
        events = {
            layer: LayerEvents(**{name: column[layer] for name, column in columns.items() if layer in column})
            for layer in layers
        }
        metadata["geometry"] = load_geometry(metadata["geometry"], path)
        for name in ("dense_layers", "exact_layers"):
            metadata[name] = tuple(metadata[name])
        return cls(**metadata, token_ids=take(arrays, "token_ids", path), events=events)

    def _at(self, layer: int) -> LayerEvents:
        if layer not in self.events:
            raise InvalidInputError("layer of a recording", layer, f"a recorded layer: {self.layers}")
        return self.events[layer]

    def _check(self, step: int) -> int:
        if not 0 <= step < self.steps:
            raise InvalidInputError("step of a recording", step, f"0 to {self.steps - 1}")
        return step


def _load_budgets(stored: Mapping[str, Any], operation: str) -> dict[int, int]:
    """The budgets by layer. Raises IncompatibleFileError unless they are whole numbers by layers."""
    if not all(layer.isdecimal() and type(tokens) is int and tokens > 0 for layer, tokens in stored.items()):
        raise IncompatibleFileError(operation, dict(stored), "a number of tokens for each layer")
    return {int(layer): tokens for layer, tokens in stored.items()}
