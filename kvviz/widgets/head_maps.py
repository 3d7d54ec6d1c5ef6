"""What the maps of layers × heads show: a number of each head, over some steps."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from ..trace import Recording, Trace
from ..trace.edit_parts import Named
from ..trace.text_positions import token_positions
from .scopes import SCOPE_OF

STEPS = 8  # over which the numbers are averaged: a recording of 8,192 tokens and 30 layers takes 0.3 s
MOST_KEYS = 500_000  # layers × tokens of a trace: 30 layers of 16,384 tokens take 0.6 s, and all keys are read
MEASURES = {"attention_mass": "mass", "recall": "recall", "output_error": "error"}
SHARE = "share"  # of the attention on some tokens; js/words.js says what each measure means

Map = dict[str, Any]


def span_positions(operation: str, span: Named | None, tokens: Sequence[str]) -> tuple[int, ...]:
    """The positions in a prompt that `span` names; none for None. Raises as `kvviz.pin` does."""
    return () if span is None else token_positions(f"{operation}: span", span, tokens)


def of_recording(recording: Recording, span: Sequence[int]) -> list[Map]:
    """The maps of a recording, [layers, rows] each; the attention on the span comes first if there is one."""
    maps = [
        _of_steps(label, label, recording.by_head(name, steps=STEPS), recording) for name, label in MEASURES.items()
    ]
    return [*_of_span(recording, span, 1), *maps]


def of_recordings(recordings: Sequence[Recording], layers: Sequence[int], heads: int, span: Sequence[int]) -> list[Map]:
    """The maps of several recordings, over the layers and heads they share: how much the methods differ."""
    maps = []
    for name, label in MEASURES.items():
        values = np.stack([_shared(run, run.by_head(name, steps=STEPS), layers, heads) for run in recordings])
        title = f"{label}: the best method less the worst"
        maps.append(_of_steps(title, label, np.ptp(values, axis=0), recordings[0], layers))
    return [*_of_span(recordings[0], span, heads, layers), *maps]


def of_trace(trace: Trace, layers: Sequence[int], heads: int, span: Sequence[int], budget: int) -> list[Map]:
    """The maps of a trace's last query: attention on the span if there is one, and on the `budget` best tokens.

    None for a long trace without a span; `notes` says so.
    """
    if not span and len(layers) * len(trace) > MOST_KEYS:
        return []
    group: Literal["mean", "each"] = "mean" if heads == trace.geometry.n_kv_heads else "each"
    rows = [trace.layers.index(layer) for layer in layers]
    shares = {f"attention on the {budget:,} best tokens": trace.by_head(best=budget, group=group)[rows]}
    if span:
        shares = {f"attention on {_named(trace.tokens, span)}": trace.by_head(span, group=group)[rows], **shares}
    return [_map(label, SHARE, values, layers, "at the last token") for label, values in shares.items()]


def notes(maps: Sequence[Map]) -> list[str]:
    """The note on a page without maps; else nothing."""
    if maps:
        return []
    return ["Long trace: the map of layers × heads, which reads the keys of all layers, is drawn only with span=…"]


def strongest(values: Map, layer: int | None = None) -> tuple[int, int]:
    """The layer and head with the largest value, of all layers or of one."""
    rows = {int(number): row for number, row in values["values"].items() if layer in (None, int(number))}
    if not rows:  # no such layer: what shows it says so
        return -1, 0
    return max(((number, head) for number, row in rows.items() for head in range(len(row))),
               key=lambda place: rows[place[0]][place[1]])  # fmt: skip


def _of_span(recording: Recording, span: Sequence[int], heads: int, layers: Sequence[int] | None = None) -> list[Map]:
    if not span:
        return []
    values = recording.by_head("attention", span, steps=STEPS)
    if layers is not None:
        values = _shared(recording, values, layers, heads)
    return [_of_steps(f"attention on {_named(recording.tokens, span)}", SHARE, values, recording, layers)]


def _shared(recording: Recording, values: NDArray[np.float64], layers: Sequence[int], heads: int) -> NDArray[Any]:
    """The values of the shared layers, and of the first row of each shared head."""
    rows = [recording.layers.index(layer) for layer in layers]
    return values[rows][:, :: values.shape[1] // heads]


def _named(tokens: Sequence[str], span: Sequence[int]) -> str:
    text = "".join(tokens[position] for position in span).strip()
    return f"“{text}”" if len(text) <= 24 else f"“{text[:12]} … {text[-8:]}”"


def _of_steps(
    label: str,
    measure: str,
    values: NDArray[np.float64],
    recording: Recording,
    layers: Sequence[int] | None = None,
) -> Map:
    steps = min(STEPS, recording.steps)
    about = f"mean over {steps} of {recording.steps} steps" if steps < recording.steps else "mean over the steps"
    return _map(label, measure, values, recording.layers if layers is None else layers, about)


def _map(label: str, measure: str, values: NDArray[np.float64], layers: Sequence[int], about: str) -> Map:
    rows = {str(layer): [round(float(value), 4) for value in row] for layer, row in zip(layers, values, strict=True)}
    scope = SCOPE_OF.get(measure, "head")  # all heads of a layer have the same output error
    return {"label": label, "about": about, "measure": measure, "scope": scope, "values": rows}
