"""The scene of one decode step from arrays alone: where the budget went, the scores and the cut, and the text.

It serves methods without a scene of their own and recordings. `step_scores` has the frames with scores.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .scene import Bars, Frame, Lit, Row, Rows, Ruler, plain_words, refer

MOST_LETTERS = 14  # of a token in a sentence
MOST_BARS = 24  # that are high enough for a label each
LOG_RANGE = 50  # a wider range of positive values is drawn on a log scale
SINKS, CHOSEN, UNSCORED, CENTROIDS, WINDOW, UNUSED = range(6)  # parts of the budget
PARTS = ("sinks", "chosen by score", "kept without a score", "centroids", "recent window", "not used")


@dataclass(frozen=True, kw_only=True, eq=False)
class Step:
    """What one head attended to at one decode step that sees N tokens.

    `scores` are -inf for tokens that the method could not find, NaN for those that it does not rank. If the step is
    `recorded`, scores and groups of tokens that were not attended to are unknown: NaN and -1. `sinks` and `window` say
    which of the `attended` tokens are attended to without a choice.
    """

    title: str
    tokens: Sequence[str]
    token: int  # the position that is followed
    budget: int
    attended: NDArray[np.int64]  # positions, ascending
    sinks: NDArray[np.bool_]
    window: NDArray[np.bool_]
    oracle: NDArray[np.int64]
    weights: NDArray[Any]  # [N] exact
    recall: float
    mass: float
    scores: NDArray[Any]  # [N]
    groups: NDArray[np.int64]  # [N], -1 for none
    group_name: str = "group"
    score_name: str = "score"
    centroids: NDArray[np.int64] | None = None  # [N] of merged tokens, -1 for none; None if unknown or none merged
    merged: int = 0  # centroids that are attended to in addition
    recalled: NDArray[np.int64] | None = None  # positions that a centroid recalls
    recorded: bool = False
    dropped: bool = False  # the scores are those of the end of the prompt, when the others were dropped for good

    @cached_property
    def part_of(self) -> NDArray[np.int64]:
        """The part of the budget that each attended token belongs to."""
        scored = np.isfinite(self.scores[self.attended])
        rest = np.where(scored, CHOSEN, UNSCORED)
        return np.where(self.sinks, SINKS, np.where(self.window, WINDOW, rest))

    @property
    def count(self) -> int:
        """The number of attended entries of the cache: tokens, and centroids of merged ones."""
        return len(self.attended) + self.merged

    @property
    def kind(self) -> str:
        """The kind of the groups as objects: the last word of their name."""
        return re.sub("[^a-z]", "", self.group_name.lower().split(" ")[-1]) or "group"

    @cached_property
    def groups_or_centroids(self) -> NDArray[np.int64]:
        """The centroid that stands for each token, or else the token's group; -1 for neither."""
        return self.groups if self.centroids is None else np.where(self.centroids >= 0, self.centroids, self.groups)

    @property
    def chosen(self) -> NDArray[np.int64]:
        """The positions that were chosen by score."""
        chosen: NDArray[np.int64] = self.attended[self.part_of == CHOSEN]
        return chosen

    def members(self) -> dict[str, NDArray[np.int64]]:
        """The part and the group of each token of the prompt, for `Scene.members`."""
        parts = np.full(len(self.tokens), -1)
        parts[self.attended] = self.part_of
        groups = self.groups_or_centroids
        return {"part": parts, self.kind: groups} if (groups >= 0).any() else {"part": parts}

    def quoted(self, position: int) -> str:
        """A token as the words of a sentence that refer to it."""
        return quoted(self.tokens, position)

    def labels(self, positions: Sequence[int] | NDArray[Any]) -> list[str]:
        """The shortened texts of tokens."""
        return [short(self.tokens, position) for position in positions]


def quoted(tokens: Sequence[str], position: int) -> str:
    """A token of the text in quotation marks, shortened, as the words of a sentence that refer to it."""
    return refer(f"“{short(tokens, position)}”", f"token:{position}")


def short(tokens: Sequence[str], position: int, letters: int = MOST_LETTERS) -> str:
    """The text of a token, shortened to so many letters, with line breaks made visible."""
    text = tokens[position].replace("\n", "↵").strip() or "␣"
    return plain_words(text if len(text) <= letters else f"{text[: letters - 1]}…")


def scaled(title: str, values: NDArray[Any]) -> dict[str, Any]:
    """Title, values and scale of bars: a log scale, which the title names, if small values would not be seen."""
    log = bool(len(values)) and 0 < values.min() * LOG_RANGE < values.max()
    return {"title": f"{title}, log scale" if log else title, "values": values, "log": log}


def budget_frame(step: Step) -> Frame:
    """Where the budget goes: sinks, what is chosen, and the recent window, end to end."""
    sizes = np.bincount(step.part_of, minlength=len(PARTS))
    sizes[CENTROIDS] = step.merged
    # Recordings hold the method's budget, not that of the layer, so that what is left of it says nothing.
    sizes[UNUSED] = 0 if step.recorded else max(step.budget - step.count, 0)
    numbers = np.flatnonzero(sizes)
    ruler = Ruler(
        title="the budget in tokens", kind="part", numbers=numbers, groups=numbers, sizes=sizes[numbers],
        labels=[PARTS[number] for number in numbers], cut=step.budget if sizes.sum() >= step.budget else None,
    )  # fmt: skip
    chips = Row(
        kind="part", numbers=numbers, groups=numbers, labels=[f"{PARTS[part]}: {sizes[part]:,}" for part in numbers]
    )
    always = _always(step)
    kept = f" It always attends to {' and '.join(always)}." if always else ""
    rest = {
        CHOSEN: f"{sizes[CHOSEN]:,} {_were(sizes[CHOSEN])} chosen {refer('by score', f'part:{CHOSEN}')}",
        UNSCORED: f"{sizes[UNSCORED]:,} are kept without a score", CENTROIDS: f"{step.merged:,} are centroids",
    }  # fmt: skip
    told = [words for part, words in rest.items() if sizes[part]]
    if sizes[UNUSED]:
        told.append(f"{sizes[UNUSED]:,} are {refer('not used', f'part:{UNUSED}')}")
    if step.count > step.budget:
        told.append("generated tokens may come on top")
    shown = step.attended[step.sinks | step.window]
    return Frame(
        chapter="budget", panels=[ruler, Rows(title="", rows=[chips])],
        text=f"The budget is {step.budget:,} tokens. This step attends to {step.count:,}.{kept}",
        result=f"{'; '.join(told)}." if told else "Nothing is chosen by score.",
        lit=Lit(
            positions=shown, groups=np.full(len(shown), -1), attended=np.ones(len(shown), bool),
            kept=np.ones(len(shown), bool),
        ),
    )  # fmt: skip


