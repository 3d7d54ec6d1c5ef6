"""CentroidKV's scene: chunks, links, the rounds of merging, what a centroid is, and attention to centroids."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from ...trace.scene import Bars, Frame, Link, Row, Rows, Ruler, Scene, refer
from ..centroidkv import CentroidKV
from .centroid_attention import attention_frames, centroid_frames, signed
from .merge_rounds import Numbers, Round, first_rounds
from .moment import Moment
from .scene_of import scene_of
from .selected import chosen_frame

PAIRS, GROUPS, MEMBERS, LETTERS = 8, 5, 10, 7  # shown of a chunk; of its centroids; of a centroid's tokens; of a token
AROUND = 14  # centroids in a row
MOST_ROUNDS, MOST_COUNTS = 7, 20  # frames of rounds; bars of rounds
FAINT, MERGED = 0.5, 0.45  # a chip without a hue is drawn fainter


@scene_of.register
def scene(method: CentroidKV, moment: Moment) -> Scene:
    """The scene of the first merge, which is that of a prompt above the budget, and of the centroids at this step."""
    last = chosen_frame("text", method, moment)
    if not moment.state.merges:
        return Scene(title=method.title, frames=[_nothing_merged(method, moment), last])
    made = _Made(method, moment)
    frames = [
        *_matching(made), *_merging(made), *_rounds(made), *centroid_frames(method, moment),
        *attention_frames(moment), last,
    ]  # fmt: skip
    members = {"chunk": made.chunks, "centroid": moment.members[: moment.prompt_length]}
    return Scene(
        title=method.title, frames=frames, members=members,
        about="A centroid's value is the mean of its tokens' values, as its key is of their keys. It is drawn under "
        "the name of one of its tokens, that of set B whose place in the text it takes.",
    )  # fmt: skip


def _nothing_merged(method: CentroidKV, moment: Moment) -> Frame:
    budget, interval = method.budget_tokens(moment.prompt_length), method.decode_interval
    return Frame(
        chapter="chunks", focus=[f"token:{moment.token}"],
        panels=[Rows(title="the last tokens", rows=[_chips(moment, np.arange(moment.prompt_length)[-PAIRS:])])],
        text=f"Nothing is merged yet: the cache holds {moment.state.length:,} tokens.",
        result=f"They merge once it exceeds the budget of {budget:,} by {interval} entries." if interval else "",
    )  # fmt: skip


class _Made:
    """The first merge, and the chunk that is shown: that of the followed token, or the nearest to it."""

    def __init__(self, method: CentroidKV, moment: Moment) -> None:
        self.method, self.moment = method, moment
        self.merge, self.rounds = moment.state.merges[0], first_rounds(method, moment)
        self.first, self.joined = method.sinks, self.merge.joined
        self.size = min(method.chunk_size or self.joined, self.joined)
        self.starts = np.arange(0, self.joined, self.size)
        near = min(max(moment.token - self.first, 0), self.joined - 1)
        self.chunk = near // self.size
        if self.joined - self.starts[self.chunk] < 2:  # a last chunk of one token has no link
            self.chunk -= 1
        start = int(self.starts[self.chunk])
        stop = min(start + self.size, self.joined)
        self.near = min(near, stop - 1)
        self.followed = self.first + self.near == moment.token
        low = max(min(self.near - PAIRS, stop - 2 * PAIRS), start)
        self.excerpt = np.arange(low - (low - start) % 2, stop)[: 2 * PAIRS]  # begins in A
        self.in_a = (self.excerpt - start) % 2 == 0
        positions = np.arange(moment.prompt_length) - self.first
        self.chunks = np.where((positions >= 0) & (positions < self.joined), positions // self.size, -1)

    @property
    def name(self) -> str:
        """The token around which things are shown, as the words of a sentence."""
        return self.moment.quoted(self.first + self.near)


def _matching(made: _Made) -> Iterator[Frame]:
    method, moment, first = made.method, made.moment, made.rounds[0]
    sizes = np.diff([*made.starts, made.joined])
    numbers = np.arange(len(sizes))
    ruler = Ruler(
        title="tokens between sinks and recent window", kind="chunk", numbers=numbers, groups=numbers, sizes=sizes,
        labels=[f"chunk {number}" for number in numbers], strength=np.full(len(numbers), 0.6),
    )  # fmt: skip
    around = _chips(moment, made.excerpt + made.first)
    where = "" if made.followed else f" {moment.quoted(moment.token)} is not among them."
    cut = "one chunk" if len(sizes) == 1 else f"chunks of {made.size}"
    yield Frame(
        chapter="chunks", panels=[ruler, Rows(title=f"a part of chunk {made.chunk}", rows=[around])],
        focus=[f"token:{moment.token}", f"chunk:{made.chunk}"],
        text=f"{method.sinks} sinks and the last {method.always_recent} tokens stay single. The {made.joined:,} tokens "
        f"between merge, in {cut}.{where}",
        result=f"{made.name} is in {refer(f'chunk {made.chunk}', f'chunk:{made.chunk}')}.",
    )  # fmt: skip
    a, b = made.excerpt[made.in_a], made.excerpt[~made.in_a]
    yield Frame(
        chapter="links", panels=[_two_rows(made, a, b)], focus=[f"token:{moment.token}"],
        text="In a chunk, every other token is in set A, the others are in set B.",
        result=f"Tokens link only from A to B, in their own chunk: {(made.size + 1) // 2} × {made.size // 2} "
        f"comparisons{', however long the text' if method.chunk_size else ''}.",
    )  # fmt: skip
    a, b, shown = _linked(made)
    rows = _two_rows(made, a, b)
    yield Frame(
        chapter="links", panels=[rows], links=_links(made, shown, False), focus=[f"token:{moment.token}"],
        text="Each token of A is linked to the token of B whose key is most similar, by cosine.",
        result=_told_of_link(made, shown),
    )  # fmt: skip
    weaker = "A token of A with a weaker link, dashed, does not merge in this round."
    count, least = int(first.kept.sum()), float(first.cosines[first.kept].min())
    yield Frame(
        chapter="links", panels=[rows], links=_links(made, shown, True), focus=[f"token:{moment.token}"],
        text=f"Over all chunks, the share r = {first.ratio:.2g} of the {len(first.kept):,} links is kept: the "
        f"{count:,} most similar, down to cosine {signed(least)}.",
        result=weaker if count < len(first.kept) else "",
    )  # fmt: skip


def _linked(made: _Made) -> tuple[Numbers, Numbers, Numbers]:
    """Tokens of A near the followed one and their partners in B, and the links between them, by their number."""
    first, own = made.rounds[0], made.near
    link_of = dict(zip(first.sources.tolist(), range(len(first.sources)), strict=True))
    chosen = [link_of[int(source)] for source in first.sources[first.partners == own][:4]] if made.followed else []
    nearest = sorted(made.excerpt[made.in_a].tolist(), key=lambda source: abs(source - own))
    chosen += [link_of[source] for source in nearest if link_of[source] not in chosen]
    shown = np.sort(chosen[:PAIRS])
    extra = [own] if own not in first.sources else []
    return first.sources[shown], np.union1d(first.partners[shown], extra).astype(np.int64), shown


def _links(made: _Made, shown: Numbers, judged: bool) -> list[Link]:
    first = made.rounds[0]
    return [
        Link(
            start=f"token:{made.first + first.sources[link]}", end=f"token:{made.first + first.partners[link]}",
            label=signed(first.cosines[link]), weak=judged and not first.kept[link],
            strength=0.35 if judged and not first.kept[link] else 0.7,
        )
        for link in shown.tolist()
    ]  # fmt: skip


def _told_of_link(made: _Made, shown: Numbers) -> str:
    """The followed token's link, or those to it, with the strongest of the links that are shown."""
    first = made.rounds[0]
    own = np.flatnonzero(first.sources == made.near)
    link = int(own[0]) if len(own) else int(shown[first.cosines[shown].argmax()])
    count = int((first.partners == made.near).sum())
    some = f"{count} tokens of A are" if count > 1 else f"{('No', 'One')[count]} token of A is"
    source, partner = (made.moment.quoted(made.first + int(ends[link])) for ends in (first.sources, first.partners))
    of_b = "" if len(own) else f"{some} linked to {made.name}. "
    return f"{of_b}{source} is linked to {partner} with cosine {signed(first.cosines[link])}."


