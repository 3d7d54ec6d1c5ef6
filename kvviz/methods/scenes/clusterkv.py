"""ClusterKV's scene: k-means on the keys, the query against the centroids, the sorted sizes, and the cut."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from ...clustering.kmeans import Clusters, initial_positions, kmeans
from ...trace.scene import Bars, Dots, Frame, Lit, Plane, Ruler, Scene
from ..clusterkv import ClusterKV
from ..selection import group_scores
from .moment import Moment
from .scene_of import scene_of
from .selected import MOST_BARS, chosen_frame, cluster_object

ROUNDS = (2, 3, 5, 10, 20)  # rounds of k-means that are shown, beside the first and the last
Labels = NDArray[np.int64]


@scene_of.register
def scene(method: ClusterKV, moment: Moment) -> Scene:
    """The scene of a step, after at least one cluster was made."""
    made = _Made(method, moment)
    frames = [*_clustering(made), *_choice(made), chosen_frame("text", method, moment)]
    return Scene(
        title=method.title, frames=frames, members={"cluster": made.labels(made.last)},
        about="The map shows keys near one another that have similar directions (t-SNE): distances across it mean "
        "nothing. A centroid is drawn in the middle of its keys.",
    )  # fmt: skip


class _Made:
    """The prompt's clusters after each round of k-means, by the function and the keys that the method uses."""

    def __init__(self, method: ClusterKV, moment: Moment) -> None:
        self.method, self.moment = method, moment
        self.sinks = min(method.sinks, moment.prompt_length)
        self.end = max(self.sinks, moment.prompt_length - method.recent)
        self.count = min(method.prompt_clusters(moment.prompt_length), self.end - self.sinks)
        self.last = self.after(method.max_iter)

    def after(self, rounds: int) -> Clusters:
        """The clusters after at most so many rounds."""
        method, keys = self.method, self.moment.keys[:, :, self.sinks : self.end]
        return kmeans(keys, self.count, metric=method.metric, max_iter=rounds, seed=method.seed)

    def labels(self, clusters: Clusters) -> Labels:
        """The cluster of each token of the prompt, -1 for none."""
        labels = np.full(self.moment.prompt_length, -1)
        labels[self.sinks : self.end] = clusters.labels[0, 0].numpy()
        return labels


def _clustering(made: _Made) -> Iterator[Frame]:
    method, moment = made.method, made.moment
    none = np.full(moment.prompt_length, -1)
    initial = initial_positions(made.end - made.sinks, made.count, method.seed).numpy() + made.sinks
    yield Frame(
        chapter="keys", panels=[_map(none)], focus=[f"token:{moment.token}"],
        text=f"Each dot is the key of one token. {moment.quoted(moment.token)} is one of {moment.prompt_length:,}.",
        result=f"The first {made.sinks} tokens, the sinks, are never clustered: every step attends to them.",
    )  # fmt: skip
    yield Frame(
        chapter="clusters", panels=[_map(none, made.count, initial)],
        text=f"k-means begins with {made.count} keys, drawn at random, as centroids.",
        result=f"One per {moment.prompt_length / made.count:.0f} tokens: a step will compare its query with "
        f"{made.count} centroids, not with {moment.prompt_length:,} keys.",
    )  # fmt: skip
    first, last = made.after(1), int(made.last.n_iter)
    labels = made.labels(first)
    joined = labels[moment.token]
    where = f"{moment.quoted(moment.token)} joins {cluster_object('cluster', joined)}." if joined >= 0 else ""
    yield Frame(
        chapter="clusters", panels=[_map(labels, made.count, initial)], focus=[f"token:{moment.token}"],
        text="Each key joins the centroid that it is most similar to, by cosine." if method.metric == "cosine" else
        f"Each key joins the nearest centroid ({method.metric}).", result=where,
    )  # fmt: skip
    yield Frame(
        chapter="clusters", panels=[_map(labels, made.count)],
        text="Each centroid moves to the mean of its keys.",
        result="Now some keys are more similar to another centroid.",
    )  # fmt: skip
    for number in sorted({round for round in ROUNDS if round < last} | {last}):
        previous = made.labels(made.after(number - 1)) if number > 1 else none
        labels = made.labels(made.after(number))
        moved = int((labels != previous).sum())
        settled = number == last and bool(made.last.converged)
        changed = "1 key changes its cluster." if moved == 1 else f"{moved:,} keys change their cluster."
        told = "No key changes its cluster any more: done." if settled else changed
        yield Frame(
            chapter="clusters", panels=[_map(labels, made.count)], text=f"Round {number}: join, move.", result=told,
        )  # fmt: skip
    sizes = np.bincount(labels[labels >= 0], minlength=made.count)
    yield Frame(
        chapter="clusters", panels=[_map(labels, made.count)], focus=[f"token:{moment.token}"],
        text=f"The clusters have {sizes.min():,} to {sizes.max():,} tokens.",
        result="Every step reads the centroids, and only then the keys and values of the best clusters.",
    )  # fmt: skip


