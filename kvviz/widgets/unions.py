"""The union of several heads as one picture: which rows of a recording it has, and its arrays, as those of `view`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from .. import metrics
from ..errors import UnknownNameError
from ..metrics import Verdict
from ..trace import Recording
from ..trace.hues import HUES
from . import content, view

Array = NDArray[Any]

NONE, LAYER, KV_HEAD = "none", "layer", "kv_head"  # one head, all heads of the layer, all query heads of a KV head
KINDS = (NONE, LAYER, KV_HEAD)  # js/union.js reads their places
COUNTS = ("attending", "wanting", "missing", "wasting")  # heads of each token shown
HUE = 17  # of HUES, a blue: clusters of several heads have no hue in common


def offered(recordings: Iterable[Recording]) -> list[str]:
    """The unions that these recordings have, besides "none"."""
    rows = [(content.rows(run), run.geometry.n_kv_heads) for run in recordings]
    kinds = [LAYER] if any(count > 1 for count, _ in rows) else []
    return [*kinds, KV_HEAD] if any(count > heads for count, heads in rows) else kinds


def describe(recordings: Sequence[Recording], heads: int) -> dict[str, Any]:
    """What a page says of unions: those offered, and how many of its `heads` share a KV head."""
    return {"unions": offered(recordings), "per_kv_head": heads // recordings[0].geometry.n_kv_heads}


def first_head(head: int, union: str, per_kv_head: int) -> int:
    """The head with which a page embeds the union, `head` itself unless it is one of a KV head's query heads."""
    return head // per_kv_head * per_kv_head if union == KV_HEAD else head


def name(head_name: str, head: int, union: str, per_kv_head: int) -> str:
    """What is shown, in words: "KV head 1", or which heads are joined."""
    if union == LAYER:
        return f"union of all {head_name}s"
    return f"{head_name} {head}" if union == NONE else f"union of the query heads of KV head {head // per_kv_head}"


def kind_of(arrays: Mapping[str, Array]) -> str:
    """Which union the arrays of a picture show, "none" if they are those of one head."""
    return KINDS[int(arrays["union"][0])] if "union" in arrays else NONE


def check(operation: str, kinds: Sequence[str], union: str) -> str:
    """`union` if it is "none" or one of `kinds`; raises UnknownNameError otherwise."""
    if union not in (NONE, *kinds):
        raise UnknownNameError(f"union of a {operation}", union, (NONE, *kinds))
    return union


def rows_of(recording: Recording, row: int, union: str) -> range:
    """The rows of a recording that are shown: `row` alone, all of the layer, or those of the same KV head."""
    return joined(row, union, content.rows(recording), recording.geometry.n_kv_heads)


def joined(row: int, union: str, count: int, heads: int) -> range:
    """`row` alone, all of the `count` rows of a layer with `heads` KV heads, or those of the same KV head."""
    if union == LAYER:
        return range(count)
    per_head = 1 if union == NONE else count // heads
    first = row // per_head * per_head
    return range(first, first + per_head)


def shown(recording: Recording, layer: int, row: int, union: str) -> dict[str, Array]:
    """What the stepper draws of a row, or of the union that it belongs to."""
    if union == NONE:
        return view.row_arrays(recording, layer, row)
    return arrays(recording, layer, rows_of(recording, row, union), union)


class Place(NamedTuple):
    """A head, or a union with its first head, that a page embeds."""

    head: int
    union: str

    def when(self, layer: int) -> dict[str, Any]:
        """The traits that it answers."""
        place = {"layer": layer, "union": self.union}
        return place if self.union == LAYER else place | {"head": self.head}

    def key(self, layer: int) -> str:
        """The name of its bytes in a page."""
        return f"{layer}/{self.head}" if self.union == NONE else f"{layer}/{self.union}/{self.head}"


def places(heads: Iterable[int], kinds: Sequence[str], per_kv_head: int) -> list[Place]:
    """The heads, and the unions of these kinds, that a page embeds; `per_kv_head` of the heads share a KV head."""
    heads = list(heads)
    unions = [Place(heads[0], LAYER)] if LAYER in kinds else []
    if KV_HEAD in kinds:
        unions += [Place(head, KV_HEAD) for head in heads[::per_kv_head]]
    return [*(Place(head, NONE) for head in heads), *unions]


