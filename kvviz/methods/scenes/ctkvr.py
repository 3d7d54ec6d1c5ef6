"""CTkvr's scene: query centroids and their lists, the nearest to the query, the union, exact scores, and two parts."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from ...trace.scene import Bars, Frame, Lit, Rows, Scene
from ..ctkvr import CTkvr
from .ctkvr_attention import attending, updating
from .ctkvr_choice import choosing
from .ctkvr_step import CHIPS, Positions, Step
from .moment import Moment
from .scene_of import scene_of
from .selected import chosen_frame

MOST_COSINES = 16  # bars: with a label each
LISTS = 4  # shown of the prompt's
QUERIES_CHOSEN = {
    "final": "its last {} queries", "init": "its first {} queries",
    "random": "{} of its queries, drawn at random,", "equidistant": "{} of its queries, at equal distances,",
}  # fmt: skip


@scene_of.register
def scene(method: CTkvr, moment: Moment) -> Scene:
    """The scene of a step."""
    step = Step(method, moment)
    frames = [
        *_index(step), *_nearest(step), *choosing(step), *attending(step), *updating(step),
        chosen_frame("text", method, moment),
    ]  # fmt: skip
    about = "A centroid is named after the token whose query it is, with that token's position. "
    about += "Lists begin with the tokens that their centroid attends to most; those of decode steps begin with the "
    about += "tokens that were the newest then, which are left out here while they are in the recent window."
    if method.update is None:
        about += " The update is off: the centroids stay those of the prompt."
    return Scene(title=method.title, frames=frames, members={"centroid": step.best_holder}, about=about)


def _index(step: Step) -> Iterator[Frame]:
    """The prompt's centroids, the list of one of them, and several lists."""
    method, moment, positions = step.method, step.moment, step.prompt_positions
    numbers = np.arange(step.count)
    rows = [step.centroid_row(numbers[-CHIPS:], f"the last of {step.count:,}")]
    if step.count > CHIPS:
        rows.insert(0, step.centroid_row(numbers[: min(CHIPS, step.count - CHIPS)], "the first"))
    followed = step.token_row(np.array([moment.token]), "followed")
    yield Frame(
        chapter="centroids", panels=[Rows(title="centroids: queries of the prompt", rows=[*rows, followed])],
        text=f"After the prompt, CTkvr keeps {QUERIES_CHOSEN[method.choice].format(f'{step.count:,}')} as centroids. "
        "Queries of similar direction attend to similar keys, so a step begins with the keys of similar queries. Will "
        f"it find {moment.quoted(moment.token)}?",
        lit=Lit(positions=positions, groups=numbers),
    )  # fmt: skip
    example = _example(step)
    listed = step.index.lists[0, 0].numpy().astype(np.int64)
    entries = listed[example][listed[example] >= 0]
    best = entries[:CHIPS]
    left_out = "Sinks and recent window are left out: they are attended to anyway."
    bars = Bars(
        title=f"weight{step.over_heads}: {len(best)} of {len(entries):,}", kind="token", numbers=best,
        groups=np.full(len(best), example), values=step.list_weights(example, best), labels=step.texts(best),
    )  # fmt: skip
    yield Frame(
        chapter="lists", panels=[bars, Rows(title="", rows=[step.centroid_row(np.array([example]), "centroid")])],
        text=f"Each centroid lists the ρ = {step.list_length:,} keys that it attends to most. This is the list of "
        f"{step.named(example)}.", result=left_out if method.sinks and method.recent else "",
        lit=Lit(positions=np.sort(entries), groups=np.full(len(entries), example)),
    )  # fmt: skip
    others = np.unique(np.append(np.linspace(0, step.count - 1, LISTS).astype(int), example))
    rows = [
        step.token_row(listed[number][listed[number] >= 0][:CHIPS], step.label(number), number) for number in others
    ]
    yield Frame(
        chapter="lists", panels=[Rows(title=f"lists of {len(others)} centroids, the best tokens first", rows=rows)],
        text=f"There are {step.count:,} such lists. A token may be in many of them, or in none.",
        result=_in_the_prompts_lists(step), focus=[f"token:{moment.token}"],
    )  # fmt: skip


