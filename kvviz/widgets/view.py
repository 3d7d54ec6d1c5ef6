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
from ..trace.hues import HUES, hue

Array = NDArray[Any]

# A look is one byte: hue * LEVELS + level. js/theme.js reads the same bytes.
LEVELS = 8  # steps of attention
MISSED_LOOK = (HUES + 1) * LEVELS  # on maps: the oracle's token that was not attended
NOTHING = 255

# A mark is one bit. js/strip.js reads the same bits.
ATTENDED, ORACLE, SINK, RECENT, GENERATED, MERGED = 1, 2, 4, 8, 16, 32

MAP_COLUMNS = 384  # what a panel of a 960 px page has room for
MOST_CENTROIDS = 32  # listed at a step; a merging method attends all of them, and ranks none
WHOLE_LAYER = ("read_bytes", "moved_bytes", "output_error")  # numbers of a step that its rows share
BLOCK = 4_000_000  # steps × tokens arranged at once, which bounds the memory: 30 bytes for each
DENSE_LIMIT = 16_000_000  # steps × tokens up to which the weight of every token travels along


def level(weights: Array) -> NDArray[np.uint8]:
    """Step of lightness, 0 to LEVELS - 1, on a logarithmic scale from 2⁻¹² and less to 2⁻¹·⁵ and more."""
    weights = np.maximum(np.asarray(weights, dtype=np.float64), 2.0**-40)
    return np.clip(np.floor((np.log2(weights) + 12) / 1.5), 0, LEVELS - 1).astype(np.uint8)


def verdicts(marks: Array) -> NDArray[np.uint8]:
    """The `metrics.Verdict` of the token that has each mark."""
    attended, wanted, merged = (marks & bit > 0 for bit in (ATTENDED, ORACLE, MERGED))
    return metrics.agreement(attended, wanted, always=marks & (SINK | RECENT | GENERATED) > 0, merged=merged)


def rounded_weights(weights: Array) -> NDArray[np.uint8]:
    """Attention weights in one byte, ten steps an octave: 255 is 1, q is 2^((q - 255) / 10), 0 is 2⁻²⁵·⁵ and less."""
    weights = np.maximum(weights, 2.0**-40)
    return np.asarray(np.clip(np.rint(255 + 10 * np.log2(weights)), 0, 255), dtype=np.uint8)


def row_arrays(recording: Recording, layer: int, row: int, first: int = 0) -> dict[str, Array]:
    """What the stepper needs of one layer and row (KV head, or query head), as arrays by name.

    The steps are those from `first` on, T of them. To what `token_arrays` gives come a map of steps × columns, the
    recalled clusters of each step, bounded by `group_offsets` [T+1], best score first (where tokens were merged, the
    centroids whose tokens have the most attention), and the weight of every token where there are not too many.
    Raises as `token_arrays`.
    """
    steps, events, length = range(first, recording.steps), recording.events[layer], len(recording.tokens)
    arrays = token_arrays(recording, layer, row, first)
    maps, clusters = [], []
    for block in _blocks(steps, length):
        own = slice(*arrays["offsets"][[block.start - first, block.stop - first]])
        at = np.repeat(np.arange(len(block)), np.diff(arrays["offsets"])[block.start - first : block.stop - first])
        tokens = {name: arrays[name][own] for name in ("positions", "marks", "looks", "weights")}
        maps.append(_map((len(block), length), (at, tokens["positions"]), tokens))
        clusters += _clusters(recording, layer, row, block)
    positions, looks = (np.concatenate(column) for column in zip(*maps, strict=True))
    ids, counts, best, masses = (np.concatenate(column) for column in zip(*clusters, strict=True))
    arrays |= {
        "map_positions": positions, "map_looks": looks,  # [T, columns]
        "group_offsets": _offsets(np.array([len(step[0]) for step in clusters])),
        "group_ids": ids.astype(np.int32), "group_hues": hue(ids), "group_counts": counts.astype(np.int32),
        "group_scores": best.astype(np.float32), "group_masses": masses.astype(np.float32),
        "group_known": _known_sizes(recording, events, row, {
            step: own[0] for step, own in zip(steps, clusters, strict=True)
        }),
    }  # fmt: skip
    if len(steps) * length <= DENSE_LIMIT:
        arrays["all_weights"] = rounded_weights(events.attention[first:, row])  # [T, N]
    return arrays


