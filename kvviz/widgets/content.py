"""What of a recording can be shown, and the words around it."""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from ..errors import InvalidInputError
from ..trace import Recording

_LONE_SURROGATE = re.compile("[\ud800-\udfff]")


def merges(recordings: Iterable[Recording]) -> bool:
    """Whether any of the recordings knows tokens that were merged."""
    return any(events.members is not None for recording in recordings for events in recording.events.values())


def texts(tokens: Iterable[str]) -> list[str]:
    """The tokens as text that a page and a message can hold: lone surrogates, as of undecoded bytes, become U+FFFD."""
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


def held(what: str, wanted: Any, check: Callable[[Any], int]) -> list[int]:
    """The numbers that a page is to hold, each passed through `check`, ascending and once each.

    Raises InvalidInputError for what is no list of them, and for none.
    """
    if isinstance(wanted, str) or not isinstance(wanted, Iterable):
        raise InvalidInputError(what, repr(wanted), "a list of whole numbers, or None")
    numbers = sorted({check(value) for value in wanted})
    if not numbers:
        raise InvalidInputError(what, "none", "at least one, or None")
    return numbers


def numbered(name: str, numbers: Sequence[int]) -> str:
    """`name`, in the plural where there are several, and the numbers."""
    return f"{name}{'s' if len(numbers) > 1 else ''} {', '.join(map(str, numbers))}"


def left_out(layers: Sequence[int], of_layers: int, heads: Sequence[int], of_heads: int, done: str) -> list[str]:
    """The note on a page that holds not all of the layers recorded or compared (`done`), or not all heads."""
    parts = []
    if len(layers) < of_layers:
        parts.append(f"{numbered('layer', layers)} of the {of_layers} {done}")
    if len(heads) < of_heads:
        parts.append(f"{numbered('head', heads)} of {of_heads}")
    return [f"This page holds {' and '.join(parts)}; to_html(layers=[…], heads=[…]) embeds others."] if parts else []


def check(recording: Recording, operation: str = "DecodeStepper") -> Recording:
    """The recording, if there is something to step through; raises InvalidInputError otherwise."""
    if not isinstance(recording, Recording):
        wanted = "a kvviz.Recording, such as generate(..., record=True).recording"
        raise InvalidInputError(operation, type(recording).__name__, wanted)
    if recording.steps == 0:
        wanted = "at least one decode step: raise max_new_tokens or queries"
        raise InvalidInputError(operation, "a recording of 0 steps", wanted)
    if not recording.layers:
        wanted = "a layer that the method served: lower dense_layers, or take another method"
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
    """Rows that a step chooses for: KV heads, or query heads where the method chooses for each."""
    return int(recording.events[recording.layers[0]].indices.shape[1])


def describe(recording: Recording) -> dict[str, Any]:
    """Everything on the page that does not depend on step, layer and head; JSON-able."""
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
        "layers_meaning": f"layer: which of the recorded layers is shown{f' ({unrecorded})' if unrecorded else ''}",
        "heads": list(range(rows(recording))),
        "head_name": head_name,
        "group_name": recording.group_name,
        "merges": merges([recording]),
        "notes": [],
    }


def _unrecorded(recording: Recording) -> str:
    kinds = {"dense by choice": recording.dense_layers, "kept exact": recording.exact_layers}
    return "; ".join(f"layers {', '.join(map(str, layers))} {kind}" for kind, layers in kinds.items() if layers)
