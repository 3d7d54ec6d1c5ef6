"""The inspector as a self-contained HTML file, whose controls move over embedded groupings, maps and steps."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from . import content
from .inspector_content import describe, pack_clusters, pack_places
from .inspector_places import PROJECTIONS, MapKey
from .inspector_source import LONG_WORK, Settings, Source
from .page import Blob, Embedded, blob, self_contained

LADDER = (0.25, 0.5, 1, 2, 4)  # times ClusterKV's default number of clusters
MAP_BYTES = 4_000_000  # of all maps along queries in a page, before compression
MOST_GROUPED = 20_000  # tokens: with more, a page has only the view that is shown


@dataclass(frozen=True)
class Shown:
    """What the page shows first."""

    settings: Settings
    token: int
    group: int
    step: int
    projection: str


def to_html(
    source: Source, shown: Shown, fields: Mapping[str, Any], *, path: str | os.PathLike[str] | None = None,
    n_clusters: Sequence[int] | None = None,
) -> str:  # fmt: skip
    """The page as text; also written to `path`, atomically.

    Raises InvalidInputError for a number of clusters out of range.
    """
    settings = shown.settings
    ladder = [min(source.most, max(1, round(source.default * times))) for times in LADDER]
    ladder = [count for number, count in enumerate(ladder) if sum(ladder[: number + 1]) * source.prompt <= LONG_WORK]
    chosen = ladder if n_clusters is None else [source.check_count(count) for count in n_clusters]
    counts = sorted({settings.n_clusters, *chosen})
    views = [view for view in source.views if view == settings.view or source.prompt <= MOST_GROUPED]
    projections = [name for name in PROJECTIONS if name != "tsne" or shown.projection == name]
    groupings = [each for view in views for each in _groupings(source, settings, fields, view, counts)]
    maps = list(_maps(source, groupings, shown, projections))
    page = describe(source, settings.n_clusters) | {
        "counts": counts, "fixed": True, "head_maps": [], "span": [], "views": views, "projections": projections,
    }  # fmt: skip
    steps = {when["step"] for when, _ in maps if "step" in when}
    page["notes"] = [*page["notes"], *_notes(source, settings, counts, steps, projections)]
    answers = [(when, {"places": packed}) for when, packed in maps]
    for each in groupings:
        when: dict[str, Any] = {"view": each.view}
        key = each.view
        if each.view == "clusters":
            when, key = when | {"n_clusters": each.n_clusters}, f"clusters/{each.n_clusters}"
        elif each.view == "codes":
            when, key = when | {"part": each.part}, f"codes/{each.part}"
        answers.append((when, {"clusters": blob(pack_clusters(source, each), key)}))
    state = vars(settings) | {
        "fields": dict(settings.fields), "token": shown.token, "group": shown.group, "step": shown.step,
        "projection": shown.projection, "page": page,
    }  # fmt: skip
    title = f"Clusters of keys · {source.trace.model} · {source.prompt:,} tokens"
    return self_contained(title, [Embedded("inspector", state, answers)], path)


def _groupings(
    source: Source, settings: Settings, fields: Mapping[str, Any], view: str, counts: Sequence[int]
) -> Iterator[Settings]:
    """The settings of all groupings of a view in the page: each number of clusters, each part of codes."""
    plain = source.view_settings(replace(settings, view=view), fields)
    if view == "clusters":
        yield from (replace(plain, n_clusters=count) for count in counts)
    elif view == "codes":
        yield from (replace(plain, part=part) for part in range(source.method(plain).n_partitions))
    else:
        yield plain


def _maps(
    source: Source, groupings: Sequence[Settings], shown: Shown, projections: Sequence[str]
) -> Iterator[tuple[dict[str, Any], Blob]]:
    """The maps of the page and when each is shown; of those along a query, the shown step's and as many as fit."""
    places = {(each.view, each.part if each.view == "codes" else 0): each for each in groupings}
    near = ["codes"] if shown.settings.view == "codes" else ["clusters", "pages", "lists"]  # with the shown view's maps
    packed: dict[MapKey, Blob] = {}
    left = MAP_BYTES
    for projection in projections:
        others = [step for step in range(source.steps) if step != shown.step] if projection == "query" else []
        for step in [shown.step, *others]:
            at = {place: each for place, each in places.items() if step == shown.step or place[0] in near}
            keys = {place: source.map_of(each, projection, step) for place, each in at.items()}
            new = {key: each for key, each in zip(keys.values(), at.values(), strict=True) if key not in packed}
            left -= len(new) * source.prompt * 8 if projection == "query" else 0
            if left < 0 and step != shown.step:
                break
            for key, each in new.items():
                name = "/".join(str(part) for part in ("places", projection, key.part, key.step) if part != -1)
                packed[key] = blob(pack_places(source, each, projection, step), name)
            for (view, part), key in keys.items():
                when: dict[str, Any] = {"view": view, "projection": projection}
                when |= {"part": part} if view == "codes" else {}
                when |= {"step": step} if projection == "query" else {}
                yield when, packed[key]


def _notes(
    source: Source, settings: Settings, counts: Sequence[int], steps: set[int], projections: Sequence[str]
) -> Iterator[str]:
    """What the page holds, and how to embed more."""
    yield (
        f"This page holds C = {', '.join(f'{count:,}' for count in counts)} for layer {settings.layer}, KV head "
        f"{settings.head}, metric {settings.metric}, seed {settings.seed}; to_html(n_clusters=[…]) embeds others."
    )
    if len(steps) < source.steps:
        numbers = content.numbered("step", sorted(steps))
        yield f"It holds the map along the query for {numbers}; the others are too large."
    if "tsne" not in projections:
        yield "It has no t-SNE, which takes seconds: pick it in a notebook, and call to_html() again."