def arrays(recording: Recording, layer: int, rows: range, union: str, first: int = 0) -> dict[str, Array]:
    """The arrays of `view.row_arrays` for the union of `rows`, and the number of heads by token: `COUNTS`, uint8 each.

    A token is shown if any of the heads shows it; its mark is `metrics.head_union`'s verdict. Levels, and so looks, are
    the share of the heads that attended to it, or whose oracle would if none did. Weights, recall and mass are means
    over the heads. Groups are 0 for tokens that a head recalled; no clusters are listed. `union` holds the place in
    KINDS and the number of heads. Raises like `view.token_arrays`.
    """
    parts = [view.token_arrays(recording, layer, row, first) for row in rows]
    steps, length, attention = recording.steps - first, len(recording.tokens), recording.events[layer].attention
    keys = [np.repeat(np.arange(steps), np.diff(part["offsets"])) * length + part["positions"] for part in parts]
    shown = np.unique(np.concatenate(keys))
    step, positions = np.divmod(shown, length)
    verdicts = np.full((len(parts), len(shown)), Verdict.UNMARKED, np.uint8)
    marks, recalled, weights = np.zeros(len(shown), np.uint8), np.zeros(len(shown), bool), np.zeros(len(shown))
    for place, (row, key, part) in enumerate(zip(rows, keys, parts, strict=True)):
        at = np.searchsorted(shown, key)
        verdicts[place, at] = view.verdicts(part["marks"])
        marks[at] |= part["marks"]
        recalled[at] |= part["groups"] >= 0
        weights += attention[first + step, row, positions] / len(parts)
    counts = metrics.head_union(verdicts)
    tokens: dict[str, Array] = {
        "positions": positions.astype(np.int32), "weights": weights.astype(np.float32),
        "groups": np.where(recalled, 0, -1).astype(np.int32), "scores": np.full(len(shown), np.nan, np.float32),
        "marks": _marks(marks, recalled, counts),
        "levels": _levels(np.where(counts.attended > 0, counts.attended, counts.wanted), len(parts)),
    }  # fmt: skip
    tokens["looks"] = _looks(tokens["marks"], tokens["levels"])
    tokens["cell_looks"] = view.cell_looks(tokens["marks"], tokens["looks"], tokens["levels"])
    numbers = {name: np.mean([part[name] for part in parts], axis=0) for name in ("recall", "mass")}
    found = dict(zip(COUNTS, (counts.attended, counts.wanted, counts.missed, counts.wasted), strict=True))
    tokens["offsets"] = np.searchsorted(step, np.arange(steps + 1)).astype(np.int32)
    return {
        **tokens, **numbers, **{name: parts[0][name] for name in view.WHOLE_LAYER},
        **{name: values.astype(np.uint8) for name, values in found.items()},
        **view.step_map(tokens, length, attended_first=True), **_no_clusters(steps),
        "union": np.array([KINDS.index(union), len(parts)], np.int32),
        **_all_weights(attention[first:, rows.start : rows.stop]),
    }  # fmt: skip


def _marks(joined: NDArray[np.uint8], recalled: Array, counts: metrics.HeadUnion) -> NDArray[np.uint8]:
    """The marks of the union, from those of its heads combined by "or", so that `view.verdicts` gives its verdict."""
    attended, wanted = counts.attended > 0, counts.wanted > 0
    windows = joined & (view.SINK | view.RECENT) * ((counts.wasted == 0) & ~recalled)
    merged = (joined & view.MERGED > 0) & ~attended & (counts.missed == 0)
    marks = attended * view.ATTENDED | wanted * view.ORACLE | merged * view.MERGED
    return np.asarray(marks | windows | joined & view.GENERATED, np.uint8)


def _levels(heads: Array, of: int) -> NDArray[np.uint8]:
    """Levels of a share of heads, 0 to LEVELS - 1; the last is all heads."""
    return np.asarray(np.clip(np.ceil(heads / of * view.LEVELS) - 1, 0, view.LEVELS - 1), np.uint8)


def _looks(marks: Array, levels: Array) -> NDArray[np.uint8]:
    """Looks in one hue, grey for tokens that no head chose."""
    unchosen = marks & (view.SINK | view.RECENT | view.GENERATED) > 0
    shown = marks & (view.ATTENDED | view.MERGED) > 0
    looks = np.where(shown, np.where(unchosen, HUES, HUE) * view.LEVELS + levels, view.NOTHING)
    return np.asarray(looks, np.uint8)


def _no_clusters(steps: int) -> dict[str, Array]:
    """The lists of clusters, empty: a cluster belongs to one head."""
    none = dict.fromkeys(("group_ids", "group_counts", "group_known"), np.zeros(0, np.int32))
    floats = dict.fromkeys(("group_scores", "group_masses"), np.zeros(0, np.float32))
    return {**none, **floats, "group_hues": np.zeros(0, np.uint8), "group_offsets": np.zeros(steps + 1, np.int32)}


def _all_weights(attention: Array) -> dict[str, Array]:
    steps, _, length = attention.shape
    return {"all_weights": view.rounded_weights(attention.mean(1))} if steps * length <= view.DENSE_LIMIT else {}
