"""One look for all figures: light and dark templates, the style of each method, a hue for each cluster."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import plotly.graph_objects as go
import plotly.io as pio
from plotly.colors import sample_colorscale

from ..trace import Recording
from ..trace.diagnosis import Diagnosis
from ..trace.hues import HUES, hue
from ..trace.styles import NEUTRAL, Style, load_style, style_of
from .contrast import LEAST, contrast, gamma, legible
from .powers import power_of_ten

if TYPE_CHECKING:
    import pandas as pd

FONT = "Inter, Helvetica Neue, Arial, Liberation Sans, DejaVu Sans, sans-serif"
TYPE_SIZE = 13  # pixels, on a screen
WEIGHTS = tuple(step / 12 for step in range(13))  # of which a cluster's colour has a tone
MAP = "Cividis"  # colour-blind safe and monotone in lightness


class Ink(NamedTuple):
    """The neutral colours of one theme."""

    foreground: str
    muted: str
    grid: str
    background: str


LIGHT = Ink(foreground="#1a1a1a", muted="#6e6e6e", grid="#e4e4e4", background="#ffffff")
DARK = Ink(foreground="#ececec", muted="#9a9a9a", grid="#333333", background="#111111")

# Okabe and Ito's palette, which colour-blind readers can tell apart.
BLUE, VERMILION, GREEN, PURPLE, ORANGE, SKY = "#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9"


def ink(dark: bool = False) -> Ink:
    """The neutral colours of the light or the dark theme."""
    return DARK if dark else LIGHT


def template_name(dark: bool = False) -> str:
    """The registered plotly template: "kvviz_light" or "kvviz_dark"."""
    return "kvviz_dark" if dark else "kvviz_light"


def attention_scale(decades: int) -> dict[str, Any]:
    """Colour scale, limits and colour bar for the decimal logarithm of attention weights, from 10^-decades to 1."""
    ticks = list(range(-decades, 1))
    labels = [f"≤ {power_of_ten(ticks[0])}", *(power_of_ten(tick) for tick in ticks[1:])]
    bar = color_bar("attention weight", tickvals=ticks, ticktext=labels)
    return {"colorscale": MAP, "cmin": -decades, "cmax": 0, "colorbar": bar}


def color_bar(title: str, **properties: Any) -> dict[str, Any]:
    """A colour bar with `title` along its right side; `properties` are added, or replace those that all bars have."""
    return {"title": {"text": title, "side": "right"}, "thickness": 10, "outlinewidth": 0, "xpad": 4} | properties


def legend_entry(mode: str, name: str, **properties: Any) -> go.Scatter:
    """A trace without data, which only explains something in the legend."""
    return go.Scatter(x=[None], y=[None], mode=mode, name=name, **properties)


def color_bar_entry(scale: dict[str, Any]) -> go.Scatter:
    """A trace without data that shows the colour bar of a scale from `attention_scale`."""
    marker = {"color": [0], "showscale": True, **scale}
    return go.Scatter(x=[None], y=[None], mode="markers", marker=marker, showlegend=False, hoverinfo="skip")


def method_style(name: str, dark: bool = False, kind: str | None = None) -> dict[str, str]:
    """`color`, `dash` and `symbol` of a method, the same in every figure: those that its class declares.

    `name` is the registry name. An unknown method gets the muted tone of its `kind` ("retrieval", "eviction",
    "merging", "prefill", "quantised"; otherwise neutral) and a dash and symbol that depend only on its name. So does a
    method whose class is not loaded, if it is newer than the first data with styles.

    >>> method_style("clusterkv")
    {'color': '#0072B2', 'dash': 'solid', 'symbol': 'circle'}
    """
    return _drawn(style_of(name, kind), dark)


def recorded_style(run: Recording, dark: bool = False) -> dict[str, str]:
    """`color`, `dash` and `symbol` of a recording's method: as recorded, otherwise by its name."""
    return _drawn((run.style or style_of(run.method)).completed(run.method), dark)


def style_of_diagnosis(found: Diagnosis, dark: bool = False) -> dict[str, str]:
    """`color`, `dash` and `symbol` of a diagnosis's method, as stored."""
    return _drawn(found.style.completed(found.method_name), dark)


def styles_of(
    table: pd.DataFrame, dark: bool = False, kinds: Mapping[str, str] | None = None
) -> Callable[[str], dict[str, str]]:
    """A function from a method's name to its `color`, `dash` and `symbol`, for a table's figure.

    They come from `table.attrs["styles"]`, {method: {"color", "dash", "symbol"}}, otherwise from `method_style` with
    the method's kind in `kinds`. Raises IncompatibleFileError for attrs that do not hold styles.
    """
    styles = table.attrs.get("styles", {})

    def style(name: str) -> dict[str, str]:
        kind = (kinds or {}).get(name)
        if name not in styles:
            return method_style(name, dark, kind)
        return _drawn(load_style(styles[name], f"draw a table: styles of {name}").completed(name, kind), dark)

    return style


def _drawn(style: Style, dark: bool) -> dict[str, str]:
    """A complete style in a theme: neutral colours by name, others in the tone that is legible on its background."""
    assert style.color is not None
    assert style.dash is not None
    assert style.symbol is not None
    page = ink(dark)
    color = getattr(page, style.color) if style.color in NEUTRAL else legible(style.color, page.background)
    return {"color": color, "dash": style.dash, "symbol": style.symbol}


def cluster_hue(cluster: int) -> float:
    """Hue of a cluster in degrees, 0 <= hue < 360; it depends only on the cluster's number.

    There are 24 hues, the same as in the widgets; those of clusters with neighbouring numbers are 105° apart.

    >>> [cluster_hue(cluster) for cluster in range(4)]
    [0.0, 105.0, 210.0, 315.0]
    """
    return int(hue(cluster)) * 360.0 / HUES


