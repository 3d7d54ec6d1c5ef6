"""The inspector as a self-contained HTML file, whose slider moves over embedded clusterings."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace

from .inspector_content import LONG_WORK, Settings, Source, describe, pack_clusters, pack_places
from .page import Embedded, blob, self_contained

LADDER = (0.25, 0.5, 1, 2, 4)  # times ClusterKV's default number of clusters


def to_html(
    source: Source, settings: Settings, token: int, *, path: str | os.PathLike[str] | None = None,
    n_clusters: Sequence[int] | None = None,
) -> str:  # fmt: skip
    """The page as text; also written to `path`, atomically.

    Raises InvalidInputError for a number of clusters out of range.
    """
    ladder = [min(source.most, max(1, round(source.default * times))) for times in LADDER]
    ladder = [count for number, count in enumerate(ladder) if sum(ladder[: number + 1]) * source.prompt <= LONG_WORK]
    chosen = ladder if n_clusters is None else [source.check_count(count) for count in n_clusters]
    counts = sorted({settings.n_clusters, *chosen})
    page = describe(source, settings.n_clusters) | {"counts": counts, "fixed": True, "head_maps": [], "span": []}
    page["notes"] = [
        f"This page holds C = {', '.join(f'{count:,}' for count in counts)} for layer {settings.layer}, KV head "
        f"{settings.head}, metric {settings.metric}, seed {settings.seed}; to_html(n_clusters=[…]) embeds others."
    ]
    places = blob(pack_places(source, settings.layer, settings.head), "places")
    packed = {n: blob(pack_clusters(source, replace(settings, n_clusters=n)), f"clusters/{n}") for n in counts}
    title = f"Clusters of keys · {source.trace.model} · {source.prompt:,} tokens"
    state = {**vars(settings), "token": token, "page": page, "places": places}
    answers = [({"n_clusters": count}, {"clusters": clusters}) for count, clusters in packed.items()]
    return self_contained(title, [Embedded("inspector", state, answers)], path)
