"""A decode step in PQCache's scene: tables of q·codeword, the look-ups, the scores, their order and the cut."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import torch
from kvviz_kernels.selection import part_tables
from numpy.typing import NDArray

from ...trace.scene import Bars, Frame, Link, Row, Rows, refer
from ..selection import group_scores
from .pqcache_codes import Coded, Floats, added, codewords, rows_of, signed

SOME = 12  # tokens of which a sum is shown
BEST = 20  # tokens that are shown in order, and ranks around the cut


class Scored:
    """The scores of a step. `head` is the query head whose tables are shown, that with the largest sum or weight.

    `shared` says that the query heads share one table, that of their mean or sum.
    """

    def __init__(self, coded: Coded) -> None:
        self.coded = coded
        method, moment = coded.method, coded.moment
        at = coded.example - coded.start
        self.ranking = method.ranking(moment.state, moment.queries, moment.keys)
        middle = slice(coded.start, coded.end)
        self.scores: Floats = self.ranking.scores[0, 0, middle].numpy()
        self.exact: Floats = self.ranking.exact[0, 0, middle].numpy()
        self.shared = not method.softmax and method.group in ("mean", "sum")
        group = method.group if self.shared else "each"
        by_head = replace(method, group="each", softmax=method.softmax)
        self.by_head: Floats = by_head.scores(moment.state, moment.queries)[0].numpy()  # [G, n]
        self.head = 0 if self.shared else int(self.by_head[:, at].argmax())
        plain = replace(method, group=group, softmax=False)
        self.sums: Floats = plain.scores(moment.state, moment.queries)[0, self.head].numpy()
        self.tables: Floats = part_tables(moment.queries, coded.book.centroids, group)[0, 0, self.head].numpy()
        key = moment.keys[:, :, coded.example, None]
        self.own_exact = float(group_scores(moment.queries, key, group)[0, self.head, 0])
        self.terms = [float(self.tables[part, code]) for part, code in enumerate(coded.own)]
        self.order: NDArray[np.int64] = np.argsort(-self.scores, kind="stable")
        self.exact_order: NDArray[np.int64] = np.argsort(-self.exact, kind="stable")

    @property
    def query(self) -> torch.Tensor:
        """The query [D] that the tables are of."""
        queries = self.coded.moment.queries[0]
        if not self.shared:
            return queries[self.head]
        return queries.mean(0) if self.coded.method.group == "mean" else queries.sum(0)

    def rank(self, order: NDArray[np.int64], position: int) -> int:
        """The rank of a token in an order, from 1."""
        return int(np.flatnonzero(order == position - self.coded.start)[0]) + 1


def step_frames(coded: Coded) -> Iterator[Frame]:
    """The frames from the step's query to the tokens that are chosen."""
    scored = Scored(coded)
    yield from _tables(coded, scored)
    yield from _scores(coded, scored)
    yield from _cut(coded, scored)


def _tables(coded: Coded, scored: Scored) -> Iterator[Frame]:
    heads, method = coded.moment.group_size, coded.method
    queries = [(f"q, part {part + 1}", coded.parts(scored.query[None])[part, 0]) for part in coded.shown_parts]
    rows = Rows(title="the query of the step, in parts", rows=rows_of("query", queries))
    if heads == 1:
        told = ""
    elif scored.shared:
        told = f"{heads} query heads share these keys. q is the {method.group} of their queries."
    else:
        told = f"{heads} query heads share these keys, each with tables of its own. Here are those of query "
        told += f"head {scored.head + 1}."
    yield Frame(
        chapter="tables", panels=[rows], result=told,
        text="The decode step has a query q." + (" It is cut as the keys were." if coded.n_parts > 1 else ""),
    )  # fmt: skip
    yield Frame(
        chapter="tables", panels=[rows, _table_rows(coded, scored)],
        text=f"Each part of q is multiplied with each codeword of its codebook: {_times(coded)} inner products. They "
        "are the look-up tables.",
        result=f"So {_times(coded)} codewords are read, and none of the {coded.end - coded.start:,} keys.",
    )  # fmt: skip


