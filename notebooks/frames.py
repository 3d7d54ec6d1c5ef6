"""Widgets' pages in frames of another page: as high as their content, in the theme of the outer page.

The site and `run.py --html` use the same scripts and style sheet, those in docs/static.
"""

from __future__ import annotations

import html
import re
from pathlib import Path

STATIC = Path(__file__).resolve().parents[1] / "docs" / "static"
# What a page folds, by the tag of a cell: as MyST-NB calls it, and what to click.
FOLDED = {"set-up": ("hide-input", "Show the set-up"), "answer": ("hide-output", "Show the measurement")}


def framed(page: str) -> str:
    """A widget's page, with a script that sends its height to the outer page and uses the outer page's theme."""
    script = (STATIC / "framed.js").read_text(encoding="utf-8")
    return page.replace("</body>", f'<script type="module">\n{script}</script>\n</body>', 1)


def frame(page: str, address: str | None = None) -> str:
    """The <iframe> of a widget's page, with its title; without an address, the frame holds the page itself."""
    title = re.search("<title>(.*?)</title>", page, re.DOTALL)
    name = html.escape(html.unescape(title[1] if title else "widget"))
    source = f'srcdoc="{html.escape(framed(page))}"' if address is None else f'src="{address}" loading="lazy"'
    return f'<iframe class="kvviz-frame" {source} title="{name}"></iframe>'


def outer_parts() -> dict[str, str]:
    """The style sheet and the script of a page with frames."""
    return {name: (STATIC / name).read_text(encoding="utf-8") for name in ("frames.css", "frames.js")}
