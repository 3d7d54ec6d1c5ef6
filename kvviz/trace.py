"""Trace (captured tensors) and Recording (decode events): the seam between what computes and what draws."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from . import metrics
from .errors import IncompatibleFileError, InvalidInputError
from .geometry import Geometry, check_layers, load_geometry
from .storage import by_layer, check_metadata, check_shape, read_arrays, take, write_arrays

__all__ = ["Geometry", "LayerEvents", "Recording", "Trace"]

Array = NDArray[Any]


@dataclass(frozen=True)
class Trace:
    """Post-RoPE queries, keys and values of one prefill, on the host.

    `queries[layer]` is float16 [Q, L, D]; `keys[layer]` and `values[layer]` are float16 [H, L, D]; `token_ids` is
    int64 [L] and `tokens` has the L tokens as text. The model multiplies its logits by `scale` (None: head_dim ** -0.5)
    and bounds them by `softcap` (None: not at all). Made by `kvviz.capture`, kept by `save`, read by `load`.
    """

    KIND = "kvviz.trace"
    VERSION = 1

    model: str
    geometry: Geometry
    tokens: list[str] = field(repr=False)
    token_ids: NDArray[np.int64] = field(repr=False)
    queries: Mapping[int, Array] = field(repr=False)
    keys: Mapping[int, Array] = field(repr=False)
    values: Mapping[int, Array] = field(repr=False)
    scale: float | None = None
    softcap: float | None = None

    def __post_init__(self) -> None:
        geometry, length = self.geometry, len(self.tokens)
        wanted = {"queries": geometry.n_heads, "keys": geometry.n_kv_heads, "values": geometry.n_kv_heads}
        for name, heads in wanted.items():
            for layer, array in getattr(self, name).items():
                check_shape(f"Trace.{name}[{layer}]", array, (heads, length, geometry.head_dim), np.float16)
        check_shape("Trace.token_ids", self.token_ids, (length,), np.int64)
        if not set(self.queries) == set(self.keys) == set(self.values):
            raise IncompatibleFileError("Trace", "other layers of queries than of keys or values", "the same of each")
        check_layers("Trace", self.keys, geometry)

    @property
    def layers(self) -> tuple[int, ...]:
        """The captured layers, ascending."""
        return tuple(sorted(self.keys))

    def __len__(self) -> int:
        return len(self.tokens)

    def check_layer(self, layer: int) -> int:
        """`layer` if it was captured; raises InvalidInputError otherwise."""
        if layer not in self.keys:
            raise InvalidInputError("layer of a trace", layer, f"a captured layer: {self.layers}")
        return layer

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write the trace to one safetensors file, whole or not at all; returns its path."""
        arrays: dict[str, Array] = {"token_ids": self.token_ids}
        for name in ("queries", "keys", "values"):
            arrays |= {f"{name}.{layer}": array for layer, array in getattr(self, name).items()}
        metadata: dict[str, Any] = {name: getattr(self, name) for name in ("model", "tokens", "scale", "softcap")}
        metadata["geometry"] = asdict(self.geometry)
        return write_arrays(path, self.KIND, self.VERSION, arrays, metadata)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Trace:
        """Open a saved trace; its arrays are memory-mapped, so that only what is touched is read.

        Raises IncompatibleFileError for a damaged file, another version, or arrays of wrong shapes.
        """
        arrays, metadata = read_arrays(path, cls.KIND, cls.VERSION)
        kinds = {"model": "text", "geometry": "object", "tokens": "texts", "scale": "factor", "softcap": "factor"}
        check_metadata(metadata, f"read {path}", kinds)
        return cls(
            model=metadata["model"],
            geometry=load_geometry(metadata["geometry"], path),
            tokens=metadata["tokens"],
            token_ids=take(arrays, "token_ids", path),
            queries=by_layer(arrays, "queries", path),
            keys=by_layer(arrays, "keys", path),
            values=by_layer(arrays, "values", path),
            scale=metadata["scale"],
            softcap=metadata["softcap"],
        )