def _times(coded: Coded) -> str:
    return f"{coded.n_parts} × {coded.count}" if coded.n_parts > 1 else f"{coded.count}"


def _table_rows(coded: Coded, scored: Scored) -> Rows:
    """A row of cells for each part, tinted by q·codeword."""
    rows = []
    for part in coded.shown_parts:
        shown = coded.shown_codewords(part, scored.tables[part])
        values = scored.tables[part, shown]
        rows.append(Row(name=f"table {part + 1}", kind=codewords(part), numbers=shown, values=values))
    some = "" if len(rows[0].numbers) == coded.count else ", the largest ones"
    return Rows(title=f"q·codeword, one cell per codeword{some}", rows=rows)


def _scores(coded: Coded, scored: Scored) -> Iterator[Frame]:
    moment, own = coded.moment, coded.own
    quoted, cells = moment.quoted(coded.example), [f"{codewords(part)}:{code}" for part, code in enumerate(own)]
    total = float(scored.sums[coded.example - coded.start])
    shown, rounded = coded.shown_parts, sum(round(term, 2) for term in scored.terms)
    equals = "=" if round(rounded, 2) == round(total, 2) else "≈"  # to two decimals
    chips = [
        Row(name="cells", kind="term", numbers=np.arange(len(shown)),
            labels=[signed(scored.terms[part]) for part in shown]),
        Row(name="their sum", kind="token", numbers=[coded.example], labels=[signed(total)]),
        Row(name="exact: q·key", kind="product", numbers=[coded.example], labels=[signed(scored.own_exact)]),
    ]  # fmt: skip
    tables = _table_rows(coded, scored)
    named = " and ".join(map(str, own)) if len(own) < 3 else ", ".join([*map(str, own[:4]), *["…"] * (len(own) > 4)])
    lit = refer(named, *cells[: len(shown)])
    yield Frame(
        chapter="scores", focus=cells, panels=[tables, Rows(title=f"“{moment.short(coded.example)}”", rows=chips)],
        links=[Link(start=cells[part], end=f"term:{part}") for part in shown],
        text=f"{quoted} has {'the codes' if len(own) > 1 else 'the code'} {lit}. "
        + (f"Their cells add up: {added(scored.terms)} {equals} {signed(total)}." if len(own) > 1
           else f"Its cell holds its sum: {signed(total)}."),
        result=f"The exact product q·key is {signed(scored.own_exact)}: the codes are off by "
        f"{abs(total - scored.own_exact):.2f}.",
    )  # fmt: skip
    n = coded.end - coded.start
    some = np.union1d(np.linspace(coded.start, coded.end - 1, min(SOME, n)).astype(np.int64), coded.example)
    start = " (bars start at the lowest)" if scored.sums[some - coded.start].max() <= 0 else ""
    labels = _sum_labels(coded, scored, some)
    sums = _bars(coded, f"sum of the cells, for some tokens{start}", some, scored.sums, labels)
    yield Frame(
        chapter="scores", panels=[sums], focus=[f"token:{coded.example}"],
        text=f"So each of the {n:,} tokens between the sinks and the recent window gets its sum, by "
        f"{coded.n_parts} look-up{'s' if coded.n_parts > 1 else ''}.",
        result="Tokens with the same codes have the same sum.",
    )  # fmt: skip
    if not scored.shared and (coded.method.softmax or moment.group_size > 1):
        yield _reduced(coded, scored, some, total)


