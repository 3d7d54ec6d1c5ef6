"""Contrast of colours, as WCAG 2.2 defines it, and the variant of a colour that can be read on a page."""

from __future__ import annotations

LEAST = 4.5  # WCAG's ratio for text, which figures keep for lines and markers too


def contrast(first: str, second: str) -> float:
    """The contrast ratio of two `#rrggbb` colours, 1 to 21.

    Source: WCAG 2.2, "contrast ratio" and "relative luminance".

    >>> contrast("#000000", "#ffffff")
    21.0
    """
    dark, light = sorted((_luminance(_linear(first)), _luminance(_linear(second))))
    return round((light + 0.05) / (dark + 0.05), 9)


def legible(color: str, background: str) -> str:
    """`color`, or if its contrast with `background` is below 4.5, the nearest darker or lighter tone that has it.

    The hue stays: on a light page all channels are scaled down, on a dark one white is added, in linear light.

    >>> legible("#0072B2", "#ffffff"), legible("#E69F00", "#ffffff")
    ('#0072B2', '#9f6d00')
    """
    if contrast(color, background) >= LEAST:
        return color
    channels, page = _linear(color), _luminance(_linear(background))
    dark_page = page < 0.18  # the luminance at which black and white are as legible
    for step in range(1, 256):  # in steps of one level, since colours are rounded to 8 bits
        share = step / 256
        moved = [value + (1 - value) * share if dark_page else value * (1 - share) for value in channels]
        tone = "#" + "".join(f"{round(255 * gamma(value)):02x}" for value in moved)
        if contrast(tone, background) >= LEAST:
            return tone
    return "#ffffff" if dark_page else "#000000"


def gamma(value: float) -> float:
    """A channel of sRGB, 0 to 1, from linear light."""
    return float(12.92 * value if value <= 0.0031308 else 1.055 * value ** (1 / 2.4) - 0.055)


def _linear(color: str) -> list[float]:
    """Linear light of the three channels, 0 to 1."""
    channels = [int(color[place : place + 2], 16) / 255 for place in (1, 3, 5)]
    return [value / 12.92 if value <= 0.04045 else ((value + 0.055) / 1.055) ** 2.4 for value in channels]


def _luminance(linear: list[float]) -> float:
    red, green, blue = linear
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue
