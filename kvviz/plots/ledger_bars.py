"""Budget ledgers: how many tokens and bytes each method uses."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, is_dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import plotly.graph_objects as go
from numpy.typing import NDArray
from plotly.subplots import make_subplots

from .. import metrics
from ..errors import InvalidInputError
from ..trace import Recording
from .budgets import runs_title
from .labels import escape, set_title, wrap
from .panels import name_panel
from .score_curves import about
from .theme import area_shades, ink, template_name
from .themed_figure import Figure

if TYPE_CHECKING:
    import pandas as pd

_BAR, _LINE, _AXIS = 18, 18, 36  # pixels: a method's bar, a line of text above a set of bars, the axis below
_WIDTH = 20.0  # em, beside the names of methods in a printed column
Parts = Mapping[str, Mapping[str, float]]  # {part: {label: value}}, what one set of bars shows
_TOKEN_PARTS = ("sinks", "recent", "selected", "merged", "generated")
_BYTE_COUNTS = ("metadata_bytes", "host_metadata_bytes", "moved_bytes", "prefetched_bytes")
_SIZES = ((2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB"), (1, "bytes"))


def budget_ledger(
    ledgers: Mapping[str, Any] | pd.DataFrame,
    *,
    recordings: Mapping[str, Recording] | None = None,
    title: str | None = None,
    dark: bool = False,
) -> go.Figure:
    """Stacked bars per method: tokens attended to at the last step, bytes kept, and bytes moved.

    `ledgers`: {label: ledger}. A ledger is a `Generation.ledger`, or a mapping with its names: sinks, recent, selected,
    merged and generated (tokens per KV head), kept_bytes ({tier: bytes of keys and values}), metadata_bytes,
    host_metadata_bytes (the part of these in host memory), moved_bytes and prefetched_bytes (over all steps). Missing
    names count as 0. A table has a column method and one column per name. Bytes are totals over all layers.

    If `recordings` has a recording under a ledger's label, the tokens that the oracle would not select at the last step
    are hatched in the part they belong to (`metrics.wasted_tokens`, mean over the recorded layers). Merged tokens are
    never hatched, since each stands for several. Bytes moved are drawn only for the ledgers that have any.

    Raises InvalidInputError for no ledger, one without tokens, negative or infinite numbers, and a recording whose
    label no ledger has or that belongs to another run.

    >>> figure = budget_ledger({"quest": {"sinks": 4, "selected": 28, "kept_bytes": {"device": 2048}}})
    >>> [(trace.name, trace.x.tolist()) for trace in figure.data]
    [('sinks', [4.0]), ('selected', [28.0]), ('KV on device', [2.0])]
    """
    entries = _entries(ledgers)
    extra = set(recordings or {}) - set(entries)
    if extra:
        raise InvalidInputError("budget_ledger: recordings", f"labels {', '.join(sorted(extra))}", "labels of ledgers")
    wasted = {label: _wasted(run, entries[label]) for label, run in (recordings or {}).items()}
    kept = [sum(entry["kept_bytes"].values()) + entry["metadata_bytes"] for entry in entries.values()]
    largest = max(kept + [entry["moved_bytes"] for entry in entries.values()])
    size, unit = next((pair for pair in _SIZES if largest >= pair[0]), _SIZES[-1])
    tokens = {part: {label: entry[part] for label, entry in entries.items()} for part in _TOKEN_PARTS}
    moved = {
        part: {label: entry[name] / size for label, entry in entries.items()}
        for part, name in (("KV fetched", "moved_bytes"), ("metadata fetched", "prefetched_bytes"))
    }
    sets = [("tokens per KV head, last step", tokens), (f"{unit} kept, all layers", _kept(entries, size))]
    sets += [(f"{unit} moved, all layers and steps", moved)] if _labels(entries, moved) else []
    labels = [_labels(entries, parts) for _, parts in sets]
    keys = [_key(name, parts, bool(wasted) and row == 0, dark) for row, (name, parts) in enumerate(sets)]
    above = [_LINE * (key.count("<br>") + 1) + 6 for key in keys]
    inside = sum(above) + _BAR * sum(map(len, labels)) + _AXIS * (len(sets) - 1)
    figure = make_subplots(len(sets), 1, figure=Figure())
    top = float(inside)
    for row, ((_, parts), key, shown) in enumerate(zip(sets, keys, labels, strict=True), start=1):
        figure.add_traces(_bars(shown, parts, wasted if row == 1 else {}, dark), rows=row, cols=1)
        top -= above[row - 1]
        bottom = top - _BAR * len(shown)
        figure.update_yaxes(domain=[max(bottom, 0) / inside, top / inside], row=row, col=1)
        name_panel(figure, key, row, 1)
        top = bottom - _AXIS
    figure.update_xaxes(rangemode="tozero")
    figure.update_yaxes(autorange="reversed", showgrid=False, ticks="", dtick=1)
    figure.update_layout(template=template_name(dark), barmode="stack", bargap=0.3, showlegend=False)
    hatched = "wasted: not selected by the oracle" if wasted else ""
    set_title(figure, _title(ledgers, list((recordings or {}).values()), title, hatched))
    figure.update_layout(height=figure.layout.margin.t + inside + _AXIS)
    return figure


def _title(
    ledgers: Mapping[str, Any] | pd.DataFrame, recordings: list[Recording], title: str | None, hatched: str
) -> str:
    """`title`, or if it is None, the properties of the run from the table's attrs or from the recordings."""
    if isinstance(ledgers, Mapping) or not ledgers.attrs:
        return runs_title(title, "Budget ledger", recordings, hatched)
    budgets = set(ledgers["budget"]) if "budget" in ledgers.columns else set()
    return about(ledgers, title, "Budget ledger", f"budget {budgets.pop():,}" if len(budgets) == 1 else "", hatched)


