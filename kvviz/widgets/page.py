"""Self-contained HTML pages of the widgets: script, style and data are embedded, and no kernel is needed."""

from __future__ import annotations

import base64
import gzip
import json
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from .. import __version__
from ..trace.storage import replacing
from . import assets

_PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="generator" content="kvviz {version}">
<meta http-equiv="Content-Security-Policy"
 content="default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data:">
<title>{title}</title>
<style>
:root {{ color-scheme: light dark; }}
body {{ margin: 0 auto; max-width: 1240px; background: #ffffff; }}
@media (prefers-color-scheme: dark) {{ body {{ background: #15181c; }} }}
</style>
<style>
{style}
</style>
</head>
<body>
<div id="kvviz-root"></div>
<noscript>This page needs JavaScript, which is turned off in this browser.</noscript>
<script type="application/json" id="kvviz-page">{data}</script>
{blobs}
<script type="module">
{script}
</script>
</body>
</html>
"""


@dataclass(frozen=True)
class Embedded:
    """A widget in a page: its view's name, the values of its traits, and what replaces the kernel.

    Each of the `answers` is a pair of trait values: when the traits equal the first, they take over the second. A Blob
    stands for bytes.
    """

    view: str
    state: Mapping[str, Any]
    answers: Sequence[tuple[Mapping[str, Any], Mapping[str, Any]]] = ()


@dataclass(frozen=True)
class Blob:
    """Bytes embedded in a page as compressed `text`; `key` has letters, digits, "/", "-" and "_" only."""

    key: str
    text: str


def blob(packed: bytes, key: str) -> Blob:
    """`packed` as a Blob: compressed by gzip, in base64."""
    return Blob(key, base64.b64encode(gzip.compress(packed, mtime=0)).decode("ascii"))


def self_contained(
    title: str,
    widgets: Sequence[Embedded],
    path: str | os.PathLike[str] | None = None,
    *,
    follow: Mapping[str, int] | None = None,
) -> str:
    """A page of widgets, one below the other, as text; also written to `path`, atomically.

    With `follow`, the second widget takes over what is picked in the first one (see js/follow.js). The blobs of all
    widgets have different keys. The page's security policy forbids every request to a network.
    """
    blobs: dict[str, Blob] = {}

    def reference(value: Any) -> dict[str, str]:
        if not isinstance(value, Blob):
            raise TypeError(f"{type(value).__name__} in a page: neither JSON nor a Blob")
        blobs[value.key] = value
        return {"blob": value.key}

    embedded = [
        {
            "state": dict(widget.state) | {"_kvviz_view": widget.view},
            "answers": [{"when": when, "then": then} for when, then in widget.answers],
        }
        for widget in widgets
    ]
    data = _json({"widgets": embedded, "follow": follow}, reference)
    text = _PAGE.format(
        version=__version__,
        title=_escape(title),
        style=assets.STYLE.read_text(encoding="utf-8"),
        script=assets.SCRIPT.read_text(encoding="utf-8").replace("</script", "<\\/script"),
        data=data,
        blobs="\n".join(f'<script type="text/plain" data-slice="{key}">{blobs[key].text}</script>' for key in blobs),
    )
    if path is not None:
        with replacing(path) as partial:
            partial.write_text(text, encoding="utf-8")
    return text


def _json(value: Any, default: Callable[[Any], Any]) -> str:
    """JSON that no HTML parser can mistake for markup: ASCII, with every < > & escaped."""
    text = json.dumps(value, separators=(",", ":"), default=default)
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _escape(text: str) -> str:
    text = text.encode("utf-8", "replace").decode("utf-8")  # a path to a model may hold undecoded bytes
    return text.replace("&", "&amp;").replace("<", "&lt;")
