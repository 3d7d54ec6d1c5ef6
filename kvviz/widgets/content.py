"""Checks of what a page can show, and its texts."""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from ..errors import InvalidInputError
from ..trace import Geometry, Recording

ELSEWHERE = "not in this page; to_html(layers=[…], heads=[…]) embeds it"  # of a head that a page lacks
_LONE_SURROGATE = re.compile("[\ud800-\udfff]")


def merges(recordings: Iterable[Recording]) -> bool:
    """Whether any of the recordings says which tokens were merged."""
    return any(events.members is not None for recording in recordings for events in recording.events.values())


def lists_centroids(recording: Recording) -> bool:
    """Whether centroids are listed, since the recording's method merged tokens and recalled no group by score."""
    return merges([recording]) and not any((events.groups >= 0).any() for events in recording.events.values())


def texts(tokens: Iterable[str]) -> list[str]:
    """The tokens as text that can be encoded: lone surrogates, which stand for undecoded bytes, become U+FFFD."""
    return [_LONE_SURROGATE.sub("\ufffd", token) for token in tokens]


def between(what: str, value: Any, least: int, most: int) -> int:
    """`value` as an int, if it is a whole number from `least` to `most`; raises InvalidInputError otherwise."""
    try:
        number = operator.index(value)
    except TypeError:
        number = None
    if number is None or isinstance(value, bool) or not least <= number <= most:
        raise InvalidInputError(what, repr(value), f"a whole number from {least} to {most}")
    return number


def held(what: str, values: Any, check: Callable[[Any], int]) -> list[int]:
    """The numbers to embed in a page, each passed through `check`, ascending, without duplicates.

    Raises InvalidInputError for anything but a list of numbers, and for an empty list.
    """
    if isinstance(values, str) or not isinstance(values, Iterable):
        raise InvalidInputError(what, repr(values), "a list of whole numbers, or None")
    numbers = sorted({check(value) for value in values})
    if not numbers:
        raise InvalidInputError(what, "none", "at least one, or None")
    return numbers


def numbered(name: str, numbers: Sequence[int]) -> str:
    """`name`, in the plural if there are several numbers, and the numbers."""
    return f"{name}{'s' if len(numbers) > 1 else ''} {', '.join(map(str, numbers))}"


def left_out(layers: Sequence[int], of_layers: int, heads: Sequence[int], of_heads: int, verb: str) -> list[str]:
    """The note on a page that lacks some heads, or some of the layers recorded or compared (`verb`); else nothing."""
    parts = []
    if len(layers) < of_layers:
        parts.append(f"{numbered('layer', layers)} of the {of_layers} {verb}")
    if len(heads) < of_heads:
        parts.append(f"{numbered('head', heads)} of {of_heads}")
    return [f"This page holds {' and '.join(parts)}; to_html(layers=[…], heads=[…]) embeds others."] if parts else []


def check(recording: Recording, operation: str = "DecodeStepper") -> Recording:
    """`recording` if it has steps and layers; raises InvalidInputError otherwise."""
    if not isinstance(recording, Recording):
        wanted = "a kvviz.Recording, such as generate(..., record=True).recording"
        raise InvalidInputError(operation, type(recording).__name__, wanted)
    if recording.steps == 0:
        wanted = "at least one decode step: raise max_new_tokens or queries"
        raise InvalidInputError(operation, "a recording of 0 steps", wanted)
    if not recording.layers:
        wanted = "a layer in which the method selects: lower dense_layers, or use another method"
        raise InvalidInputError(operation, f"a recording without layers ({_unrecorded(recording) or 'none'})", wanted)
    return recording


def check_step(recording: Recording, step: int) -> int:
    """`step` if it was recorded; raises InvalidInputError otherwise."""
    return between("step of a DecodeStepper", step, 0, recording.steps - 1)


def check_layer(recording: Recording, layer: int) -> int:
    """`layer` if it was recorded; raises InvalidInputError otherwise."""
    if layer not in recording.layers:
        known = f"a recorded layer: {', '.join(map(str, recording.layers))}"
        unrecorded = _unrecorded(recording)
        wanted = f"{known} ({unrecorded})" if unrecorded else known
        raise InvalidInputError("layer of a DecodeStepper", repr(layer), wanted)
    return int(layer)


def check_head(recording: Recording, head: int) -> int:
    """`head` if the recording has that row; raises InvalidInputError otherwise."""
    return between("head of a DecodeStepper", head, 0, rows(recording) - 1)


def rows(recording: Recording) -> int:
    """Number of selection heads: KV heads, or query heads if the method selects per query head."""
    return int(recording.events[recording.layers[0]].indices.shape[1])


def describe(recording: Recording) -> dict[str, Any]:
    """The page's content that does not depend on step, layer and head; JSON-able."""
    head_name = "KV head" if rows(recording) == recording.geometry.n_kv_heads else "query head"
    unrecorded = _unrecorded(recording)
    return {
        "description": recording.description,
        "call": "kvviz.widgets.DecodeStepper(recording, ",
        "tokens": texts(recording.tokens),
        "next_tokens": texts(recording.next_tokens),
        "prompt_length": recording.prompt_length,
        "question_length": recording.question_length,
        "steps": recording.steps,
        "layers": list(recording.layers),
        "layers_meaning": f"layer: the recorded layer that is shown{f' ({unrecorded})' if unrecorded else ''}",
        "heads": list(range(rows(recording))),
        "head_name": head_name,
        "group_name": recording.group_name,
        "merges": merges([recording]),
        "lists_centroids": lists_centroids(recording),
        "windows": windows(recording.geometry),
        "notes": window_notes(recording.geometry),
    }


def windows(geometry: Geometry) -> dict[str, str]:
    """What each layer with a sliding window attends to, by layer: menus and maps show these layers, none picks one."""
    texts_of = {str(layer): geometry.window_text(layer) for layer in range(geometry.n_layers)}
    return {layer: text for layer, text in texts_of.items() if text}


def window_notes(geometry: Geometry) -> list[str]:
    """The note on a model with sliding windows; else nothing."""
    return [text for text in [geometry.windows_text()] if text]


def _unrecorded(recording: Recording) -> str:
    exact = [layer for layer in recording.exact_layers if not recording.geometry.window(layer)]  # a note tells of them
    kinds: dict[str, Sequence[int]] = {"dense by choice": recording.dense_layers, "kept exact": exact}
    return "; ".join(f"layers {', '.join(map(str, layers))} {kind}" for kind, layers in kinds.items() if layers)
