"""Text of figures: escaped, and wrapped into lines that fit."""

from __future__ import annotations

import html
from collections.abc import Iterable

from plotly.graph_objects import Figure

from .theme import TYPE_SIZE

SEPARATOR = " · "
_VISIBLE = str.maketrans({"\n": "↵", "\r": "↵", "\t": "⇥"})


def escape(text: str) -> str:
    """`text` escaped so that plotly shows it literally: no tags, entities or MathJax, and visible line breaks.

    plotly reads HTML-like tags in titles, labels and hover boxes, and passes text between dollar signs to MathJax.

    >>> escape("<b>$x$</b>")
    '&lt;b&gt;&#36;x&#36;&lt;/b&gt;'
    """
    return html.escape(text.translate(_VISIBLE), quote=False).replace("$", "&#36;")


def title(parts: Iterable[str], width: int = 90) -> str:
    """`parts` escaped and joined by middle dots, wrapped between parts into lines of about `width` characters."""
    return wrap(SEPARATOR.join(escape(part) for part in parts if part), width)


def wrap(text: str, width: int) -> str:
    """`text` with new line breaks, only at middle dots: at most `width` characters per line if possible.

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


def heading(custom: str | None, parts: Iterable[str]) -> str:
    """A figure's title: `custom`, or if it is None, `parts` that say what was run; escaped and wrapped."""
    return title(parts) if custom is None else wrap(escape(custom), 90)


def top_margin(text: str, type_size: float, panel_titles: bool = False) -> float:
    """Pixels above the plot for a title of `text`, and for the line of panel titles below it if there is one."""
    lines = text.count("<br>") + 1 if text else 0
    return (1.35 * lines + (1.9 if panel_titles else 0.9)) * type_size


def title_pad(text: str, type_size: float) -> dict[str, float]:
    """Padding that puts a title's first line at the top; plotly lifts a title of several lines by half a line."""
    return {"t": type_size * (0.5 + 0.65 * ("<br>" in text)), "l": 0.4 * type_size}


def set_title(figure: Figure, text: str, panel_titles: bool = False) -> None:
    """Set a figure's title, and the top margin that it needs at the type size of a screen."""
    figure.update_layout(title={"text": text, "pad": {"t": title_pad(text, TYPE_SIZE)["t"]}})
    figure.update_layout(margin_t=top_margin(text, TYPE_SIZE, panel_titles))
