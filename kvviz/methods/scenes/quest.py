"""Quest's scene: the box around a page's keys, the corner that the query picks, bounds, the cut, and whole pages."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from ...trace.scene import Bars, Dots, Frame, Plane, Row, Rows, Scene, refer
from ..quest import Quest
from .moment import Moment
from .quest_choice import choice
from .quest_pages import Pages, named, signed
from .scene_of import scene_of
from .selected import chosen_frame, cluster_object


@scene_of.register
def scene(method: Quest, moment: Moment) -> Scene:
    """The scene of a step: one page's bound in detail, then the pages by their bounds."""
    pages = Pages(method, moment)
    frames = [*_bounding(pages), *choice(pages), chosen_frame("text", method, moment)]
    return Scene(
        title=method.title, frames=frames, members={"page": pages.page_of_token},
        about="The plane shows two of the channels: of those in which the query is positive, and of those in which it "
        "is negative, the one with the largest part of the bound.",
    )  # fmt: skip


def _bounding(pages: Pages) -> Iterator[Frame]:
    method, moment, page, width = pages.method, pages.moment, pages.shown, pages.head_dim
    numbers = np.arange(pages.full)
    own = moment.token // method.page_size
    yield Frame(
        chapter="pages", focus=[f"token:{moment.token}"],
        panels=[Rows(title="all full pages, and the page of the followed token", rows=[
            Row(kind="page", numbers=numbers, groups=numbers, name="pages"), _tokens(pages, own),
        ])],
        text=f"Quest cuts the text into pages of {method.page_size} consecutive tokens, whatever they mean.",
        result=f"{moment.quoted(moment.token)} is in {cluster_object('page', own)} of {pages.full:,}.",
    )  # fmt: skip
    across, up = pages.channels
    q_across, q_up = (pages.query[channel] for channel in pages.channels)
    keys, low, high = pages.keys(page), *pages.box(page)
    positions = pages.positions(page)
    dots = Dots(kind="token", numbers=positions, groups=np.full(len(positions), page), x=keys[:, across], y=keys[:, up])
    plane = Plane(
        title=f"page {page}: two of the {width} channels", dots=[dots],
        axes=(f"channel {across}", f"channel {up}"),
    )  # fmt: skip
    instead = "" if own == page else (
        f"{named(own)} is attended to without a score; here is the best of the others."
    )  # fmt: skip
    yield Frame(
        chapter="bounds", panels=[plane, Rows(title="", rows=[_tokens(pages, page)])], focus=[f"token:{moment.token}"],
        text=f"A key has {width} numbers, its channels. Two of them are shown: each dot is the key of one token.",
        result=instead,
    )  # fmt: skip
    label = f"{signed(low[across])} to {signed(high[across])} across, {signed(low[up])} to {signed(high[up])} up"
    box = ([low[across], low[up], high[across], high[up]], label)
    boxed = replace(plane, boxes=[box])
    yield Frame(
        chapter="bounds", panels=[boxed], focus=[f"token:{moment.token}"],
        text="The page keeps only the smallest and the largest value of each channel: this box.",
        result=f"{2 * width} numbers instead of {method.page_size * width:,}: all that a step reads of a page before "
        "it chooses.",
    )  # fmt: skip
    corner = [np.where(q > 0, high[channel], low[channel]) for q, channel in ((q_across, across), (q_up, up))]
    star = Dots(kind="corner", numbers=[page], x=corner[:1], y=corner[1:], shape="star", labels=["the corner"])
    heads = f" (the first of {moment.group_size} query heads)" if moment.group_size > 1 else ""
    yield Frame(
        chapter="bounds", panels=[replace(boxed, dots=[dots, star])],
        text=f"The query{heads} has {signed(q_across)} in channel {across} and {signed(q_up)} in channel {up}.",
        result="Where it is positive it takes the largest value, else the smallest: "
        f"{refer('this corner', star_id(page))}. No key has larger products.",
    )  # fmt: skip
    yield _summed(pages, dots)
    if moment.group_size > 1:
        yield _reduced(pages)


def star_id(page: int) -> str:
    """The object that stands for the corner of a page's box."""
    return f"corner:{page}"


def _summed(pages: Pages, dots: Dots) -> Frame:
    """The bound of one query head beside the q·k of the page's keys, on one axis."""
    page, products, bound = pages.shown, pages.products, pages.head_bounds[0]
    order = np.arange(len(products))
    keys = replace(dots, x=products, y=-order)
    star = Dots(kind="corner", numbers=[page], x=[bound], y=[-(len(products) - 1) / 2], shape="star", labels=["bound"])
    wall = ([bound, -len(products) + 0.5, bound, 0.5], "")
    best = int(products.argmax())
    return Frame(
        chapter="bounds",
        panels=[Plane(
            title=f"q·k of the keys of page {page}, from the first token (top) to the last, and the bound",
            dots=[keys, star], boxes=[wall], axes=("q·k", ""),
        )],
        text=f"The products at the corner, summed over all {pages.head_dim} channels, are the page's "
        f"{refer('bound', star_id(page))}, {signed(bound)}. No key of the page has a larger q·k.",
        result=f"The best, {pages.moment.quoted(int(pages.positions(page)[best]))}, has {signed(products[best])}.",
    )  # fmt: skip


def _reduced(pages: Pages) -> Frame:
    """The bounds of all query heads, of which the page gets one score."""
    bounds, page = pages.head_bounds, pages.shown
    name = {"mean": "mean", "max": "maximum", "sum": "sum"}[pages.method.group]
    return Frame(
        chapter="bounds",
        panels=[Bars(
            title=f"bound of page {page} by query head", kind="head", numbers=np.arange(len(bounds)), values=bounds,
            labels=[f"query head {head}" for head in range(len(bounds))],
        )],
        text=f"{pages.moment.group_size} query heads share these keys, and each has a bound.",
        result=f"Their {name}, {signed(pages.scores[page])}, is the score of {cluster_object('page', page)}.",
    )  # fmt: skip


def _tokens(pages: Pages, page: int) -> Row:
    """The tokens of a page as chips; of a large page a part around the followed token."""
    positions = pages.part(page)
    groups = np.full(len(positions), page if page < pages.full else -1)
    name = f"page {page}" if len(positions) == pages.method.page_size or page >= pages.full else f"part of page {page}"
    labels = [pages.moment.short(position) for position in positions]
    return Row(kind="token", numbers=positions, groups=groups, labels=labels, name=name)
