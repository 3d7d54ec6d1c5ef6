"""Arrays that the stepper draws: looks and marks of the tokens shown, pooled maps, ranked clusters.

This module only arranges; the numbers come from `Recording` and `kvviz.metrics`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import save

from .. import metrics
from ..errors import InvalidInputError
from ..trace import LayerEvents, Recording
from ..trace.hues import HUES, hue

Array = NDArray[Any]

# A look is one byte: hue * LEVELS + level. js/theme.js reads the same bytes.
LEVELS = 8  # of attention
MISSED_LOOK = (HUES + 1) * LEVELS  # on maps: a token of the oracle that was not attended
NOTHING = 255

# A mark is one bit. js/strip.js reads the same bits.
ATTENDED, ORACLE, SINK, RECENT, GENERATED, MERGED = 1, 2, 4, 8, 16, 32

MAP_COLUMNS = 384  # as many as fit into a panel of a 960 px page
MOST_CENTROIDS = 32  # listed per step; a merging method attends to all centroids and ranks none
WHOLE_LAYER = ("read_bytes", "moved_bytes", "output_error")  # numbers per step that belong to the layer, not to a row
BLOCK = 4_000_000  # steps × tokens arranged at once, to limit the memory: 30 bytes each
DENSE_LIMIT = 16_000_000  # steps × tokens up to which the weight of every token is sent too


def level(weights: Array) -> NDArray[np.uint8]:
    """Levels of attention, 0 to LEVELS - 1, on a logarithmic scale from 2⁻¹² or less to 2⁻¹·⁵ or more."""
    weights = np.maximum(np.asarray(weights, dtype=np.float64), 2.0**-40)
    return np.clip(np.floor((np.log2(weights) + 12) / 1.5), 0, LEVELS - 1).astype(np.uint8)


def verdicts(marks: Array) -> NDArray[np.uint8]:
    """The `metrics.Verdict` of the tokens with these marks."""
    attended, oracle, merged = (marks & bit > 0 for bit in (ATTENDED, ORACLE, MERGED))
    return metrics.agreement(attended, oracle, always=marks & (SINK | RECENT | GENERATED) > 0, merged=merged)


def cell_looks(marks: Array, looks: Array, levels: Array) -> NDArray[np.uint8]:
    """The looks of tokens on the map of steps, where missed tokens are drawn too, in the colour of the text."""
    missed = verdicts(marks) == metrics.Verdict.MISSED
    return np.where(missed, MISSED_LOOK + levels, looks).astype(np.uint8)


def rounded_weights(weights: Array) -> NDArray[np.uint8]:
    """Attention weights in one byte, ten levels per octave: q stands for 2^((q - 255) / 10), 0 for 2⁻²⁵·⁵ or less."""
    weights = np.maximum(weights, 2.0**-40)
    return np.asarray(np.clip(np.rint(255 + 10 * np.log2(weights)), 0, 255), dtype=np.uint8)


def row_arrays(recording: Recording, layer: int, row: int, first: int = 0) -> dict[str, Array]:
    """The stepper's arrays by name, for one layer and row (KV head or query head) and the T steps from `first` on.

    They are those of `token_arrays`, the looks of the same tokens on the map, a map of steps × columns, the clusters
    recalled per step, best score first (for merged tokens: the centroids whose tokens have the most attention), with
    their bounds `group_offsets` [T+1], and the weight of every token unless there are too many. Raises like
    `token_arrays`.
    """
    steps, events, length = range(first, recording.steps), recording.events[layer], len(recording.tokens)
    arrays = token_arrays(recording, layer, row, first)
    arrays["cell_looks"] = cell_looks(arrays["marks"], arrays["looks"], level(arrays["weights"]))
    clusters = [ranked for block in blocks(steps, length) for ranked in _clusters(recording, layer, row, block)]
    ids, counts, scores, masses = (np.concatenate(column) for column in zip(*clusters, strict=True))
    arrays |= {
        **step_map(arrays, length, attended_first=True),
        "group_offsets": _offsets(np.array([len(step[0]) for step in clusters])),
        "group_ids": ids.astype(np.int32), "group_hues": hue(ids), "group_counts": counts.astype(np.int32),
        "group_scores": scores.astype(np.float32), "group_masses": masses.astype(np.float32),
        "group_known": _known_sizes(recording, events, row, {
            step: ranked[0] for step, ranked in zip(steps, clusters, strict=True)
        }),
    }  # fmt: skip
    if len(steps) * length <= DENSE_LIMIT:
        arrays["all_weights"] = rounded_weights(events.attention[first:, row])  # [T, N]
    return arrays


def token_arrays(recording: Recording, layer: int, row: int, first: int = 0) -> dict[str, Array]:
    """Arrays by name: the tokens shown at each of the T steps from `first` on, and the numbers of the steps.

    The lists of all steps are concatenated; `offsets` [T+1] bounds the tokens of each step (attended or the oracle's,
    ascending). `recall` and `mass` [T] are the row's, `read_bytes`, `moved_bytes`, `output_error` [T] the layer's.

    Raises InvalidInputError for attention that is not finite.
    """
    events = recording.events[layer]
    if not np.isfinite(events.attention).all():
        got = f"NaN or infinity in the attention of layer {layer}"
        raise InvalidInputError("show a recording", got, "finite weights: record again, in float32 or bfloat16")
    steps = range(first, recording.steps)
    parts = [_tokens(recording, layer, row, block) for block in blocks(steps, len(recording.tokens))]
    arrays = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
    arrays["offsets"] = _offsets(arrays.pop("shown"))
    return arrays | {name: getattr(events, name)[first:].astype(np.float64) for name in WHOLE_LAYER}


def pack(arrays: Mapping[str, Array], layer: int, head: int) -> bytes:
    """One layer and head as safetensors bytes, which js/slice.js reads; equal arrays give equal bytes."""
    place = np.array([layer, head], np.int32)  # not as metadata, whose order changes from call to call
    return save({name: np.ascontiguousarray(array) for name, array in arrays.items()} | {"place": place})


def blocks(steps: range, length: int) -> list[range]:
    """The steps in runs that are arranged at once, to limit the memory."""
    at_once = max(1, BLOCK // length)
    return [steps[start : start + at_once] for start in range(0, len(steps), at_once)]


def _tokens(recording: Recording, layer: int, row: int, steps: range) -> dict[str, Array]:
    """The lists of `token_arrays` for T consecutive steps; `shown` [T] is the number of tokens of each step."""
    events, part = recording.events[layer], slice(steps.start, steps.stop)
    indices, scores = events.indices[part, row], events.scores[part, row]  # [T, S]
    groups, weights = events.groups[part, row], events.attention[part, row]  # [T, S], [T, N]
    valid = indices >= 0
    oracle = _oracle(recording, weights, valid.sum(-1) + _centroid_counts(recording, layer, row, steps), steps)
    chosen, true = (metrics.member_mask(tokens, weights.shape[-1]) for tokens in (indices, oracle))
    step, positions = np.nonzero(chosen | true)
    attended, of_oracle = chosen[step, positions], true[step, positions]
    shown_groups = np.full(len(positions), -1, np.int32)
    shown_scores = np.full(len(positions), np.nan, np.float32)
    shown_groups[attended], shown_scores[attended] = groups[valid], scores[valid]  # both sorted by step and position
    centroids = _centroids(recording, layer, row, steps)
    merged, share = np.zeros_like(attended), events.merged_share
    share = None if share is None else share[part, row].astype(np.float64)  # [T, N]
    if centroids is not None:
        merged = ~attended & (centroids[step, positions] >= 0)
        if share is not None:
            merged &= share[step, positions] >= metrics.LEAST_SHARE
        shown_groups[merged] = centroids[step, positions][merged]
    shown_weights = weights[step, positions]
    kept = attended & (shown_groups < 0) & np.isnan(shown_scores)
    prompt, always = recording.prompt_length, np.zeros_like(chosen)
    always[step, positions] = kept
    marks = attended * ATTENDED | of_oracle * ORACLE | (positions >= prompt) * GENERATED | merged * MERGED
    marks |= (kept & (positions < recording.config.get("sinks", 0))) * SINK
    marks |= (kept & (positions < prompt) & (positions >= metrics.window_starts(always[:, :prompt])[step])) * RECENT
    looks = np.where(attended | merged, hue(shown_groups) * LEVELS + level(shown_weights), NOTHING)
    return {
        "positions": positions.astype(np.int32), "groups": shown_groups, "scores": shown_scores,
        "weights": shown_weights.astype(np.float32), "looks": looks.astype(np.uint8), "marks": marks.astype(np.uint8),
        "shown": np.bincount(step, minlength=len(steps)),
        "recall": metrics.recall(indices, oracle, share), "mass": metrics.attention_mass(weights, indices, share),
    }  # fmt: skip


def _oracle(recording: Recording, weights: Array, counts: Array, steps: range) -> NDArray[np.int64]:
    """The tokens with the `counts` [T] largest weights at each step, [T, S], padded with -1."""
    oracle = np.full((len(steps), counts.max(initial=0)), -1, np.int64)
    for row, step, step_weights, count in zip(oracle, steps, weights, counts, strict=True):
        row[:count] = metrics.ranked_tokens(step_weights[: recording.visible(step)], int(count))
    return oracle


def _centroid_counts(recording: Recording, layer: int, row: int, steps: range) -> NDArray[np.int32]:
    """The number of centroids that the row attended to at each step, [T]."""
    events = recording.events[layer]
    return events.merged[steps.start : steps.stop, row * events.merged.shape[1] // events.indices.shape[1]]


def _centroids(recording: Recording, layer: int, row: int, steps: range) -> NDArray[np.int32] | None:
    """The centroid of each token [T, N], -1 for none; None if the layer recorded none."""
    if recording.events[layer].members is None:
        return None
    centroids = np.full((len(steps), len(recording.tokens)), -1, np.int32)
    for step_centroids, step in zip(centroids, steps, strict=True):
        members = recording.members(step, layer)
        if members is not None:
            step_centroids[: members.shape[-1]] = members[row]
    return centroids


def _clusters(recording: Recording, layer: int, row: int, steps: range) -> list[tuple[Array, ...]]:
    """Ids, sizes, scores and attention of each step's clusters, or of its centroids if tokens were merged."""
    events, centroids = recording.events[layer], _centroids(recording, layer, row, steps)
    ranked: list[tuple[Array, ...]] = []
    for index, step in enumerate(steps):
        weights, tokens = events.attention[step, row], events.indices[step, row]
        if centroids is not None and (centroids[index] >= 0).any():
            ranked.append(_largest(centroids[index], weights))
            continue
        valid = tokens >= 0
        groups, scores = events.groups[step, row, valid], events.scores[step, row, valid]
        ranked.append(metrics.rank_groups(groups, scores, weights[tokens[valid]]))
    return ranked