def token_arrays(recording: Recording, layer: int, row: int, first: int = 0) -> dict[str, Array]:
    """The tokens shown at each step from `first` on, T of them, and the numbers of the steps, as arrays by name.

    Lists lie end to end: `offsets` [T+1] bounds the tokens shown at a step (attended or the oracle's, ascending).
    `recall` and `mass` [T] are of the row, `read_bytes`, `moved_bytes` and `output_error` [T] of the whole layer.

    Raises InvalidInputError for attention that is not finite.
    """
    events = recording.events[layer]
    if not np.isfinite(events.attention).all():
        got = f"NaN or infinity in the attention of layer {layer}"
        raise InvalidInputError("show a recording", got, "finite weights: record again, in float32 or bfloat16")
    steps = range(first, recording.steps)
    blocks = [_tokens(recording, layer, row, block) for block in _blocks(steps, len(recording.tokens))]
    arrays = {name: np.concatenate([block[name] for block in blocks]) for name in blocks[0]}
    arrays["offsets"] = _offsets(arrays.pop("shown"))
    return arrays | {name: getattr(events, name)[first:].astype(np.float64) for name in WHOLE_LAYER}


def pack(arrays: Mapping[str, Array], layer: int, head: int) -> bytes:
    """One layer and head as the bytes of a safetensors file, which js/slice.js reads; the same for the same arrays."""
    place = np.array([layer, head], np.int32)  # not in the file's metadata, whose order changes from call to call
    return save({name: np.ascontiguousarray(array) for name, array in arrays.items()} | {"place": place})


def _blocks(steps: range, length: int) -> list[range]:
    at_once = max(1, BLOCK // length)
    return [steps[at : at + at_once] for at in range(0, len(steps), at_once)]


def _tokens(recording: Recording, layer: int, row: int, steps: range) -> dict[str, Array]:
    """The lists of `token_arrays` for a run of T steps; `shown` [T] counts each step's tokens."""
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
    looks = np.where(attended | merged, hue(shown_groups) * LEVELS + level(shown), NOTHING)
    return {
        "positions": positions.astype(np.int32), "groups": shown_groups, "scores": shown_scores,
        "weights": shown.astype(np.float32), "looks": looks.astype(np.uint8), "marks": marks.astype(np.uint8),
        "shown": np.bincount(step, minlength=len(steps)),
        "recall": metrics.recall(indices, oracle), "mass": metrics.attention_mass(weights, indices),
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


def _clusters(recording: Recording, layer: int, row: int, steps: range) -> list[tuple[Array, ...]]:
    """Ids, tokens, scores and attention of each step's clusters, or of merged centroids, where there are any."""
    events, centroids = recording.events[layer], _centroids(recording, layer, row, steps)
    ranked: list[tuple[Array, ...]] = []
    for at, step in enumerate(steps):
        weights, tokens = events.attention[step, row], events.indices[step, row]
        if centroids is not None and (centroids[at] >= 0).any():
            ranked.append(_largest(centroids[at], weights))
            continue
        here = tokens >= 0
        groups, scores = events.groups[step, row, here], events.scores[step, row, here]
        ranked.append(metrics.rank_groups(groups, scores, weights[tokens[here]]))
    return ranked


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
    shape: tuple[int, int], at: tuple[Array, Array], tokens: Mapping[str, Array]
) -> tuple[NDArray[np.int32], NDArray[np.uint8]]:
    """Of each step and column: the token drawn for it (attended before missed before others, then by weight), its look.

    `at`: step and position of the tokens shown, whose marks, looks and weights are `tokens`; `shape` [T, N].
    """
    rank, look = np.zeros(shape), np.full(shape, NOTHING, np.uint8)
    rank[at] = tokens["weights"] + 1 + (tokens["marks"] & ATTENDED > 0)
    missed = verdicts(tokens["marks"]) == metrics.Verdict.MISSED
    look[at] = np.where(missed, MISSED_LOOK + level(tokens["weights"]), tokens["looks"])
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
