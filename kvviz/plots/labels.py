"""Text of figures: escaped, and wrapped into lines that fit."""

from __future__ import annotations

import html
import re
from collections.abc import Callable, Iterable

from plotly.graph_objects import Figure

from .text_width import UNITS, text_width
from .theme import TYPE_SIZE

Measure = Callable[[str], float]  # the width of a text in em
SEPARATOR = " · "
_SPACE = re.compile(" (?![^<>]*>)")  # outside of tags
SCREEN_LINE = 48.0  # em: 624 pixels, which a notebook's column has
_VISIBLE = str.maketrans({"\n": "↵", "\r": "↵", "\t": "⇥"})


def escape(text: str) -> str:
    """`text` escaped so that plotly shows it literally: no tags, entities or MathJax, and visible line breaks.

    plotly reads HTML-like tags in titles, labels and hover boxes, and passes text between dollar signs to MathJax.

    >>> escape("<b>$x$</b>")
    '&lt;b&gt;&#36;x&#36;&lt;/b&gt;'
    """
    return html.escape(text.translate(_VISIBLE), quote=False).replace("$", "&#36;")


def title(parts: Iterable[str]) -> str:
    """`parts` escaped and joined by middle dots, wrapped between parts into lines that fit a screen."""
    return wrap(SEPARATOR.join(escape(part) for part in parts if part), SCREEN_LINE)


def wrap(text: str, width: float, anywhere: bool = False, measure: Measure = text_width) -> str:
    """`text` with new line breaks: at most `width` em per line, as `measure` says.

    Lines break at middle dots; a part that is wider than a line breaks at spaces. A word that is wider than a line
    stays whole, unless `anywhere`.

    >>> wrap("clusterkv · budget 256 · seed 0", 14)
    'clusterkv · budget 256 ·<br>seed 0'
    """

    def fits(line: str) -> bool:
        return measure(line) <= width

    lines: list[str] = []
    *parts, last = text.replace(" ·<br>", SEPARATOR).replace("<br>", " ").split(SEPARATOR)
    for part in [*(f"{part} ·" for part in parts), last]:
        if lines and fits(f"{lines[-1]} {part}"):
            lines[-1] += f" {part}"
        else:
            lines += [part] if fits(part) else _broken(_SPACE.split(part), fits, anywhere)
    return "<br>".join(lines)


def _broken(words: Iterable[str], fits: Callable[[str], bool], anywhere: bool) -> list[str]:
    """The words in lines that fit; if `anywhere`, a word that does not fit breaks between letters."""
    lines: list[str] = []
    for word in words:
        if lines and fits(f"{lines[-1]} {word}"):
            lines[-1] += f" {word}"
        elif anywhere and not fits(word):
            lines.append("")
            for letter in UNITS.findall(word):
                if not fits(lines[-1] + letter):
                    lines.append("")
                lines[-1] += letter
        else:
            lines.append(word)
    return lines


def heading(custom: str | None, parts: Iterable[str]) -> str:
    """A figure's title: `custom`, or if it is None, `parts` that say what was run; escaped and wrapped."""
    return title(parts) if custom is None else wrap(escape(custom), SCREEN_LINE)


def top_margin(text: str, type_size: float, panel_lines: int = 0) -> float:
    """Pixels above the plot for a title of `text`, and for the lines of the panel titles below it, if there are any."""
    lines = text.count("<br>") + 1 if text else 0
    panel_titles = 1.0 + 1.35 * (panel_lines - 1) if panel_lines else 0.0
    return (1.35 * lines + 0.9 + panel_titles) * type_size


def title_pad(text: str, type_size: float) -> dict[str, float]:
    """Padding that puts a title's first line at the top; plotly lifts a title of several lines by half a line."""
    return {"t": type_size * (0.5 + 0.65 * ("<br>" in text)), "l": 0.4 * type_size}


def set_title(figure: Figure, text: str, panel_titles: bool = False) -> None:
    """Set a figure's title, and the top margin that it needs at the type size of a screen."""
    figure.update_layout(title={"text": text, "pad": {"t": title_pad(text, TYPE_SIZE)["t"]}})
    figure.update_layout(margin_t=top_margin(text, TYPE_SIZE, panel_titles))
