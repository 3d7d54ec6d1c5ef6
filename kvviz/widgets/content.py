"""What of a recording can be shown, and the words around it."""

from __future__ import annotations

from typing import Any

from ..errors import InvalidInputError
from ..trace import Recording

# What a method's groups are, where they are no clusters.
_GROUP_NAMES = {"quest": "page", "pqcache": "block", "infllm": "block", "shadowkv": "chunk", "ctkvr": "query centroid"}


def group_name(method: str) -> str:
    """What the `groups` of a method's recordings are called."""
    return _GROUP_NAMES.get(method, "cluster")


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
    recording.visible(step)
    return step


def check_layer(recording: Recording, layer: int) -> int:
    """`layer` if it was recorded; raises InvalidInputError otherwise."""
    if layer not in recording.layers:
        known = f"a recorded layer: {', '.join(map(str, recording.layers))}"
        unrecorded = _unrecorded(recording)
        raise InvalidInputError("layer of a DecodeStepper", layer, f"{known} ({unrecorded})" if unrecorded else known)
    return layer


def check_head(recording: Recording, head: int) -> int:
    """`head` if the recording has that row; raises InvalidInputError otherwise."""
    if not 0 <= head < rows(recording):
        raise InvalidInputError("head of a DecodeStepper", head, f"0 to {rows(recording) - 1}")
    return head


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
        "tokens": recording.tokens,
        "next_tokens": recording.next_tokens,
        "prompt_length": recording.prompt_length,
        "question_length": recording.question_length,
        "steps": recording.steps,
        "layers": list(recording.layers),
        "layers_meaning": f"layer: which of the recorded layers is shown{f' ({unrecorded})' if unrecorded else ''}",
        "heads": list(range(rows(recording))),
        "head_name": head_name,
        "group_name": group_name(recording.method),
        "notes": [],
    }


def _unrecorded(recording: Recording) -> str:
    kinds = {"dense by choice": recording.dense_layers, "kept exact": recording.exact_layers}
    return "; ".join(f"layers {', '.join(map(str, layers))} {kind}" for kind, layers in kinds.items() if layers)