def _choice(made: _Made) -> Iterator[Frame]:
    method, moment, state = made.method, made.moment, made.moment.state
    scores = group_scores(moment.queries, state.centroids, method.group)[0, 0].numpy()
    sizes = state.sizes[0, 0].numpy()
    ranked = np.argsort(-scores, kind="stable")
    free = method.free_budget(state)
    total = np.cumsum(sizes[ranked])
    cut = int(np.searchsorted(total, free, side="left"))  # the cluster in which the budget ends
    labels = np.full(moment.prompt_length, -1)
    for number in range(len(sizes)):
        members = method.group_tokens(state, 0, number).numpy()
        labels[members[members < moment.prompt_length]] = number
    plane = _map(labels, made.count)
    shown = ranked[:MOST_BARS]
    start = "bars start at the lowest score" if scores.max() <= 0 else "bars start at 0"
    bars = Bars(
        title=f"q·centroid of each cluster ({start})", kind="cluster", numbers=np.sort(shown), groups=np.sort(shown),
        values=scores[np.sort(shown)], labels=[f"#{number}" for number in np.sort(shown)],
    )  # fmt: skip
    heads = f", {method.group} over {moment.group_size} query heads" if moment.group_size > 1 else ""
    best = cluster_object("cluster", int(ranked[0]))
    yield Frame(
        chapter="scores", panels=[plane, bars],
        text=f"A decode step has a query q. Its inner product with each centroid is the cluster's score{heads}.",
    )  # fmt: skip
    ordered = replace(
        bars, title="the best first", numbers=shown, groups=shown, values=scores[shown],
        labels=[f"#{number}" for number in shown],
    )  # fmt: skip
    yield Frame(
        chapter="scores", panels=[plane, ordered], text="Sort by score.",
        result=f"The best is {best}, with {scores[ranked[0]]:.1f}. The keys of its tokens are likely to fit q too.",
    )  # fmt: skip
    ruler = Ruler(
        title="tokens of the clusters, the best first", kind="cluster", numbers=shown, groups=shown,
        sizes=sizes[shown], labels=[f"#{number}" for number in shown],
    )  # fmt: skip
    yield Frame(
        chapter="sizes", panels=[ordered, ruler],
        text="Each cluster is as long here as it has tokens. The running total says how many tokens the first clusters "
        "have together.",
    )  # fmt: skip
    budget = method.step_budget(state)
    chosen = moment.attended[(moment.attended < moment.prompt_length) & (moment.attended >= made.sinks)]
    counted = budget - free - made.sinks  # of the tokens that are attended to because they are recent
    waiting = len(moment.attended) - budget
    more = f"New tokens that wait for a cluster come on top of the budget: {waiting:,} here." if waiting > 0 else ""
    last = int(ranked[min(cut, len(ranked) - 1)])
    groups = moment.selection.groups
    assert groups is not None, "a moment has details"
    taken = int((groups[0, 0] == last).sum())
    trimmed = taken < sizes[last]
    told = (
        f"It falls into {cluster_object('cluster', last)}: {taken} of its {sizes[last]} tokens are taken."
        if trimmed else "It falls between two clusters, or after all of them."
    )  # fmt: skip
    reached = np.where(np.arange(len(shown)) <= cut, 1.0, 0.3)
    ruler = replace(ruler, cut=free, strength=reached)
    yield Frame(
        chapter="cut", panels=[replace(ordered, cut=cut + (0.5 if trimmed else 1), strength=reached), ruler],
        text=f"The budget is {budget:,} tokens. {_left(made.sinks, counted, free)}: there is the cut.",
        result=told,
    )  # fmt: skip
    yield Frame(
        chapter="cut", panels=[_map(labels, made.count, chosen=chosen), ruler],
        text="These are the keys of the tokens that the step fetches. All other keys and values stay where they are.",
        result=more,
        lit=Lit(positions=chosen, groups=labels[chosen], attended=np.ones(len(chosen), bool)),
    )  # fmt: skip


def _left(sinks: int, recent: int, free: int) -> str:
    """What sinks and recent tokens leave of the budget, as a sentence without its end."""
    newest = "the newest token" if recent == 1 else f"the {recent:,} newest tokens"
    always = f"{sinks:,} sink{'' if sinks == 1 else 's'} and {newest}" if sinks else newest.capitalize()
    return f"{always} {'leave' if sinks or recent != 1 else 'leaves'} {free:,}"


def _map(
    labels: Labels, count: int = 0, at: NDArray[np.int64] | None = None, chosen: NDArray[np.int64] | None = None
) -> Plane:
    """The map of the prompt's keys in the hues of their clusters, with `count` centroids, at first at single keys."""
    positions = np.arange(len(labels))
    strength = None if chosen is None else np.where(np.isin(positions, chosen), 1.0, 0.12)
    dots = [Dots(kind="token", numbers=positions, groups=labels, strength=strength)]
    if count:
        numbers = np.arange(count)
        dots.append(Dots(kind="cluster", numbers=numbers, groups=numbers, at=at, shape="ring"))
    return Plane(title="keys of the prompt", dots=dots)
