"""What each number is about: the picked head, its layer, or all layers. js/scope.js has the same words."""

from __future__ import annotations

SCOPES = {
    "head": "this head", "layer": "this layer", "layers": "all layers", "step": "this step", "steps": "all steps",
    "last": "last step", "answer": "whole answer",
}  # fmt: skip
SCOPE_OF = {
    "recall": "head", "mass": "head", "attended": "head", "read": "layer", "moved": "layer", "error": "layer",
    "metadata": "layer", "choose": "layer", "logprob": "layers",
}  # fmt: skip


def text(*scopes: str) -> str:
    """The scopes in words: "this head, this step"."""
    return ", ".join(SCOPES[scope] for scope in scopes)


def scoped(name: str, *when: str, label: str = "") -> str:
    """The label of a number (default: its name) with its scope, for a time such as "step": "recall (this head, …)"."""
    return f"{label or name} ({text(SCOPE_OF[name], *when)})"
