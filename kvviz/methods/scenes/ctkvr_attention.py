"""CTkvr's attention in two parts, merged by log-sum-exp, and the query that becomes a centroid."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from ...kernels import gather_attention
from ...trace.scene import Bars, Frame, Rows
from ..attention import merge_attention
from .ctkvr_step import CHIPS, Floats, Positions, Step

ORDINALS = ("1st", "2nd", "3rd", "4th")  # query heads whose parts are shown
ENDS = 8  # centroids at either end of the queue


@dataclass(frozen=True, eq=False)
class Part:
    """The attention of the step over some tokens: output [1, G, D] and log-sum-exp [1, G].

    `weights` are those of its tokens among themselves, of the first query head.
    """

    tokens: Positions
    output: torch.Tensor
    lse: torch.Tensor
    weights: Floats

    @classmethod
    def over(cls, step: Step, tokens: Positions) -> Part:
        """The part of these tokens."""
        moment, layer = step.moment, step.state.layer
        places = torch.from_numpy(tokens)[None, None]
        output, lse = gather_attention(
            moment.queries, moment.keys, moment.values, places, scale=layer.scale, softcap=layer.softcap
        )
        weights = step.state.exact_weights(moment.queries[:, :1], places, "each")[0, 0].numpy()
        return cls(tokens, output, lse, weights)


def attending(step: Step) -> Iterator[Frame]:
    """The frames of the two parts and of their merging."""
    if not len(step.host) or not len(step.device):
        return
    parts = {"device": Part.over(step, step.device), "host": Part.over(step, step.host)}
    device, host = parts.values()
    rows = [
        step.token_row(part.tokens[_best(step, part.tokens, part.weights)], f"{name}: {len(part.tokens):,}", place)
        for place, (name, part) in enumerate(parts.items())
    ]
    yield Frame(
        chapter="attention", panels=[Rows(title="the two parts, the tokens with the most weight first", rows=rows)],
        text=f"Sinks and recent window, {len(device.tokens):,} tokens, are on the device. The {len(host.tokens):,} "
        "retrieved ones stay where they are stored, on the host if the cache is offloaded.",
        result="Each side attends to its own tokens.",
    )  # fmt: skip
    _, total = merge_attention([device.output, host.output], [device.lse, host.lse])
    shares = [(part.lse - total).exp()[0].numpy() for part in (device, host)]
    sums = [part.lse[0].numpy() for part in (device, host)]
    of_head = " (1st query head)" if step.moment.group_size > 1 else ""
    yield Frame(
        chapter="attention", panels=[_part_bars("log-sum-exp of the logits", sums), _part_bars("share", shares)],
        text=f"Each side gives its output and the log-sum-exp of its logits{of_head}: device {sums[0][0]:.3f}, host "
        f"{sums[1][0]:.3f}.",
        result=f"Their shares are as e^{sums[0][0]:.3f} to e^{sums[1][0]:.3f}: {shares[0][0]:.3g} and "
        f"{shares[1][0]:.3g}. No keys or values move.",
    )  # fmt: skip
    yield _merged(step, (device, host), [float(share[0]) for share in shares], of_head)


def _best(step: Step, tokens: Positions, weights: Floats) -> Positions:
    """The places of the largest weights, the largest first, and that of the followed token if it is one of these."""
    order = np.argsort(-weights, kind="stable")
    followed = order[CHIPS:][tokens[order[CHIPS:]] == step.moment.token]
    return np.append(order[: CHIPS - len(followed)], followed)


def _part_bars(title: str, values: Sequence[Floats]) -> Bars:
    """Both parts' numbers for the first query heads."""
    heads = min(len(values[0]), len(ORDINALS))
    names = [
        part if heads == 1 else f"{ORDINALS[head]} head, {part}" for head in range(heads) for part in ("device", "host")
    ]
    return Bars(
        title=title, kind="part", numbers=np.arange(2 * heads), labels=names,
        groups=np.tile([0, 1], heads), values=np.stack(values, axis=1)[:heads].ravel(),
    )  # fmt: skip


def _merged(step: Step, parts: tuple[Part, Part], shares: list[float], of_head: str) -> Frame:
    """The frame of the merged weights beside those in the parts, with what one softmax over all tokens gives."""
    tokens = np.concatenate([part.tokens for part in parts])
    within = np.concatenate([part.weights for part in parts])
    merged = np.concatenate([part.weights * share for part, share in zip(parts, shares, strict=True)])
    exact = Part.over(step, tokens).weights
    best = _best(step, tokens, merged)
    groups = np.repeat([0, 1], [len(part.tokens) for part in parts])
    left, right = (
        Bars(
            title=title, kind="token", numbers=tokens[best], groups=groups[best], values=values[best],
            labels=step.texts(tokens[best]),
        ) for title, values in (("weight in its own part", within), ("weight in its part × the part's share", merged))
    )  # fmt: skip
    where = np.flatnonzero(tokens == step.moment.token)
    shown = int(where[0]) if len(where) else int(best[0])
    return Frame(
        chapter="attention", panels=[left, right], focus=[f"token:{step.moment.token}"],
        text=f"A merged weight is the weight in its part times the part's share. "
        f"{step.moment.quoted(int(tokens[shown]))}: {within[shown]:.3g} × {shares[groups[shown]]:.3g} = "
        f"{merged[shown]:.3g}{of_head}.",
        result=f"One softmax over all {len(tokens):,} gives the same: {exact[shown]:.3g}.",
    )  # fmt: skip


def updating(step: Step) -> Iterator[Frame]:
    """The frames in which the step's query takes the place of the oldest centroid, with its list."""
    if step.method.update is None or not step.state.newest:
        return
    order = np.sort(step.numbers)
    oldest, rest = int(order[0]), np.append(order[1:], step.own_number)
    ends = max(0, min(ENDS, len(rest) - ENDS))
    rows = [step.centroid_row(np.array([oldest]), "leaves", 0.3)]
    if ends:
        rows.append(step.centroid_row(rest[:ends], "now the oldest"))
    rows.append(step.centroid_row(rest[-ENDS:], "the newest"))
    yield Frame(
        chapter="update", panels=[Rows(title=f"{step.count:,} centroids, the oldest first", rows=rows)],
        text=f"The next query is likely to resemble this one. So {step.named(step.own_number)} becomes a centroid, in "
        f"the place of the oldest: {step.named(oldest)}.",
        focus=[f"centroid:{step.own_number}", f"centroid:{oldest}"],
    )  # fmt: skip
    recent, best = (part[0, 0].numpy() for part in step.state.newest[1:])
    recent, room = recent[: step.list_length], max(step.list_length - len(recent), 0)
    best = best[best >= 0][:room]
    ordered = best[np.argsort(-step.scores[best], kind="stable")]
    rows = [step.token_row(ordered[:CHIPS], f"best of union: {len(best):,}", step.own_number)]
    if len(recent):
        rows.insert(0, step.token_row(recent[:CHIPS], f"window: {len(recent):,}", step.own_number))
    token = step.moment.token
    quoted = step.moment.quoted(token)
    handed = f"has {quoted}" if token in recent or token in best else f"does not have {quoted}, so it may get lost"
    yield Frame(
        chapter="update", panels=[Rows(title=f"the new list, {len(recent) + len(best):,} entries", rows=rows)],
        text="Its list costs no search: the recent window, newest first, then the best of this step's union."
        if len(recent) else "Its list costs no search: it has the best of this step's union.",
        result=f"Later steps find only what lists hand on. This one {handed}.",
        focus=[f"token:{token}"],
    )  # fmt: skip