def _merging(made: _Made) -> Iterator[Frame]:
    first, own = made.rounds[0], made.rounds[0].members[made.near]
    a, b, _ = _linked(made)
    near = np.unique(first.members[np.append(a, b)])
    groups = np.sort(_first_of(own, near[first.degree[near] > 1], GROUPS))
    alone = np.flatnonzero(np.isin(first.members, near[first.degree[near] == 1]))
    rows = [_group_row(made, first, number) for number in groups]
    if len(alone):
        rows.append(_chips(made.moment, alone[:MEMBERS] + made.first, name="not merged"))
    degree = int(first.degree[own])
    became = (
        f"{made.name} is now one of {degree} tokens in a centroid." if degree > 1 else f"{made.name} stays single."
    )  # fmt: skip
    yield Frame(
        chapter="merge", panels=[Rows(title="tokens that merge", rows=rows)], focus=[f"token:{made.moment.token}"],
        text="A token of B absorbs all tokens linked to it. Together they become a centroid: the mean of their keys, "
        "and the mean of their values.",
        result=became,
    )  # fmt: skip
    shown = np.sort(np.append(groups, first.members[alone[:MEMBERS]]))
    yield Frame(
        chapter="merge", panels=[_centroid_row("what the cache holds in their place", made, first, shown)],
        focus=[_holder(made, first)],
        text="A centroid takes the place of its token of B, and counts how many tokens it stands for, its degree n "
        "(× n).",
        result="If it merges again, means are weighted by n, so that each token counts as much.",
    )  # fmt: skip


