"""Figures follow the page: a style sheet that gives a figure of the light theme the dark theme's colours.

plotly writes colours into each element of its drawing, and knows no variables of CSS. A rule of the style sheet
overrides one of these colours, as long as the page is dark: in JupyterLab, on the site, in VS Code. No script runs, and
the figure follows at once when the reader changes the theme.
"""

from __future__ import annotations

import functools
import re

import plotly.graph_objects as go
import plotly.io as pio

from ..trace.hues import HUES
from ..trace.styles import known_colors
from .contrast import legible
from .parts import ORDER, part_marker
from .theme import DARK, LIGHT, WEIGHTS, area_shades, cluster_line, hue_color, ordered_tones

# Of JupyterLab, of the site's theme, of VS Code; the second list holds where the reader leaves it to the system.
DARK_PAGES = ('[data-jp-theme-light="false"]', 'body[data-theme="dark"]', ".vscode-dark")
_SYSTEM = ('body[data-theme="auto"]',)
_MOST_LINES, _MOST_AREAS = 16, 8  # of an ordered set, like layers; of a set of bars
_COLOR = re.compile(r"#[0-9a-fA-F]{6}|rgba?\(\s*\d+,\s*\d+,\s*\d+")


@functools.cache
def dark_colors() -> dict[str, str]:
    """The colour in the dark theme of each colour in the light one, as #rrggbb, without those of maps."""
    pairs = dict(zip(LIGHT, DARK, strict=True))
    for color in known_colors():
        pairs[legible(color, LIGHT.background)] = legible(color, DARK.background)
    pairs |= {str(part_marker(part)["color"]): str(part_marker(part, dark=True)["color"]) for part in ORDER}
    for step in range(HUES):
        pairs |= {hue_color(step, weight): hue_color(step, weight, dark=True) for weight in WEIGHTS}
    for count in range(_MOST_AREAS, 0, -1):
        pairs |= dict(zip(area_shades(count), area_shades(count, dark=True), strict=True))
    pairs |= {cluster_line(cluster): cluster_line(cluster, dark=True) for cluster in range(HUES)}
    return {light.lower(): dark.lower() for light, dark in pairs.items()}


@functools.cache
def _line_colors() -> dict[str, str]:
    """The same for lines in tones of cividis, whose areas look alike in both themes."""
    pairs: dict[str, str] = {}
    for count in range(_MOST_LINES, 0, -1):
        pairs |= dict(zip(ordered_tones(count), ordered_tones(count, dark=True), strict=True))
    return pairs


def style_sheet(figure: go.Figure | None = None) -> str:
    """Rules of CSS for dark pages: those that `figure` needs, by default all.

    They change the figures of plotly on the page that are drawn in the colours of kvviz's light theme.
    """
    inside = "\n".join(_all_rules(figure))
    return (
        f":is({', '.join(DARK_PAGES)}) {{\n{inside}\n}}\n"
        f"@media (prefers-color-scheme: dark) {{ :is({', '.join(_SYSTEM)}) {{\n{inside}\n}} }}\n"
    )


def dark_drawing(svg: str, figure: go.Figure) -> str:
    """The SVG of a figure that was drawn in the light theme, in the dark theme's colours wherever it is shown."""
    rules = "\n".join(_all_rules(figure)).replace("&", "&amp;").replace(">", "&gt;").replace("<", "&lt;")
    head, inside = svg.split(">", 1)
    return f'{head}><g class="js-plotly-plot"><style>\n{rules}</style>{inside.removesuffix("</svg>")}</g></svg>'


def _all_rules(figure: go.Figure | None) -> list[str]:
    """The rules that a figure needs, or all."""
    colors, lines = dark_colors(), _line_colors()
    if figure is not None:
        used = {_hexadecimal(color) for color in _COLOR.findall(pio.to_json(figure, validate=False))}
        used |= {color.lower() for color in LIGHT}
        colors, lines = ({light: dark for light, dark in pairs.items() if light in used} for pairs in (colors, lines))
        colors |= _own_lines(figure, {*colors, *lines})
    rules = [rule for light, dark in lines.items() for rule in _rules(light, dark, ":is(.scatterlayer, .legend) ")]
    return rules + [rule for light, dark in colors.items() for rule in _rules(light, dark)]


def _own_lines(figure: go.Figure, known: set[str]) -> dict[str, str]:
    """Legible tones for the colours of curves that are no theme's, such as a table's `attrs["styles"]`."""
    colors = {str(trace.line.color) for trace in figure.select_traces({"type": "scatter"}) if trace.line.color}
    own = {_hexadecimal(color) for color in colors if _COLOR.match(color)} - known
    return {color: legible(color, DARK.background) for color in own}


def _rules(light: str, dark: str, inside: str = "") -> list[str]:
    """Rules for what is drawn in a colour. White text is that on dark cells, which stay as they are."""
    red, green, blue = (int(light[place : place + 2], 16) for place in (1, 3, 5))
    name = f"rgb({red}, {green}, {blue})"
    anything = ":not(text)" if light == LIGHT.background else ""
    rules = [
        f'.js-plotly-plot {inside}{anything}[style*="{what}: {name}"] {{ {what}: {dark} !important }}'
        for what in ("fill", "stroke")
    ]
    rules.append(f'.js-plotly-plot tspan[style*="{light}" i] {{ fill: {dark} !important }}')  # a <span> in a text
    if light == LIGHT.background:
        rules.append(f'.js-plotly-plot .main-svg[style*="background: {name}"] {{ background: {dark} !important }}')
    return rules


def _hexadecimal(color: str) -> str:
    """`#rrggbb` of a colour as plotly may write it."""
    if color.startswith("#"):
        return color.lower()
    return "#" + "".join(f"{int(part):02x}" for part in re.findall(r"\d+", color))
