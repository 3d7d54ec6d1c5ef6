"""The widgets' JavaScript and style sheet, as text that needs no other file."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

FOLDER = Path(__file__).parent / "js"
_IMPORT = re.compile(r'^import \{[^}]*\} from "\./([a-z_]+\.js)";\n', re.MULTILINE)
_EXPORT = re.compile(r"^export (?!default)", re.MULTILINE)


@cache
def script(name: str) -> str:
    """The module `name` with every module that it imports before it, as one module without imports.

    anywidget and the page without a kernel both load a single text, so that relative imports have nowhere to point.
    """
    parts: list[str] = []
    _collect(name, set(), parts)
    return "\n".join(parts)


@cache
def style(*own: str) -> str:
    """The style sheet of all widgets, and behind it the sheets of js/ that `own` names."""
    return "\n".join((FOLDER / name).read_text(encoding="utf-8") for name in ("kvviz.css", *own))


def _collect(name: str, seen: set[str], parts: list[str]) -> None:
    if name in seen:
        return
    seen.add(name)
    text = (FOLDER / name).read_text(encoding="utf-8")
    for imported in _IMPORT.findall(text):
        _collect(imported, seen, parts)
    parts.append(_EXPORT.sub("", _IMPORT.sub("", text)))
