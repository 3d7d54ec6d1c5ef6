"""The groups of one head's keys as four methods make them, from the methods' own states and selections."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Protocol, cast

import numpy as np
import torch
from kvviz_kernels.selection import page_scores
from numpy.typing import NDArray
from torch import Tensor

from ... import methods, metrics
from ...clustering.pages import page_bounds
from ...clustering.product_quantization import split
from ...errors import InvalidInputError, UnknownNameError
from ...methods.base import LayerContext, Method
from ...methods.clusterkv import ClusterKV
from ...methods.ctkvr import CTkvr
from ...methods.pqcache import PQCache
from ...methods.quest import Quest
from ...methods.selection import group_scores
from ...trace import Recording, Trace
from ..replaying import check_finite, trace_context
from .key_groups import KeyGroups, Membership, grouped

Floats = NDArray[np.float32]


class View(Protocol):
    """How the groups of one method are read from its state, which is that of one KV head."""

    method: str

    def groups(self, method: Any, state: Any) -> list[NDArray[Any]]:
        """The positions of each group's tokens; of those in several groups, the best placed ones first."""
        ...

    def centroids(self, method: Any, state: Any, keys: Tensor) -> Tensor:
        """A vector for each group [C, D], for the map and for cosines; keys [L, D]."""
        ...

    def scores(self, method: Any, state: Any, queries: Tensor) -> tuple[Tensor, int | None]:
        """What a step with queries [1, G, D] ranks the groups by [C], and the number of groups before the cut.

        A score is NaN if the step does not rank the group. -1: there is no cut between groups. None: before the cut are
        the groups with recalled tokens.
        """
        ...


class ClusterView:
    """ClusterKV's clusters, ranked by q·centroid."""

    method = ClusterKV.name

    def groups(self, method: Any, state: Any) -> list[NDArray[Any]]:
        """See View."""
        return [method.group_tokens(state, 0, number).numpy() for number in range(state.sizes.shape[-1])]

    def centroids(self, method: Any, state: Any, keys: Tensor) -> Tensor:
        """See View."""
        return cast(Tensor, state.centroids[0, 0])

    def scores(self, method: Any, state: Any, queries: Tensor) -> tuple[Tensor, int | None]:
        """See View."""
        return group_scores(queries, state.centroids, method.group)[0, 0], None


