"""What the stepper draws, as arrays: a colour code and marks for every token shown, pooled maps, ranked clusters.

Everything here is arrangement; the numbers come from `Recording` and `kvviz.metrics`.
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

Array = NDArray[Any]

# A look is one byte: hue * LEVELS + level. js/theme.js reads the same bytes.
HUES = 24  # steps of the colour circle
LEVELS = 8  # steps of attention
UNCHOSEN = HUES  # the grey after the hues: attended without being recalled
MISSED_LOOK = (HUES + 1) * LEVELS  # on maps: the oracle's token that was not attended
NOTHING = 255

# A mark is one bit. js/strip.js reads the same bits.
ATTENDED, ORACLE, SINK, RECENT, GENERATED, MERGED = 1, 2, 4, 8, 16, 32

MAP_COLUMNS = 384  # what a panel of a 960 px page has room for
MOST_CENTROIDS = 32  # listed at a step; a merging method attends all of them, and ranks none
WHOLE_LAYER = ("read_bytes", "moved_bytes", "output_error")  # numbers of a step that its rows share
DENSE_LIMIT = 16_000_000  # steps × tokens up to which the weight of every token travels along


def hue(groups: Array) -> NDArray[np.uint8]:
    """Step of the colour circle, 0 to HUES - 1, of each group; UNCHOSEN for -1.

    It depends on the group alone, so that a cluster keeps its hue over all steps. Neighbouring ids lie 105° apart.
    """
    groups = np.asarray(groups, dtype=np.int64)
    return np.where(groups < 0, UNCHOSEN, groups * 7 % HUES).astype(np.uint8)


def level(weights: Array) -> NDArray[np.uint8]:
    """Step of lightness, 0 to LEVELS - 1, on a logarithmic scale from 2⁻¹² and less to 2⁻¹·⁵ and more."""
    weights = np.maximum(np.asarray(weights, dtype=np.float64), 2.0**-40)
    return np.clip(np.floor((np.log2(weights) + 12) / 1.5), 0, LEVELS - 1).astype(np.uint8)


def rounded_weights(weights: Array) -> NDArray[np.uint8]:
    """Attention weights in one byte, ten steps an octave: 255 is 1, q is 2^((q - 255) / 10), 0 is 2⁻²⁵·⁵ and less."""
    weights = np.maximum(np.asarray(weights, dtype=np.float64), 2.0**-40)
    return np.asarray(np.clip(np.rint(255 + 10 * np.log2(weights)), 0, 255), dtype=np.uint8)


def row_arrays(recording: Recording, layer: int, row: int, first: int = 0) -> dict[str, Array]:
    """What the stepper needs of one layer and row (KV head, or query head), as arrays by name.

    The steps are those from `first` on, T of them. Per-step lists lie end to end: `offsets` [T+1] bounds the tokens
    shown at a step (attended or the oracle's, ascending), `group_offsets` [T+1] its recalled clusters, best score
    first; where tokens were merged, the centroids whose tokens have the most attention. `recall` and `mass` are of
    the row, `read_bytes`, `moved_bytes` and `output_error` of the whole layer.

    Raises InvalidInputError for attention that is not finite.
    """
    steps, events = range(first, recording.steps), recording.events[layer]
    if not np.isfinite(events.attention).all():
        got = f"NaN or infinity in the attention of layer {layer}"
        raise InvalidInputError("show a recording", got, "finite weights: record again, in float32 or bfloat16")
    chosen = [recording.indices(step, layer)[row] for step in steps]
    attention = [recording.attention(step, layer)[row] for step in steps]
    oracle = [
        np.sort(metrics.ranked_tokens(weights, int((own >= 0).sum())))
        for own, weights in zip(chosen, attention, strict=True)
    ]
    frames = [_frame(recording, layer, step, row, attention[at], oracle[at]) for at, step in enumerate(steps)]
    arrays = {name: np.concatenate([frame[name] for frame in frames]) for name in frames[0] if name != "map"}
    arrays |= {
        "offsets": _offsets([len(frame["positions"]) for frame in frames]),
        "group_offsets": _offsets([len(frame["group_ids"]) for frame in frames]),
        "group_known": _known_sizes(recording, events, row, {
            step: frame["group_ids"] for step, frame in zip(steps, frames, strict=True)
        }),
        "map_positions": np.stack([frame["map"][0] for frame in frames]).astype(np.int32),  # [T, columns]
        "map_looks": np.stack([frame["map"][1] for frame in frames]).astype(np.uint8),
        "recall": np.stack([metrics.recall(*pair) for pair in zip(chosen, oracle, strict=True)]),  # [T]
        "mass": np.stack([metrics.attention_mass(*pair) for pair in zip(attention, chosen, strict=True)]),  # [T]
        **{name: getattr(events, name)[first:].astype(np.float64) for name in WHOLE_LAYER},
    }  # fmt: skip
    if len(steps) * len(recording.tokens) <= DENSE_LIMIT:
        arrays["all_weights"] = rounded_weights(events.attention[first:, row])  # [T, N]
    return arrays


def pack(arrays: Mapping[str, Array], layer: int, head: int) -> bytes:
    """One layer and head as the bytes of a safetensors file, which js/slice.js reads; the same for the same arrays."""
    place = np.array([layer, head], np.int32)  # not in the file's metadata, whose order changes from call to call
    return save({name: np.ascontiguousarray(array) for name, array in arrays.items()} | {"place": place})


def _frame(recording: Recording, layer: int, step: int, row: int, weights: Array, oracle: Array) -> dict[str, Any]:
    here = recording.indices(step, layer)[row] >= 0
    indices, groups, scores = (
        array[row][here]
        for array in (recording.indices(step, layer), recording.groups(step, layer), recording.scores(step, layer))
    )
    positions = np.union1d(indices, oracle[oracle >= 0])
    attended, wanted = np.isin(positions, indices), np.isin(positions, oracle)
    shown_groups = np.full(len(positions), -1, np.int32)
    shown_scores = np.full(len(positions), np.nan, np.float32)
    shown_groups[attended], shown_scores[attended] = groups, scores  # both ascend by position
    centroids = _centroids(recording, layer, step, row)
    merged = ~attended & (centroids[positions] >= 0)
    shown_groups[merged] = centroids[positions[merged]]
    prompt, kept = recording.prompt_length, attended & (shown_groups < 0) & np.isnan(shown_scores)
    marks = attended * ATTENDED | wanted * ORACLE | (positions >= prompt) * GENERATED | merged * MERGED
    marks |= (kept & (positions < recording.config.get("sinks", 0))) * SINK
    marks |= (kept & (positions < prompt) & (positions >= _window_start(positions[kept], prompt))) * RECENT
    shown = weights[positions]
    tinted = hue(shown_groups) * LEVELS + level(shown)
    looks = np.where(attended | merged, tinted, NOTHING).astype(np.uint8)
    ranked = metrics.rank_groups(groups, scores, weights[indices])
    ids, counts, best, masses = _largest(centroids, weights) if (centroids >= 0).any() else ranked
    return {
        "positions": positions.astype(np.int32), "groups": shown_groups, "scores": shown_scores,
        "weights": shown.astype(np.float32), "looks": looks, "marks": marks.astype(np.uint8),
        "group_ids": ids.astype(np.int32), "group_counts": counts.astype(np.int32),
        "group_scores": best.astype(np.float32), "group_masses": masses.astype(np.float32),
        "map": _map_row(len(recording.tokens), positions, attended, looks, shown),
    }  # fmt: skip


def _centroids(recording: Recording, layer: int, step: int, row: int) -> NDArray[np.int32]:
    """The centroid of each token visible at a step, -1 for none and where the recording does not say."""
    members = recording.members(step, layer)
    return np.full(recording.visible(step), -1, np.int32) if members is None else members[row]


def _largest(centroids: Array, weights: Array) -> tuple[Array, Array, Array, Array]:
    """Ids, members, scores (none) and exact attention of the centroids whose tokens have most of it."""
    named = centroids >= 0
    counts, masses = np.bincount(centroids[named]), np.bincount(centroids[named], weights[named])
    ids = np.argsort(-masses, kind="stable")[:MOST_CENTROIDS]
    return ids, counts[ids], np.full(len(ids), np.nan), masses[ids]


def _window_start(kept: Array, prompt: int) -> int:
    """First position of the recent window: of the run up to the prompt's end of tokens `kept` without being chosen.

    Not every method's window is its field `recent`: StreamingLLM's is what the sinks leave of the budget.
    """
    before = kept[kept < prompt][::-1]  # the newest first
    run = int((before == prompt - 1 - np.arange(len(before))).sum())
    return prompt - run


def _map_row(length: int, positions: Array, attended: Array, looks: Array, weights: Array) -> tuple[Array, Array]:
    """Of each column: the token drawn for it (attended before missed before others, then by weight) and its look."""
    rank, look = np.zeros(length), np.full(length, NOTHING)
    rank[positions] = weights + 1 + attended
    look[positions] = np.where(looks == NOTHING, MISSED_LOOK + level(weights), looks)
    drawn = metrics.pool_argmax(rank, MAP_COLUMNS)
    return drawn, look[drawn]


def _known_sizes(
    recording: Recording, events: LayerEvents, row: int, recalled: Mapping[int, Array]
) -> NDArray[np.int32]:
    """Members of each recalled cluster that the recording shows at any step and that this step could see."""
    groups, positions = metrics.group_members(events.indices[:, row], events.groups[:, row])
    known = []
    for step, ids in recalled.items():
        sizes = np.bincount(groups[positions < recording.visible(step)], minlength=ids.max(initial=-1) + 1)
        known.append(sizes[ids])
    return np.concatenate(known).astype(np.int32)


def _offsets(counts: list[int]) -> NDArray[np.int32]:
    return np.concatenate([[0], np.cumsum(counts)]).astype(np.int32)
