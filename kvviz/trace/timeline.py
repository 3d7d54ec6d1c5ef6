"""Timeline: when compute, clustering and transfers ran, and how much they overlap."""

from __future__ import annotations

import os
from collections.abc import Iterable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..errors import IncompatibleFileError, InvalidInputError
from .spans import NOTHING, Clock, HostClock, Span, SpanRecorder
from .storage import check_metadata, check_shape, read_arrays, take, write_arrays

if TYPE_CHECKING:
    import pandas as pd

STREAMS = ("pass", "compute", "clustering", "transfer", "host")
PHASES = ("prefill", "decode")


class Event(NamedTuple):
    """Work on the timeline, in seconds since its start; `layer` is -1 for work that belongs to no layer."""

    start_s: float
    end_s: float
    stream: str
    what: str
    layer: int
    phase: str


class Timeline:
    """A timeline of compute, clustering and transfers, recorded by one `SelectiveCache(..., timeline=Timeline())`.

    Work on a GPU is timed by CUDA events on its stream, all other work by the processor's clock; recording never waits.
    A thread has one span at a time: an inner span interrupts the outer one, so that a fetch in the middle of attention
    does not count as overlap. `description` says what was run; `clock` is the source of the times ("clock",
    "CUDA events"). Sources: ClusterKV (arXiv 2412.03213), figure 6; PQCache (arXiv 2407.12820), figure 7.

    Streams and their work: "pass" (the model's forward passes), "compute" ("embedding and projections", "store",
    "attention", "select", "projections and FFN", "FFN and logits", "exact layer"), "clustering" ("build"), "transfer"
    ("offload", "fetch", "prefetch", "fill"), "host" (attention on the host). "projections and FFN" lasts from a layer's
    attention to the next layer's keys and values; "exact layer" does too, and includes the attention of a dense layer.
    """

    KIND = "kvviz.timeline"
    VERSION = 1

    def __init__(self, description: str = "") -> None:
        self.description = description
        self.phase = PHASES[0]
        self.clock = HostClock.name
        self._spans = SpanRecorder(HostClock())
        self._events: list[Event] = []
        self._pass: Span | None = None
        self._between: Span | None = None  # what the model does between the attention of two layers

    def use(self, clock: Clock) -> None:
        """Start the timeline, with `clock` for work on the device. Raises InvalidInputError if it has events."""
        if self.events:
            raise InvalidInputError("record a timeline", "one with events", "a new Timeline for each cache")
        self._spans, self.clock = SpanRecorder(clock), clock.name

    def of(self, layer: int) -> LayerTimeline:
        """The timeline for recording the work of one layer."""
        return LayerTimeline(self, layer)

    def span(self, stream: str, what: str, layer: int = -1) -> AbstractContextManager[None]:
        """A context that records its block, in the thread and on the CUDA stream that enter it.

        Its phase is that at the time of this call. Raises InvalidInputError for an unknown stream.
        """
        if stream not in STREAMS:
            raise InvalidInputError("span of a timeline: stream", repr(stream), f"one of {STREAMS}")
        return self._spans.recorded(Span(stream, what, layer, self.phase))

    def interruption(self) -> AbstractContextManager[None]:
        """A context that leaves its block out of the span around it, for example to wait for another thread."""
        return self._spans.interruption()

    def begin_pass(self) -> None:
        """Record that the model begins a forward pass."""
        self._pass = Span("pass", "forward pass", -1, "")
        self._between = Span("compute", "embedding and projections", -1, "")
        self._spans.begin(self._pass)
        self._spans.begin(self._between)

    def arrive(self, layer: int, phase: str) -> None:
        """Record that the model passes the keys and values of `layer`, in a forward pass of this phase."""
        self.phase = phase
        between, self._between = self._between, None
        if between is None or between.layer >= layer:  # a pass began that was not recorded
            return
        if between.layer < 0:
            between.layer, between.phase = layer, phase
        self._spans.end(between)

    def leave(self, layer: int, what: str = "projections and FFN") -> None:
        """Record that the attention of `layer` is finished; until the next layer the model does `what`."""
        self._between = Span("compute", what, layer, self.phase)
        self._spans.begin(self._between)

    def end_pass(self) -> None:
        """Record that the forward pass is finished."""
        if self._between is not None and self._between.layer >= 0:
            if self._between.what == "projections and FFN":
                self._between.what = "FFN and logits"
            self._spans.end(self._between)
        if self._pass is not None:
            self._pass.phase = self.phase
            self._spans.end(self._pass)
        self._between = self._pass = None

    @property
    def events(self) -> tuple[Event, ...]:
        """All events recorded so far, by start; waits for work that still runs on a GPU."""
        for ended, start_s, end_s in self._spans.taken():
            self._events.append(Event(start_s, end_s, ended.stream, ended.what, ended.layer, ended.phase))
        self._events.sort()
        return tuple(self._events)

    def to_frame(self) -> pd.DataFrame:
        """A table with one row per event: start_s, end_s, stream, what, layer, phase."""
        import pandas as pd

        return pd.DataFrame(list(self.events), columns=list(Event._fields))

    def seconds(self, stream: str | None = None, what: str | None = None, phase: str | None = None) -> float:
        """Total seconds of the events with this stream, name and phase; None means any."""
        return sum(event.end_s - event.start_s for event in self._chosen(stream, what, phase))

    def overlap(self, phase: str | None = None) -> dict[str, float]:
        """Share of the time of "clustering", "transfer" and "host" during which compute ran too; NaN without events.

        Simultaneous events of one stream count once. Overlapping work is not free: on a CPU both share the cores.
        """
        compute = self._chosen("compute", None, phase)
        shares = {}
        for stream in ("clustering", "transfer", "host"):
            events = self._chosen(stream, None, phase)
            stream_s = _covered_s(events)
            both_s = stream_s + _covered_s(compute) - _covered_s([*events, *compute])
            shares[stream] = both_s / stream_s if stream_s else float("nan")
        return shares

    def build_share(self) -> float:
        """Time for building states, overlapped or not, as a share of the prefill time; NaN without a recorded pass.

        ClusterKV (arXiv 2412.03213, section V-C) reports 6 to 8 % for its clustering.
        """
        prefill_s = self.seconds("pass", phase="prefill")
        return self.seconds("clustering", phase="prefill") / prefill_s if prefill_s else float("nan")

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write the events to one safetensors file, completely or not at all, and return its path."""
        events = self.events
        names = sorted({event.what for event in events})
        arrays: dict[str, NDArray[Any]] = {"layer": np.array([event.layer for event in events], np.int32)}
        for bound in ("start", "end"):
            arrays[f"{bound}_ns"] = np.array([round(1e9 * getattr(event, f"{bound}_s")) for event in events], np.int64)
        for column, known in {"stream": STREAMS, "what": names, "phase": PHASES}.items():
            arrays[column] = np.array([known.index(getattr(event, column)) for event in events], np.int32)
        metadata = {"description": self.description, "clock": self.clock, "what": names}
        return write_arrays(path, self.KIND, self.VERSION, arrays, metadata)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Timeline:
        """A saved timeline.

        Raises IncompatibleFileError for a damaged file, another version, or impossible events.
        """
        arrays, metadata = read_arrays(path, cls.KIND, cls.VERSION)
        check_metadata(metadata, f"read {path}", {"description": "text", "clock": "text", "what": "texts"})
        timeline = cls(metadata["description"])
        timeline.clock = metadata["clock"]
        timeline._events = _events(arrays, metadata["what"], path)
        return timeline

    def _chosen(self, stream: str | None, what: str | None, phase: str | None) -> list[Event]:
        return [
            event
            for event in self.events
            if stream in (None, event.stream) and what in (None, event.what) and phase in (None, event.phase)
        ]


@dataclass(frozen=True)
class LayerTimeline:
    """A timeline for recording the work of one layer."""

    timeline: Timeline
    layer: int

    def span(self, stream: str, what: str) -> AbstractContextManager[None]:
        """As `Timeline.span`."""
        return self.timeline.span(stream, what, self.layer)

    def leave(self) -> None:
        """As `Timeline.leave`."""
        self.timeline.leave(self.layer)


def span(timeline: LayerTimeline | None, stream: str, what: str) -> AbstractContextManager[None]:
    """As `Timeline.span`; without a timeline, a context that does nothing."""
    return NOTHING if timeline is None else timeline.span(stream, what)


def waiting(timeline: LayerTimeline | None) -> AbstractContextManager[None]:
    """As `Timeline.interruption`; without a timeline, a context that does nothing."""
    return NOTHING if timeline is None else timeline.timeline.interruption()


def _covered_s(events: Iterable[Event]) -> float:
    """Seconds during which at least one of the events ran."""
    covered_s, until_s = 0.0, float("-inf")
    for event in sorted(events):
        covered_s += max(event.end_s - max(event.start_s, until_s), 0.0)
        until_s = max(until_s, event.end_s)
    return covered_s


def _events(arrays: dict[str, NDArray[Any]], names: list[str], path: object) -> list[Event]:
    """The events in a file's arrays. Raises IncompatibleFileError for impossible events."""
    layers = take(arrays, "layer", path)
    columns: list[list[Any]] = []
    for bound in ("start_ns", "end_ns"):
        check_shape(f"Timeline.{bound}", take(arrays, bound, path), layers.shape[:1], np.int64)
        columns.append((arrays[bound] / 1e9).tolist())
    for column, known in {"stream": STREAMS, "what": names, "layer": None, "phase": PHASES}.items():
        codes = take(arrays, column, path)
        check_shape(f"Timeline.{column}", codes, layers.shape[:1], np.int32)
        most = codes.max(initial=0) if known is None else len(known) - 1
        if ((codes < (-1 if known is None else 0)) | (codes > most)).any():
            raise IncompatibleFileError(f"Timeline.{column}", "a number without meaning", f"at most {most}")
        columns.append(codes.tolist() if known is None else [known[code] for code in codes.tolist()])
    if (arrays["end_ns"] < arrays["start_ns"]).any():
        raise IncompatibleFileError("Timeline", "an event that ends before it starts", "start <= end")
    return [Event(*row) for row in zip(*columns, strict=True)]