@dataclass(frozen=True)
class LayerEvents:
    """What one layer did at every decode step.

    T steps, R rows (key/value heads, or query heads where the method chooses for each), S slots, N tokens in all.
    """

    indices: NDArray[np.int32]  # [T, R, S] attended positions, ascending, -1 pads
    groups: NDArray[np.int32]  # [T, R, S] cluster or page of each, -1 where it was attended without being chosen
    scores: NDArray[np.float32]  # [T, R, S] what the method ranked by, NaN where nothing was ranked
    attention: NDArray[np.float32]  # [T, R, N] exact attention weights (mean over the row's query heads), 0 ahead
    merged: NDArray[np.int32]  # [T, H] merged centroids attended beside the indices, each for several tokens
    output_error: NDArray[np.float32]  # [T] relative error of the attention output, mean over query heads
    read_bytes: NDArray[np.int64]  # [T] keys and values attended
    moved_bytes: NDArray[np.int64]  # [T] keys and values fetched from another tier
    select_s: NDArray[np.float32]  # [T] seconds of selection

    FIELDS: ClassVar[Mapping[str, Any]] = {
        "indices": np.int32, "groups": np.int32, "scores": np.float32, "attention": np.float32, "merged": np.int32,
        "output_error": np.float32, "read_bytes": np.int64, "moved_bytes": np.int64, "select_s": np.float32,
    }  # fmt: skip

    def check(self, name: str, steps: int, length: int, geometry: Geometry) -> None:
        """Raise IncompatibleFileError where shapes, dtypes or positions do not fit `steps` steps, `length` tokens."""
        rows, slots = (*self.indices.shape, 0, 0, 0)[1:3]
        shapes = {"attention": (steps, rows, length), "merged": (steps, geometry.n_kv_heads)} | dict.fromkeys(
            ("indices", "groups", "scores"), (steps, rows, slots)
        )
        for key, dtype in self.FIELDS.items():
            check_shape(f"{name}.{key}", getattr(self, key), shapes.get(key, (steps,)), dtype)
        if rows not in (geometry.n_kv_heads, geometry.n_heads):
            wanted = f"{geometry.n_kv_heads} (key/value heads) or {geometry.n_heads} (query heads)"
            raise IncompatibleFileError(f"{name}: rows", rows, wanted)
        seen = (length - steps + 1 + np.arange(steps))[:, None, None]  # tokens that each step can see
        if ((self.indices < -1) | (self.indices >= seen)).any():
            raise IncompatibleFileError(
                f"{name}.indices", "positions outside the visible tokens", "-1 or a visible one"
            )
        before, after = self.indices[..., :-1], self.indices[..., 1:]
        if ((before >= after) & (after >= 0)).any():
            raise IncompatibleFileError(f"{name}.indices", "positions out of order or twice", "each once, ascending")


_RECORDING_METADATA = {
    "method": "text", "title": "text", "config": "object", "budget": "integer", "model": "text", "geometry": "object",
    "tokens": "texts", "next_tokens": "texts", "prompt_length": "integer", "question_length": "integer",
    "dense_layers": "integers", "exact_layers": "integers", "answer": "text",
}  # fmt: skip


