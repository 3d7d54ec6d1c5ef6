"""One HTML file that a widget lives in without a kernel: script, style and data inside, nothing fetched."""

from __future__ import annotations

import base64
import gzip
import json
import os
from collections.abc import Callable, Iterable, Mapping
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
<style id="kvviz-style">
{style}
</style>
</head>
<body>
<div id="kvviz-root"></div>
<noscript>This page needs JavaScript, which this browser does not run.</noscript>
<script type="application/json" id="kvviz-page">{data}</script>
{blobs}
<script type="module">
{script}
</script>
</body>
</html>
"""


@dataclass(frozen=True)
class Blob:
    """Bytes in a page: `text` is what they take there, compressed; `key`: letters, digits, "/", "-" and "_"."""

    key: str
    text: str


def blob(packed: bytes, key: str) -> Blob:
    """`packed` as a page holds it."""
    return Blob(key, base64.b64encode(gzip.compress(packed, mtime=0)).decode("ascii"))


def self_contained(
    view: str,
    title: str,
    state: Mapping[str, Any],
    answers: Iterable[tuple[Mapping[str, Any], Mapping[str, Any]]],
    path: str | os.PathLike[str] | None = None,
) -> str:
    """A widget's page as text; also written to `path`, whole or not at all.

    `view` names the widget's view and `state` holds its traits. `answers` stand in for its kernel: where the traits
    have the values that an answer begins with, those that it ends with are taken over. A Blob stands for bytes. The
    page's policy lets nothing be fetched.
    """
    blobs: dict[str, Blob] = {}

    def reference(value: Any) -> dict[str, str]:
        if not isinstance(value, Blob):
            raise TypeError(f"{type(value).__name__} in a page: neither JSON nor a Blob")
        blobs[value.key] = value
        return {"blob": value.key}

    held = [{"when": when, "then": then} for when, then in answers]
    data = _json({"state": {"_kvviz_view": view, **state}, "answers": held}, reference)
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
    text = text.encode("utf-8", "replace").decode("utf-8")  # a model's path need not be text
    return text.replace("&", "&amp;").replace("<", "&lt;")