def _always(step: Step) -> list[str]:
    """What is attended to without a choice, in words."""
    sinks, last = int(step.sinks.sum()), int(step.window.sum())
    words = [f"{sinks:,} sink{'s' * (sinks != 1)}"] if sinks else []
    return [*words, "the newest token" if last == 1 else f"the last {last:,} tokens"] if last else words


def _were(count: int) -> str:
    return "was" if count == 1 else "were"


def exact_frame(step: Step) -> Frame:
    """The tokens outside sinks and recent window with the most attention: which are attended to, and their scores."""
    ours = np.ones(len(step.weights), bool)
    ours[step.attended[step.sinks | step.window]] = False
    if step.recorded and not ours.any():
        ours[:] = True
    best = np.argsort(-np.where(ours, step.weights, -1), kind="stable")[: min(MOST_BARS, int(ours.sum()))]
    found = np.isin(best, step.attended)
    if step.recalled is not None:
        found |= np.isin(best, step.recalled)
    bars = Bars(
        **scaled("exact attention (✗: missed)", step.weights[best]), kind="token", numbers=best,
        groups=step.groups[best], strength=np.where(found, 1.0, 0.35),
        labels=[label if there else f"✗ {label}" for label, there in zip(step.labels(best), found, strict=True)],
    )  # fmt: skip
    missed = best[~found]
    return Frame(
        chapter="exact attention", panels=[bars, *_scores_beside(step, best)],
        text=f"The largest {len(best)} exact attention weights outside sinks and window, mean over the query heads.",
        result=_missed(step, missed, len(best)),
    )  # fmt: skip


def _scores_beside(step: Step, best: NDArray[np.int64]) -> list[Bars]:
    shown = best[np.isfinite(step.scores[best])]
    if not len(shown):
        return []
    return [Bars(
        **scaled("their scores", step.scores[shown]), kind="token", numbers=shown, groups=step.groups[shown],
        labels=step.labels(shown),
        strength=np.where(np.isin(shown, step.attended), 1.0, 0.35),
    )]  # fmt: skip


def _missed(step: Step, missed: NDArray[np.int64], count: int) -> str:
    if not len(missed):
        return "The step attends to all of them."
    worst = int(missed[0])
    score = step.scores[worst]
    if np.isfinite(score):
        rank = 1 + int((step.scores[np.isfinite(step.scores)] > score).sum())
        why = f"has rank {rank:,} by score"
    else:
        why = "was never found" if np.isneginf(score) else "is not attended to"
    return f"{len(missed)} of them {'is' if len(missed) == 1 else 'are'} missed: {step.quoted(worst)} {why}."


def chosen_frame(chapter: str, step: Step) -> Frame:
    """The frame with the attended tokens in the text, which all scenes end with."""
    positions = np.union1d(step.attended, step.oracle)
    alone = np.isin(positions, step.attended)
    merged = ~alone & np.isin(positions, [] if step.recalled is None else step.recalled)
    groups = step.groups_or_centroids
    return Frame(
        chapter=chapter, text=_attended_words(step), result=_missed_words(step, int(merged.sum())),
        lit=Lit(
            positions=positions, groups=groups[positions], weights=step.weights[positions], attended=alone,
            merged=merged, oracle=step.oracle, kept=np.isin(positions, step.attended[step.sinks | step.window]),
        ),
    )  # fmt: skip


def _attended_words(step: Step) -> str:
    count = len(step.attended)
    if step.merged:
        others = "" if step.centroids is None else f" that stand for {int((step.centroids >= 0).sum()):,} others"
        centroids = f"{step.merged:,} centroid{'' if step.merged == 1 else 's'}"
        return f"The step attends to {count:,} tokens alone, and to {centroids}{others}."
    chosen = int((~step.sinks & ~step.window).sum())
    parts = [*_always(step), *([f"{chosen:,} that {_were(chosen)} chosen"] if chosen else [])]
    return f"The step attends to these {count:,} tokens: {_listed(parts)}."


def _listed(parts: Sequence[str]) -> str:
    return f"{', '.join(parts[:-1])} and {parts[-1]}" if len(parts) > 1 else "".join(parts)


def _missed_words(step: Step, merged: int) -> str:
    count = len(step.oracle)
    missed = count - int(np.isin(step.oracle, step.attended).sum()) - merged
    numbers = f"recall {step.recall:.2f}, mass {step.mass:.2f}."
    if not step.merged:
        return f"Of the {count:,} tokens with the most attention, it misses {missed:,}: {numbers}"
    kept = f"{merged:,} keep half their weight in a centroid"
    return f"Of the {count:,} with most attention, {kept}, {missed:,} are missed: {numbers}"
