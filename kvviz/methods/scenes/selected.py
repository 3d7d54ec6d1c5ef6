"""The scene of any method: where its budget goes, its scores of the tokens or groups, the cut, and the text."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from ...trace import step_scene
from ...trace.scene import Frame, Scene, refer
from ...trace.step_scene import Step
from ...trace.step_scores import step_scene as scene_of_step
from ..base import Method
from ..eviction import Eviction
from .moment import Moment

MOST_BARS = 40  # that can be told apart in one panel


def selected_scene(method: Method[Any], moment: Moment) -> Scene:
    """The scene of a method that gives none of its own, from its `ranking`, or, without one, its selection alone."""
    step = step_of(method, moment)
    scores, groups = _ranking(method, moment)
    if groups is not None:
        step = replace(step, groups=groups)
    return scene_of_step(replace(step, scores=scores, dropped=isinstance(method, Eviction)))


def step_of(method: Method[Any], moment: Moment) -> Step:
    """The step as the selection tells it: scores and groups of the attended tokens."""
    attended, selection = moment.attended, moment.selection
    sinks = attended < method.sinks
    return Step(
        title=method.title, tokens=moment.tokens, token=moment.token, budget=method.step_budget(moment.state),
        attended=attended, sinks=sinks, window=~sinks & (attended >= method.attended_start(moment.state)),
        oracle=moment.oracle, weights=moment.weights, recall=moment.recall, mass=moment.mass,
        scores=_of_attended(moment, selection.scores, np.nan), groups=_of_attended(moment, selection.groups, -1),
        group_name=method.group_name, score_name=method.score_name,
        merged=moment.centroids, centroids=moment.members if moment.centroids else None,
        recalled=np.flatnonzero(moment.merged_away) if moment.centroids else None,
    )  # fmt: skip


def chosen_frame(chapter: str, method: Method[Any], moment: Moment) -> Frame:
    """The frame with the attended tokens in the text, which all scenes end with."""
    return step_scene.chosen_frame(chapter, step_of(method, moment))


def cluster_object(kind: str, number: int) -> str:
    """A reference to a group in a sentence: its kind and number, such as "cluster 7"."""
    return refer(f"{kind} {number}", f"{kind}:{number}")


def _ranking(method: Method[Any], moment: Moment) -> tuple[NDArray[Any], NDArray[np.int64] | None]:
    """The scores of all tokens [N], as in `Step`, and their groups.

    Those of an eviction method are the scores at the end of the prompt, by which it dropped tokens for good.
    """
    state, prompt = moment.state, moment.prompt_length
    ranking = method.ranking(state, moment.queries, moment.keys)
    if ranking is not None:
        groups = None if ranking.groups is None else ranking.groups[0, 0].numpy()
        return ranking.scores[0, 0].float().numpy(), groups
    scores = _of_attended(moment, moment.selection.scores, np.nan)
    if isinstance(method, Eviction):
        keys = moment.keys[:, :, :prompt]
        whole = method.whole(state.layer, keys, moment.values[:, :, :prompt])
        at_end = method.rank(whole, moment.all_queries[:, :, :prompt], keys)[0, 0].numpy()
        between = slice(method.sinks, max(prompt - method.window(whole), method.sinks))
        scores[between], scores[prompt:] = at_end[between], np.nan
    return scores, None


def _of_attended(moment: Moment, values: Tensor | None, fill: float) -> NDArray[Any]:
    """The values of the selection's slots by position [N], `fill` for tokens that have none."""
    by_position = np.full(len(moment.tokens), fill)
    if values is not None:
        places = moment.selection.indices[0].flatten()
        by_position[places[places >= 0].numpy()] = values[0].flatten()[places >= 0].numpy()
    return by_position
