"""Inspection: what kvviz does with a model, before anything is computed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ..metrics.memory import bytes_text
from ..trace import Geometry
from ..trace.cards import card, layers_text

CAPTURED_BYTES = 2  # a captured number is float16


@dataclass(frozen=True)
class InspectedLayer:
    """One layer of a model: whether methods choose what it attends to (`served`), or why it stays exact (`reason`).

    `n_heads`, `n_kv_heads` and `head_dim` are the shapes that reach its attention, 0 in a layer without one. `window`
    is the number of tokens that its cache keeps, None for all; `cached` is False if it keeps no keys of its own.
    """

    index: int
    served: bool
    reason: str = ""
    n_heads: int = 0
    n_kv_heads: int = 0
    head_dim: int = 0
    window: int | None = None
    cached: bool = True

    def cache_values(self, length: int) -> int:
        """Numbers that the layer's keys and values of `length` tokens take."""
        tokens = length if self.window is None else min(length, self.window)
        return 2 * self.n_kv_heads * self.head_dim * tokens if self.cached else 0

    def captured_values(self, length: int) -> int:
        """Numbers that the layer's queries, keys and values of `length` tokens take in a trace."""
        return (self.n_heads + 2 * self.n_kv_heads) * self.head_dim * length


@dataclass(frozen=True)
class Inspection:
    """What kvviz does with a model: which layers a method serves, which stay exact and why, memory, what is refused.

    `refused` is the error that every use of the model raises, and None for a model that works. `device` is where the
    weights are, and None if only a config was read; `dtype` is then what `kvviz.load` would choose. `parameters` is
    the number of weights. `uses` are the ways to generate that a SelectiveCache refuses, with what works instead.
    `notes` are what else is to be known. Made by `kvviz.inspect`.
    """

    name: str
    architecture: str
    dtype: str
    value_bytes: int
    device: str | None
    parameters: int
    geometry: Geometry | None
    layers: tuple[InspectedLayer, ...]
    refused: str | None
    uses: tuple[tuple[str, str], ...]
    notes: tuple[str, ...]
    lengths: tuple[int, ...]

    @property
    def works(self) -> bool:
        """Whether kvviz generates with the model; its `refused` says why not."""
        return self.refused is None

    @property
    def served(self) -> tuple[int, ...]:
        """The layers in which a method chooses what is attended to."""
        return tuple(layer.index for layer in self.layers if layer.served)

    @property
    def exact(self) -> dict[str, tuple[int, ...]]:
        """The layers that stay exact, by reason."""
        reasons = dict.fromkeys(layer.reason for layer in self.layers if not layer.served)
        return {
            reason: tuple(layer.index for layer in self.layers if not layer.served and layer.reason == reason)
            for reason in reasons
        }

    def cache_bytes(self, length: int, batch: int = 1) -> int:
        """Bytes of all keys and values that the model caches for `length` tokens, before a method drops any.

        States of linear attention, whose size does not grow, are not counted.
        """
        return batch * self.value_bytes * sum(layer.cache_values(length) for layer in self.layers)

    def trace_bytes(self, length: int, layers: Sequence[int] | None = None) -> int:
        """Bytes of a trace of these layers (by default all with attention): `kvviz.capture` of `length` tokens."""
        chosen = [layer for layer in self.layers if layers is None or layer.index in layers]
        return CAPTURED_BYTES * sum(layer.captured_values(length) for layer in chosen)

    def rows(self) -> dict[str, str]:
        """The report as text by row, without the memory by length."""
        shape, count = self.geometry, len(self.layers)
        weights = bytes_text(self.parameters * self.value_bytes)
        where = "not loaded" if self.device is None else f"on {self.device}"
        return {
            "works": "yes" if self.works else f"no: {self.refused}",
            "attention": ""
            if shape is None
            else f"{shape.n_layers} layers, {shape.n_heads} query heads, {shape.n_kv_heads} KV heads of "
            f"{shape.head_dim} dimensions, {shape.max_positions:,} positions",
            "weights": f"{self.parameters:,} parameters, {weights} as {self.dtype}, {where}",
            "layers served": layers_text(self.served, count) if self.layers else "",
            **{f"layers exact: {reason}": layers_text(exact, count) for reason, exact in self.exact.items()},
            "refused": "; ".join(what for what, _ in self.uses) if self.works else "",
            "note": " ".join(self.notes),
        }

    def memory_rows(self) -> dict[str, str]:
        """The memory of the KV cache and of a trace, as text by length."""
        if not self.works:
            return {}
        return {
            f"{length:,} tokens": f"KV cache {bytes_text(self.cache_bytes(length))}, "
            f"trace of all layers {bytes_text(self.trace_bytes(length))}"
            for length in self.lengths
        }

    def __str__(self) -> str:
        rows = {name: text for name, text in {**self.rows(), **self.memory_rows()}.items() if text}
        width = max(map(len, rows))
        return "\n".join([f"{self.name} ({self.architecture})", *(f"{n:<{width}}  {t}" for n, t in rows.items())])

    def _repr_html_(self) -> str:
        works = [("kvviz.load(…), then kvviz.generate(lm, prompt, …)", "decode with a method")]
        other = [("kvviz.load()", "a model that works")]
        about = f"what kvviz does with {self.name} ({self.architecture})"
        return card("Inspection", about, {**self.rows(), **self.memory_rows()}, works if self.works else other)
