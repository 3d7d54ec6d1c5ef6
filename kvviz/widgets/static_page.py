"""One HTML file that replays a recording without a kernel: script, style and data inside, nothing fetched."""

from __future__ import annotations

import base64
import gzip
import json
import os
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from .. import __version__
from ..storage import replacing
from ..trace import Recording
from . import assets, content, view

SIZE_LIMIT = 8_000_000  # bytes of embedded slices, where `layers` are not named

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
<div id="kvviz-stepper"></div>
<noscript>This page replays a recording with JavaScript, which this browser does not run.</noscript>
<script type="application/json" id="kvviz-page">{data}</script>
{slices}
<script type="module">
{script}
</script>
</body>
</html>
"""


class Shown(NamedTuple):
    """Where a page opens."""

    step: int
    layer: int
    head: int


def to_html(
    recording: Recording,
    shown: Shown,
    *,
    path: str | os.PathLike[str] | None = None,
    layers: Sequence[int] | None = None,
    heads: Sequence[int] | None = None,
) -> str:
    """The page as text; also written to `path`, whole or not at all.

    `layers` and `heads` say what is embedded; without `layers`, the one shown and as many others as fit in SIZE_LIMIT.
    Raises InvalidInputError for a layer or head that was not recorded.
    """
    wanted_heads = range(content.rows(recording)) if heads is None else heads
    embedded_heads = sorted({content.check_head(recording, head) for head in wanted_heads})
    if shown.head not in embedded_heads:
        shown = shown._replace(head=embedded_heads[0])
    if layers is not None:
        wanted = sorted({content.check_layer(recording, layer) for layer in layers})
        if shown.layer not in wanted:
            shown = shown._replace(layer=wanted[0])
        slices = {layer: _slices(recording, layer, embedded_heads) for layer in wanted}
    else:
        slices = _fitting(recording, shown.layer, embedded_heads)
    page = content.describe(recording) | {"layers": sorted(slices), "heads": embedded_heads}
    page["notes"] = _notes(recording, sorted(slices), embedded_heads)
    text = _PAGE.format(
        version=__version__,
        title=_escape(recording.description),
        style=assets.style(),
        script=assets.script("stepper_page.js"),
        data=_json({"page": page, **shown._asdict()}),
        slices="\n".join(tag for tags in slices.values() for tag in tags),
    )
    if path is not None:
        with replacing(path) as partial:
            partial.write_text(text, encoding="utf-8")
    return text


def _fitting(recording: Recording, first: int, heads: Sequence[int]) -> dict[int, list[str]]:
    """Slices of `first` and of other layers, always the one farthest from those already taken, up to SIZE_LIMIT."""
    slices = {first: _slices(recording, first, heads)}
    left = SIZE_LIMIT - _size(slices[first])
    while rest := set(recording.layers) - set(slices):
        layer = max(sorted(rest), key=lambda number: min(abs(number - taken) for taken in slices))
        tags = _slices(recording, layer, heads)
        left -= _size(tags)
        if left < 0:
            break
        slices[layer] = tags
    return slices


def _slices(recording: Recording, layer: int, heads: Iterable[int]) -> list[str]:
    arrays = view.layer_arrays(recording, layer)
    return [_slice(view.pack(arrays[head], layer, head), layer, head) for head in heads]


def _slice(packed: bytes, layer: int, head: int) -> str:
    data = base64.b64encode(gzip.compress(packed, mtime=0)).decode("ascii")
    return f'<script type="text/plain" data-slice="{layer}/{head}">{data}</script>'


def _size(tags: Iterable[str]) -> int:
    return sum(map(len, tags))


def _notes(recording: Recording, layers: list[int], heads: list[int]) -> list[str]:
    parts = []
    if len(layers) < len(recording.layers):
        parts.append(f"{_count('layer', layers)} of the {len(recording.layers)} recorded")
    if len(heads) < content.rows(recording):
        parts.append(f"{_count('head', heads)} of {content.rows(recording)}")
    return [f"This page holds {' and '.join(parts)}; to_html(layers=[…], heads=[…]) embeds others."] if parts else []


def _count(name: str, numbers: list[int]) -> str:
    return f"{name}{'s' if len(numbers) > 1 else ''} {', '.join(map(str, numbers))}"


def _json(value: Any) -> str:
    """JSON that no HTML parser can mistake for markup: ASCII, with every < > & escaped."""
    text = json.dumps(value, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _escape(text: str) -> str:
    return text.replace("&", "&amp;").replace("<", "&lt;")
