"""Timelines: when compute, clustering, transfers and the host's work ran."""

from __future__ import annotations

from typing import Literal, NamedTuple

import numpy as np
import plotly.graph_objects as go

from ..errors import InvalidInputError, UnknownNameError
from ..trace.timeline import PHASES, Event, Timeline
from .axes import unit_of
from .labels import escape, heading, set_title
from .labels import title as join
from .panels import name_panel, stack
from .parts import in_order, part_marker, part_of
from .theme import ink, template_name

MAX_BARS = 4000
_STREAMS = ("compute", "clustering", "transfer", "host")
_PIXELS = 1500  # across the window: narrower gaps cannot be seen
_START = 0.01  # a window that begins before this share of its length is labelled as if it began at 0
_HEIGHT, _GAP, _AROUND = 92, 36, 150  # pixels: a panel, between two panels, title with axis and legend
_MOST_PASSES = 12  # for more forward passes, their beginnings are not marked


class Box(NamedTuple):
    """Events of one part and layer, joined across gaps that are too narrow to see."""

    start_s: float
    end_s: float
    busy_s: float
    layer: int
    what: str
    events: int


def timeline(
    timeline: Timeline,
    *,
    phase: Literal["prefill", "decode"] | None = None,
    steps: tuple[int, int] | None = None,
    seconds: tuple[float, float] | None = None,
    hardware: str | None = None,
    title: str | None = None,
    dark: bool = False,
) -> go.Figure:
    """A Gantt chart of a run: one panel per stream (compute, clustering, transfer, host), one row per layer.

    As in ClusterKV (arXiv 2412.03213) figure 6 and PQCache (arXiv 2407.12820) figure 7, of one measured run
    (`generate(..., timeline=True).timeline`): the overlapped schedule, unless the run was sequential. Colours show the
    part of the time. Bars below each other ran at the same time. Above each panel is the share of its stream's time
    during which compute ran too (`Timeline.overlap`), over the whole of each phase shown.

    One of three arguments selects the window, by default the whole run: `phase`; `steps`, a half-open range of decode
    steps, from 0; or `seconds`, (start, stop) since the timeline began. Vertical lines mark the beginnings of up to 12
    forward passes. Events of one layer and part less than 1/1500 of the window apart are joined into one bar; if there
    are still more than 4,000 bars, wider gaps are closed too. The axis gives the widest closed gap. Bars are at least
    one pixel wide. `hardware` names the machine.

    Raises UnknownNameError for an unknown phase; InvalidInputError for two windows, an empty range, or a timeline
    without events.

    >>> from kvviz.trace.timeline import Timeline
    >>> run = Timeline("two streams")
    >>> with run.span("compute", "attention", layer=0), run.span("clustering", "build", layer=0):
    ...     pass
    >>> [bar.name for bar in timeline(run).data if bar.type == "bar"]
    ['attention', 'build']
    """
    events = timeline.events
    start_s, stop_s = _window(events, phase, steps, seconds)
    passes = [event for event in events if event.stream == "pass" and start_s <= event.start_s < stop_s]
    shown = [
        event._replace(start_s=max(event.start_s, start_s), end_s=min(event.end_s, stop_s))
        for event in events
        if event.stream != "pass"
    ]
    shown = [event for event in shown if event.end_s > event.start_s]
    if not shown:
        raise InvalidInputError("timeline", f"nothing between {start_s:g} and {stop_s:g} s", "a window with events")
    boxes, gap_s = _boxes(shown, stop_s - start_s)
    streams = [stream for stream in _STREAMS if any(event.stream == stream for event in shown)]
    figure, inside = stack([_HEIGHT] * len(streams), _GAP, shared_xaxes=True)
    scale, unit = unit_of(stop_s - start_s)
    _add_bars(figure, boxes, streams, start_s, (scale, unit), dark)
    layers = [event.layer for event in shown]
    for row, stream in enumerate(streams, start=1):
        name_panel(figure, join([stream, _overlap(timeline, stream, shown)]), row, 1)
        figure.update_yaxes(range=[max(layers) + 0.7, min(layers) - 0.7], nticks=4, title_text="layer", row=row, col=1)
    if len(passes) <= _MOST_PASSES:
        line = {"width": 1, "color": ink(dark).grid}
        for event in passes:
            figure.add_vline((event.start_s - start_s) / scale, line=line, layer="below")
    axis = f"time ({unit})" + (f" from {_brief(start_s)} on" if start_s > _START * (stop_s - start_s) else "")
    axis += f"; gaps up to {_brief(gap_s)} closed" if gap_s else ""
    figure.update_xaxes(range=[0, (stop_s - start_s) / scale], showgrid=False)
    figure.update_xaxes(title_text=axis, row=len(streams), col=1)
    figure.update_layout(
        template=template_name(dark), height=inside + _AROUND, barmode="overlay", legend_traceorder="normal"
    )
    set_title(figure, heading(title, ["Timeline", timeline.description, hardware or ""]), panel_titles=True)
    return figure


