"""What the mechanism stepper sends to the browser: a scene as JSON, with the map of keys and the looks of tokens."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ..trace import Trace
from ..trace.hues import hue
from ..trace.recorded_scenes import RecordedScenes
from ..trace.scene import Lit, Scene
from . import content, view

if TYPE_CHECKING:
    from ..generation.explore import Mechanism

NO_MAP: Mapping[str, Any] = {"positions": [], "x": [], "y": []}
MOST_KEYS = 600  # on the map: t-SNE lays them out in about a second on one core (EPYC)


def key_map(trace: Trace, layer: int, head: int, prompt: int, token: int) -> dict[str, Any]:
    """The places of a KV head's keys by t-SNE, from 0 to 1: of MOST_KEYS tokens at even distances, and of `token`."""
    from ..plots.projection import project

    shown = np.unique(np.append(np.linspace(0, prompt - 1, min(prompt, MOST_KEYS)), token)).astype(np.int64)
    keys = trace.keys[layer][head, :prompt].astype(np.float64)
    places, _ = project(keys, shown, np.zeros((0, keys.shape[1])), "tsne", 0)
    low, high = places.min(0), places.max(0)
    scaled = np.round((places - low) / np.maximum(high - low, 1e-12), 4)
    return {"positions": shown.tolist(), "x": scaled[:, 0].tolist(), "y": scaled[:, 1].tolist()}


def described(mechanism: Mechanism | RecordedScenes) -> dict[str, Any]:
    """The parts of the page that say what is played: title, call, queries and tokens."""
    if isinstance(mechanism, RecordedScenes):
        recording = mechanism.recording
        shape = recording.geometry
        title, budget, model, tokens = recording.title, recording.budget_text, recording.model, recording.tokens
        arguments, queries = "recording", None
        merges = any(bool(events.merged.any()) for events in recording.events.values())
    else:
        method, model, tokens = mechanism.method, mechanism.trace.model, mechanism.trace.tokens
        title, queries, shape = method.title, mechanism.queries, mechanism.trace.geometry
        dense = sum(method.is_dense(layer) for layer in shape.full_layers)
        budget = f"{method.budget_tokens(mechanism.prompt):,}{shape.governed_text(dense)}"
        merges = method.attends_to_centroids
        fields = {name: value for name, value in method.config.items() if value != getattr(type(method), name, None)}
        arguments = ", ".join(["trace", repr(method.name), *(f"{name}={value!r}" for name, value in fields.items())])
    return {
        "title": f"{title}, step by step · budget {budget} · {model} · {mechanism.prompt:,} tokens",
        "call": f"kvviz.widgets.MechanismStepper({arguments}", "queries": queries, "tokens": content.texts(tokens),
        "merges": merges, "windows": content.windows(shape), "notes": content.window_notes(shape),
    }  # fmt: skip


def pack(scene: Scene, places: Mapping[str, Any], where: Mapping[str, int]) -> bytes:
    """The scene as JSON, which js/mechanism.js reads: with the map, the place that it is of, and the groups' hues."""
    packed = scene.described() | {"map": dict(places), "where": dict(where)}
    for frame, described in zip(scene.frames, packed["frames"], strict=True):
        described["lit"] = None if frame.lit is None else lit(frame.lit)
        described["words"] = frame.words
    most = max((_largest_group(panel) for frame in packed["frames"] for panel in frame["panels"]), default=-1)
    packed["hues"] = hue(np.arange(most + 1)).tolist()
    return json.dumps(packed, separators=(",", ":"), ensure_ascii=False).encode()


def lit(tokens: Lit) -> dict[str, list[int]]:
    """The positions, looks and marks of the tokens that are tinted, as js/strip.js paints them."""
    positions = np.asarray(tokens.positions, np.int64)
    groups = np.asarray(tokens.groups, np.int64)
    levels: NDArray[Any] = np.full(len(positions), view.LEVELS - 3)
    marks: NDArray[Any] = np.full(len(positions), view.ATTENDED | view.GENERATED)  # tinted, without a verdict
    if tokens.weights is not None:
        levels = view.level(np.asarray(tokens.weights)).astype(np.int64)
    if tokens.attended is not None:
        kept = np.zeros(len(positions), bool) if tokens.kept is None else np.asarray(tokens.kept, bool)
        oracle = np.isin(positions, np.asarray(tokens.oracle, np.int64))
        marks = view.ATTENDED * np.asarray(tokens.attended, bool) + view.ORACLE * oracle + view.SINK * kept
        if tokens.merged is not None:
            marks += view.MERGED * np.asarray(tokens.merged, bool)
    tinted = marks & (view.ATTENDED | view.MERGED)
    looks = np.where(tinted, hue(groups).astype(np.int64) * view.LEVELS + levels, view.NOTHING)
    return {"positions": positions.tolist(), "looks": looks.tolist(), "marks": marks.tolist()}


def _largest_group(panel: Mapping[str, Any]) -> int:
    parts = panel.get("dots") or panel.get("rows") or [panel]
    return max((max(marks["groups"] or [-1], default=-1) for marks in parts), default=-1)
