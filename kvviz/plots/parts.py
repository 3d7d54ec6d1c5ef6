"""Parts of a run's time: their names, order and colours, with grey for the model's own work."""

from __future__ import annotations

from typing import Any

from ..trace.timeline import Event
from .theme import cluster_color, ink, oklch

END_TO_END = "end to end"
# From the bottom of a stack: first what all methods have, so that the rest can be compared.
ORDER = ("prefill", "rest", "attention", "select", "transfer", "store", "build")
# Blue and yellow can be told apart with every kind of colour vision, and in greyscale by their lightness: (lightness on
# a light page, on a dark page, chroma, hue).
_TONES = {
    "prefill": (0.78, 0.50, 0.0, 0.0),
    "rest": (0.87, 0.40, 0.0, 0.0),
    "store": (0.70, 0.60, 0.0, 0.0),
    "attention": (0.62, 0.62, 0.11, 70.0),
    "select": (0.72, 0.74, 0.09, 245.0),
    "transfer": (0.87, 0.88, 0.14, 98.0),
    "build": (0.42, 0.52, 0.12, 262.0),
}


def part_of(event: Event) -> str | None:
    """The part of the time that a Timeline's event belongs to; None for a forward pass, which contains the others."""
    if event.stream == "pass":
        return None
    if event.stream in ("clustering", "transfer"):
        return "build" if event.stream == "clustering" else "transfer"
    return event.what if event.what in ("attention", "select", "store") else "rest"


def in_order(parts: list[str]) -> list[str]:
    """The distinct parts: known ones from the bottom of a stack up, then the others in their order in `parts`."""
    distinct = list(dict.fromkeys(parts))
    return [part for part in ORDER if part in distinct] + [part for part in distinct if part not in ORDER]


def part_marker(part: str, number: int = 0, dark: bool = False) -> dict[str, Any]:
    """Colour and hatching of a part's bars; an unknown part gets the colour of cluster `number`."""
    if part not in _TONES:
        return {"color": cluster_color(number, 0.7, dark)}
    on_light, on_dark, chroma, hue = _TONES[part]
    color = oklch(on_dark if dark else on_light, chroma, hue)
    if part != "store":
        return {"color": color}
    stroke = ink(dark).background  # hatched, to differ from the other greys
    pattern = {"shape": "/", "size": 5, "solidity": 0.3, "fillmode": "overlay", "fgcolor": stroke}
    return {"color": color, "pattern": pattern}
