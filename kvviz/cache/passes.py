"""When a model's forward passes begin and end."""

from __future__ import annotations

import weakref
from typing import Any

from torch import nn

from ..trace.timeline import Timeline


def watch_passes(model: nn.Module, cache: object, timeline: Timeline) -> None:
    """Tell the timeline of each forward pass of `model` that carries `cache`, until the cache is gone."""
    of_this = weakref.ref(cache)

    def carries(values: tuple[Any, ...]) -> bool:
        own = of_this()
        return own is not None and any(value is own for value in values)

    # torch adds and removes a hook in two steps: between them another thread calls it without keyword arguments.
    def before(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any] | None = None) -> None:
        if kwargs is not None and carries((*args, *kwargs.values())):
            timeline.begin_pass()

    def after(module: nn.Module, args: tuple[Any, ...], *rest: Any) -> None:
        if len(rest) == 2 and carries((*args, *rest[0].values())):
            timeline.end_pass()

    for handle in (
        model.register_forward_pre_hook(before, with_kwargs=True),
        model.register_forward_hook(after, with_kwargs=True),
    ):
        weakref.finalize(cache, handle.remove)