def _rounds(made: _Made) -> Iterator[Frame]:
    method, rounds, merge = made.method, made.rounds, made.merge
    entries = merge.most + method.sinks + method.always_recent
    yield Frame(
        chapter="rounds", panels=[_counts(made, 1), _around(made, rounds[0])], focus=[_holder(made, rounds[0])],
        text=f"Round 1 leaves {len(rounds[0].degree):,} of {made.joined:,}. The cache may hold {entries:,} entries: "
        f"sinks, recent tokens, and {merge.most:,} centroids.",
        result="So centroids merge again, cut into chunks anew." if len(rounds) > 1 else "One round is enough.",
    )  # fmt: skip
    later_rounds = np.linspace(3, len(rounds) - 1, MOST_ROUNDS - 2).astype(int).tolist() if len(rounds) > 3 else []
    for index in sorted({*range(1, min(3, len(rounds))), *later_rounds}):
        yield _round_frame(made, rounds[index], last=index == len(rounds) - 1)
    later = len(made.moment.state.merges) - 1
    if later:
        count, added = made.moment.centroids, made.moment.state.joined - made.joined
        yield Frame(
            chapter="rounds", panels=[_counts(made, len(rounds))],
            text=f"Since then the cache exceeded the budget by {method.decode_interval} entries {later} "
            f"time{'s' if later > 1 else ''}, and merged again.",
            result=f"{added} more tokens are in centroids, of which there are {count:,} now.",
        )  # fmt: skip


