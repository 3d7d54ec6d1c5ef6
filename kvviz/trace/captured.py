"""Trace: post-RoPE queries, keys and values of one prefill."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from .. import metrics
from ..errors import IncompatibleFileError, InvalidInputError
from ..metrics.memory import bytes_text
from .cards import card, layers_text
from .geometry import Geometry, check_layers, load_geometry
from .parts import ArrayFile, writing_arrays
from .rotation import Rotation, from_metadata, to_metadata
from .storage import by_layer, check_metadata, check_shape, read_arrays, take, write_arrays

if TYPE_CHECKING:
    from .recording import Recording

Array = NDArray[Any]
Group = Literal["mean", "each"]


@dataclass(frozen=True)
class Trace:
    """Post-RoPE queries, keys and values of one prefill, in host memory.

    `queries[layer]` is float16 [Q, L, D]; `keys[layer]` and `values[layer]` are float16 [H, L, D]; `token_ids` is
    int64 [L] and `tokens` has the L tokens as text. The model multiplies its logits by `scale` (None: head_dim ** -0.5)
    and limits them by `softcap` (None: not at all). `rotations` is the RoPE of each layer, as far as it is known;
    traces of earlier versions have none. Made by `kvviz.capture`, written by `save`, read by `load`.
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
    rotations: Mapping[int, Rotation] = field(default_factory=dict, repr=False)

    def __post_init__(self) -> None:
        geometry, length = self.geometry, len(self.tokens)
        head_counts = {"queries": geometry.n_heads, "keys": geometry.n_kv_heads, "values": geometry.n_kv_heads}
        for name, heads in head_counts.items():
            for layer, array in getattr(self, name).items():
                check_shape(f"Trace.{name}[{layer}]", array, (heads, length, geometry.head_dim), np.float16)
        check_shape("Trace.token_ids", self.token_ids, (length,), np.int64)
        if not set(self.queries) == set(self.keys) == set(self.values):
            raise IncompatibleFileError("Trace", "queries, keys and values of different layers", "the same layers")
        check_layers("Trace", self.keys, geometry)
        check_layers("Trace.rotations", self.rotations, geometry)
        widest = max((rotation.dim for rotation in self.rotations.values()), default=0)
        if widest > geometry.head_dim:
            raise IncompatibleFileError("Trace.rotations", f"{widest} channels", f"at most {geometry.head_dim}")

    @property
    def layers(self) -> tuple[int, ...]:
        """The captured layers, ascending."""
        return tuple(sorted(self.keys))

    @property
    def full_layers(self) -> tuple[int, ...]:
        """The captured layers that attend to all tokens, ascending: without those with a sliding window."""
        return tuple(layer for layer in self.layers if not self.geometry.window(layer))

    def __len__(self) -> int:
        return len(self.tokens)

    def _repr_html_(self) -> str:
        shape = self.geometry
        arrays = (array for part in (self.queries, self.keys, self.values) for array in part.values())
        return card("Trace", "queries, keys and values of one prefill", {
            "model": self.model, "length": f"{len(self):,} tokens", "layers": layers_text(self.layers, shape.n_layers),
            "heads": f"{shape.n_heads} query heads, {shape.n_kv_heads} KV heads, of {shape.head_dim} numbers",
            "size": bytes_text(sum(array.nbytes for array in arrays)), "text": "".join(self.tokens[:80]),
        }, [
            ('kvviz.replay(trace, "clusterkv", budget=256)', "what a method would have selected"),
            ("kvviz.widgets.ClusterInspector(trace)", "the clusters of a head's keys"),
            ("kvviz.widgets.BudgetExplorer(trace)", "a method's sliders"),
        ])  # fmt: skip

    def check_layer(self, layer: int) -> int:
        """`layer`, if it was captured. Raises InvalidInputError otherwise."""
        if layer not in self.keys:
            raise InvalidInputError("layer of a trace", layer, f"a captured layer: {self.layers}")
        return layer

    def check_full_layer(self, operation: str, layer: int) -> int:
        """`layer`, if it was captured and attends to all tokens. Raises InvalidInputError otherwise."""
        if self.geometry.window(self.check_layer(layer)):
            wanted = f"a layer that attends to all tokens: {self.full_layers}"
            raise InvalidInputError(operation, self.geometry.layer_text(layer), wanted)
        return layer

    def check_recording(self, operation: str, recording: Recording, tokens: int) -> None:
        """Raise InvalidInputError unless the trace begins with the recording's first `tokens` tokens.

        A recording of another model fails too. `operation` names the caller in the error.
        """
        if (self.model, self.geometry) != (recording.model, recording.geometry):
            wanted = f"one of the trace's model, {self.model} ({self.geometry})"
            raise InvalidInputError(operation, f"one of {recording.model} ({recording.geometry})", wanted)
        if not np.array_equal(self.token_ids[:tokens], recording.token_ids[:tokens]):
            got = f"one of another text (in its first {tokens:,} tokens; the trace has {len(self):,})"
            raise InvalidInputError(operation, got, "one whose text the trace begins with: capture the same prompt")

    def by_head(self, tokens: Sequence[int] = (), *, best: int = 0, group: Group = "mean") -> NDArray[np.float64]:
        """The share of the last token's exact attention on some tokens, by layer and head, float64 [layers, H or Q].

        On the positions `tokens`, or on the `best` tokens with the largest weights, whichever they are. `group` as in
        `metrics.attention_weights`.
        """
        shares = []
        for layer in self.layers:
            weights = self._last_weights(layer, group)
            if best:
                weights = np.partition(weights, max(len(self) - best, 0), axis=-1)[:, max(len(self) - best, 0) :]
            shares.append((weights if best else weights[:, list(tokens)]).sum(-1, dtype=np.float64))
        return np.array(shares)

    def _last_weights(self, layer: int, group: Group) -> Array:
        """The exact attention weights [H or Q, L] of the last token; 0 before a sliding window."""
        window = self.geometry.window(layer) or len(self)
        start = max(len(self) - window, 0)
        queries, keys = self.queries[layer][:, start:], self.keys[layer][:, start:]
        weights = metrics.attention_weights(
            queries, keys, np.array([len(self) - 1 - start]), scale=self.scale, softcap=self.softcap, group=group
        )[:, 0]
        return np.pad(weights, ((0, 0), (start, 0)))

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write the trace to one safetensors file, whole or not at all; returns its path."""
        arrays: dict[str, Array] = {"token_ids": self.token_ids}
        for name in ("queries", "keys", "values"):
            arrays |= {f"{name}.{layer}": array for layer, array in getattr(self, name).items()}
        return write_arrays(path, self.KIND, self.VERSION, arrays, self.metadata())

    def metadata(self) -> dict[str, Any]:
        """What the file of a trace says in its header."""
        metadata: dict[str, Any] = {name: getattr(self, name) for name in ("model", "tokens", "scale", "softcap")}
        metadata["geometry"] = self.geometry.metadata()
        return metadata | ({"rotations": to_metadata(self.rotations)} if self.rotations else {})

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Trace:
        """Open a saved trace; its arrays are memory-mapped, so that only the parts in use are read.

        Raises IncompatibleFileError for a damaged file, another version, or arrays of wrong shapes.
        """
        arrays, metadata = read_arrays(path, cls.KIND, cls.VERSION)
        kinds = {"model": "text", "geometry": "object", "tokens": "texts", "scale": "factor", "softcap": "factor"}
        check_metadata(metadata, f"read {path}", kinds, {"rotations": "objects"})
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
            rotations=from_metadata(metadata.get("rotations", []), path),
        )


@contextmanager
def writing_trace(path: str | os.PathLike[str], about: Trace, layers: Iterable[int]) -> Iterator[ArrayFile]:
    """An open trace file, to be filled part by part: `write("keys.3", part [H, n, D], start)`.

    `about` is a trace without layers, with all else that the file says. `Trace.load` reads the file once the block
    succeeds; nothing is left of it if the block raises. It is as `Trace.save` writes it.
    """
    geometry, length = about.geometry, len(about)
    heads = {"queries": geometry.n_heads, "keys": geometry.n_kv_heads, "values": geometry.n_kv_heads}
    shapes = {
        f"{name}.{layer}": ("<f2", (count, length, geometry.head_dim))
        for name, count in heads.items()
        for layer in layers
    }
    layout = {"token_ids": ("<i8", (length,)), **shapes}
    with writing_arrays(path, Trace.KIND, Trace.VERSION, layout, about.metadata()) as file:
        file.write("token_ids", about.token_ids)
        yield file