def _largest(centroids: Array, weights: Array) -> tuple[Array, Array, Array, Array]:
    """Ids, sizes, scores (NaN) and exact attention of the centroids whose tokens have the most attention."""
    merged = centroids >= 0
    counts, masses = np.bincount(centroids[merged]), np.bincount(centroids[merged], weights[merged])
    ids = np.argsort(-masses, kind="stable")[:MOST_CENTROIDS]
    return ids, counts[ids], np.full(len(ids), np.nan), masses[ids]


def step_map(arrays: Mapping[str, Array], length: int, *, attended_first: bool) -> dict[str, Array]:
    """The map of all `length` positions, from the lists of `token_arrays` with their `cell_looks`.

    `map_positions` [T, columns], int32, is the token drawn per step and column (of the tokens shown the one with the
    largest weight, attended ones first if `attended_first`; without any the first of the column), `map_looks` [T,
    columns], uint8, its look. When it zooms in, js/map_zoom.js draws a map of fewer positions from the same arrays.
    """
    starts = metrics.pool_argmax(np.zeros(length), MAP_COLUMNS)
    steps, columns, positions = len(arrays["offsets"]) - 1, len(starts), arrays["positions"]
    step = np.repeat(np.arange(steps), np.diff(arrays["offsets"]))
    cells = step * columns + np.searchsorted(starts, positions, side="right") - 1  # ascending, as the lists are
    drawn, looks = np.tile(starts, steps).astype(np.int32), np.full(steps * columns, NOTHING, np.uint8)
    if len(cells):
        rank = arrays["weights"] + 1 + (arrays["marks"] & ATTENDED > 0 if attended_first else 0)
        firsts = np.flatnonzero(np.diff(cells, prepend=-1))
        largest = np.repeat(np.maximum.reduceat(rank, firsts), np.diff(firsts, append=len(cells)))
        best = np.flatnonzero(rank == largest)
        best = best[np.diff(cells[best], prepend=-1) > 0]  # of equal ones the first
        drawn[cells[best]], looks[cells[best]] = positions[best], arrays["cell_looks"][best]
    return {"map_positions": drawn.reshape(steps, columns), "map_looks": looks.reshape(steps, columns)}


def _known_sizes(
    recording: Recording, events: LayerEvents, row: int, recalled: Mapping[int, Array]
) -> NDArray[np.int32]:
    """Number of members of each recalled cluster that are visible at its step and recorded at any step."""
    groups, positions = metrics.group_members(events.indices[:, row], events.groups[:, row])
    known = []
    for step, ids in recalled.items():
        sizes = np.bincount(groups[positions < recording.visible(step)], minlength=ids.max(initial=-1) + 1)
        known.append(sizes[ids])
    return np.concatenate(known).astype(np.int32)


def _offsets(counts: Array) -> NDArray[np.int32]:
    return np.concatenate([[0], np.cumsum(counts)]).astype(np.int32)
