"""Text for figures: escaped, and broken into lines that fit."""

from __future__ import annotations

import html
from collections.abc import Iterable

from plotly.graph_objects import Figure

from .theme import TYPE_SIZE

SEPARATOR = " · "
_VISIBLE = str.maketrans({"\n": "↵", "\r": "↵", "\t": "⇥"})


def escape(text: str) -> str:
    """`text` as plotly shows it literally: no tags, no entities, no MathJax, line breaks made visible.

    plotly reads HTML-like tags in titles, labels and hover boxes, and hands text between dollar signs to MathJax.

    >>> escape("<b>$x$</b>")
    '&lt;b&gt;&#36;x&#36;&lt;/b&gt;'
    """
    return html.escape(text.translate(_VISIBLE), quote=False).replace("$", "&#36;")


def title(parts: Iterable[str], width: int = 90) -> str:
    """`parts` escaped and joined by middle dots, broken between parts into lines of about `width` characters."""
    return wrap(SEPARATOR.join(escape(part) for part in parts if part), width)


def wrap(text: str, width: int) -> str:
    """`text` with its line breaks set anew: only at middle dots, `width` characters a line where that is possible.

    >>> wrap("clusterkv · budget 256 · seed 0", 24)
    'clusterkv · budget 256 ·<br>seed 0'
    """
    lines: list[str] = []
    for part in text.replace(" ·<br>", SEPARATOR).split(SEPARATOR):
        if lines and len(html.unescape(lines[-1] + SEPARATOR + part)) <= width:
            lines[-1] += SEPARATOR + part
        else:
            lines.append(part)
    return " ·<br>".join(lines)


def heading(given: str | None, parts: Iterable[str]) -> str:
    """A figure's title: the one that was given, or else `parts` of what was run; escaped and broken into lines."""
    return title(parts) if given is None else wrap(escape(given), 90)


def top_margin(text: str, type_size: float, panel_titles: bool = False) -> float:
    """Pixels above the plot that a title of `text` needs, and the line of panel titles under it where there is one."""
    lines = text.count("<br>") + 1 if text else 0
    return (1.35 * lines + (1.9 if panel_titles else 0.9)) * type_size


def title_pad(text: str, type_size: float) -> dict[str, float]:
    """Padding that puts the first line at the top: plotly lifts a title of two lines or more by half a line."""
    return {"t": type_size * (0.5 + 0.65 * ("<br>" in text)), "l": 0.4 * type_size}


def set_title(figure: Figure, text: str, panel_titles: bool = False) -> None:
    """Set a figure's title and the margin that it needs at the size of type on a screen."""
    figure.update_layout(title={"text": text, "pad": {"t": title_pad(text, TYPE_SIZE)["t"]}})
    figure.update_layout(margin_t=top_margin(text, TYPE_SIZE, panel_titles))


def length_range(start: int, stop: int) -> str:
    """Positions `start` to `stop`, the last one left out, in print: "7" or "7–9"."""
    return f"{start:,}" if stop - start == 1 else f"{start:,}–{stop - 1:,}"
