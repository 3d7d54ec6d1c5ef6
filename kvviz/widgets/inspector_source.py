"""What the cluster inspector shows: its settings and their checks, and the groups and maps of keys, remembered."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ..errors import InvalidInputError, UnknownNameError
from ..trace import Recording, Trace
from . import content, inspector_places
from .inspector_places import PROJECTIONS, MapKey, Places

if TYPE_CHECKING:
    from ..generation.explore import KeyGroups

CACHED = 32  # groupings per inspector: 0.2 MB each at 4,096 tokens
SLIDER_REACH, USUAL_REACH = (
    5,
    400,
)  # times ClusterKV's default number of clusters, and the clusters of its published code
LONG_WORK = 200_000_000  # tokens × clusters; with more, k-means takes longer than about ten seconds on one core


@dataclass(frozen=True)
class Settings:
    """The settings of a grouping: which keys, how many clusters C, the metric of k-means and its seed; and the view.

    `view` names how keys are grouped, `part` is the part of the key whose codes are shown, and `fields` are those of
    the view's method.
    """

    layer: int
    head: int
    n_clusters: int
    metric: str
    seed: int
    view: str = "clusters"
    part: int = 0
    fields: tuple[tuple[str, Any], ...] = ()


class Source:
    """A trace with the steps that recall its groups: those of its last queries, or those of a recording."""

    def __init__(self, trace: Trace, queries: int, budget: int | float, recording: Recording | None) -> None:
        operation = "ClusterInspector"
        if not isinstance(trace, Trace):
            wanted = "a kvviz.Trace, such as kvviz.capture(lm, prompt)"
            raise InvalidInputError(operation, type(trace).__name__, wanted)
        if recording is not None:
            content.check(recording, f"{operation}: recording")
        if not trace.layers:
            raise InvalidInputError(operation, "a trace without layers", "a captured layer: capture(..., layers=[14])")
        from ..generation import explore

        self._explore = explore
        self.metrics, self.views = tuple(explore.METRICS), tuple(explore.VIEWS)
        self.trace, self.recording = trace, recording
        self.queries, self.budget = queries, budget
        self.prompt = explore.prompt_length(trace, queries, recording)
        self.steps = queries if recording is None else recording.steps
        self.ranked = explore.ranked_steps(trace, self.prompt, recording)
        self.default, self.most = explore.cluster_limits(trace, queries=queries, recording=recording)
        self.clusters = lru_cache(CACHED)(self._groups)
        self.places = lru_cache(CACHED)(self._places)

    @property
    def first_view(self) -> str:
        """The view of the recording's method, otherwise that of clusters."""
        return self._explore.view_of(self.recording)

    @property
    def first_step(self) -> int:
        """The last step whose query is known, otherwise the first one."""
        return max(self.ranked - 1, 0)

    def method(self, settings: Settings) -> Any:
        """The method of the settings' view, with its fields."""
        fields = dict(settings.fields)
        if settings.view == "clusters":
            fields = {"n_clusters": settings.n_clusters, "metric": settings.metric, "seed": settings.seed}
        elif settings.view == "codes":
            fields["seed"] = settings.seed
        name = self._explore.VIEWS[settings.view].method
        return self._explore.view_method(name, self.prompt, self.budget, self.recording, **fields)

    def sliders(self, view: str) -> list[dict[str, Any]]:
        """The sliders of a view's method, with their first values; none for clusters, whose slider is C."""
        if view == "clusters":
            return []
        name = self._explore.VIEWS[view].method
        method = self._explore.view_method(name, self.prompt, self.budget, self.recording)
        sliders = self._explore.sliders_of(method, self.trace.geometry.head_dim)
        return [slider.described() | {"value": getattr(method, slider.name)} for slider in sliders]

    def view_settings(self, settings: Settings, fields: Mapping[str, Any]) -> Settings:
        """The settings with those `fields` that the view's method has a slider for, and a part that the keys have."""
        names = {slider["name"] for slider in self.sliders(settings.view)}
        kept = tuple(sorted((name, value) for name, value in fields.items() if name in names))
        chosen = Settings(**vars(settings) | {"fields": kept})
        last = self.method(chosen).n_partitions - 1 if chosen.view == "codes" else 0
        return Settings(**vars(chosen) | {"part": min(chosen.part, last)})

    def _groups(self, settings: Settings) -> KeyGroups:
        shared: dict[str, Any] = {"queries": self.queries, "budget": self.budget, "recording": self.recording}
        if settings.view == "clusters":
            return self._explore.cluster_keys(
                self.trace, settings.layer, settings.head, n_clusters=settings.n_clusters, metric=settings.metric,
                seed=settings.seed, **shared,
            )  # fmt: skip
        fields = dict(settings.fields) | ({"seed": settings.seed} if settings.view == "codes" else {})
        return self._explore.group_keys(
            self.trace, settings.layer, settings.head, settings.view, part=settings.part, **shared, **fields
        )

    def map_of(self, settings: Settings, projection: str, step: int) -> MapKey:
        """The map that these settings show: settings that it does not depend on are left out."""
        codes = settings.view == "codes"
        return MapKey(
            settings.layer, settings.head, projection,
            part=settings.part if codes else -1,
            parts=self.method(settings).n_partitions if codes else 1,
            step=min(step, self.first_step) if projection == "query" else -1,
            seed=settings.seed if projection == "tsne" else 0,
        )  # fmt: skip

    def _places(self, key: MapKey) -> Places:
        keys = self.trace.keys[key.layer][key.head, : self.prompt]
        return inspector_places.places(key, keys, self.mean_queries(key.layer, key.head))

    def mean_queries(self, layer: int, head: int) -> NDArray[np.float64]:
        """The mean query of the KV head at each ranked step, float64 [S, D]; without any, that of the last token."""
        group = self.trace.geometry.group_size
        rows = self.trace.queries[layer][head * group : (head + 1) * group]
        shown = slice(self.prompt, self.prompt + self.ranked) if self.ranked else slice(-1, None)
        return np.asarray(rows[:, shown].astype(np.float64).mean(0))

    def check_layer(self, layer: int) -> int:
        """`layer` if it was captured and attends to all tokens; raises InvalidInputError otherwise."""
        return int(self.trace.check_full_layer("layer of a ClusterInspector", layer))

    def check_head(self, head: int) -> int:
        """`head` if it is a KV head; raises InvalidInputError otherwise."""
        return _between("head", head, 0, self.trace.geometry.n_kv_heads - 1)

    def check_count(self, n_clusters: int) -> int:
        """`n_clusters` if there are enough tokens for it; raises InvalidInputError otherwise."""
        return _between("n_clusters", n_clusters, 1, self.most)

    def check_metric(self, metric: str) -> str:
        """`metric` if k-means supports it; raises UnknownNameError otherwise."""
        return _one_of("metric", metric, self.metrics)

    def check_view(self, view: str) -> str:
        """`view` if there is such a view; raises UnknownNameError otherwise."""
        return _one_of("view", view, self.views)

    def check_projection(self, projection: str) -> str:
        """`projection` if there is such a map; raises UnknownNameError otherwise."""
        return _one_of("projection", projection, PROJECTIONS)

    def check_fields(self, fields: Mapping[str, Any]) -> dict[str, Any]:
        """`fields` if each is one of a view's sliders, with a value that its method accepts; raises their errors."""
        known = {slider["name"]: view for view in self.views for slider in self.sliders(view)}
        for name in fields:
            _one_of("field", name, tuple(known))
        for view in set(known.values()):
            own = {name: value for name, value in fields.items() if known[name] == view}
            method = self._explore.view_method(
                self._explore.VIEWS[view].method, self.prompt, self.budget, self.recording, **own
            )
            width, parts = self.trace.geometry.head_dim, getattr(method, "n_partitions", 1)
            if width % parts:
                wanted = f"a divisor of the head dimension, {width}"
                raise InvalidInputError("field n_partitions of a ClusterInspector", parts, wanted)
        return dict(fields)

    def check_seed(self, seed: int) -> int:
        """`seed` if it is a valid seed; raises InvalidInputError otherwise."""
        return _between("seed", seed, 0, 2**31 - 1)

    def check_step(self, step: int) -> int:
        """`step` if there is such a step; raises InvalidInputError otherwise."""
        return _between("step", step, 0, self.steps - 1)

    def check_part(self, part: int) -> int:
        """`part` if keys have so many channels; raises InvalidInputError otherwise."""
        return _between("part", part, 0, self.trace.geometry.head_dim - 1)

    def check_group(self, group: int) -> int:
        """`group` if there can be such a group, or -1; raises InvalidInputError otherwise."""
        return _between("group", group, -1, 2**31 - 1)

    def check_token(self, token: int) -> int:
        """`token` if it is a position of the prompt, or -1; raises InvalidInputError otherwise."""
        return _between("token", token, -1, self.prompt - 1)

    def first_layer(self) -> int:
        """The layer shown first: the middle one of the captured layers, or of those that were also recorded."""
        layers = self.trace.full_layers
        if not layers:
            got = f"a trace of layers {self.trace.layers}, which have a sliding window"
            raise InvalidInputError("ClusterInspector", got, "a trace with a layer that attends to all tokens")
        if self.recording is not None:
            layers = tuple(layer for layer in layers if layer in self.recording.layers) or layers
        return layers[len(layers) // 2]

    def slider_values(self, n_clusters: int) -> list[int]:
        """The numbers of clusters on the slider: from 1 to 400, or to a few times ClusterKV's default if it is more."""
        reach = min(max(SLIDER_REACH * self.default, USUAL_REACH), LONG_WORK // self.prompt)
        return list(range(1, min(self.most, max(reach, n_clusters, 8)) + 1))


def _between(name: str, value: int, least: int, most: int) -> int:
    return content.between(f"{name} of a ClusterInspector", value, least, most)


def _one_of(name: str, value: str, known: tuple[str, ...]) -> str:
    if value not in known:
        raise UnknownNameError(f"{name} of a ClusterInspector", str(value), known)
    return value