def _reduced(coded: Coded, scored: Scored, some: NDArray[np.int64], total: float) -> Frame:
    """How the sums of the query heads become one score."""
    method, moment, at = coded.method, coded.moment, coded.example - coded.start
    heads, scale = moment.group_size, moment.state.layer.scale
    own, score = scored.by_head[:, at], f"{scored.scores[at]:.3g}"
    mine = Bars(
        title=f"{'weights' if method.softmax else 'sums'} of “{moment.short(coded.example)}”",
        kind="head", numbers=np.arange(heads), values=own, labels=[f"query head {head + 1}" for head in range(heads)],
    )  # fmt: skip
    all_bars = _bars(coded, "score, for some tokens", some, scored.scores, [moment.short(each) for each in some])
    reduced = {"mean": "mean", "max": "largest", "sum": "sum"}.get(method.group, "")
    if not method.softmax:
        text = f"The score of a token is the {reduced} of its sums in the {heads} query heads."
    else:
        text = f"Softmax over these tokens turns the sums, times {scale:.3g}, into weights."
        text += f" The score is the {reduced} of the weights in the {heads} query heads." if heads > 1 else ""
    return Frame(
        chapter="scores", panels=[mine, all_bars] if heads > 1 else [all_bars], focus=[f"token:{coded.example}"],
        text=text, result=f"The sum {signed(total)} of {moment.quoted(coded.example)} becomes {score}." if heads == 1
        else f"For {moment.quoted(coded.example)} that is {score}.",
    )  # fmt: skip


def _bars(coded: Coded, title: str, positions: NDArray[np.int64], values: Floats, labels: list[str]) -> Bars:
    shown = values[positions - coded.start]
    return Bars(title=title, kind="token", numbers=positions, values=shown, labels=labels)


def _sum_labels(coded: Coded, scored: Scored, positions: NDArray[np.int64]) -> list[str]:
    """Each token with its terms, if they are few."""
    labels = [coded.moment.short(position) for position in positions]
    if coded.n_parts > 2:
        return labels
    rows = coded.codes[positions - coded.start]
    terms = [[float(scored.tables[part, code]) for part, code in enumerate(row)] for row in rows]
    return [f"{label}: {added(each)}" for label, each in zip(labels, terms, strict=True)]


def _cut(coded: Coded, scored: Scored) -> Iterator[Frame]:
    moment, method = coded.moment, coded.method
    focus = [f"token:{coded.example}"]
    best, truly = (order[:BEST] + coded.start for order in (scored.order, scored.exact_order))
    ranked = _bars(coded, "the best scores", best, scored.scores, [moment.short(each) for each in best])
    ranks = [f"{moment.short(each)} (#{scored.rank(scored.order, each):,})" for each in truly]
    exact = _bars(coded, "exact weights (# = rank by score)", truly, scored.exact, ranks)
    yield Frame(
        chapter="rank", panels=[ranked], focus=focus, text="Sort by score.",
        result=f"{moment.quoted(coded.example)} is number {scored.rank(scored.order, coded.example):,} of "
        f"{len(scored.order):,}.",
    )  # fmt: skip
    yield Frame(
        chapter="rank", panels=[ranked, exact], focus=focus,
        text="The other bars are the tokens with the most exact attention, each with its rank by score. Codes round "
        "keys, so that many tokens tie, or change places.",
        result=f"{len(np.intersect1d(best, truly))} of these {len(truly)} are among the first {len(best)} by score.",
    )  # fmt: skip
    free = min(method.free_budget(moment.state), len(scored.order))
    window = moment.state.length - coded.end
    first = min(max(free - BEST // 2, 0), max(len(scored.order) - BEST, 0))
    around = scored.order[first : first + BEST] + coded.start
    labels = [f"{moment.short(each)} #{first + place:,}" for place, each in enumerate(around, start=1)]
    taken = np.arange(first, first + len(around)) < free
    bars = replace(
        _bars(coded, "scores around the cut (# = rank)", around, scored.scores, labels), cut=free - first,
        strength=np.where(taken, 1.0, 0.35),
    )  # fmt: skip
    own = scored.rank(scored.order, coded.example)
    yield Frame(
        chapter="cut", panels=[bars], focus=focus,
        text=f"The budget is {method.step_budget(moment.state):,} tokens. {coded.start} sinks and the last {window} "
        f"leave {free:,}: so many tokens with the best scores are chosen.",
        result=f"{moment.quoted(coded.example)}, number {own:,}, is {'chosen' if own <= free else 'not chosen'}.",
    )  # fmt: skip
