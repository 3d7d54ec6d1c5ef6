"""What a method chooses in one layer of a trace under a budget, computed anew for each change and remembered."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from ...errors import InvalidInputError
from ...methods import resolve
from ...methods.base import Method
from ...methods.sliders import Slider
from ...metrics import Verdict, agreement, member_mask
from ...trace import Ledger, Recording, Trace
from ..replaying import LayerReplay, record
from .numbers import check_finite
from .sliders import sliders_of

# Steps of a replay: 15 to 60 ms a change at 4,096 tokens of SmolLM2 with the methods' defaults (EPYC, one core).
QUERIES = 8
REMEMBERED = 8  # explored selections: each holds its exact attention, 0.4 MB at 4,096 tokens of SmolLM2
BUILT = 2  # built layers, a method's and the oracle's: each holds the layer's tokens, 6 MB there

Key = TypeVar("Key", bound=Hashable)
Value = TypeVar("Value")


class Point(NamedTuple):
    """What a budget keeps: means over the steps, of each row [R] and, for the error, of the whole layer."""

    budget: int
    recall: list[float]
    attention_mass: list[float]
    output_error: float


@dataclass(frozen=True)
class Parts:
    """Tokens of one row at the last step. All but `missed` and `merged_tokens` add up to what it attends.

    `agreed` and `wasted` are the tokens that were chosen by score, and that the oracle would take or not; `missed` are
    the oracle's tokens that were attended neither alone nor in a centroid. `merged` counts centroids, `merged_tokens`
    the tokens they stand for.
    """

    sinks: int
    recent: int
    agreed: int
    wasted: int
    merged: int
    generated: int
    missed: int
    merged_tokens: int


@dataclass(frozen=True)
class Explored:
    """What a method did in one layer over the last tokens of a trace, and its ledger after the last of them.

    R rows: KV heads, or query heads where the method chooses for each.
    """

    method: Method
    layer: int
    recording: Recording  # of this layer alone

    @property
    def ledger(self) -> Ledger:
        """Where the layer's tokens and bytes went, after the last step."""
        return self.recording.ledgers[self.layer]

    @property
    def recall(self) -> NDArray[np.float64]:
        """Share of the oracle's tokens that were attended, mean over the steps, [R]."""
        steps = range(self.recording.steps)
        return np.asarray(np.mean([self.recording.recall(step, self.layer) for step in steps], axis=0))

    @property
    def attention_mass(self) -> NDArray[np.float64]:
        """Share of the exact attention on the attended tokens, mean over the steps, [R]; centroids count nothing."""
        steps = range(self.recording.steps)
        return np.asarray(np.mean([self.recording.attention_mass(step, self.layer) for step in steps], axis=0))

    @property
    def output_error(self) -> float:
        """Relative error of the attention output, centroids included, mean over steps and query heads."""
        return float(self.recording.events[self.layer].output_error.mean())

    @property
    def indices(self) -> NDArray[np.int64]:
        """Positions attended at the last step, [R, S], ascending, -1 pads."""
        return self.recording.indices(self.recording.steps - 1, self.layer)

    @property
    def wasted(self) -> NDArray[np.int64]:
        """Tokens chosen at the last step that the oracle would not take, [R]."""
        return np.array([parts.wasted for parts in self.parts])

    @property
    def metadata_bytes(self) -> int:
        """Bytes that the method keeps of this layer beside keys and values."""
        return self.ledger.metadata_bytes

    @property
    def point(self) -> Point:
        """The budget and what it keeps."""
        recall, mass = self.recall.tolist(), self.attention_mass.tolist()
        return Point(self.recording.budget, recall, mass, self.output_error)

    @property
    def parts(self) -> list[Parts]:
        """Where the tokens of each row went at the last step; a row's sinks and recent window are the ledger's."""
        recording, last = self.recording, self.recording.steps - 1
        length, prompt = recording.visible(last), recording.prompt_length
        sinks, recent = round(self.ledger.sinks), round(self.ledger.recent)
        place = np.arange(length)
        chosen = (place >= sinks) & (place < prompt - recent)
        attended = member_mask(self.indices, length)
        wanted = member_mask(recording.oracle(last, self.layer), length)
        centroids = recording.events[self.layer].merged[last]  # [H]
        merged = np.repeat(centroids, len(attended) // len(centroids))
        beside = chosen & ~attended & (merged > 0)[:, None]  # tokens that only centroids stand for
        verdicts = agreement(attended, wanted, always=~chosen, merged=beside)
        return [
            Parts(
                sinks=int(own[:sinks].sum()),
                recent=int(own[prompt - recent : prompt].sum()),
                agreed=int((chosen & (verdict == Verdict.AGREED)).sum()),
                wasted=int((verdict == Verdict.WASTED).sum()),
                merged=int(merged[row]),
                generated=int(own[prompt:].sum()),
                missed=int((verdict == Verdict.MISSED).sum()),
                merged_tokens=int(beside[row].sum()),
            )
            for row, (own, verdict) in enumerate(zip(attended, verdicts, strict=True))
        ]


class Explorer:
    """Runs methods on single layers of a trace, with `kvviz.replay`, and remembers what it found.

    The last `queries` tokens of the trace play the decode steps. `select` keeps its last few results, `point` the
    numbers of all of them. Raises InvalidInputError for anything that is no trace, and where no prompt is left.
    """

    def __init__(self, trace: Trace, *, queries: int = QUERIES) -> None:
        if not isinstance(trace, Trace):
            raise InvalidInputError("Explorer", type(trace).__name__, "a kvviz.Trace, such as kvviz.capture(...) gives")
        if not trace.layers:
            raise InvalidInputError("Explorer", "a trace without layers", "one with a layer: kvviz.capture(layers=...)")
        if not isinstance(queries, int) or not 1 <= queries < len(trace):
            wanted = f"1 to {len(trace) - 1}, so that a prompt is left; capture more tokens for more"
            raise InvalidInputError("Explorer: queries", queries, wanted)
        self.trace = trace
        self.queries = queries
        self._found: OrderedDict[tuple[int, str], Explored] = OrderedDict()
        self._checked: set[int] = set()
        self._built: OrderedDict[tuple[int, str], LayerReplay] = OrderedDict()
        self._points: OrderedDict[tuple[int, str], Point] = OrderedDict()

    @property
    def prompt_length(self) -> int:
        """Tokens before the decode steps."""
        return len(self.trace) - self.queries

    def layers(self, method: str | Method, **values: Any) -> tuple[int, ...]:
        """The captured layers in which the method chooses."""
        chosen = resolve(method, **values)
        return tuple(layer for layer in self.trace.layers if not chosen.is_dense(layer))

    def budgets(self, method: str, candidates: Iterable[int], **values: Any) -> list[int]:
        """Those of the candidates that the method accepts with these fields."""
        accepted = []
        for budget in candidates:
            try:
                resolve(method, **{**values, "budget": budget})
            except InvalidInputError:
                continue
            accepted.append(budget)
        return accepted

    def sliders(self, method: Method) -> list[Slider]:
        """The fields of the method worth moving, two at most, with the values for keys of this trace."""
        return sliders_of(method, self.trace.geometry.head_dim)

    def select(self, layer: int, method: str | Method, **values: Any) -> Explored:
        """What the method does in that layer; `values` are its budget and other fields, as for `kvviz.replay`.

        Raises InvalidInputError for a layer that was not captured or in which the method attends everything, and what
        the method raises for its fields.
        """
        chosen = resolve(method, **values)
        return _remembered(self._found, (layer, repr(chosen)), lambda: self._explore(layer, chosen), REMEMBERED)

    def point(self, layer: int, method: str | Method, **values: Any) -> Point:
        """The numbers of `select`, kept for every budget and field asked for so far."""
        chosen = resolve(method, **values)
        return _remembered(self._points, (layer, repr(chosen)), lambda: self.select(layer, chosen).point)

    def oracle_point(self, layer: int, method: str | Method, **values: Any) -> Point:
        """The numbers of the oracle with the method's budget, over the same rows.

        It has no sinks and no recent window to spend on, and keeps the most attention that so many tokens can.
        """
        chosen = resolve(method, **values)
        group = "each" if chosen.group == "each" else "mean"  # the oracle that maximises each row's mass
        return self.point(layer, "oracle", budget=chosen.budget, group=group)

    def _explore(self, layer: int, method: Method) -> Explored:
        self.trace.check_layer(layer)
        if layer not in self._checked:
            check_finite(f"explore {method.name}", self.trace, layer)
            self._checked.add(layer)
        if method.is_dense(layer):
            others = [other for other in self.trace.layers if not method.is_dense(other)]
            wanted = f"one of the layers {others}" if others else "another method, or a trace of later layers"
            dense = f"dense_layers={method.dense_layers}" if method.dense_layers else "always"
            raise InvalidInputError(
                f"explore {method.name}",
                f"layer {layer}, where it attends everything ({dense})",
                wanted + ("; or dense_layers=0" if method.dense_layers else ""),
            )
        return Explored(method, layer, record(self.trace, method, self.queries, [self._layer(layer, method)]))

    def _layer(self, layer: int, method: Method) -> LayerReplay:
        """The layer with its prompt taken in: what no budget changes, k-means above all, is done once for all of them.

        The first to ask gets a copy too: what it plays must not stay in the layer kept.
        """
        if not method.builds_for_any_budget:
            return LayerReplay(self.trace, layer, method, self.queries)
        fields = {name: value for name, value in method.config.items() if name != "budget"}
        built = _remembered(
            self._built, (layer, f"{method.name} {fields}"),
            lambda: LayerReplay(self.trace, layer, method, self.queries), BUILT,
        )  # fmt: skip
        return built.copy_for(method)


def select(trace: Trace, layer: int, method: str | Method, *, queries: int = QUERIES, **values: Any) -> Explored:
    """What a method does in one layer of a trace; its last `queries` tokens play the decode steps.

    `values` are the method's budget and other fields, as for `kvviz.replay`. For many calls on one trace make an
    `Explorer`, which remembers. Raises as `Explorer.select`.
    """
    return Explorer(trace, queries=queries).select(layer, method, **values)


def _remembered(
    found: OrderedDict[Key, Value], key: Key, compute: Callable[[], Value], limit: int | None = None
) -> Value:
    """found[key], computed where it is missing; beyond `limit` the one not asked for longest goes."""
    if key not in found:
        found[key] = compute()
    found.move_to_end(key)
    if limit is not None and len(found) > limit:
        found.popitem(last=False)
    return found[key]
