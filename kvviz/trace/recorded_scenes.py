"""RecordedScenes: the scenes of a recording's decode steps, from what was recorded alone."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from .. import metrics
from ..errors import InvalidInputError
from .recording import Recording
from .scene import Scene
from .step_scene import Step
from .step_scores import step_scene

WITHOUT_STATE = (
    "From a recording: it holds what was attended to, and the exact attention, but no keys and no scores of the tokens "
    "that were left out. With a trace, all stages of the method are shown."
)


class RecordedScenes:
    """The scenes of a recording, as `Mechanism` has them of a trace: `layers`, `heads` and steps are the recorded ones.

    `prompt` is the number of tokens in the recording's prompt, `each` says whether heads are query heads.

    Raises InvalidInputError for a recording without layers or steps.
    """

    def __init__(self, recording: Recording) -> None:
        if not recording.layers or not recording.steps:
            got = f"{len(recording.layers)} layers and {recording.steps} steps"
            raise InvalidInputError("scenes of a recording", got, "a recording of some layers and steps")
        self.recording, self.layers = recording, list(recording.layers)
        self.prompt, self.queries = recording.prompt_length, recording.steps
        self.heads = recording.events[self.layers[0]].indices.shape[1]
        self.each = self.heads != recording.geometry.n_kv_heads

    def scene(self, layer: int, head: int, step: int, token: int | None = None) -> tuple[Scene, int]:
        """The Scene of a decode step of one head, and the position of the token that it follows.

        A `token` of None is the one of the prompt with the most attention, sinks and recent window left out.

        Raises InvalidInputError for a layer, head, step or token that there is not, and for attention that is not
        finite.
        """
        if layer not in self.layers:
            raise InvalidInputError("scene of a recording: layer", layer, f"one of {self.layers}")
        for name, value, count in (
            ("head", head, self.heads), ("step", step, self.queries), ("token", token or 0, self.prompt)
        ):  # fmt: skip
            if not 0 <= value < count:
                raise InvalidInputError(f"scene of a recording: {name}", value, f"0 to {count - 1}")
        made = self._step(layer, head, step)
        followed = self._strongest(made) if token is None else token
        return replace(step_scene(replace(made, token=followed)), about=WITHOUT_STATE), followed

    def _step(self, layer: int, row: int, step: int) -> Step:
        recording, visible = self.recording, self.recording.visible(step)
        weights = recording.attention(step, layer)[row]
        if not np.isfinite(weights).all():
            got = f"NaN or infinity in the attention of layer {layer}"
            raise InvalidInputError("show a recording", got, "finite weights: record again, in float32 or bfloat16")
        places, share = recording.indices(step, layer)[row], recording.merged_share(step, layer)[row]
        slots = places >= 0
        attended = places[slots]
        slot_groups, slot_scores = recording.groups(step, layer)[row][slots], recording.scores(step, layer)[row][slots]
        groups, scores = np.full(visible, -1), np.full(visible, np.nan)
        groups[attended], scores[attended] = slot_groups, slot_scores
        kept = (slot_groups < 0) & np.isnan(slot_scores)
        sinks = kept & (attended < int(recording.config.get("sinks", 0)))
        start = int(metrics.window_starts(metrics.member_mask(attended[kept], visible)[: self.prompt]))
        oracle, members = recording.oracle(step, layer)[row], recording.members(step, layer)
        centroids = None if members is None or not (members[row] >= 0).any() else members[row].astype(np.int64)
        return Step(
            title=recording.title, tokens=recording.tokens[:visible], token=0, budget=recording.budget,
            attended=attended, sinks=sinks, window=kept & ~sinks & (attended >= start),
            oracle=np.sort(oracle[oracle >= 0]), weights=weights, groups=groups, scores=scores,
            recall=float(recording.recall(step, layer)[row]), mass=float(recording.attention_mass(step, layer)[row]),
            group_name=recording.group_name, centroids=centroids,
            merged=recording.attended_centroids(step, layer, [row]),
            recalled=np.flatnonzero(share >= metrics.LEAST_SHARE) if centroids is not None else None, recorded=True,
        )  # fmt: skip

    def _strongest(self, step: Step) -> int:
        free = np.ones(self.prompt, bool)
        kept = step.attended[step.sinks | step.window]
        free[kept[kept < self.prompt]] = False
        return int(np.where(free, step.weights[: self.prompt], -1).argmax())
