"""Hooks that record the forward passes of a model in a timeline."""

from __future__ import annotations

import weakref
from typing import Any

from torch import nn

from ..trace.timeline import Timeline


def watch_passes(model: nn.Module, cache: object, timeline: Timeline) -> None:
    """Record the forward passes of `model` with `cache` in `timeline`, for the lifetime of the cache."""
    cache_ref = weakref.ref(cache)

    # torch adds and removes a hook in two steps; in between, another thread may call it without keyword arguments.
    def before(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any] | None = None) -> None:
        if kwargs is not None and carries(cache_ref, args, kwargs):
            timeline.begin_pass()

    def after(module: nn.Module, args: tuple[Any, ...], *rest: Any) -> None:
        if len(rest) == 2 and carries(cache_ref, args, rest[0]):
            timeline.end_pass()

    for handle in (
        model.register_forward_pre_hook(before, with_kwargs=True),
        model.register_forward_hook(after, with_kwargs=True),
    ):
        weakref.finalize(cache, handle.remove)


def carries(cache_ref: weakref.ref[object], args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Whether a call with these arguments passes the cache, if it still exists."""
    cache = cache_ref()
    return cache is not None and any(value is cache for value in (*args, *kwargs.values()))
