"""ClusterInspector: how a head's keys are grouped, on a map and in the text, and how each step ranks the groups."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import traitlets
from numpy.typing import NDArray

from ..trace import Recording, Trace
from ..trace.edit_parts import Named
from . import head_maps, inspector_page, snapshot_content
from .inspector_content import describe, opening_token, pack_clusters, pack_places
from .inspector_source import Settings, Source
from .live import LiveWidget
from .snapshot import Snapshot


class ClusterInspector(LiveWidget):
    """A widget that shows how a method groups one KV head's keys, and how each decode step ranks the groups.

    On the left is a map of the keys: dots are tokens (hue: cluster), rings are centroids, and the star is the query of
    the step (the mean over the KV head's query heads, scaled to the keys' mean length). On the right is the text. Below
    are the clusters ranked by their score at the step, a bar each, with the cut where the budget ends. Picking a
    cluster, with a click or with the arrow keys and Enter on the map or the bars, highlights its tokens everywhere, and
    shows its size, its spread (mean cosine of its keys to its centroid), its nearest clusters, and how many of its
    tokens each step attended to. The steps are the last `queries` positions of the trace, for which ClusterKV selects
    within `budget`, or those of a `recording` of the same text by any method. The tokens before them are clustered,
    except the sinks.

    `view` says which groups: "clusters" (ClusterKV), "pages" (Quest, ranked by their bounds), "codes" (PQCache, of the
    part `part` of the key) or "lists" (CTkvr's query centroids). By default it fits the recording's method. `fields`
    are fields of that method, such as {"page_size": 8}. `projection` draws the map: "pca", "query" (the first axis is
    the direction of the step's query) or "tsne", which is computed when it is picked, in seconds.

    `layer`, `head` (KV head), `step` (from 0; by default the last one), `n_clusters` (None: ClusterKV's L/80), `metric`
    of k-means ("cosine", "l2", "ip"), `seed`, `view`, `part`, `fields`, `projection`, `token` and `group` are traits:
    set them from Python, or observe them. The picked cluster is the one that contains `token` (-1: none), so that it
    survives a new clustering; of several lists, the one with number `group`. Every change clusters again with
    ClusterKV's code, in 16 to 160 ms for 4,096 tokens and up to 400 clusters on one core (AMD EPYC, SmolLM2-135M).

    The map of layers × heads, above, shows how much the last token attends to the best tokens, and picks a head. `span`
    names tokens of the prompt, as for `kvviz.pin`: they are marked, the map shows how much each head attends to them,
    and the widget opens at the head that does most and at the first of them, unless other arguments say otherwise.

    Raises InvalidInputError for a trace too short to cluster, a recording of another text, or a value out of range;
    UnknownNameError for an unknown metric, view, projection or field.

    Source: ClusterKV (arXiv 2412.03213), sections III-B and III-C, figures 2 and 4.
    """

    _kvviz_view = traitlets.Unicode("inspector").tag(sync=True)
    layer = traitlets.Int(0).tag(sync=True)
    head = traitlets.Int(0).tag(sync=True)
    n_clusters = traitlets.Int(1).tag(sync=True)
    metric = traitlets.Unicode("cosine").tag(sync=True)
    seed = traitlets.Int(0).tag(sync=True)
    step = traitlets.Int(0).tag(sync=True)
    view = traitlets.Unicode("clusters").tag(sync=True)
    part = traitlets.Int(0).tag(sync=True)
    fields = traitlets.Dict().tag(sync=True)
    projection = traitlets.Unicode("pca").tag(sync=True)
    token = traitlets.Int(-1).tag(sync=True)
    group = traitlets.Int(-1).tag(sync=True)
    page = traitlets.Dict().tag(sync=True)
    places = traitlets.Bytes().tag(sync=True)
    clusters = traitlets.Bytes().tag(sync=True)

    def __init__(
        self, trace: Trace, *, layer: int | None = None, head: int | None = None, n_clusters: int | None = None,
        metric: str = "cosine", seed: int = 0, token: int | None = None, queries: int = 32, budget: int | float = 256,
        recording: Recording | None = None, span: Named | None = None, step: int | None = None,
        view: str | None = None, part: int = 0, fields: Mapping[str, Any] | None = None, projection: str = "pca",
    ) -> None:  # fmt: skip
        self.source = source = Source(trace, queries, budget, recording)
        positions = head_maps.span_positions("ClusterInspector", span, trace.tokens[: source.prompt])
        budget = budget if recording is None else recording.budget
        best = budget if isinstance(budget, int) else max(int(budget * source.prompt), 1)
        place = (trace, trace.full_layers, trace.geometry.n_kv_heads, positions, best)
        if positions:
            maps = head_maps.of_trace(*place)
            first = head_maps.strongest(maps[0], layer)
            layer, head = first[0] if layer is None else layer, first[1] if head is None else head
            token = positions[0] if token is None else token
        head = 0 if head is None else head
        fields = source.check_fields({} if fields is None else fields)
        settings = source.view_settings(Settings(
            source.check_layer(source.first_layer() if layer is None else layer), source.check_head(head),
            source.check_count(source.default if n_clusters is None else n_clusters),
            source.check_metric(metric), source.check_seed(seed),
            source.check_view(source.first_view if view is None else view), source.check_part(part),
        ), fields)  # fmt: skip
        step = source.check_step(source.first_step if step is None else step)
        projection = source.check_projection(projection)
        token = opening_token(source.clusters(settings)) if token is None else source.check_token(token)
        if not positions:  # after the clustering, whose errors name the layer
            maps = head_maps.of_trace(*place)
        page = describe(source, settings.n_clusters) | {"head_maps": maps, "span": list(positions)}
        page["notes"] = [*page["notes"], *head_maps.notes(maps)]
        super().__init__(
            **vars(settings) | {"fields": fields}, token=token, step=step, projection=projection, page=page,
            places=pack_places(source, settings, projection, step), clusters=pack_clusters(source, settings),
        )  # fmt: skip

    @property
    def settings(self) -> Settings:
        """The settings now shown: layer, head, n_clusters, metric, seed, view, part and the view's fields."""
        plain = Settings(self.layer, self.head, self.n_clusters, self.metric, self.seed, self.view, self.part)
        return self.source.view_settings(plain, self.fields)

    @property
    def cluster(self) -> int:
        """The picked cluster, page, code or list: `group` if it contains `token`, else the token's first; -1: none."""
        groups = self.source.clusters(self.settings)
        if groups.contains(self.group, self.token):
            return self.group
        return -1 if self.token < 0 else int(groups.labels[self.token])

    def members(self) -> NDArray[np.int64]:
        """The positions of the tokens in the picked cluster, int64, ascending."""
        groups = self.source.clusters(self.settings)
        return groups.members(self.cluster) if self.cluster >= 0 else np.zeros(0, np.int64)

    def snapshot(self) -> Snapshot:
        """The clusters now shown, with the picked one, as a picture and words."""
        return snapshot_content.inspector(
            self.source, self.settings, self.cluster, self.token, self.projection, self.step
        )

    def to_html(
        self, path: str | os.PathLike[str] | None = None, *, n_clusters: Sequence[int] | None = None
    ) -> str:  # fmt: skip
        """A self-contained HTML page of this layer, head, metric and seed; also written to `path`, atomically.

        The page needs no kernel. It embeds the clusters for the number now shown and for each of `n_clusters` (default:
        1/4, 1/2, 1, 2 and 4 times ClusterKV's default), the other views of the keys, all steps, the map by PCA, the
        maps along the query of as many steps as fit into about 4 MB, and t-SNE if it is shown; and says which.
        """
        shown = inspector_page.Shown(self.settings, self.token, self.group, self.step, self.projection)
        return inspector_page.to_html(self.source, shown, dict(self.fields), path=path, n_clusters=n_clusters)

    @traitlets.validate(
        "layer",
        "head",
        "n_clusters",
        "metric",
        "seed",
        "token",
        "step",
        "view",
        "part",
        "fields",
        "projection",
        "group",
    )
    def _check(self, proposal: Any) -> Any:
        source = self.source
        checks: dict[str, Callable[[Any], Any]] = {
            "layer": source.check_layer, "head": source.check_head, "n_clusters": source.check_count,
            "metric": source.check_metric, "seed": source.check_seed, "token": source.check_token,
            "step": source.check_step, "view": source.check_view, "part": source.check_part,
            "fields": source.check_fields, "projection": source.check_projection, "group": source.check_group,
        }  # fmt: skip
        return checks[proposal["trait"].name](proposal["value"])

    @traitlets.observe("layer", "head", "n_clusters", "metric", "seed", "view", "part", "fields")
    def _regroup(self, change: Any) -> None:
        with self.hold_sync():
            if self.n_clusters > len(self.page["counts"]):
                kept = {name: self.page[name] for name in ("head_maps", "span", "notes")}
                self.page = describe(self.source, self.n_clusters) | kept
            self._replace()
            self.clusters = pack_clusters(self.source, self.settings)

    @traitlets.observe("projection", "step")
    def _replace(self, change: Any = None) -> None:
        self.places = pack_places(self.source, self.settings, self.projection, self.step)