def _window(
    events: tuple[Event, ...], phase: str | None, steps: tuple[int, int] | None, seconds: tuple[float, float] | None
) -> tuple[float, float]:
    """Start and end of the window, in seconds since the timeline began."""
    names = [name for name, value in (("phase", phase), ("steps", steps), ("seconds", seconds)) if value is not None]
    if len(names) > 1:
        raise InvalidInputError("timeline", " and ".join(names), "one of phase, steps and seconds")
    if phase is not None and phase not in PHASES:
        raise UnknownNameError("timeline: phase", str(phase), PHASES)
    if seconds is not None:
        if not (np.isfinite(seconds).all() and seconds[0] < seconds[1]):
            raise InvalidInputError("timeline: seconds", seconds, "(start, stop) with start < stop")
        return seconds
    if steps is not None:
        decoded = [event for event in events if event.stream == "pass" and event.phase == "decode"]
        if not 0 <= steps[0] < steps[1] <= len(decoded):
            wanted = f"(start, stop) with 0 <= start < stop <= {len(decoded)}, the decode steps recorded"
            raise InvalidInputError("timeline: steps", steps, wanted)
        return decoded[steps[0]].start_s, decoded[steps[1] - 1].end_s
    chosen = [event for event in events if phase in (None, event.phase)]
    if not chosen:
        raise InvalidInputError("timeline", f"no event of {phase or 'any phase'}", "a timeline that recorded a run")
    return min(event.start_s for event in chosen), max(event.end_s for event in chosen)


def _boxes(events: list[Event], window_s: float) -> tuple[dict[tuple[str, str], list[Box]], float]:
    """Boxes by stream and part, and the widest gap that was closed: 0 if every event has its own box."""
    gap_s = window_s / _PIXELS
    while True:
        boxes = _joined(events, gap_s)
        count = sum(map(len, boxes.values()))
        if count <= MAX_BARS:
            return boxes, gap_s if count < len(events) else 0.0
        gap_s *= 2


def _joined(events: list[Event], gap_s: float) -> dict[tuple[str, str], list[Box]]:
    """Boxes by stream and part: events of a layer are joined if at most `gap_s` lies between them."""
    open_boxes: dict[tuple[str, str, int], Box] = {}
    boxes: dict[tuple[str, str], list[Box]] = {}
    for event in sorted(events):
        part = part_of(event)
        assert part is not None  # passes are left out
        key = event.stream, part, event.layer
        box, lasted_s = open_boxes.get(key), event.end_s - event.start_s
        if box is not None and event.start_s - box.end_s <= gap_s:
            open_boxes[key] = box._replace(
                end_s=max(box.end_s, event.end_s), busy_s=box.busy_s + lasted_s, events=box.events + 1,
                what=box.what if event.what == box.what else part,
            )  # fmt: skip
            continue
        if box is not None:
            boxes.setdefault(key[:2], []).append(box)
        open_boxes[key] = Box(event.start_s, event.end_s, lasted_s, event.layer, event.what, 1)
    for key, box in open_boxes.items():
        boxes.setdefault(key[:2], []).append(box)
    return boxes


def _add_bars(
    figure: go.Figure, boxes: dict[tuple[str, str], list[Box]], streams: list[str], start_s: float,
    unit: tuple[float, str], dark: bool,
) -> None:  # fmt: skip
    """Add one trace per stream and part, each stream in its own panel."""
    scale, symbol = unit
    parts = in_order([part for _, part in boxes])
    explained: set[str] = set()
    for row, stream in enumerate(streams, start=1):
        for number, part in enumerate(parts):
            if (stream, part) not in boxes:
                continue
            part_boxes, marker = boxes[stream, part], part_marker(part, number, dark)
            figure.add_trace(go.Bar(
                base=[(box.start_s - start_s) / scale for box in part_boxes],
                x=[(box.end_s - box.start_s) / scale for box in part_boxes],
                y=[box.layer for box in part_boxes], orientation="h", width=0.9, name=escape(part), legendgroup=part,
                showlegend=part not in explained, marker={**marker, "line": {"width": 1, "color": marker["color"]}},
                text=[_words(box) for box in part_boxes], textposition="none",
                hovertemplate=f"{stream}, layer %{{y}}<br>%{{text}}<br>from %{{base:.4g}} {symbol}<extra></extra>",
            ), row, 1)  # fmt: skip
            explained.add(part)


def _words(box: Box) -> str:
    """The hover text of a bar."""
    many = f"{box.events} events, " if box.events > 1 else ""
    return f"{escape(box.what)}: {many}{_brief(box.busy_s)}"


def _brief(time_s: float) -> str:
    scale, unit = unit_of(time_s)
    return f"{time_s / scale:.3g} {unit}"


def _overlap(timeline: Timeline, stream: str, shown: list[Event]) -> str:
    """The share of a stream that overlaps with compute, in every phase shown; "" for compute itself."""
    if stream == "compute":
        return ""
    phases = [phase for phase in PHASES if any((event.stream, event.phase) == (stream, phase) for event in shown)]
    return f"overlap with compute: {', '.join(f'{timeline.overlap(phase)[stream]:.0%} in {phase}' for phase in phases)}"
