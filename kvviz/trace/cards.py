"""Cards: what Jupyter shows of a trace, a recording and other objects: what it is, its size, and what to do next."""

from __future__ import annotations

import html
from collections.abc import Mapping, Sequence

LONGEST = 300  # characters of a text
_CARD = "border-left: 3px solid #0b66c3; padding: 2px 14px; color: inherit"
_CELL = "text-align: left; vertical-align: top; padding: 1px 14px 1px 0; color: inherit; white-space: pre-wrap"
_NAME = f"{_CELL}; font-weight: normal; opacity: 0.75; white-space: nowrap"


def card(name: str, about: str, rows: Mapping[str, object], calls: Sequence[tuple[str, str]]) -> str:
    """HTML of an object: the `name` of its class, one line about it, rows of values, and calls with what they do.

    Every text is escaped. Colours are those of the page around it, light or dark. Rows without a value are left out.
    """
    cells = "".join(
        f'<tr style="background: none"><th style="{_NAME}">{_text(row)}</th>'
        f'<td style="{_CELL}"><bdi>{_text(value)}</bdi></td></tr>'
        for row, value in rows.items()
        if value not in (None, "")
    )
    lines = "".join(f"<li><code>{_text(line)}</code>: {_text(purpose)}</li>" for line, purpose in calls)
    return (
        f'<div class="kvviz-card" style="{_CARD}"><div><b>{_text(name)}</b>: {_text(about)}</div>'
        f'<table style="border: 0; margin: 4px 0; color: inherit"><tbody>{cells}</tbody></table>'
        f'<div>Next:</div><ul style="margin: 0">{lines}</ul></div>'
    )


def layers_text(layers: Sequence[int], count: int) -> str:
    """The numbers of some of a model's `count` layers, as text."""
    if len(layers) == count:
        return f"all {count}"
    shown = ", ".join(map(str, layers[:12])) + (", …" if len(layers) > 12 else "")
    return f"{shown} ({len(layers)} of {count})" if layers else f"none of {count}"


def _text(value: object) -> str:
    text = str(value)
    text = text if len(text) <= LONGEST else f"{text[:LONGEST]} …"
    return html.escape(text.encode("utf-8", "replace").decode("utf-8"))  # half of a character cannot be sent
