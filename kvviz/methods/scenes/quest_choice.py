"""The second half of Quest's scene: pages by their bounds, the cut, what whole pages cost, and other page sizes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from ...trace.scene import Bars, Frame, Row, Rows, Ruler
from .quest_pages import Pages, named, signed
from .selected import cluster_object

MOST_BARS = 26  # that are high enough for a label each


def choice(pages: Pages) -> Iterator[Frame]:
    """The frames from the scores of the pages to the fetched ones."""
    yield from _scores(pages)
    yield _cut(pages)
    yield _fetched(pages)
    sizes = pages.by_page_size()
    if len(sizes) > 1:
        yield _sizes(pages, sizes)


def _bars(pages: Pages, numbers: NDArray[np.int64], title: str) -> Bars:
    return Bars(
        title=title, kind="page", numbers=numbers, groups=numbers, values=pages.scores[numbers],
        labels=[f"page {number}" for number in numbers],
    )  # fmt: skip


def _scores(pages: Pages) -> Iterator[Frame]:
    ranked = pages.ranked
    shown = ranked[:MOST_BARS]
    rank = {int(page): place + 1 for place, page in enumerate(ranked)}
    yield Frame(
        chapter="scores", panels=[_bars(pages, np.sort(shown), "score of each page, in the order of the text")],
        focus=[f"page:{pages.shown}"],
        text=f"{len(ranked):,} pages get a score in this way: all but those that every step attends to.",
        result=f"These are the best {len(shown)}, in the order of the text.",
    )  # fmt: skip
    ordered = _bars(pages, shown, "the best first")
    yield Frame(
        chapter="scores", panels=[ordered], focus=[f"page:{pages.shown}"], text="Sort by score.",
        result=f"The best is {cluster_object('page', shown[0])}, with {signed(pages.scores[shown[0]])}. "
        f"{_named(pages)} has rank {rank[pages.shown]:,}, with {signed(pages.scores[pages.shown])}.",
    )  # fmt: skip
    best = pages.best_products
    by_key = pages.first + np.argsort(-best[pages.first :], kind="stable")
    key_rank = {int(page): place + 1 for place, page in enumerate(by_key)}
    misled = max((int(page) for page in shown), key=lambda page: key_rank[page] - rank[page])
    exact = replace(ordered, title="the best q·k of a key in it", values=best[shown])
    yield Frame(
        chapter="scores", panels=[ordered, exact], focus=[f"page:{misled}"],
        text="A bound is a promise. Beside it: the best q·k of the page's keys, unknown to the step.",
        result="" if key_rank[misled] == rank[misled] else
        f"{named(misled)} has rank {rank[misled]} by its bound, {key_rank[misled]} by its best key: no key is near its "
        "corner.",
    )  # fmt: skip


def _cut(pages: Pages) -> Frame:
    method, shown, taken = pages.method, pages.ranked[:MOST_BARS], len(pages.chosen)
    budget, size = method.step_budget(pages.state), method.page_size
    strength = np.where(np.isin(shown, pages.chosen), 1.0, 0.3)
    bars = replace(
        _bars(pages, shown, "the best first"), strength=strength, cut=taken if taken < len(shown) else None
    )  # fmt: skip
    ruler = Ruler(
        title="tokens of the pages, the best first", kind="page", numbers=shown, groups=shown, strength=strength,
        sizes=np.full(len(shown), size), cut=taken * size if taken < len(shown) else None,
    )  # fmt: skip
    kept = len(pages.moment.attended) - taken * size
    fate = "is fetched" if pages.shown in pages.chosen else "is left out"
    return Frame(
        chapter="cut", panels=[bars, ruler], focus=[f"page:{pages.shown}"],
        text=f"The budget is {budget:,} tokens. {kept:,} of them are for the newest tokens"
        f"{' and sinks' if method.sinks else ''}, in whole pages. The rest holds {taken} pages of {size}.",
        result=f"{_named(pages)} {fate}.",
    )  # fmt: skip


def _fetched(pages: Pages) -> Frame:
    moment, size = pages.moment, pages.method.page_size
    worst = min(pages.chosen, key=lambda page: np.isin(pages.positions(page), moment.oracle).sum())
    page = pages.shown if pages.shown in pages.chosen else int(worst)
    part, whole = pages.part(page), pages.positions(page)
    in_oracle = np.isin(part, moment.oracle)
    rows = [
        Row(
            kind="token", numbers=numbers, groups=np.full(len(numbers), page), name=name,
            labels=[moment.short(position) for position in numbers],
        )
        for name, numbers in (("wanted", part[in_oracle]), ("waste", part[~in_oracle])) if len(numbers)
    ]  # fmt: skip
    of_chosen = moment.attended[np.isin(moment.attended // size, pages.chosen)]
    wanted = int(np.isin(whole, moment.oracle).sum())
    every = int(np.isin(of_chosen, moment.oracle).sum())
    are = "is" if wanted == 1 else "are"
    return Frame(
        chapter="whole pages", focus=[f"token:{moment.token}"],
        panels=[Rows(title=f"tokens of page {page}", rows=rows)],
        text=f"A page is fetched whole. Of the {size} tokens of {cluster_object('page', page)}, {wanted} {are} among "
        f"the {len(moment.oracle):,} with the most attention.",
        result=f"Of all {len(of_chosen):,} tokens fetched this way, {every:,} are. The rest is waste.",
    )  # fmt: skip


def _sizes(pages: Pages, sizes: list[tuple[int, float, int]]) -> Frame:
    numbers, recalls, read = zip(*sizes, strict=True)
    own = numbers.index(pages.method.page_size)
    labels = [f"{number} tokens" for number in numbers]
    recall = Bars(title="recall by page size", kind="size", numbers=numbers, values=recalls, labels=labels)
    numbers_read = replace(recall, title="numbers read to rank the pages, in thousands", values=np.array(read) / 1000)
    other = own - 1 if own else own + 1
    return Frame(
        chapter="whole pages", panels=[recall, numbers_read], focus=[f"size:{numbers[own]}"],
        text="The same step and budget with other page sizes: smaller boxes fit tighter, but there are more to read.",
        result=f"Pages of {numbers[other]}: recall {recalls[other]:.2f} instead of {recalls[own]:.2f}, and "
        f"{read[other]:,} numbers instead of {read[own]:,}.",
    )  # fmt: skip


def _named(pages: Pages) -> str:
    """The page in detail as the begin of a sentence, with the followed token if it is in it."""
    if pages.moment.token // pages.method.page_size != pages.shown:
        return named(pages.shown)
    return f"{named(pages.shown)}, with {pages.moment.quoted(pages.moment.token)},"
