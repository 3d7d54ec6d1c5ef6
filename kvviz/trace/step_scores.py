"""Frames with the scores of one decode step: of its groups, or of single tokens, sorted, with the cut."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .scene import Bars, Frame, Ruler, Scene, refer
from .step_scene import MOST_BARS, Step, budget_frame, chosen_frame, exact_frame, scaled

MOST_GROUPS = 40  # that can be told apart, without labels


def step_scene(step: Step) -> Scene:
    """The scene of a step: the budget, the scores if any are known, the exact attention, and the text."""
    frames = [budget_frame(step)]
    ranked = np.isfinite(step.scores)
    if (step.groups[ranked] >= 0).any():
        frames += _group_frames(step)
    elif ranked.any():
        frames += _token_frames(step)
    if step.centroids is not None:
        frames.append(_centroid_frame(step))
    frames += [exact_frame(step), chosen_frame("text", step)]
    return Scene(title=step.title, frames=frames, members=step.members())


def _token_frames(step: Step) -> Iterator[Frame]:
    ranked = np.flatnonzero(np.isfinite(step.scores))
    ranked = ranked[np.argsort(-step.scores[ranked], kind="stable")]
    taken = np.isin(ranked, step.chosen)
    count = int(taken.sum())
    sharp = bool(taken[:count].all()) and 0 < count < len(ranked)  # the best are taken, and no others
    places = sampled(len(ranked), count if sharp else 0)
    shown = ranked[places]
    bars = _token_bars(step, np.sort(shown), f"score of {len(shown)} tokens, in their order")
    never = int(np.isneginf(step.scores).sum())
    known = (
        f"The recording holds the score of the {len(ranked):,} tokens that were chosen by it." if step.recorded else
        f"At the end of the prompt, {step.title} gave {len(ranked):,} tokens a score, {step.score_name}, and dropped "
        "the worst for good." if step.dropped else
        f"{step.title} gives {len(ranked):,} tokens a score: {step.score_name}."
    )  # fmt: skip
    spread = " Here are some, from the best to beyond the cut." if sharp else ""
    yield Frame(
        chapter="scores", panels=[bars], focus=[f"token:{step.token}"], text=known + spread,
        result=f"{never:,} tokens were never found: they have none." if never else "",
    )  # fmt: skip
    cut = int((places < count).sum()) if sharp else None
    ordered = replace(_token_bars(step, shown, "the same tokens, the best first"), cut=cut)
    told = f"The best is {step.quoted(ranked[0])}, with {value(step.scores[ranked[0]])}."
    if sharp:
        last, first = ranked[count - 1], ranked[count]
        told = (
            f"The cut is after {count:,}: {step.quoted(last)} with {value(step.scores[last])} is the last one chosen, "
            f"{step.quoted(first)} with {value(step.scores[first])} is not."
        )  # fmt: skip
    yield Frame(
        chapter="scores", panels=[ordered], focus=[f"token:{step.token}"], text="Sort by score.", result=told,
    )  # fmt: skip


def sampled(count: int, cut: int) -> NDArray[np.int64]:
    """Ranks at even distances, the first among them, up to twice the cut, and those on both sides of the cut."""
    last = min(count, 2 * cut) if cut else count
    places = np.linspace(0, last - 1, min(last, MOST_BARS)).astype(np.int64)
    return np.unique(np.append(places, [cut - 1, cut] if cut else []).astype(np.int64))


def value(number: float) -> str:
    """A score in a sentence."""
    return f"{number:.3g}".replace("-", "−")


def _token_bars(step: Step, shown: NDArray[np.int64], title: str) -> Bars:
    return Bars(
        **scaled(title, step.scores[shown]), kind="token", numbers=shown, labels=step.labels(shown),
        strength=np.where(np.isin(shown, step.attended), 1.0, 0.35),
    )  # fmt: skip


@dataclass(frozen=True)
class _Groups:
    """The ranked groups, the best first: numbers, scores, sizes, attended tokens, and exact attention of each."""

    numbers: NDArray[np.int64]
    scores: NDArray[Any]
    sizes: NDArray[np.int64]
    taken: NDArray[np.int64]
    masses: NDArray[Any]

    @classmethod
    def of(cls, step: Step) -> _Groups:
        ranked = np.flatnonzero((step.groups >= 0) & np.isfinite(step.scores))
        numbers, firsts, member, sizes = np.unique(
            step.groups[ranked], return_index=True, return_inverse=True, return_counts=True
        )
        scores = step.scores[ranked][firsts]
        taken = np.bincount(member, np.isin(ranked, step.attended), len(numbers)).astype(np.int64)
        masses = np.bincount(member, step.weights[ranked], len(numbers))
        order = np.argsort(-scores, kind="stable")
        return cls(numbers[order], scores[order], sizes[order], taken[order], masses[order])


def _group_frames(step: Step) -> Iterator[Frame]:
    groups, name = _Groups.of(step), step.group_name
    count = int((groups.taken > 0).sum())
    most = MOST_BARS if count < MOST_BARS - 2 else MOST_GROUPS  # so that the cut is among them, if it can be
    shown = min(len(groups.numbers), most)
    numbers = groups.numbers[:shown]
    strength = np.where(groups.taken[:shown] > 0, 1.0, 0.35)
    labels = [f"#{number}" for number in numbers]
    ordered = Bars(
        **scaled("score, the best first", groups.scores[:shown]), kind=step.kind, numbers=numbers, groups=numbers,
        labels=labels,
    )  # fmt: skip
    by_number = np.argsort(numbers)
    known = (
        f"The recording holds the score of the {len(groups.numbers):,} {name}s that were recalled."
        if step.recorded else
        f"{step.title} ranks {len(groups.numbers):,} {name}s by score: {step.score_name}."
    )  # fmt: skip
    yield Frame(
        chapter="scores", text=known, result=f"Here are the best {shown}." if shown < len(groups.numbers) else "",
        panels=[replace(
            ordered, **scaled(f"score of each {name}, by number", groups.scores[:shown][by_number]),
            numbers=numbers[by_number], groups=numbers[by_number], labels=[labels[place] for place in by_number],
        )],
    )  # fmt: skip
    yield Frame(
        chapter="scores", panels=[ordered], text="Sort by score.",
        result=f"The best is {_named(step, numbers[0])}, with {value(groups.scores[0])}.",
    )  # fmt: skip
    ordered = replace(ordered, strength=strength)
    yield _cut_frame(step, groups, ordered, count)
    exact = replace(ordered, **scaled(f"exact attention on each {name}", groups.masses[:shown]))
    strongest = int(groups.masses.argmax())
    yield Frame(
        chapter="exact attention", panels=[ordered, exact],
        text=f"Beside the score: the exact attention on the tokens of each {'recalled ' * step.recorded}{name}.",
        result=f"{_named(step, groups.numbers[strongest], upper=True)} has the most, "
        f"{value(groups.masses[strongest])}, and rank {strongest + 1} by score.",
    )  # fmt: skip


def _cut_frame(step: Step, groups: _Groups, ordered: Bars, count: int) -> Frame:
    """The groups' sizes end to end; the cut is where the tokens that the budget leaves for them end."""
    shown, total = len(ordered.numbers), int(groups.taken.sum())
    first = count > 0 and bool((groups.taken[:count] > 0).all())  # the best are taken, and no others
    sharp = first and count < shown
    sizes = groups.taken if step.recorded else groups.sizes
    ruler = Ruler(
        title=f"tokens of the {step.group_name}s, the best first", kind=step.kind, numbers=ordered.numbers,
        groups=ordered.groups, sizes=sizes[:shown], labels=ordered.labels, strength=ordered.strength,
        cut=total if sharp else None,
    )  # fmt: skip
    last = count - 1
    trimmed = first and groups.taken[last] < groups.sizes[last]
    told = "They are taken whole." if not trimmed else (
        f"The last one, {_named(step, groups.numbers[last])}, is trimmed: {groups.taken[last]} of its "
        f"{groups.sizes[last]} tokens are taken."
    )  # fmt: skip
    if step.recorded:
        told = "If the last one was trimmed, its other tokens were not recorded."
    return Frame(
        chapter="cut", panels=[replace(ordered, cut=count - 0.5 * trimmed if sharp else None), ruler],
        text=f"{count:,} {step.group_name}s are recalled, the best first: {total:,} tokens. Each is drawn as long "
        "as it has tokens.",
        result=told,
    )  # fmt: skip


