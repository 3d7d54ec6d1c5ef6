"""A method's selections in one layer of a trace, for any budget and fields, and a cache of the results."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from ...errors import InvalidInputError
from ...methods import resolve
from ...methods.base import Method
from ...methods.sliders import Slider
from ...metrics import LEAST_SHARE, Verdict, agreement, head_union, member_mask
from ...trace import Ledger, Recording, Trace
from ..replaying import LayerReplay, check_finite, record
from .explorer_sliders import sliders_of

# Steps of a replay: 15 to 60 ms per change at 4,096 tokens of SmolLM2 with the methods' defaults (EPYC, one core).
QUERIES = 8
REMEMBERED = 8  # cached selections: each with its exact attention, 0.4 MB at 4,096 tokens of SmolLM2
BUILT = 2  # cached built layers, a method's and the oracle's: each with the layer's tokens, 6 MB at this length

Key = TypeVar("Key", bound=Hashable)
Value = TypeVar("Value")


class Point(NamedTuple):
    """The quality of a selection at one budget: means over the steps, per row [R]; the error is of the whole layer."""

    budget: int
    recall: list[float]
    attention_mass: list[float]
    output_error: float


@dataclass(frozen=True)
class Parts:
    """Token counts of one row at the last step. All except `missed` and `merged_tokens` add up to the attended ones.

    `agreed` and `wasted` are tokens selected by score, which the oracle selects or does not select. `missed` are the
    oracle's tokens that were attended to neither alone nor in a centroid that gives them half of their weight. `merged`
    counts centroids, `merged_tokens` the tokens that they stand for.
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
    """The recording of a method in one layer over the last tokens of a trace, and numbers about it.

    R rows, one per selection head: KV heads, or query heads if the method selects for each.
    """

    method: Method
    layer: int
    recording: Recording  # of this layer alone

    @property
    def ledger(self) -> Ledger:
        """The ledger of the layer after the last step: where its tokens and bytes are."""
        return self.recording.ledgers[self.layer]

    @property
    def recall(self) -> NDArray[np.float64]:
        """Share of the oracle's tokens that were attended to, mean over the steps, [R]; as `Recording.recall`."""
        steps = range(self.recording.steps)
        return np.asarray(np.mean([self.recording.recall(step, self.layer) for step in steps], axis=0))

    @property
    def attention_mass(self) -> NDArray[np.float64]:
        """Share of the exact attention on the attended tokens, mean over the steps, [R]; as in the recording."""
        steps = range(self.recording.steps)
        return np.asarray(np.mean([self.recording.attention_mass(step, self.layer) for step in steps], axis=0))

    @property
    def output_error(self) -> float:
        """Relative error of the attention output, including centroids, mean over steps and query heads."""
        return float(self.recording.events[self.layer].output_error.mean())

    @property
    def indices(self) -> NDArray[np.int64]:
        """Positions attended to at the last step, [R, S], ascending, -1 pads."""
        return self.recording.indices(self.recording.steps - 1, self.layer)

    @property
    def wasted(self) -> NDArray[np.int64]:
        """Number of tokens selected at the last step that the oracle does not select, [R]."""
        return np.array([parts.wasted for parts in self.parts])

    @property
    def metadata_bytes(self) -> int:
        """Bytes that the method keeps for this layer in addition to keys and values."""
        return self.ledger.metadata_bytes

    @property
    def point(self) -> Point:
        """The budget and the quality of its selection."""
        recall, mass = self.recall.tolist(), self.attention_mass.tolist()
        return Point(self.recording.budget, recall, mass, self.output_error)

    @property
    def parts(self) -> list[Parts]:
        """The token counts of each row at the last step; sinks and recent window are those of the ledger."""
        return self._parts([[row] for row in range(len(self.indices))])

    def union_parts(self, rows: Sequence[int]) -> Parts:
        """The token counts of several rows as one, at the last step: a token counts once, with its union's verdict.

        `merged` is the sum over the KV heads, whose centroids differ. `merged_tokens` are attended to by none of the
        rows alone; if it is unknown which tokens were merged, these are all that are left.
        """
        return self._parts([list(rows)])[0]

    def _parts(self, unions: Sequence[list[int]]) -> list[Parts]:
        recording, last = self.recording, self.recording.steps - 1
        length, prompt = recording.visible(last), recording.prompt_length
        sinks, recent = round(self.ledger.sinks), round(self.ledger.recent)
        position = np.arange(length)
        selectable = (position >= sinks) & (position < prompt - recent)
        attended = member_mask(self.indices, length)
        oracle = member_mask(recording.oracle(last, self.layer), length)
        members = recording.members(last, self.layer)
        joined = selectable if members is None else members >= 0
        recalled = recording.merged_share(last, self.layer) >= LEAST_SHARE
        verdicts = agreement(attended, oracle, always=~selectable, merged=recalled)
        found = []
        for rows in unions:
            tokens = np.asarray(attended[rows].any(0))
            verdict = head_union(verdicts[rows]).verdict
            merged = recording.attended_centroids(last, self.layer, rows)
            stands = joined if members is None else joined[rows].any(0)
            found.append(Parts(
                sinks=int(tokens[:sinks].sum()),
                recent=int(tokens[prompt - recent : prompt].sum()),
                agreed=int((selectable & (verdict == Verdict.AGREED)).sum()),
                wasted=int((verdict == Verdict.WASTED).sum()),
                merged=merged,
                generated=int(tokens[prompt:].sum()),
                missed=int((verdict == Verdict.MISSED).sum()),
                merged_tokens=int((stands & ~tokens).sum()) if merged else 0,
            ))  # fmt: skip
        return found


