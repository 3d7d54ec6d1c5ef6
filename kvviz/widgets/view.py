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
BLOCK = 4_000_000  # steps × tokens arranged at once, which bounds the memory: 30 bytes for each
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
    weights = np.maximum(weights, 2.0**-40)
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
    at_once = max(1, BLOCK // len(recording.tokens))
    blocks = [_frames(recording, layer, row, steps[at : at + at_once]) for at in range(0, len(steps), at_once)]
    arrays = {name: np.concatenate([block[name] for block in blocks]) for name in blocks[0]}
    arrays |= {
        "offsets": _offsets(arrays.pop("shown")),
        "group_offsets": _offsets(arrays.pop("recalled")),
        **{name: getattr(events, name)[first:].astype(np.float64) for name in WHOLE_LAYER},
    }
    ids = np.split(arrays["group_ids"], arrays["group_offsets"][1:-1])
    arrays["group_known"] = _known_sizes(recording, events, row, dict(zip(steps, ids, strict=True)))
    if len(steps) * len(recording.tokens) <= DENSE_LIMIT:
        arrays["all_weights"] = rounded_weights(events.attention[first:, row])  # [T, N]
    return arrays


def pack(arrays: Mapping[str, Array], layer: int, head: int) -> bytes:
    """One layer and head as the bytes of a safetensors file, which js/slice.js reads; the same for the same arrays."""
    place = np.array([layer, head], np.int32)  # not in the file's metadata, whose order changes from call to call
    return save({name: np.ascontiguousarray(array) for name, array in arrays.items()} | {"place": place})


def _frames(recording: Recording, layer: int, row: int, steps: range) -> dict[str, Array]:
    """`row_arrays` of a run of T steps; `shown` and `recalled` [T] count each step's tokens and clusters."""
    events, part = recording.events[layer], slice(steps.start, steps.stop)
    indices, scores = events.indices[part, row], events.scores[part, row]  # [T, S]
    groups, weights = events.groups[part, row], events.attention[part, row]  # [T, S], [T, N]
    here = indices >= 0
    oracle = _oracle(recording, weights, here.sum(-1), steps)
    chosen, true = (metrics.member_mask(tokens, weights.shape[-1]) for tokens in (indices, oracle))
    step, positions = np.nonzero(chosen | true)
    attended, wanted = chosen[step, positions], true[step, positions]
    shown_groups = np.full(len(positions), -1, np.int32)
    shown_scores = np.full(len(positions), np.nan, np.float32)
    shown_groups[attended], shown_scores[attended] = groups[here], scores[here]  # all ascend by step and position
    centroids = _centroids(recording, layer, row, steps)
    merged = np.zeros_like(attended)
    if centroids is not None:
        merged = ~attended & (centroids[step, positions] >= 0)
        shown_groups[merged] = centroids[step, positions][merged]
    shown = weights[step, positions]
    kept = attended & (shown_groups < 0) & np.isnan(shown_scores)
    prompt, always = recording.prompt_length, np.zeros_like(chosen)
    always[step, positions] = kept
    marks = attended * ATTENDED | wanted * ORACLE | (positions >= prompt) * GENERATED | merged * MERGED
    marks |= (kept & (positions < recording.config.get("sinks", 0))) * SINK
    marks |= (kept & (positions < prompt) & (positions >= _window_starts(always[:, :prompt])[step])) * RECENT
    looks = np.where(attended | merged, hue(shown_groups) * LEVELS + level(shown), NOTHING).astype(np.uint8)
    map_positions, map_looks = _map(weights.shape, (step, positions), attended, looks, shown)
    return {
        "positions": positions.astype(np.int32), "groups": shown_groups, "scores": shown_scores,
        "weights": shown.astype(np.float32), "looks": looks, "marks": marks.astype(np.uint8),
        "shown": np.bincount(step, minlength=len(steps)),
        "map_positions": map_positions, "map_looks": map_looks,
        "recall": metrics.recall(indices, oracle), "mass": metrics.attention_mass(weights, indices),
        **_clusters(indices, groups, scores, weights, centroids),
    }  # fmt: skip


def _oracle(recording: Recording, weights: Array, counts: Array, steps: range) -> NDArray[np.int64]:
    """The tokens of largest weight, as many as each step attended, [T, S], -1 pads."""
    found = np.full((len(steps), counts.max(initial=0)), -1, np.int64)
    for row, step, own, count in zip(found, steps, weights, counts, strict=True):
        row[:count] = metrics.ranked_tokens(own[: recording.visible(step)], int(count))
    return found


def _centroids(recording: Recording, layer: int, row: int, steps: range) -> NDArray[np.int32] | None:
    """The centroid of each token [T, N], -1 for none; None where no step tells of any."""
    if recording.events[layer].members is None:
        return None
    found = np.full((len(steps), len(recording.tokens)), -1, np.int32)
    for own, step in zip(found, steps, strict=True):
        members = recording.members(step, layer)
        if members is not None:
            own[: members.shape[-1]] = members[row]
    return found


def _clusters(
    indices: Array, groups: Array, scores: Array, weights: Array, centroids: Array | None
) -> dict[str, Array]:
    """The recalled clusters of each step, best score first; in their place merged centroids, where there are any."""
    ranked = []
    for at, tokens in enumerate(indices):
        if centroids is not None and (centroids[at] >= 0).any():
            ranked.append(_largest(centroids[at], weights[at]))
            continue
        here = tokens >= 0
        ranked.append(metrics.rank_groups(groups[at, here], scores[at, here], weights[at, tokens[here]]))
    ids, counts, best, masses = (np.concatenate(column) for column in zip(*ranked, strict=True))
    return {
        "group_ids": ids.astype(np.int32), "group_counts": counts.astype(np.int32),
        "group_scores": best.astype(np.float32), "group_masses": masses.astype(np.float32),
        "recalled": np.array([len(step[0]) for step in ranked]),
    }  # fmt: skip


def _largest(centroids: Array, weights: Array) -> tuple[Array, Array, Array, Array]:
    """Ids, members, scores (none) and exact attention of the centroids whose tokens have most of it."""
    named = centroids >= 0
    counts, masses = np.bincount(centroids[named]), np.bincount(centroids[named], weights[named])
    ids = np.argsort(-masses, kind="stable")[:MOST_CENTROIDS]
    return ids, counts[ids], np.full(len(ids), np.nan), masses[ids]


def _window_starts(kept: NDArray[np.bool_]) -> NDArray[np.int64]:
    """First position [T] of the recent window: of the run up to the prompt's end of tokens `kept` [T, prompt].

    Not every method's window is its field `recent`: StreamingLLM's is what the sinks leave of the budget.
    """
    run = np.logical_and.accumulate(kept[:, ::-1], axis=1).sum(1)
    return np.asarray(kept.shape[1] - run)


def _map(
    shape: tuple[int, ...], at: tuple[Array, Array], attended: Array, looks: Array, weights: Array
) -> tuple[NDArray[np.int32], NDArray[np.uint8]]:
    """Of each step and column: the token drawn for it (attended before missed before others, then by weight), its look.

    `at`: step and position of every token shown; `shape` [T, N].
    """
    rank, look = np.zeros(shape), np.full(shape, NOTHING, np.uint8)
    rank[at] = weights + 1 + attended
    look[at] = np.where(looks == NOTHING, MISSED_LOOK + level(weights), looks)
    drawn = metrics.pool_argmax(rank, MAP_COLUMNS)
    return drawn.astype(np.int32), np.take_along_axis(look, drawn, axis=-1)


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


def _offsets(counts: Array) -> NDArray[np.int32]:
    return np.concatenate([[0], np.cumsum(counts)]).astype(np.int32)