def _nearest(step: Step) -> Iterator[Frame]:
    """The cosines, sorted and cut, and what the nearest list has of the tokens that the query attends to most."""
    probes, slots = len(step.probed), step.probe.slots[0, 0].numpy()
    best = np.argsort(-step.cosines, kind="stable")
    best = np.concatenate([slots, best[~np.isin(best, slots)]])  # of equal cosines, the method takes any
    shown = best[:MOST_COSINES]
    own = Rows(title="", rows=[step.centroid_row(np.array([step.own_number]), "the step's query")])
    by_age = shown[np.argsort(step.numbers[shown])]
    newer = int((step.numbers >= step.count).sum())
    text = f"A step has a query q. Its cosine with each of the {step.count:,} centroids is computed{step.over_heads}."
    yield Frame(
        chapter="nearest", panels=[_cosine_bars(step, by_age, "cosine with q, the oldest centroid first"), own],
        text=text, result=f"Queries of earlier steps are among them already: {newer:,}." if newer else "",
    )  # fmt: skip
    first = int(step.probed[0])
    away = step.position(step.own_number) - step.position(first)
    near = np.append(step.probed, step.own_number)
    where = np.array([step.position(int(number)) for number in near])
    order = np.argsort(where)
    cut = float(probes) if probes < len(shown) else None
    yield Frame(
        chapter="nearest", panels=[_cosine_bars(step, shown, "the nearest first", cut), own],
        text=f"Sort by cosine. The step reads only the lists of the C′ = {probes} nearest.",
        result=f"The nearest is {step.named(first)}, {away:,} {'token' if away == 1 else 'tokens'} ago: "
        f"{step.cosines[best[0]]:.3f}.", lit=Lit(positions=where[order], groups=near[order]),
    )  # fmt: skip
    yield _checked(step)


def _checked(step: Step) -> Frame:
    """The frame with the tokens that the query attends to most, and which of the nearest lists have them."""
    start, end = step.method.sinks, step.method.recent_start(step.state)
    exact = step.ranking.alone[0, 0, start:end].numpy()
    wanted = np.argsort(-exact, kind="stable")[: max(len(step.host), 1)] + start
    shown = wanted[:CHIPS]
    rows = [step.token_row(shown, "q", step.own_number)]
    slots = step.probe.slots[0, 0, :LISTS].tolist()
    held = [np.isin(shown, step.state.lists[0, 0, slot].numpy()) for slot in slots]
    for slot, found in zip(slots, held, strict=True):
        number = int(step.numbers[slot])
        row = step.token_row(shown, step.label(number), number)
        rows.append(replace(row, strength=np.where(found, 1.0, 0.0)))
    together = f" Of the {len(wanted):,} best, {_some(len(step.probed))} {np.isin(wanted, step.union).sum():,}."
    return Frame(
        chapter="nearest",
        panels=[Rows(title="what q attends to most; filled: in the list", rows=rows)],
        text="Does it work? Here are the tokens that q attends to most, without sinks and recent window. A step never "
        "computes this.",
        result=f"The nearest list has {held[0].sum()} of these {len(shown)}.{together if len(wanted) > CHIPS else ''}",
    )  # fmt: skip


def _some(probes: int) -> str:
    return "that list has" if probes == 1 else f"the {probes} lists have"


def _cosine_bars(step: Step, slots: Positions, title: str, cut: float | None = None) -> Bars:
    numbers = step.numbers[slots]
    title += f" ({len(slots)} of {step.count:,})" if len(slots) < step.count else ""
    near = np.isin(numbers, step.probed)
    return Bars(
        title=title, kind="centroid", numbers=numbers, groups=numbers, values=step.cosines[slots], cut=cut,
        labels=[step.label(int(number)) for number in numbers],
        strength=None if cut is None else np.where(near, 1.0, 0.35),
    )  # fmt: skip


def _example(step: Step) -> int:
    """The number of the prompt's centroid whose list is shown: the nearest of those that are still there."""
    of_prompt = step.numbers < step.count
    if not of_prompt.any():
        return step.count - 1
    return int(step.numbers[np.where(of_prompt, step.cosines, -np.inf).argmax()])


def _in_the_prompts_lists(step: Step) -> str:
    moment, method = step.moment, step.method
    token, count = moment.quoted(moment.token), step.holders(step.index)
    if moment.token < method.sinks:
        return f"{token} is a sink: it needs no list."
    if moment.token >= moment.prompt_length - method.recent:
        return f"{token} is in none, since it was in the recent window; lists made later may hold it."
    if not count:
        return f"{token} is in none of them: no step could find it through these lists."
    return f"{token} is in {count:,} of the {step.count:,}."