def cluster_color(cluster: int, weight: float = 1.0, dark: bool = False) -> str:
    """`#rrggbb` of a cluster: hue by cluster, lightness by `weight` in 0..1 (more weight, more contrast with the page).

    The colours are defined in OKLCH, so that all hues of one weight look equally light.
    """
    return hue_color(int(hue(cluster)), weight, dark)


def hue_color(step: int, weight: float = 1.0, dark: bool = False) -> str:
    """The `cluster_color` of clusters with this step of the colour circle (`kvviz.trace.hues.hue`)."""
    weight = WEIGHTS[round(min(max(weight, 0.0), 1.0) * (len(WEIGHTS) - 1))]
    lightness = 0.40 + 0.38 * weight if dark else 0.90 - 0.32 * weight
    return oklch(lightness, 0.05 + 0.08 * weight, step * 360.0 / HUES)


def oklch(lightness: float, chroma: float, hue: float) -> str:
    """`#rrggbb` of an OKLCH colour: lightness 0..1, chroma 0..0.4, hue in degrees; clipped to sRGB.

    Source: B. Ottosson, "A perceptual color space for image processing" (2020).

    >>> oklch(1.0, 0.0, 0.0)
    '#ffffff'
    """
    a, b = chroma * math.cos(math.radians(hue)), chroma * math.sin(math.radians(hue))
    long = (lightness + 0.3963377774 * a + 0.2158037573 * b) ** 3
    medium = (lightness - 0.1055613458 * a - 0.0638541728 * b) ** 3
    short = (lightness - 0.0894841775 * a - 1.2914855480 * b) ** 3
    linear = (
        4.0767416621 * long - 3.3077115913 * medium + 0.2309699292 * short,
        -1.2684380046 * long + 2.6097574011 * medium - 0.3413193965 * short,
        -0.0041960863 * long - 0.7034186147 * medium + 1.7076147010 * short,
    )
    return "#" + "".join(f"{round(255 * gamma(min(max(value, 0.0), 1.0))):02x}" for value in linear)


def cluster_line(cluster: int, dark: bool = False) -> str:
    """`#rrggbb` of a line in the hue of a cluster, legible on the theme's background."""
    return legible(cluster_color(cluster, 1.0, dark), ink(dark).background)


def ordered_tones(count: int, dark: bool = False) -> list[str]:
    """`#rrggbb` of `count` lines for ordered values: steps of the part of cividis that is legible on the background.

    >>> ordered_tones(2)
    ['#00224e', '#767674']
    """
    page = ink(dark).background
    steps = [step for step in np.linspace(0, 1, 101) if contrast(_map(step), page) >= LEAST]
    first, last = steps[0], steps[-1]
    return [_map(step) for step in (np.linspace(first, last, count) if count > 1 else [(first + last) / 2])]


def area_shades(count: int, dark: bool = False) -> list[str]:
    """`#rrggbb` of `count` areas beside each other: steps of cividis that are seen on the background."""
    return [_map(step) for step in np.linspace(0.3 if dark else 0.1, 0.95, max(count, 2))][:count]


def _map(step: float) -> str:
    """`#rrggbb` of cividis at a step in 0..1."""
    (channels,) = sample_colorscale(MAP, [float(step)], colortype="tuple")
    return "#" + "".join(f"{round(255 * channel):02x}" for channel in channels)


def translucent(color: str, alpha: float) -> str:
    """`rgba(...)` of a `#rrggbb` colour at an opacity in 0..1.

    >>> translucent("#0072B2", 0.5)
    'rgba(0,114,178,0.5)'
    """
    red, green, blue = (int(color[place : place + 2], 16) for place in (1, 3, 5))
    return f"rgba({red},{green},{blue},{alpha})"


def _template(colors: Ink) -> Any:
    axis = {
        "gridcolor": colors.grid, "linecolor": colors.muted, "tickcolor": colors.muted, "zeroline": False,
        "showline": True, "ticks": "outside", "ticklen": 4, "automargin": True,
        "title": {"standoff": 8, "font": {"size": TYPE_SIZE}},
    }  # fmt: skip
    layout = {
        "font": {"family": FONT, "size": TYPE_SIZE, "color": colors.foreground},
        "paper_bgcolor": colors.background,
        "plot_bgcolor": colors.background,
        "colorway": [legible(color, colors.background) for color in (BLUE, VERMILION, GREEN, PURPLE, ORANGE, SKY)],
        "title": {"x": 0, "xref": "paper", "xanchor": "left", "y": 1, "yref": "container", "yanchor": "top",
                  "font": {"size": TYPE_SIZE}},
        "legend": {"orientation": "h", "yref": "container", "y": 0, "yanchor": "bottom", "x": 0, "xanchor": "left",
                   "bgcolor": "rgba(0,0,0,0)", "tracegroupgap": 0},
        "margin": {"l": 12, "r": 12, "t": 40, "b": 12},
        "xaxis": axis,
        "yaxis": axis,
        "hoverlabel": {"bgcolor": colors.background, "bordercolor": colors.muted, "align": "left",
                       "font": {"family": FONT, "color": colors.foreground}},
            }  # fmt: skip
    return go.layout.Template(layout=layout)


def register() -> None:
    """Register the templates "kvviz_light" and "kvviz_dark" with plotly; the default template is not changed."""
    pio.templates["kvviz_light"] = _template(LIGHT)
    pio.templates["kvviz_dark"] = _template(DARK)
