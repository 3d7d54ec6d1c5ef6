"""PQCache's scene: keys cut into parts, their codebooks, tables of q·codeword, look-ups, the cut, and the blocks."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from ...trace.scene import Frame, Plane, Row, Rows, Scene
from ..pqcache import PQCache
from .moment import Moment
from .pqcache_blocks import block_frames
from .pqcache_codes import Coded, codeword, codewords, rows_of
from .pqcache_step import step_frames
from .scene_of import scene_of
from .selected import chosen_frame

NEIGHBOURS = 4  # tokens before and after the one that is followed
NEAREST = 9  # codewords around the followed key
KEY_BITS = 16  # of a number of a key


@scene_of.register
def scene(method: PQCache, moment: Moment) -> Scene:
    """The scene of a step of which at least one token is scored."""
    coded = Coded(method, moment)
    frames = [
        *_key(coded), *_codebook(coded), *_codes(coded), *step_frames(coded), *block_frames(method, moment),
        chosen_frame("text", method, moment),
    ]  # fmt: skip
    return Scene(
        title=method.title, frames=frames, members=coded.members(),
        about="A plane shows two directions of all those that a part has: the codeword that is nearest may look "
        "farther away. A generated token gets the codes of its nearest codewords, and is scored once it leaves the "
        "recent window.",
    )  # fmt: skip


def _key(coded: Coded) -> Iterator[Frame]:
    moment, example = coded.moment, coded.example
    quoted = moment.quoted(example)
    if example != moment.token:
        why = "a sink" if moment.token < coded.start else "in the recent window"
        yield Frame(
            chapter="key", panels=[_context(moment, moment.token)], focus=[f"token:{moment.token}"],
            text=f"{moment.quoted(moment.token)} is {why}: every step attends to it, without a score.",
            result=f"So this scene follows “{moment.short(example)}” instead.",
        )  # fmt: skip
    key = moment.keys[0, 0, example].numpy()
    n = len(moment.tokens)
    yield Frame(
        chapter="key", focus=[f"token:{example}"],
        panels=[_context(moment, example), Rows(title="its key", rows=rows_of("number", [("", key)]))],
        text=f"The key of {quoted} has {len(key)} numbers, one per cell: the stronger the tint, the larger the number.",
        result=f"With full attention, a step reads {n:,} keys of this size.",
    )  # fmt: skip
    parts = [(f"part {part + 1}", coded.own_parts[part]) for part in coded.shown_parts]
    many = coded.n_parts > 1
    yield Frame(
        chapter="key", focus=[f"token:{example}"],
        panels=[_context(moment, example), Rows(title="its key, in parts", rows=rows_of("number", parts))],
        text=f"PQCache cuts each key into {coded.n_parts} parts of {coded.width} numbers." if many
        else f"Here PQCache does not cut keys: each has one part, with all {coded.width} numbers.",
        result="Keys whose parts are alike will share a code for that part." if many
        else "Keys that are alike will share a code.",
    )  # fmt: skip


def _context(moment: Moment, position: int) -> Rows:
    """The token in the text, as chips."""
    shown = np.arange(max(position - NEIGHBOURS, 0), min(position + NEIGHBOURS + 1, len(moment.tokens)))
    labels = [moment.short(int(each)) for each in shown]
    return Rows(title="text", rows=[Row(kind="token", numbers=shown, labels=labels)])


def _codebook(coded: Coded) -> Iterator[Frame]:
    moment, count, last = coded.moment, coded.count, int(coded.last.n_iter)
    n, focus = coded.clustered - coded.start, [f"token:{coded.example}"]
    first, initial = coded.after(1), coded.initial[0]
    yield Frame(
        chapter="codebook", panels=[coded.plane(0)], focus=focus,
        text=f"Each dot is part 1 of one key; that of {moment.quoted(coded.example)} is outlined.",
        result=f"The first {coded.start} tokens, the sinks, are left out: every step attends to them." if coded.start
        else "",
    )  # fmt: skip
    bits = coded.book.n_bits
    power = f"{count} = 2{_raised(bits)}, so a code takes {bits} bits." if count == 2**bits else ""
    yield Frame(
        chapter="codebook", panels=[coded.plane(0, None, initial)], focus=focus,
        text=f"k-means begins with {count} of these {n:,} parts, drawn at random, as codewords.",
        result=power or f"There are no more keys than that; a code takes {bits} bits.",
    )  # fmt: skip
    labels = first.labels[0, 0, 0].numpy()
    yield Frame(
        chapter="codebook", panels=[coded.plane(0, labels, initial)], focus=focus,
        text="Each part joins the codeword that is nearest, by Euclidean distance.",
        result="Its hue is now that of its codeword.",
    )  # fmt: skip
    yield Frame(
        chapter="codebook", panels=[coded.plane(0, labels, first.centroids[0, 0, 0].numpy())], focus=focus,
        text="Each codeword moves to the mean of its parts.",
        result="Now some parts are nearer to another codeword.",
    )  # fmt: skip
    final = coded.final
    if last > 1:
        labels = coded.last.labels[0, 0, 0].numpy()
        moved = int((labels != coded.after(last - 1).labels[0, 0, 0].numpy()).sum())
        told = f"In the last round, {moved:,} of {n:,} parts change their codeword." if moved else (
            "In the last round, no part changes its codeword: done."
        )  # fmt: skip
        yield Frame(
            chapter="codebook", panels=[coded.plane(0, labels, final[0])], focus=focus,
            text=f"After {last} rounds of join and move, these are the {count} codewords: the codebook of part 1.",
            result=told,
        )  # fmt: skip
    if coded.n_parts > 1:
        others = "Part 2 gets" if coded.n_parts == 2 else f"Parts 2 to {coded.n_parts} get"
        own = "a codebook of its own" if coded.n_parts == 2 else "codebooks of their own"
        yield Frame(
            chapter="codebook", panels=_final_planes(coded), focus=focus,
            text=f"{others} {own}, in the same way.",
            result=f"Combined, {coded.n_parts} × {count} codewords can stand for {_power(count, coded.n_parts)} "
            "different keys.",
        )  # fmt: skip


def _codes(coded: Coded) -> Iterator[Frame]:
    moment, own = coded.moment, coded.own
    quoted, token = moment.quoted(coded.example), f"token:{coded.example}"
    final = coded.final
    away = np.linalg.norm(final[np.arange(coded.n_parts), own] - coded.own_parts, axis=-1)
    nearest = [f"{codewords(part)}:{own[part]}" for part in coded.planes]
    labels = coded.codes[: coded.clustered - coded.start]
    planes = [coded.plane(part, labels[:, part], final[part], NEAREST) for part in coded.planes]
    near = [
        f"part {part + 1} is nearest to {codeword(part, own[part])}, {away[part]:.1f} away" for part in coded.planes
    ]
    yield Frame(
        chapter="codes", panels=planes, focus=[token, *nearest],
        text=f"Of the key of {quoted}, {', and '.join(near)}.",
        result=f"{'Their numbers are the key’s codes' if coded.n_parts > 1 else 'Its number is the key’s code'}. Keys "
        "with the same code are drawn strong.",
    )  # fmt: skip
    rows = []
    for part in coded.shown_parts[:4]:
        start = part * coded.width
        numbers = np.arange(start, start + coded.width)
        rows.append(Row(name=f"part {part + 1}", kind="number", numbers=numbers, values=coded.own_parts[part]))
        rows.append(Row(name=f"codeword {own[part]}", kind="number", numbers=numbers, values=final[part, own[part]]))
    bits, key_bits = coded.n_parts * coded.book.n_bits, KEY_BITS * coded.n_parts * coded.width
    yield Frame(
        chapter="codes", panels=[Rows(title="the key and the codewords that stand for it", rows=rows), _chips(coded)],
        focus=[f"{codewords(part)}:{own[part]}" for part in coded.shown_parts],
        text=f"The codewords stand for the key of {quoted}. Only their numbers are kept for it: "
        f"{coded.n_parts} × {coded.book.n_bits} = {bits} bits.",
        result=f"The key itself has {coded.n_parts * coded.width} × {KEY_BITS} = {key_bits:,} bits, "
        f"{key_bits / bits:.0f} times as many.",
    )  # fmt: skip


def _chips(coded: Coded) -> Rows:
    """The codes of the token that is followed."""
    rows = [
        Row(name="codes" if not part else "", kind=codewords(part), numbers=[code], groups=[code],
            labels=[f"{code} = {code:0{coded.book.n_bits}b}"])
        for part, code in enumerate(coded.own[: len(coded.shown_parts)])
    ]  # fmt: skip
    return Rows(title=f"codes of “{coded.moment.short(coded.example)}”, also as bits", rows=rows)


def _final_planes(coded: Coded) -> list[Plane]:
    final = coded.final
    labels = coded.codes[: coded.clustered - coded.start]
    return [coded.plane(part, labels[:, part], final[part]) for part in coded.planes]


def _raised(number: int) -> str:
    return str(number).translate(str.maketrans("0123456789", "⁰¹²³⁴⁵⁶⁷⁸⁹"))


def _power(count: int, parts: int) -> str:
    power = f"{count}{_raised(parts)}"
    return f"{power} = {count**parts:,}" if count**parts < 10**9 else power
