"""Content of the cluster inspector: the groups of keys and their map, packed, and its texts."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import numpy as np
from safetensors.numpy import save

from ..trace.hues import hue
from . import content, inspector_places
from .inspector_places import PROJECTIONS
from .inspector_source import LONG_WORK, SLIDER_REACH, Settings, Source

if TYPE_CHECKING:
    from ..generation.explore import KeyGroups


def notes(source: Source) -> list[str]:
    """The notes on a prompt so long that the slider stops early, and on steps whose queries the trace lacks."""
    found = []
    if SLIDER_REACH * source.default * source.prompt > LONG_WORK:
        reach = len(source.slider_values(1))
        found.append(
            f"Long prompt: the slider stops at {reach:,} clusters, and each change clusters {source.prompt:,} tokens "
            f"again, in seconds. ClusterInspector(trace, n_clusters=…) accepts up to {source.most:,}, but takes longer."
        )
    if source.ranked < source.steps:
        found.append(
            f"The trace holds the queries of {source.ranked:,} of {source.steps:,} steps: the others have no star and "
            "no ranking. Capture the prompt together with the generated text for all of them."
        )
    if source.recording is not None and source.recording.config.get("group") == "each":
        found.append("The recording chooses per query head. Ranking and cut are those of the whole KV head.")
    return found


def describe(source: Source, n_clusters: int) -> dict[str, Any]:
    """The page's content that does not depend on the settings; JSON-able."""
    trace, recording, prompt = source.trace, source.recording, source.prompt
    texts = trace.tokens if recording is None else recording.tokens
    steps = f", queries={source.queries}, budget={source.budget}" if recording is None else ", recording=recording"
    return {
        "model": trace.model,
        "tokens": content.texts(trace.tokens[:prompt]),
        "step_tokens": content.texts(texts[prompt:]),
        "steps": source.steps,
        "ranked": source.ranked,
        "first_step": source.first_step,
        "first_view": source.first_view,
        "steps_by": "" if recording is None else f"{recording.method} · budget {recording.budget:,}",
        "call": "kvviz.widgets.ClusterInspector(trace, ",
        "call_end": f"{steps})",
        "recorded": recording is not None,
        "layers": list(trace.full_layers),
        "windows": content.windows(trace.geometry),
        "heads": list(range(trace.geometry.n_kv_heads)),
        "metrics": list(source.metrics),
        "views": list(source.views),
        "projections": list(PROJECTIONS),
        "sliders": {view: source.sliders(view) for view in source.views},
        "default": source.default,
        "counts": source.slider_values(n_clusters),
        "fixed": False,
        "notes": [*content.window_notes(trace.geometry), *notes(source)],
    }


def pack_places(source: Source, settings: Settings, projection: str, step: int) -> bytes:
    """The map of these settings as safetensors bytes."""
    key = source.map_of(settings, projection, step)
    return inspector_places.pack(key, source.places(key))


def pack_clusters(source: Source, settings: Settings) -> bytes:
    """The groups as safetensors bytes, with what their method is and has."""
    groups, method = source.clusters(settings), source.method(settings)
    fields = {slider["name"]: getattr(method, slider["name"]) for slider in source.sliders(settings.view)}
    about = {
        "view": settings.view, "part": settings.part, "fields": fields, "method": method.name, "title": method.title,
        "budget": method.budget_tokens(source.prompt), "parts": getattr(method, "n_partitions", 1),
        "probes": getattr(method, "n_probes", 0),
    }  # fmt: skip
    return save({
        "place": np.array([settings.layer, settings.head], np.int32),
        "settings": np.array([settings.n_clusters, source.metrics.index(settings.metric), settings.seed], np.int32),
        "about": np.frombuffer(json.dumps(about).encode(), np.uint8),
        "hues": hue(np.arange(len(groups.sizes))),
        **{name: np.ascontiguousarray(getattr(groups, name)) for name in
           ("labels", "centroids", "sizes", "spread", "central", "nearest", "nearest_cosine", "order", "offsets",
            "taken", "scores", "recalled", "cut")},
    })  # fmt: skip


def opening_token(groups: KeyGroups) -> int:
    """The most central token of the group that most steps recalled; ties go to the one with more tokens attended.

    -1 if there are no groups.
    """
    if not groups.sizes.any():
        return -1
    steps, tokens = (groups.taken > 0).sum(0), groups.taken.sum(0)
    best = np.lexsort((groups.sizes, tokens, steps))[-1]
    return int(groups.central[best])
