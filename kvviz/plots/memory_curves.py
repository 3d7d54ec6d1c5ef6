"""Memory: hit rates of caches on the device, and the size of keys and values."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import plotly.graph_objects as go
from numpy.typing import ArrayLike, NDArray

from ..errors import InvalidInputError
from ..metrics.memory import bytes_text, kv_bytes
from ..trace.geometry import Geometry
from .axes import log_ticks, run_title, size_axis
from .labels import escape, heading, set_title
from .panels import name_panel, stack
from .score_curves import curve, curve_of, numbers, rows_of
from .theme import ink, ordered_tones, styles_of, template_name

if TYPE_CHECKING:
    import pandas as pd

_DASHES = ("solid", "dash", "dot", "dashdot", "longdash", "longdashdot")
_SYMBOLS = ("circle", "square", "diamond", "triangle-up", "triangle-down", "cross")
_POLICIES = {"lru": ("solid", "circle"), "lfu": ("dot", "square-open")}
_UNKNOWN_POLICY = ("dashdot", "diamond")  # one that kvviz does not have


class Shape(Protocol):
    """What determines the size of a model's keys and values: a `kvviz.Geometry`, or any object with these numbers."""

    @property
    def n_layers(self) -> int:
        """Number of layers."""

    @property
    def n_kv_heads(self) -> int:
        """Key/value heads per layer."""

    @property
    def head_dim(self) -> int:
        """Channels per head."""


class Link(Protocol):
    """A link between tiers of memory: a `kvviz.offload.LinkModel`."""

    @property
    def label(self) -> str:
        """Name, and the source of the numbers."""

    def seconds(self, moved_bytes: ArrayLike, transfers: ArrayLike = 1) -> Any:
        """Seconds to move so many bytes in so many transfers."""


def hit_rate(
    table: pd.DataFrame, *, hardware: str | None = None, title: str | None = None, dark: bool = False
) -> go.Figure:
    """Hit rates of caches on the device: one panel for caches of recent steps, one for caches of blocks.

    As in ClusterKV (arXiv 2412.03213) section V-C, "Effectiveness of caching", and PQCache (arXiv 2407.12820) figure
    11(c) and (d). The hit rate is the share of the tokens attended to that are already on the device. `table` has the
    columns cache (the name of a curve) and hit_rate (0 to 1), and in each row either recent_steps (ClusterKV's R: a
    `StepCache`) or policy ("lru", "lfu"), capacity_tokens and blocks_a_step (a `BlockCache`). A panel without rows is
    left out. Rows that repeat all of these become their mean. A column paper, drawn as hollow marks, holds what a paper
    reports for the same setting with other models and texts. `hardware` as for `latency`.

    Raises InvalidInputError for missing columns, rows of neither kind, or rates outside 0 to 1.

    >>> import pandas as pd
    >>> table = pd.DataFrame({"cache": "clusterkv", "recent_steps": [0, 1], "hit_rate": [0, 0.7], "paper": [0, 0.63]})
    >>> [(trace.name, trace.y.tolist()) for trace in hit_rate(table).data]
    [('clusterkv', [0.0, 0.7]), ('as the paper reports', [0.0, 0.63])]
    """
    rows = numbers("hit_rate", rows_of("hit_rate", table, ["cache", "hit_rate"]), "hit_rate")
    for column in ("recent_steps", "policy", "capacity_tokens", "blocks_a_step", "paper"):
        rows = rows.assign(**{column: table[column] if column in table.columns else np.nan})
    for column in ("hit_rate", "paper"):
        outside = rows[~rows[column].between(0, 1) & rows[column].notna()]
        if len(outside):
            raise InvalidInputError(f"hit_rate: {column}", outside[column].iloc[0], "shares from 0 to 1")
    steps = rows[rows["recent_steps"].notna()]
    blocks = rows[rows["recent_steps"].isna()]
    if blocks[["policy", "capacity_tokens", "blocks_a_step"]].isna().any(axis=None):
        wanted = "recent_steps, or policy, capacity_tokens and blocks_a_step, in each row"
        raise InvalidInputError("hit_rate", "a row that describes neither cache", wanted)
    drawn = [(x, part) for x, part in (("recent_steps", steps), ("blocks_a_step", blocks)) if len(part)]
    figure = _stacked(len(drawn), 190, 100, dark)
    explained = False
    for row, (x, part) in enumerate(drawn, start=1):
        by_steps = x == "recent_steps"
        curves = _by_steps(part, styles_of(table, dark)) if by_steps else _by_blocks(part, dark)
        figure.add_traces(curves, rows=row, cols=1)
        if part["paper"].notna().any():
            figure.add_trace(_paper(part, x, not explained, dark), row, 1)
            explained = True
        name_panel(figure, "the tokens of the last R steps" if by_steps else "blocks of tokens", row, 1)
        if by_steps:
            figure.update_xaxes(title_text="recent steps kept (R)", dtick=1, row=row, col=1)
        else:
            size_axis(figure, part[x], "blocks added per step", row=row, col=1)
        figure.update_yaxes(title_text="hit rate (share)", range=[-0.04, 1.04], row=row, col=1)
    set_title(figure, run_title(table, title, "Hit rate of caches on the device", hardware), panel_titles=True)
    return figure