class PageView:
    """Quest's full pages, ranked by the upper bound of their inner products."""

    method = Quest.name

    def groups(self, method: Any, state: Any) -> list[NDArray[Any]]:
        """See View."""
        return [method.group_tokens(state, 0, number).numpy() for number in range(state.bounds.used)]

    def centroids(self, method: Any, state: Any, keys: Tensor) -> Tensor:
        """The mean key of each page."""
        return page_bounds(keys, method.page_size).mean[: state.bounds.used]

    def scores(self, method: Any, state: Any, queries: Tensor) -> tuple[Tensor, int | None]:
        """The bounds of the pages before the recent window, which are ranked."""
        if not state.bounds.used:
            return queries.new_zeros(0), None
        ranked = method.recent_start(state) // method.page_size
        bounds = state.bounds.tensor
        scores = page_scores(queries, bounds, group=method.group)[0, 0]
        scores[ranked:] = torch.nan
        scores[: -(-method.sinks // method.page_size)] = torch.nan
        return scores, None


@dataclass(frozen=True)
class CodeView:
    """PQCache's codes in one part of the key, with the inner products of that part."""

    part: int = 0
    method: str = field(default=PQCache.name, init=False)

    def groups(self, method: Any, state: Any) -> list[NDArray[Any]]:
        """See View."""
        if not state.books:
            return []
        (book,) = state.books
        codes = book.codes[0, 0, :, self.part].numpy().astype(np.int64)
        starts = np.searchsorted(np.sort(codes), np.arange(book.centroids.shape[-2]))
        return np.split(np.argsort(codes, kind="stable") + method.sinks, starts[1:])

    def centroids(self, method: Any, state: Any, keys: Tensor) -> Tensor:
        """See View."""
        return state.books[0].centroids[0, 0, self.part] if state.books else keys[:0]

    def scores(self, method: Any, state: Any, queries: Tensor) -> tuple[Tensor, int | None]:
        """The products of the query's part with the part's centroids; tokens are ranked by their sum over the parts."""
        if not state.books:
            return queries.new_zeros(0), -1
        table = state.books[0].centroids[:, :, self.part]
        part = split(queries, method.n_partitions)[:, self.part]
        return group_scores(part, table, method.group)[0, 0], -1


class ListView:
    """The lists of CTkvr's query centroids, ranked by the cosine of the step's query with the centroid."""

    method = CTkvr.name

    def groups(self, method: Any, state: Any) -> list[NDArray[Any]]:
        """See View; a list has the largest weight first."""
        lists = state.lists[0, 0].numpy()
        return [entries[entries >= 0] for entries in lists]

    def centroids(self, method: Any, state: Any, keys: Tensor) -> Tensor:
        """The mean direction over the query heads, times the mean length of the keys."""
        directions: Tensor = state.centroids[0].mean(0)
        length: Tensor = torch.linalg.vector_norm(keys, dim=-1).mean()
        return directions * length

    def scores(self, method: Any, state: Any, queries: Tensor) -> tuple[Tensor, int | None]:
        """The cosines; those of the prompt's centroids that queries of steps have replaced are left out."""
        scores = method.centroid_scores(state, queries)[0, 0].clone()
        replaced = min(state.replaced, len(scores))
        probed = scores.topk(min(method.n_probes, len(scores))).indices
        scores[:replaced] = torch.nan
        return scores, int((probed >= replaced).sum())


VIEWS: dict[str, Any] = {"clusters": ClusterView, "pages": PageView, "codes": CodeView, "lists": ListView}


def view_of(recording: Recording | None) -> str:
    """The name of the view that fits the method of a recording; "clusters" for methods without a view."""
    return next((name for name, view in VIEWS.items() if recording and view.method == recording.method), "clusters")


@torch.no_grad()
def group_keys(
    trace: Trace, layer: int, head: int, view: str, *, part: int = 0, queries: int = 32, budget: int | float = 256,
    recording: Recording | None = None, **fields: Any,
) -> KeyGroups:  # fmt: skip
    """The KeyGroups of one KV head in a `view`: "clusters", "pages", "codes" or "lists".

    The method of the view is built on the prompt and plays the steps, as in `kvviz.replay`; `fields` are its fields,
    and those of a `recording` by this method hold where `fields` names none. `part` is the part of the key whose codes
    are the groups. `queries`, `budget` and `recording` are as in `cluster_keys`. A budget below the least that the
    method accepts becomes that least one, except without a recording in the view "clusters".

    Raises the errors of `cluster_keys` and of the method's fields, UnknownNameError for an unknown view, and
    InvalidInputError for a part that the keys do not have.
    """
    if view not in VIEWS:
        raise UnknownNameError("group_keys: view", str(view), VIEWS)
    prompt = prompt_length(trace, queries, recording)
    reader: Any = CodeView(part) if view == "codes" else VIEWS[view]()
    method: Any = view_method(reader.method, prompt, budget, recording, **fields)
    context, q, k, v = one_head(trace, trace.check_layer(layer), head)
    state = method.build(context, q[:, :, :prompt], k[:, :, :prompt], v[:, :, :prompt])
    keys = k[0, 0, :prompt]
    if isinstance(method, PQCache):
        if not 0 <= part < method.n_partitions:
            raise InvalidInputError("group_keys: part", part, f"0 to {method.n_partitions - 1}")
        keys = split(keys, method.n_partitions)[part]
    groups = reader.groups(method, state)
    membership = Membership.of(groups, prompt)
    centroids = reader.centroids(method, state, keys).float().numpy().copy()  # steps may change the state in place
    sizes = np.bincount(membership.groups, minlength=membership.count)
    ranked = ranked_steps(trace, prompt, recording)
    scores, cuts, attended = np.zeros((ranked, membership.count), np.float32), np.zeros(ranked, np.int32), []
    for step in range(ranked):
        token = slice(prompt + step, prompt + step + 1)
        state = method.extend(state, q[:, :, token], k[:, :, token], v[:, :, token])
        found, cut = reader.scores(method, state, q[:, :, prompt + step])
        dense = method.dense_selection(state, q[:, :, prompt + step]) is not None
        chosen = method.select(state, q[:, :, prompt + step]).indices[0].unique().numpy()
        attended.append(chosen[chosen >= 0])
        scores[step] = found[: membership.count].numpy()
        cuts[step] = (sizes > 0).sum() if dense else -2 if cut is None else cut
    recalled = membership.counts(attended, prompt)
    cuts = np.where(cuts == -2, ((recalled > 0) & ~np.isnan(scores)).sum(-1), cuts).astype(np.int32)
    taken = recalled if recording is None else membership.counts(_recorded(recording, layer, head), prompt)
    return grouped(
        membership, keys.numpy(), centroids, _labels(groups, prompt),
        taken=taken, scores=scores, recalled=recalled, cut=cuts,
    )  # fmt: skip


def view_method(
    name: str, prompt: int, budget: int | float = 1024, recording: Recording | None = None, **fields: Any
) -> Method:
    """The method of a view, with the fields of a recording by it, and `fields` in their place.

    It chooses per KV head, since groups have one score per head.
    """
    cls = methods.get(name)
    config: dict[str, Any] = {}
    if recording is not None:
        budget = recording.budget
        if recording.method == name:
            known = {declared.name for declared in dataclasses.fields(cls)}
            config = {key: value for key, value in recording.config.items() if key in known}
            given = config.pop("budget", budget)
            budget = budget if isinstance(given, Mapping) else given  # of bytes, the tokens that layers found
            if config.get("group") == "each":
                del config["group"]
    values = config | fields
    if recording is None and name == ClusterKV.name:
        return methods.create(name, **values, budget=budget)
    method = methods.create(name, **values, budget=2**31)
    tokens = budget if isinstance(budget, int) else math.floor(budget * prompt)
    return replace(method, budget=max(tokens, method.reserved, 1))


def prompt_length(trace: Trace, queries: int = 32, recording: Recording | None = None) -> int:
    """The number of tokens before the decode steps, including sinks and recent window.

    Raises InvalidInputError if `queries` leaves none, or for a recording of another trace.
    """
    if recording is not None:
        trace.check_recording("cluster the keys of a trace: recording", recording, recording.prompt_length)
        return recording.prompt_length
    if not isinstance(queries, int) or not 1 <= queries < len(trace):
        wanted = f"1 to {len(trace) - 1}, or a trace of a longer prompt (this one has {len(trace)} tokens)"
        raise InvalidInputError("cluster the keys of a trace: queries", queries, wanted)
    return len(trace) - queries


def ranked_steps(trace: Trace, prompt: int, recording: Recording | None = None) -> int:
    """The number of first steps whose queries the trace holds: all without a recording, else while the text agrees."""
    if recording is None:
        return len(trace) - prompt
    count = min(len(trace) - prompt, recording.steps)
    same = trace.token_ids[prompt : prompt + count] == recording.token_ids[prompt : prompt + count]
    return count if same.all() else int(np.argmin(same))


def _labels(groups: list[NDArray[Any]], prompt: int) -> NDArray[np.int32]:
    """The group of each token, -1 for none; of several groups, the one where it stands first, then the lower one."""
    labels, place = np.full(prompt, -1, np.int32), np.full(prompt, np.iinfo(np.int64).max)
    for number, positions in enumerate(groups):
        positions, ranks = positions[positions < prompt], np.arange(len(positions))[positions < prompt]
        better = ranks < place[positions]
        labels[positions[better]], place[positions[better]] = number, ranks[better]
    return labels


def one_head(
    trace: Trace, layer: int, head: int, each: bool = False
) -> tuple[LayerContext, Tensor, Tensor, Tensor]:  # fmt: skip
    """The context, queries, keys and values of this KV head as a layer: [1, G, L, D], [1, 1, L, D], [1, 1, L, D].

    With `each`, `head` is a query head, alone with its KV head: G = 1.
    """
    group = trace.geometry.group_size
    kv_head, rows = (head // group, slice(head, head + 1)) if each else (head, slice(head * group, (head + 1) * group))
    kv, group = slice(kv_head, kv_head + 1), rows.stop - rows.start
    check_finite("cluster the keys of a trace", trace, layer, kv)
    arrays = trace.queries[layer][rows], trace.keys[layer][kv], trace.values[layer][kv]
    q, k, v = (torch.from_numpy(array.astype(np.float32))[None] for array in arrays)
    return replace(trace_context(trace, layer), n_heads=group, n_kv_heads=1), q, k, v


def _recorded(recording: Recording, layer: int, head: int) -> Iterator[NDArray[np.int64]]:
    """Positions that any query head of the KV head attended to, at each step of the recording."""
    if layer not in recording.layers:
        return
    for step in range(recording.steps):
        chosen = recording.indices(step, layer)
        rows = len(chosen) // recording.geometry.n_kv_heads
        attended = metrics.member_mask(chosen[head * rows : (head + 1) * rows], recording.visible(step))
        yield np.flatnonzero(attended.any(0))
