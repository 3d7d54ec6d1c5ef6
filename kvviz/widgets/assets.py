"""Paths of the widgets' JavaScript and style sheet: the bundles that `make js` writes from the modules in js/."""

from __future__ import annotations

from pathlib import Path

SCRIPT = Path(__file__).parent / "static" / "kvviz.js"
STYLE = SCRIPT.with_suffix(".css")