def kv_memory(
    models: Mapping[str, Shape],
    lengths: Sequence[int],
    batches: Sequence[int] = (1,),
    *,
    link: Link | None = None,
    bytes_per_value: int = 2,
    memory_bytes: int | None = None,
    title: str | None = None,
    dark: bool = False,
) -> go.Figure:
    """Bytes of all keys and values against the length, by model and batch; below, the time to move them over a link.

    As in PQCache (arXiv 2407.12820) figure 1. The bytes are calculated (`kvviz.metrics.kv_bytes`), not measured.
    `models` maps names to geometries. `link` is a `kvviz.offload.LinkModel`; its latency counts once per layer.
    `memory_bytes` draws a line at the memory of a device.

    Raises InvalidInputError for no model, length or batch, and as `kv_bytes`.

    >>> from kvviz.trace.geometry import Geometry
    >>> models = {"Llama 3 8B": Geometry(n_layers=32, n_heads=32, n_kv_heads=8, head_dim=128, max_positions=8192)}
    >>> kv_memory(models, lengths=[1024, 2048]).data[0].y.tolist()
    [134217728.0, 268435456.0]
    """
    if not (len(models) and len(lengths) and len(batches)) or min(*lengths, *batches) < 1:
        got = f"{len(models)} models, lengths {list(lengths)}, batches {list(batches)}"
        raise InvalidInputError("kv_memory", got, "at least one of each, lengths and batches above 0")
    figure = _stacked(2 if link else 1, 220, 30, dark)
    tones = dict(zip(sorted(batches), ordered_tones(len(batches), dark), strict=True))
    looks = {name: (_DASHES[n % len(_DASHES)], _SYMBOLS[n % len(_SYMBOLS)]) for n, name in enumerate(models)}
    x, sizes = np.array(sorted(lengths), float), []
    for (name, shape), (batch, tone) in itertools.product(models.items(), tones.items()):
        size = _size(shape, sorted(lengths), batch, bytes_per_value)
        sizes.append(size)
        style = {"color": tone, "dash": looks[name][0], "symbol": looks[name][1]}
        label, texts = f"{escape(name)}, batch {batch:,}", np.array([bytes_text(number) for number in size])
        hover = "%{x:,} tokens: %{customdata}"
        figure.add_trace(curve(label, x, size.astype(float), style, hover, texts, show_legend=False), 1, 1)
        if link is not None:
            times, hover = np.asarray(link.seconds(size, shape.n_layers), float), "%{x:,} tokens: %{y:.3g} s"
            figure.add_trace(curve(label, x, times, style, hover, show_legend=False), 2, 1)
    batches_drawn = {f"batch {batch:,}": tone for batch, tone in tones.items()}
    figure.add_traces(_legend(looks, batches_drawn, dark), rows=1, cols=1)
    if memory_bytes is not None:
        sizes.append(np.array([memory_bytes]))
        style = {"color": ink(dark).foreground, "dash": "dashdot", "symbol": "line-ns"}
        level, name = np.full(2, float(memory_bytes)), f"{bytes_text(memory_bytes)} of memory"
        figure.add_trace(curve(name, x[[0, -1]], level, style, "of the device", markers=False), 1, 1)
    figure.update_yaxes(type="log", title_text="keys and values", **_byte_ticks(np.concatenate(sizes)), row=1, col=1)
    size_axis(figure, lengths, "length (tokens)")
    if link is not None:
        figure.update_xaxes(title_text="", showticklabels=False, row=1, col=1)
        log_ticks(figure, "transfer time (s)", row=2, col=1)
    parts = ["Keys and values of all layers", f"{bytes_per_value} bytes per value", link.label if link else ""]
    set_title(figure, heading(title, parts))
    return figure


