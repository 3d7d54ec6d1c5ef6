"""The scene of any method: its scores of the tokens or groups, the cut, and the tokens in the text."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...trace.scene import Bars, Frame, Lit, Scene, refer
from ..base import Method
from .moment import Moment

MOST_BARS = 40  # that can be told apart in one panel


def selected_scene(method: Method[Any], moment: Moment) -> Scene:
    """The scene of a method that gives none of its own, from its `ranking`, or, without one, its selection alone."""
    ranking = method.ranking(moment.state, moment.queries, moment.keys)
    frames: list[Frame] = []
    if ranking is not None:
        scores = ranking.scores[0, 0].numpy()
        best = np.argsort(-np.nan_to_num(scores, nan=-np.inf), kind="stable")[:MOST_BARS]
        best = best[np.isfinite(scores[best])]
        if len(best):
            frames = _ranked(method, moment, scores, best)
    return Scene(title=method.title, frames=[*frames, chosen_frame("text", method, moment)])


def _ranked(method: Method[Any], moment: Moment, scores: NDArray[np.float32], best: NDArray[np.int64]) -> list[Frame]:
    taken = np.isin(best, moment.attended)
    bars = Bars(
        title="score of each token, the best first", kind="token", numbers=best, values=scores[best],
        labels=[moment.short(position) for position in best], strength=np.where(taken, 1.0, 0.35),
    )  # fmt: skip
    ranked = int(np.isfinite(scores).sum())
    return [
        Frame(
            chapter="scores",
            text=f"{method.title} gives {ranked:,} tokens a score. The best is {moment.quoted(best[0])}, with "
            f"{scores[best[0]]:.3g}.",
            panels=[bars],
        )
    ]


def chosen_frame(chapter: str, method: Method[Any], moment: Moment) -> Frame:
    """The frame with the attended tokens in the text, which all scenes end with."""
    selection, attended, oracle = moment.selection, moment.attended, moment.oracle
    groups = np.full(len(moment.tokens), -1)
    if selection.groups is not None:
        shown = selection.indices[0].flatten() >= 0
        groups[selection.indices[0].flatten()[shown].numpy()] = selection.groups[0].flatten()[shown].numpy()
    groups = np.where(moment.members >= 0, moment.members, groups)
    positions = np.union1d(attended, oracle)
    start = method.attended_start(moment.state)
    alone = np.isin(positions, attended)
    merged = ~alone & moment.merged_away[positions]
    sinks, last = int((attended < method.sinks).sum()), int((attended >= start).sum())
    return Frame(
        chapter=chapter, text=_attended_words(moment, sinks, last), result=_missed_words(moment, int(merged.sum())),
        lit=Lit(
            positions=positions, groups=groups[positions], weights=moment.weights[positions], attended=alone,
            merged=merged, oracle=oracle, kept=(positions < method.sinks) | (positions >= start),
        ),
    )  # fmt: skip


def _attended_words(moment: Moment, sinks: int, last: int) -> str:
    count = len(moment.attended)
    if not moment.centroids:
        return (
            f"The step attends to these {count:,} tokens: {sinks} sinks, the last {last:,}, and "
            f"{count - last - sinks:,} that were chosen."
        )
    merged = int((moment.members >= 0).sum())
    return (
        f"The step attends to {count:,} tokens alone, and to {_counted(moment.centroids, 'centroid')} that stand for "
        f"{merged:,} others."
    )


def _missed_words(moment: Moment, merged: int) -> str:
    count = len(moment.oracle)
    missed = count - int(np.isin(moment.oracle, moment.attended).sum()) - merged
    numbers = f"recall {moment.recall:.2f}, mass {moment.mass:.2f}."
    if not moment.centroids:
        return f"Of the {count:,} tokens with the most attention, it misses {missed:,}: {numbers}"
    kept = f"{merged:,} keep half their weight in a centroid"
    return f"Of the {count:,} with most attention, {kept}, {missed:,} are missed: {numbers}"


def _counted(count: int, noun: str) -> str:
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def cluster_object(kind: str, number: int) -> str:
    """A reference to a group in a sentence: its kind and number, such as "cluster 7"."""
    return refer(f"{kind} {number}", f"{kind}:{number}")