class Explorer:
    """Runs methods on single layers of a trace, as `kvviz.replay` does, and caches the results.

    The last `queries` tokens of the trace play the decode steps. `select` caches its last few results, `point` the
    numbers of all of them. Raises InvalidInputError for anything but a Trace with layers, or if no prompt is left.
    """

    def __init__(self, trace: Trace, *, queries: int = QUERIES) -> None:
        if not isinstance(trace, Trace):
            raise InvalidInputError("Explorer", type(trace).__name__, "a kvviz.Trace, such as kvviz.capture(...)")
        if not trace.layers:
            raise InvalidInputError("Explorer", "a trace without layers", "one with a layer: kvviz.capture(layers=...)")
        if not isinstance(queries, int) or not 1 <= queries < len(trace):
            wanted = f"1 to {len(trace) - 1}, so that a prompt is left; capture more tokens for more"
            raise InvalidInputError("Explorer: queries", queries, wanted)
        self.trace = trace
        self.queries = queries
        self._explored: OrderedDict[tuple[int, str], Explored] = OrderedDict()
        self._checked: set[int] = set()
        self._built: OrderedDict[tuple[int, str], LayerReplay] = OrderedDict()
        self._points: OrderedDict[tuple[int, str], Point] = OrderedDict()

    @property
    def prompt_length(self) -> int:
        """Tokens before the decode steps."""
        return len(self.trace) - self.queries

    def layers(self, method: str | Method, **values: Any) -> tuple[int, ...]:
        """The captured layers in which the method selects."""
        chosen = resolve(method, **values)
        return tuple(layer for layer in self.trace.full_layers if not chosen.is_dense(layer))

    def budgets(self, method: str, candidates: Iterable[int], **values: Any) -> list[int]:
        """The candidate budgets that the method accepts with these fields."""
        accepted = []
        for budget in candidates:
            with suppress(InvalidInputError):
                resolve(method, **{**values, "budget": budget})
                accepted.append(budget)
        return accepted

    def sliders(self, method: Method) -> list[Slider]:
        """At most two sliders of the method, with the values for the head dimension of this trace."""
        return sliders_of(method, self.trace.geometry.head_dim)

    def select(self, layer: int, method: str | Method, **values: Any) -> Explored:
        """The selections of the method in a layer; `values` are its budget and other fields, as for `kvviz.replay`.

        Raises InvalidInputError for a layer that was not captured or in which the method attends to all tokens, and the
        method's errors for its fields.
        """
        chosen = resolve(method, **values)
        return _remembered(self._explored, (layer, repr(chosen)), lambda: self._explore(layer, chosen), REMEMBERED)

    def point(self, layer: int, method: str | Method, **values: Any) -> Point:
        """The numbers of `select`, cached for all budgets and fields so far."""
        chosen = resolve(method, **values)
        return _remembered(self._points, (layer, repr(chosen)), lambda: self.select(layer, chosen).point)

    def oracle_point(self, layer: int, method: str | Method, **values: Any) -> Point:
        """The numbers of the oracle at the method's budget, for the same rows.

        It spends nothing on sinks and a recent window, and its attention mass is the largest possible at this budget.
        """
        chosen = resolve(method, **values)
        group = "each" if chosen.group == "each" else "mean"  # the oracle that maximises each row's mass
        return self.point(layer, "oracle", budget=chosen.budget, group=group, generated=chosen.generated)

    def _explore(self, layer: int, method: Method) -> Explored:
        self.trace.check_full_layer(f"explore {method.name}", layer)
        if layer not in self._checked:
            check_finite(f"explore {method.name}", self.trace, layer)
            self._checked.add(layer)
        if method.is_dense(layer):
            selecting = [index for index in self.trace.full_layers if not method.is_dense(index)]
            wanted = f"one of the layers {selecting}" if selecting else "another method, or a trace of later layers"
            dense = f"dense_layers={method.dense_layers}" if method.dense_layers else "always"
            raise InvalidInputError(
                f"explore {method.name}",
                f"layer {layer}, where it attends to all tokens ({dense})",
                wanted + ("; or dense_layers=0" if method.dense_layers else ""),
            )
        return Explored(method, layer, record(self.trace, method, self.queries, [self._layer(layer, method)]))

    def _layer(self, layer: int, method: Method) -> LayerReplay:
        """The layer, built on its prompt: work that does not depend on the budget, such as k-means, is done only once.

        The first call gets a copy too, because its decode steps must not change the cached layer.
        """
        reusable = method.reusable(self.prompt_length)
        if reusable is None:
            return LayerReplay(self.trace, layer, method, self.queries)
        built = _remembered(
            self._built, (layer, repr(reusable)),
            lambda: LayerReplay(self.trace, layer, reusable, self.queries), BUILT,
        )  # fmt: skip
        return built.copy_for(method)


def select(trace: Trace, layer: int, method: str | Method, *, queries: int = QUERIES, **values: Any) -> Explored:
    """The selections of a method in one layer of a trace, whose last `queries` tokens play the decode steps.

    `values` are the method's budget and other fields, as for `kvviz.replay`. For many calls on one trace use an
    `Explorer`, which caches its results. Raises the errors of `Explorer.select`.
    """
    return Explorer(trace, queries=queries).select(layer, method, **values)


def _remembered(
    cache: OrderedDict[Key, Value], key: Key, compute: Callable[[], Value], limit: int | None = None
) -> Value:
    """cache[key], computed if missing; beyond `limit` entries, the least recently used one is removed."""
    if key not in cache:
        cache[key] = compute()
    cache.move_to_end(key)
    if limit is not None and len(cache) > limit:
        cache.popitem(last=False)
    return cache[key]