def _by_steps(rows: pd.DataFrame, style_in: Callable[[str], dict[str, str]]) -> list[go.Scatter]:
    """One curve per name over R; a name that begins with a method ("clusterkv, budget 256") has its colour."""
    curves = []
    methods: list[str] = []
    for name in rows["cache"].unique():
        means = rows[rows["cache"] == name].groupby("recent_steps")["hit_rate"].mean()
        method = str(name).partition(",")[0]
        style, number = style_in(method), methods.count(method)
        if number:  # a method's second curve keeps its colour
            style |= {"dash": _DASHES[number % len(_DASHES)], "symbol": f"{_SYMBOLS[number % len(_SYMBOLS)]}-open"}
        methods.append(method)
        curves.append(curve_of(escape(str(name)), means, style, "R = %{x}: %{y:.1%}"))
    return curves


def _by_blocks(rows: pd.DataFrame, dark: bool) -> list[go.Scatter]:
    """One curve per name, policy and capacity over the blocks per step: lightness by capacity, dash by policy."""
    curves = []
    capacities = sorted(rows["capacity_tokens"].unique())
    tones = dict(zip(capacities, ordered_tones(len(capacities), dark), strict=False))
    looks = {policy.upper(): _POLICIES.get(policy.lower(), _UNKNOWN_POLICY) for policy in rows["policy"].astype(str)}
    several = rows["cache"].nunique() > 1
    for (name, policy, capacity), curve_rows in rows.groupby(["cache", "policy", "capacity_tokens"], sort=False):
        means = curve_rows.groupby("blocks_a_step")["hit_rate"].mean()
        dash, symbol = looks[str(policy).upper()]
        label = f"{escape(str(name))}, " if several else ""
        label += f"{escape(str(policy).upper())}, {capacity:,.0f} tokens"
        style = {"color": tones[capacity], "dash": dash, "symbol": symbol}
        line = curve_of(label, means, style, "%{x} blocks: %{y:.1%}", show_legend=False)
        curves.append(line.update(marker_size=11 if symbol.endswith("-open") else 7))  # the two policies often coincide
    return curves + _legend(looks, {f"{capacity:,.0f} tokens": tone for capacity, tone in tones.items()}, dark)


def _paper(rows: pd.DataFrame, x: str, show_legend: bool, dark: bool) -> go.Scatter:
    """Hollow marks at the values that papers report, without repetitions."""
    points = rows[[x, "paper"]].dropna().drop_duplicates()
    return go.Scatter(
        x=points[x].to_numpy(float), y=points["paper"].to_numpy(float), mode="markers", name="as the paper reports",
        legendgroup="paper", showlegend=show_legend, legendrank=2000,
        hovertemplate="as the paper reports: %{y:.0%}<extra></extra>",
        marker={"symbol": "star-open", "size": 13, "color": ink(dark).foreground, "line": {"width": 1.2}},
    )  # fmt: skip


def _legend(looks: Mapping[str, tuple[str, str]], tones: Mapping[str, str], dark: bool) -> list[go.Scatter]:
    """Legend entries for the dash and symbol of each name in `looks`, then for the colour of each name in `tones`."""
    nothing, color = np.array([np.nan]), ink(dark).foreground
    styles = {escape(name): {"color": color, "dash": dash, "symbol": symbol} for name, (dash, symbol) in looks.items()}
    entries = [curve(name, nothing, nothing, style, "") for name, style in styles.items()]
    for name, tone in tones.items():
        style = {"color": tone, "dash": "solid", "symbol": "circle"}
        entries.append(curve(name, nothing, nothing, style, "", markers=False))
    return entries


def _stacked(count: int, height: float, gap: float, dark: bool) -> go.Figure:
    """Panels of `height` pixels below each other, `gap` apart, with room for the title, the axis and the legend."""
    figure, inside = stack([height] * count, gap)
    return figure.update_layout(template=template_name(dark), height=inside + 180, hovermode="closest")


def _byte_ticks(sizes: Any) -> dict[str, Any]:
    """At most eight ticks of a logarithmic axis, at powers of two."""
    first, last = int(np.floor(np.log2(sizes.min()))), int(np.ceil(np.log2(sizes.max())))
    step = max(1, -(-(last - first) // 7))
    ticks = [2.0**power for power in range(first, last + 1, step)]
    return {"tickvals": ticks, "ticktext": [bytes_text(tick) for tick in ticks]}


def _size(shape: Shape, lengths: Sequence[int], batch: int, bytes_per_value: int) -> NDArray[np.int64]:
    """Bytes by length; those of a sliding window stop growing with it."""
    if isinstance(shape, Geometry):
        full, sliding = shape.kv_bytes(lengths, batch, bytes_per_value)
        return full + sliding
    return kv_bytes(shape.n_layers, shape.n_kv_heads, shape.head_dim, lengths, batch, bytes_per_value)
