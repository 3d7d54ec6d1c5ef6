"""CTkvr's choice: the probed lists, their union without duplicates, the exact scores, and the cut."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from ...trace.scene import Bars, Frame, Lit, Row, Rows
from .ctkvr_step import CHIPS, Positions, Step

MOST_LISTS = 6
MOST_SCORES = 16  # bars: with a label each
BESIDE_CUT = 8  # tokens on either side of it


def choosing(step: Step) -> Iterator[Frame]:
    """The frames from the probed lists to the retrieved tokens."""
    yield from _uniting(step)
    if len(step.union):
        yield from _scoring(step)


def _uniting(step: Step) -> Iterator[Frame]:
    moment, probes = step.moment, len(step.probed)
    slots = step.probe.slots[0, 0].numpy()
    lists = step.probe.lists[0, 0].numpy()
    total = lists.size
    shown, rows = slots[:MOST_LISTS], []
    for slot, entries in zip(shown, lists, strict=False):
        number = int(step.numbers[slot])
        rows.append(
            step.token_row(step.entries(slot)[:CHIPS], _counted(step, number, int((entries >= 0).sum())), number)
        )
    few = f", {len(shown)} of {probes} lists" if probes > len(shown) else ""
    holding = int((lists == moment.token).any(-1).sum())
    yield Frame(
        chapter="union", panels=[Rows(title=f"the nearest lists: up to {CHIPS} tokens of each{few}", rows=rows)],
        text=f"These are the lists of the {probes} nearest centroids: {total:,} entries. Many tokens are in several of "
        "them." if probes > 1 else f"This is the list of the nearest centroid: {total:,} entries.",
        result=_in_the_probed_lists(step, holding), focus=[f"token:{moment.token}"],
    )  # fmt: skip
    recent = int((lists >= step.method.recent_start(step.state)).sum())
    duplicates = int((lists >= 0).sum()) - recent - len(step.union)
    kept = [_new_tokens(step, place, slot) for place, slot in enumerate(shown)]
    left = f", and so do entries in the recent window ({recent:,})" if recent else ""
    yield Frame(
        chapter="union", panels=[Rows(title=f"what each list adds: up to {CHIPS} tokens{few}", rows=kept)],
        text=f"Each token counts once: duplicates fall away ({duplicates:,}){left}.",
        result=f"{len(step.union):,} tokens remain, a share of α = {step.state.deduplication[-1]:.3f}.",
        lit=Lit(positions=step.union, groups=step.probed[step.first_list]), focus=[f"token:{moment.token}"],
    )  # fmt: skip


def _new_tokens(step: Step, place: int, slot: int) -> Row:
    """The tokens that a probed list brings in, as no list before it has them."""
    number, added = int(step.numbers[slot]), step.union[step.first_list == place]
    entries = step.entries(slot)
    return step.token_row(entries[np.isin(entries, added)][:CHIPS], _counted(step, number, len(added), "+"), number)


def _counted(step: Step, number: int, count: int, sign: str = "") -> str:
    return f"{step.label(number)}: {sign}{count:,}"


def _scoring(step: Step) -> Iterator[Frame]:
    method, moment, ranked = step.method, step.moment, step.ranked
    best = ranked[:MOST_SCORES]
    bars = _bars(step, np.sort(best), "")
    if method.rerank:
        text = f"Now the keys are read: q·k of these {len(ranked):,} tokens, and a softmax among them{step.over_heads}."
        title = "exact weight"
    else:
        text = "Without rerank, no key is read: a token's score is its place in the lists, the earlier the better."
        title = "score by place"
    told = f"{moment.quoted(int(ranked[0]))} is the best: {_number(step, int(ranked[0]))}."
    yield Frame(
        chapter="scores", panels=[replace(bars, title=f"{title}: the best {len(best)}, in text order")],
        text=text, focus=[f"token:{moment.token}"],
    )  # fmt: skip
    sorted_bars = replace(_bars(step, best, ""), title=f"{title}: the best {len(best)} of {len(ranked):,}")
    yield Frame(
        chapter="scores", panels=[sorted_bars], text="Sort by score.", result=f"{told} {_rank(step)}".strip(),
        focus=[f"token:{moment.token}"],
    )  # fmt: skip
    yield _cut(step)


def _cut(step: Step) -> Frame:
    """The frame of the cut, with the tokens on either side of it."""
    method, moment, ranked = step.method, step.moment, step.ranked
    count, free = len(step.host), method.free_budget(step.state)
    budget = method.step_budget(step.state)
    start = max(0, min(count - BESIDE_CUT, len(ranked) - 2 * BESIDE_CUT))
    near = ranked[start : start + 2 * BESIDE_CUT]
    cut = float(count - start) if count < len(ranked) else None
    strength = np.where(np.isin(near, step.host), 1.0, 0.35)
    bars = replace(
        _bars(step, near, f"ranks {start + 1:,} to {start + len(near):,} of {len(ranked):,}"), cut=cut,
        strength=strength,
    )  # fmt: skip
    if method.attends == "union":
        text = f"All {count:,} tokens of the union are attended to, whatever the budget of {budget:,} leaves."
    else:
        text = f"Sinks and recent window leave ρ′ = {free:,} of the budget of {budget:,}: the best {free:,} are "
        text += "attended to."
    groups = step.probed[step.first_list[np.searchsorted(step.union, step.host)]]
    return Frame(
        chapter="cut", panels=[bars], text=text,
        result=_fate(step) if cut else f"The union has {len(ranked):,}: there is no cut. {_fate(step)}",
        lit=Lit(positions=step.host, groups=groups, attended=np.ones(count, bool)), focus=[f"token:{moment.token}"],
    )  # fmt: skip


def _bars(step: Step, tokens: Positions, title: str) -> Bars:
    groups = step.probed[step.first_list[np.searchsorted(step.union, tokens)]]
    return Bars(
        title=title, kind="token", numbers=tokens, groups=groups, values=step.scores[tokens], labels=step.texts(tokens)
    )


def _number(step: Step, token: int) -> str:
    return f"{step.scores[token]:.3g}"


def _needs_no_list(step: Step) -> str:
    """Why the followed token is attended to anyway; "" if only a list can find it."""
    token, quoted = step.moment.token, step.moment.quoted(step.moment.token)
    if token < step.method.sinks:
        return f"{quoted} is a sink: it is attended to anyway."
    if token >= step.method.attended_start(step.state):
        return f"{quoted} is in the recent window: it is attended to anyway."
    return ""


def _in_the_probed_lists(step: Step, holding: int) -> str:
    quoted = step.moment.quoted(step.moment.token)
    if always := _needs_no_list(step):
        return always
    if holding:
        return f"{quoted} is in {holding} of the {len(step.probed)} lists."
    others = step.holders(step.state)
    if others:
        hold = "other list holds" if others == 1 else "other lists hold"
        return f"{quoted} is in none of these: the step misses it, though {others:,} {hold} it."
    return f"{quoted} is in none of these, nor in any other: no query can find it now."


def _rank(step: Step) -> str:
    token = step.moment.token
    if token not in step.union or token == step.ranked[0]:
        return ""
    rank = int(np.flatnonzero(step.ranked == token)[0]) + 1
    return f"{step.moment.quoted(token)} has rank {rank:,}: {_number(step, token)}."


def _fate(step: Step) -> str:
    token, quoted = step.moment.token, step.moment.quoted(step.moment.token)
    if always := _needs_no_list(step):
        return always
    if token in step.host:
        return f"{quoted} is one of them."
    return (
        f"{quoted} is cut off." if token in step.union else f"{quoted} is not among them: it was in none of the lists."
    )
