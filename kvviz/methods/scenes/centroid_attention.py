"""Frames of merged centroids: their tokens, the attention to them, and what the merged tokens lose by it."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from ... import metrics
from ...trace.scene import Bars, Frame, Lit, Row, Rows
from ..centroidkv import CentroidKV
from .moment import Moment
from .selected import cluster_object

MOST, MEMBERS, LETTERS = 18, 24, 7  # bars in a panel; tokens of a centroid; letters of a token
Numbers = NDArray[np.int64]
Values = NDArray[np.float32]


def centroid_frames(method: CentroidKV, moment: Moment) -> Iterator[Frame]:
    """How many tokens the centroids stand for, and the tokens of one of them."""
    degree, own = _degree(moment), _own(moment)
    ranked = _with(own, np.argsort(-degree, kind="stable")[:MOST])
    singles = int((degree == 1).sum())
    yield Frame(
        chapter="centroids", panels=[_bars("tokens of each centroid, the largest first", ranked, degree)],
        text=f"{len(degree):,} centroids stand for {degree.sum():,} tokens: {singles:,} for a single one, the largest "
        f"for {degree.max():,}.",
        result="The keys and values of merged tokens are freed. This cannot be undone.", focus=[f"centroid:{own}"],
    )  # fmt: skip
    tokens = np.flatnonzero(moment.members == own)
    place = int(np.searchsorted(tokens, moment.token))
    low = max(min(place - MEMBERS // 2, len(tokens) - MEMBERS), 0)
    shown = tokens[low : low + MEMBERS]
    row = Row(
        kind="token", numbers=shown, labels=[moment.short(each, LETTERS) for each in shown],
        groups=np.full(len(shown), own), strength=np.full(len(shown), 0.45),
    )  # fmt: skip
    some = "" if len(shown) == len(tokens) else f", {len(shown)} of {len(tokens):,}"
    others = f"with {len(tokens) - 1:,} other tokens" if len(tokens) > 1 else "alone"
    named = f"{moment.quoted(moment.token)} is in {cluster_object('centroid', own)}, {others}."
    if moment.token not in tokens:
        these = f"these {len(tokens):,} tokens" if len(tokens) > 1 else "this token alone"
        named = f"{cluster_object('centroid', own).replace('centroid', 'Centroid', 1)} stands for {these}."
    yield Frame(
        chapter="centroids", panels=[Rows(title=f"tokens of centroid {own}{some}", rows=[row])],
        focus=[f"token:{moment.token}"], text=named,
        result="A step attends to the mean of their keys and values, no longer to one of them."
        if len(tokens) > 1 else "Its key and value are as they were.",
        lit=Lit(positions=tokens, groups=np.full(len(tokens), own)),
    )  # fmt: skip


def attention_frames(moment: Moment) -> Iterator[Frame]:
    """The logits of centroids without and with log n, their weights, and what one centroid gives its tokens."""
    degree, own, layer = _degree(moment), _own(moment), moment.state.layer
    keys = moment.selection.merged.keys[0, 0].float()  # type: ignore[union-attr]  # there are centroids
    plain: Values = layer.logits(moment.queries[0].float() @ keys.mT).mean(0).numpy()
    logits = plain + np.log(degree)
    heads = f", mean of {moment.group_size} query heads" if moment.group_size > 1 else ""
    best = int(plain.argmax())
    without = _bars(f"q·k̂, scaled{_start(plain)}", _with(own, np.argsort(-plain, kind="stable")[:MOST]), plain)
    yield Frame(
        chapter="attention", panels=[without], focus=[f"centroid:{own}"],
        text=f"The step has a query q. A centroid's logit is that of its mean key k̂: q·k̂, scaled{heads}.",
        result=f"The best is {cluster_object('centroid', best)}, with {signed(plain[best])}.",
    )  # fmt: skip
    largest = own if degree[own] > 1 else int(degree.argmax())
    numbers = _with(own, np.argsort(-logits, kind="stable")[:MOST])
    yield Frame(
        chapter="attention", panels=[without, _bars(f"with log n{_start(logits)}", numbers, logits)],
        focus=[f"centroid:{own}"],
        text="The softmax adds log n: n tokens with this same key would have n times the weight of one.",
        result=f"{cluster_object('centroid', largest).replace('centroid', 'Centroid', 1)} stands for "
        f"{degree[largest]:,}: {signed(plain[largest])} + log {degree[largest]:,} = {signed(logits[largest])}.",
    )  # fmt: skip
    yield _weights_frame(moment, own)
    if moment.members[moment.token] >= 0:
        yield _share_frame(moment, own)


def _weights_frame(moment: Moment, own: int) -> Frame:
    given, merged = moment.centroid_weights.mean(0), moment.members >= 0
    exact = np.bincount(moment.members[merged], moment.weights[merged], minlength=len(given)).astype(np.float32)
    numbers = _with(own, np.argsort(-exact, kind="stable")[:MOST])
    return Frame(
        chapter="attention", focus=[f"centroid:{own}"],
        panels=[
            _bars("exact weight of its tokens, in %", numbers, 100 * exact),
            _bars("weight of the centroid, in %", numbers, 100 * given),
        ],
        text="The softmax gives each centroid a weight. Beside it: the exact weight of its tokens, if none had merged.",
        result=f"All together had {_percent(exact.sum())}, and have {_percent(given.sum())}: a mean key scores lower "
        "than its best token's.",
    )  # fmt: skip


def _share_frame(moment: Moment, own: int) -> Frame:
    tokens = np.flatnonzero(moment.members == own)
    best = tokens[np.argsort(-moment.weights[tokens], kind="stable")[:MOST]]
    shown = _with(moment.token, best)
    weight, count = float(moment.centroid_weights.mean(0)[own]), len(tokens)
    exact, share = moment.weights[moment.token], float(moment.merged_share[moment.token])
    return Frame(
        chapter="attention", focus=[f"token:{moment.token}"],
        panels=[Bars(
            title=f"exact weights of the tokens of centroid {own}, in %", kind="token", numbers=shown,
            values=100 * moment.weights[shown], labels=[moment.short(each, LETTERS) for each in shown],
        )],
        text=f"{moment.quoted(moment.token)} had {_percent(exact)} of the attention. In "
        f"{cluster_object('centroid', own)}, {count:,} token{'s' if count > 1 else ''} share {_percent(weight)}: "
        f"{_percent(weight / count)} each.",
        result=f"It keeps {_percent(share)} of its weight. With less than {metrics.LEAST_SHARE:.0%}, a token of the "
        "oracle counts as missed.",
    )  # fmt: skip


def _own(moment: Moment) -> int:
    """The centroid of the followed token; if it is in none, the one with the largest weight."""
    own = int(moment.members[moment.token])
    return own if own >= 0 else int(moment.centroid_weights.mean(0).argmax())


def _degree(moment: Moment) -> Numbers:
    merged = moment.selection.merged
    assert merged is not None
    return np.asarray(merged.degree[0, 0].numpy(), np.int64)


def _with(number: int, numbers: Numbers) -> Numbers:
    """The numbers, with one that is not among them instead of the last."""
    return numbers if number in numbers else np.append(numbers[: MOST - 1], number)


def _bars(title: str, numbers: Numbers, values: NDArray[np.generic]) -> Bars:
    return Bars(
        title=title, kind="centroid", numbers=numbers, groups=numbers, values=values[numbers],
        labels=[f"#{number}" for number in numbers],
    )  # fmt: skip


def _percent(share: float) -> str:
    return f"{np.format_float_positional(100 * share, precision=2, fractional=False, trim='-')}%"


def signed(number: float) -> str:
    """A number with two decimals and a minus sign of its own."""
    return f"{number:.2f}".replace("-", "−")


def _start(values: Values) -> str:
    return " (bars start at the lowest)" if values.max() <= 0 else ""