def _round_frame(made: _Made, shown: Round, last: bool) -> Frame:
    degree = int(shown.degree[shown.members[made.near]])
    least = float(shown.cosines[shown.kept].min())
    own = f" {made.name} is one of {degree:,}." if degree > 1 else f" {made.name} is still single."
    return Frame(
        chapter="rounds", panels=[_counts(made, shown.number), _around(made, shown)], focus=[_holder(made, shown)],
        text=f"Round {shown.number}, r = {shown.ratio:.2g}: of {len(shown.kept):,} links, the {shown.kept.sum():,} "
        f"most similar merge, down to cosine {signed(least)}.",
        result=f"{len(shown.degree):,} centroids remain{': they fit' if last else ''}. The largest has "
        f"{shown.degree.max():,} tokens.{own}",
    )  # fmt: skip


def _counts(made: _Made, rounds: int) -> Bars:
    """The number of centroids after each of the first rounds, and how many there may be."""
    counts = [made.joined, *(len(each.degree) for each in made.rounds[:rounds])]
    labels = ["tokens", *(f"round {each.number}, r {each.ratio:.2g}" for each in made.rounds[:rounds])]
    numbers = np.append(np.arange(len(counts))[-MOST_COUNTS:], len(made.rounds) + 1)
    return Bars(
        title="centroids after each round", kind="round", numbers=numbers, labels=[*labels[-MOST_COUNTS:], "allowed"],
        values=[*counts[-MOST_COUNTS:], made.merge.most],
    )  # fmt: skip


def _around(made: _Made, shown: Round) -> Rows:
    """The centroids next to that of the followed token, in the order of the text."""
    own = int(shown.members[made.near])
    low = max(min(own - AROUND // 2, len(shown.degree) - AROUND), 0)
    numbers = np.arange(low, min(low + AROUND, len(shown.degree)))
    return _centroid_row(
        f"centroids around that of “{made.moment.short(made.first + made.near)}”", made, shown, numbers
    )


def _holder(made: _Made, shown: Round) -> str:
    """The centroid of the followed token after a round, as an object."""
    return f"token:{made.first + shown.holders[shown.members[made.near]]}"


def _centroid_row(title: str, made: _Made, shown: Round, numbers: Numbers) -> Rows:
    holders = shown.holders[numbers] + made.first
    names = [made.moment.short(position, LETTERS) for position in holders]
    degrees = shown.degree[numbers]
    row = Row(
        kind="token", numbers=holders, groups=np.where(degrees > 1, holders, -1),
        labels=[f"{name} ×{n:,}" if n > 1 else name for name, n in zip(names, degrees, strict=True)],
        strength=np.where(degrees > 1, MERGED, FAINT),
    )  # fmt: skip
    return Rows(title=title, rows=[row])


def _group_row(made: _Made, shown: Round, number: np.int64) -> Row:
    tokens = np.flatnonzero(shown.members == number)
    holder = int(shown.holders[number])
    some = np.sort(_first_of(made.near if made.near in tokens else holder, _first_of(holder, tokens, MEMBERS), MEMBERS))
    name = f"{made.moment.short(made.first + holder, LETTERS)} ×{len(tokens)}"
    return _chips(made.moment, some + made.first, name=name, group=made.first + holder)


def _first_of(first: np.int64 | int, numbers: Sequence[int] | Numbers, most: int) -> Numbers:
    """At most so many of the numbers, among them `first` if it is one of them."""
    rest = [number for number in numbers if number != first]
    return np.asarray([first, *rest][:most] if len(rest) < len(numbers) else rest[:most], np.int64)


def _two_rows(made: _Made, a: Numbers, b: Numbers) -> Rows:
    rows = [_chips(made.moment, part + made.first, name=f"set {name}") for part, name in ((a, "A"), (b, "B"))]
    return Rows(title=f"tokens of chunk {made.chunk}", rows=rows, linked=True)


def _chips(moment: Moment, positions: NDArray[np.int64], name: str = "", group: int = -1) -> Row:
    return Row(
        kind="token", numbers=positions, name=name, labels=[moment.short(each, LETTERS) for each in positions],
        groups=np.full(len(positions), group), strength=np.full(len(positions), FAINT if group < 0 else MERGED),
    )  # fmt: skip