@dataclass(frozen=True)
class Recording:
    """What a method attended at every layer, head and decode step, beside the exact attention weights.

    Positions count from the first prompt token. Step `s` feeds token `prompt_length + s` and sees
    `prompt_length + s + 1` tokens. The first `question_length` steps feed the question; the rest feed what the model
    wrote. `dense_layers` attended everything by the method's choice, `exact_layers` because it cannot serve them.
    Made by `kvviz.generate(..., record=True)` and `kvviz.replay`.
    """

    KIND = "kvviz.recording"
    VERSION = 1

    method: str  # registry name
    title: str  # the method's name in print
    config: Mapping[str, Any]  # the method's fields
    budget: int  # tokens a head may attend, generated ones aside
    model: str
    geometry: Geometry
    tokens: list[str] = field(repr=False)  # prompt and fed tokens, N = prompt_length + steps
    token_ids: NDArray[np.int64] = field(repr=False)  # [N]
    next_tokens: list[str] = field(repr=False)  # [T] what each step predicted
    prompt_length: int
    events: Mapping[int, LayerEvents] = field(repr=False)
    question_length: int = 0
    dense_layers: tuple[int, ...] = ()
    exact_layers: tuple[int, ...] = ()
    answer: str = ""

    def __post_init__(self) -> None:
        steps, length = self.steps, len(self.tokens)
        if steps != length - self.prompt_length:
            raise IncompatibleFileError(
                "Recording", f"{steps} steps after a prompt of {self.prompt_length}", f"{length} tokens in all"
            )
        if self.prompt_length < 1 or not 0 <= self.question_length <= steps:
            got = f"a prompt of {self.prompt_length} and a question of {self.question_length} tokens"
            raise IncompatibleFileError("Recording", got, f"a prompt, and a question of 0 to {steps}")
        check_shape("Recording.token_ids", self.token_ids, (length,), np.int64)
        check_layers("Recording", [*self.events, *self.dense_layers, *self.exact_layers], self.geometry)
        for layer, events in self.events.items():
            events.check(f"Recording.events[{layer}]", steps, length, self.geometry)

    @property
    def steps(self) -> int:
        """Decode steps recorded."""
        return len(self.next_tokens)

    @property
    def layers(self) -> tuple[int, ...]:
        """The layers with events, ascending."""
        return tuple(sorted(self.events))

    @property
    def description(self) -> str:
        """What was run, for titles: method, budget, model, prompt length."""
        return f"{self.method} · budget {self.budget:,} · {self.model} · {self.prompt_length:,} tokens"

    def visible(self, step: int) -> int:
        """Tokens that step `step` can see, itself included."""
        return self.prompt_length + self._check(step) + 1

    def indices(self, step: int, layer: int) -> NDArray[np.int64]:
        """Attended positions at a step, int64 [R, S], ascending, -1 pads."""
        return np.asarray(self._at(layer).indices[self._check(step)], np.int64)

    def groups(self, step: int, layer: int) -> NDArray[np.int32]:
        """Cluster or page of each attended position, int32 [R, S]; -1 for sinks, recent and generated tokens."""
        return np.asarray(self._at(layer).groups[self._check(step)])

    def scores(self, step: int, layer: int) -> NDArray[np.float32]:
        """What the method ranked each attended position by, float32 [R, S]; NaN where nothing was ranked."""
        return np.asarray(self._at(layer).scores[self._check(step)])

    def attention(self, step: int, layer: int) -> NDArray[np.float32]:
        """Exact attention weights, float32 [R, visible]; each row sums to 1."""
        return np.asarray(self._at(layer).attention[self._check(step), :, : self.visible(step)])

    def oracle(self, step: int, layer: int) -> NDArray[np.int64]:
        """The tokens with the largest exact weights, as many as the method attended, int64 [R, S], -1 pads."""
        chosen = self.indices(step, layer)
        counts = (chosen >= 0).sum(-1, keepdims=True)
        ranked = np.argsort(-self.attention(step, layer), axis=-1, kind="stable")[:, : chosen.shape[-1]]
        found: NDArray[np.int64] = np.full_like(chosen, -1)  # [R, S]: there may be more slots than visible tokens
        found[:, : ranked.shape[-1]] = np.where(np.arange(ranked.shape[-1]) < counts, ranked, -1)
        return found

    def attended_tokens(self, step: int, layer: int) -> NDArray[np.int64]:
        """Different tokens that each KV head attended, all its query heads together, merged ones included, [H]."""
        attended = metrics.member_mask(self.indices(step, layer), self.visible(step))
        by_head = attended.reshape(self.geometry.n_kv_heads, -1, attended.shape[-1])
        return np.asarray(by_head.any(1).sum(-1) + self._at(layer).merged[step], dtype=np.int64)

    def recall(self, step: int, layer: int) -> NDArray[np.float64]:
        """Share of the oracle's tokens that were attended, [R]."""
        return metrics.recall(self.indices(step, layer), self.oracle(step, layer))

    def attention_mass(self, step: int, layer: int) -> NDArray[np.float64]:
        """Share of the exact attention on the attended tokens, [R]."""
        return metrics.attention_mass(self.attention(step, layer), self.indices(step, layer))

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

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write the recording to one safetensors file, whole or not at all; returns its path."""
        arrays: dict[str, Array] = {"token_ids": self.token_ids}
        for layer, events in self.events.items():
            arrays |= {f"{name}.{layer}": getattr(events, name) for name in LayerEvents.FIELDS}
        metadata = {name: getattr(self, name) for name in _RECORDING_METADATA}
        metadata |= {"config": dict(self.config), "geometry": asdict(self.geometry)}
        return write_arrays(path, self.KIND, self.VERSION, arrays, metadata)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Recording:
        """Open a saved recording, memory-mapped.

        Raises IncompatibleFileError for a damaged file, another version, or arrays of wrong shapes.
        """
        arrays, metadata = read_arrays(path, cls.KIND, cls.VERSION)
        check_metadata(metadata, f"read {path}", _RECORDING_METADATA)
        columns = {name: by_layer(arrays, name, path) for name in LayerEvents.FIELDS}
        layers = set(columns["indices"])
        if any(set(column) != layers for column in columns.values()):
            wanted = f"{', '.join(LayerEvents.FIELDS)} of every layer"
            raise IncompatibleFileError(f"read {path}", "events with missing parts", wanted)
        events = {layer: LayerEvents(**{name: columns[name][layer] for name in columns}) for layer in layers}
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