def _entries(ledgers: Mapping[str, Any] | pd.DataFrame) -> dict[str, dict[str, Any]]:
    """Each ledger by label, checked: a mapping of its numbers and its tiers' bytes."""
    if isinstance(ledgers, Mapping):
        by_label = dict(ledgers)
    else:
        if "method" not in ledgers.columns:
            raise InvalidInputError("budget_ledger: columns", list(ledgers.columns), "also method")
        by_label = {str(row["method"]): row for row in ledgers.to_dict("records")}
        if len(by_label) < len(ledgers):
            raise InvalidInputError("budget_ledger: method", "a method twice", "one row per method")
    if not by_label:
        raise InvalidInputError("budget_ledger", "no ledger", "at least one")
    return {str(label): _entry(str(label), ledger) for label, ledger in by_label.items()}


def _entry(label: str, ledger: Any) -> dict[str, Any]:
    fields = asdict(ledger) if is_dataclass(ledger) and not isinstance(ledger, type) else ledger
    if not isinstance(fields, Mapping):
        wanted = "a ledger or a mapping of its numbers"
        raise InvalidInputError(f"budget_ledger: {label}", type(ledger).__name__, wanted)
    entry = {name: float(fields.get(name, 0.0)) for name in (*_TOKEN_PARTS, *_BYTE_COUNTS)}
    if "outer_metadata_bytes" in fields:  # the former name, in older tables
        entry["host_metadata_bytes"] = float(fields["outer_metadata_bytes"])
    kept = {str(tier): float(count) for tier, count in dict(fields.get("kept_bytes", {})).items()}
    for name, value in [*entry.items(), *kept.items()]:
        if not (math.isfinite(value) and value >= 0):
            raise InvalidInputError(f"budget_ledger: {label}: {name}", value, "a number >= 0")
    if entry["host_metadata_bytes"] > entry["metadata_bytes"]:
        got, most = entry["host_metadata_bytes"], entry["metadata_bytes"]
        raise InvalidInputError(f"budget_ledger: {label}: host_metadata_bytes", got, f"at most metadata_bytes, {most}")
    if not any(entry[part] for part in _TOKEN_PARTS):
        raise InvalidInputError(f"budget_ledger: {label}", "no tokens", f"some of {', '.join(_TOKEN_PARTS)}")
    return entry | {"kept_bytes": kept}


