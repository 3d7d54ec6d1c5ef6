"""What each number is about: the picked head, its layer, or all layers. js/scope.js has the same words."""

from __future__ import annotations

SCOPES = {
    "head": "this head", "heads": "all heads of the layer", "query_heads": "this KV head",
    "layer": "this layer", "layers": "all layers", "step": "this step", "steps": "all steps",
    "last": "last step", "answer": "whole answer",
}  # fmt: skip
SCOPE_OF = {
    "recall": "head", "mass": "head", "attended": "head", "read": "layer", "moved": "layer", "error": "layer",
    "metadata": "layer", "choose": "layer", "logprob": "layers",
}  # fmt: skip
OF_UNION = {"none": "head", "layer": "heads", "kv_head": "query_heads"}


def text(*scopes: str) -> str:
    """The scopes in words: "this head, this step"."""
    return ", ".join(SCOPES[scope] for scope in scopes)


def scope_in(name: str, union: str) -> str:
    """The scope of a number when a union of heads is shown, "none" for one head."""
    scope = SCOPE_OF[name]
    return scope if scope != "head" else OF_UNION[union]


def name_in(name: str, union: str) -> str:
    """The name of a number when a union of heads is shown: recall and mass are means over its heads."""
    return f"mean {name}" if union != "none" and name in ("recall", "mass") else name


def scoped(name: str, *when: str, label: str = "", union: str = "none") -> str:
    """The label of a number (default: its name) with its scope, for a time such as "step": "recall (this head, …)"."""
    return f"{label or name_in(name, union)} ({text(scope_in(name, union), *when)})"
