"""One HTML file that a widget lives in without a kernel: script, style and data inside, nothing fetched."""

from __future__ import annotations

import base64
import gzip
import json
import os
from collections.abc import Iterable, Sequence
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


def self_contained(
    title: str,
    script: str,
    data: Any,
    blobs: Iterable[str] = (),
    *,
    styles: Sequence[str] = (),
    path: str | os.PathLike[str] | None = None,
) -> str:
    """The page as text; also written to `path`, whole or not at all.

    `script` names a module of js/, which finds `data` as JSON in #kvviz-page, the `blobs` that `blob` made by their
    key, and #kvviz-root to draw into. `styles` are further sheets of js/. The page's policy lets
    nothing be fetched.
    """
    text = _PAGE.format(
        version=__version__, title=_escape(title), style=assets.style(*styles), script=assets.script(script),
        data=_json(data), blobs="\n".join(blobs),
    )  # fmt: skip
    if path is not None:
        with replacing(path) as partial:
            partial.write_text(text, encoding="utf-8")
    return text


def blob(packed: bytes, key: str) -> str:
    """A script element that holds bytes, compressed, under `key`: letters, digits, "/", "-" and "_"."""
    data = base64.b64encode(gzip.compress(packed, mtime=0)).decode("ascii")
    return f'<script type="text/plain" data-slice="{key}">{data}</script>'


def _json(value: Any) -> str:
    """JSON that no HTML parser can mistake for markup: ASCII, with every < > & escaped."""
    text = json.dumps(value, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _escape(text: str) -> str:
    text = text.encode("utf-8", "replace").decode("utf-8")  # a model's path need not be text
    return text.replace("&", "&amp;").replace("<", "&lt;")