def _kept(entries: Mapping[str, dict[str, Any]], size: int) -> Parts:
    """Memory by part and ledger: keys and values on each tier, metadata on the device and in host memory."""
    tiers = dict.fromkeys(tier for entry in entries.values() for tier in entry["kept_bytes"])
    parts = {
        f"KV on {tier}": {label: entry["kept_bytes"].get(tier, 0.0) / size for label, entry in entries.items()}
        for tier in tiers
    }
    host = {label: entry["host_metadata_bytes"] / size for label, entry in entries.items()}
    device = {label: entry["metadata_bytes"] / size - host[label] for label, entry in entries.items()}
    return parts | {"metadata on device": device, "metadata on host": host}


def _labels(entries: Mapping[str, Any], parts: Parts) -> list[str]:
    """The ledgers with something to draw in a set of bars."""
    return [label for label in entries if any(values[label] for values in parts.values())]


def _wasted(run: Recording, entry: Mapping[str, Any]) -> dict[str, float]:
    """Wasted tokens by part at the last step, with the ledger's numbers of sinks and recent tokens."""
    step = run.steps - 1
    counts = [
        metrics.wasted_tokens(
            run.indices(step, layer), run.oracle(step, layer), prompt_length=run.prompt_length,
            sinks=round(entry["sinks"]), recent=round(entry["recent"]), heads=run.geometry.n_kv_heads,
        )
        for layer in run.layers
    ]  # fmt: skip
    means = {part: float(np.mean([count[part] for count in counts])) for part in counts[0]} if counts else {}
    for part, count in means.items():
        if count > entry[part] + 1:  # window sizes were rounded to whole tokens
            got = f"a recording with {count:.1f} wasted of {entry[part]:.1f} tokens"
            raise InvalidInputError(f"budget_ledger: {part}", got, "the recording of the ledger's own run")
    return means


def _key(name: str, parts: Parts, hatched: bool, dark: bool) -> str:
    """What a set of bars counts, and the colours of its parts: a printed column has no room for three legends."""
    drawn = [part for part, values in parts.items() if any(values.values())]
    signs = [f'<span style="color:{shade}">■</span>' for shade in area_shades(len(drawn), dark)]
    pairs = [*zip(signs, drawn, strict=True), *([("///", "wasted")] if hatched else [])]
    # Spaces within an entry do not break the line.
    items = [sign + "&nbsp;" + escape(part).replace(" ", "&nbsp;") for sign, part in pairs]
    return f"{name}<br>{wrap('  '.join(items), _WIDTH)}"


def _bars(labels: list[str], parts: Parts, wasted: Mapping[str, Mapping[str, float]], dark: bool) -> list[go.Bar]:
    """The bars of one set: each part, followed by its wasted tokens, hatched."""
    drawn = {
        part: np.array([values[label] for label in labels]) for part, values in parts.items() if any(values.values())
    }
    bars = []
    for (part, values), shade in zip(drawn.items(), area_shades(len(drawn), dark), strict=True):
        hatched = np.minimum([wasted.get(label, {}).get(part, 0.0) for label in labels], values)
        bars.append(_bar(labels, values - hatched, part, shade, dark))
        if hatched.any():
            pattern = {"shape": "/", "fillmode": "replace", "fgcolor": shade, "size": 5, "solidity": 0.35}
            bars.append(_bar(labels, hatched, f"{part}, wasted", shade, dark).update(marker_pattern=pattern))
    return bars


def _bar(labels: list[str], values: NDArray[np.float64], part: str, color: str, dark: bool) -> go.Bar:
    return go.Bar(
        x=values, y=[escape(label) for label in labels], orientation="h", name=escape(part),
        marker={"color": color, "line": {"width": 0.8, "color": ink(dark).background}},
        hovertemplate="%{y}<br>%{fullData.name}: %{x:,.1f}<extra></extra>",
    )  # fmt: skip