def _named(step: Step, number: int, *, upper: bool = False) -> str:
    words = f"{step.group_name} {number}"
    return refer(words[:1].upper() + words[1:] if upper else words, f"{step.kind}:{number}")


def _centroid_frame(step: Step) -> Frame:
    """The attended centroids by the exact attention on their tokens."""
    assert step.centroids is not None
    merged = np.flatnonzero(step.centroids >= 0)
    masses = np.bincount(step.centroids[merged], step.weights[merged])
    sizes = np.bincount(step.centroids[merged])
    count = int((sizes > 0).sum())
    best = np.argsort(np.where(sizes > 0, -masses, np.inf), kind="stable")[: min(MOST_BARS, count)]
    bars = Bars(
        **scaled("exact attention on the tokens of each centroid", masses[best]), kind=step.kind, numbers=best,
        groups=best, labels=[f"#{number}, for {sizes[number]}" for number in best],
    )  # fmt: skip
    told = (
        f"{count:,} centroids stand in for {len(merged):,} tokens that are not attended to alone."
        if np.isfinite(step.scores).any() else
        f"{len(merged):,} tokens were merged into {count:,} centroids. All of these are attended to: none is chosen by "
        "score."
    )  # fmt: skip
    return Frame(
        chapter="centroids", panels=[bars], text=told,
        result=f"The one with the most attention, {_named(step, best[0])}, stands for {sizes[best[0]]:,} tokens.",
    )  # fmt: skip
