"""Parts of a snapshot's SVG: elements, text, headings and lines of words."""

from __future__ import annotations

import unicodedata
from xml.etree import ElementTree

WIDTH, MARGIN = 760, 16  # pixels
INSIDE = WIDTH - 2 * MARGIN
INK, MUTED = "#1d2125", "#5c6570"


def heading(root: ElementTree.Element, title: str, top: float) -> float:
    """Write a panel's title, if it has one, and return where the panel begins."""
    if not title:
        return top
    write(root, title, MARGIN, top + 12, size=12, fill=MUTED).set("font-weight", "600")
    return top + 20


def add(root: ElementTree.Element, kind: str, **attributes: object) -> ElementTree.Element:
    """A new element below `root`; underscores in names of attributes are written as "-"."""
    return ElementTree.SubElement(
        root,
        kind,
        {
            key.replace("_", "-"): f"{value:.1f}" if isinstance(value, float) else str(value)
            for key, value in attributes.items()
        },
    )


def write(
    root: ElementTree.Element, text: str, x: float, y: float, *, size: int, fill: str = INK, width: float | None = None
) -> ElementTree.Element:
    """A line of text whose baseline starts at (x, y); every text is escaped."""
    node = add(root, "text", x=float(x), y=float(y), fill=fill)
    node.set("font-size", str(size))
    node.set("xml:space", "preserve")
    if width:  # viewers have different fonts; tints have to stay under their tokens
        node.set("textLength", f"{width:.1f}")
        node.set("lengthAdjust", "spacingAndGlyphs")
    node.text = written(text)
    return node


def wrapped(text: str, characters: int, gap: str = " ") -> list[str]:
    """Lines of at most about `characters`, which end at a gap."""
    lines = [""]
    for part in text.split(gap):
        if lines[-1] and len(lines[-1]) + len(part) >= characters:
            lines.append("")
        lines[-1] += f"{gap}{part}" if lines[-1] else part
    return [line[: 2 * characters] for line in lines if line]


def written(text: str) -> str:
    """Text that XML can hold."""
    return "".join("\ufffd" if unicodedata.category(sign) in ("Cc", "Cs", "Cn") else sign for sign in text)


def width_of(text: str) -> int:
    """The width of text in characters of a monospace font."""
    return sum(2 if unicodedata.east_asian_width(sign) in "WF" else 1 for sign in text)
