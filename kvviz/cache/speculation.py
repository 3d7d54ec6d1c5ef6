"""Query speculation: a layer's queries from the attention input of the layer before. InfiniGen (arXiv 2406.19707)."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from contextlib import suppress
from contextvars import ContextVar
from typing import Any

from torch import Tensor, nn
from transformers.cache_utils import Cache

from ..errors import UnsupportedModelError
from .passes import carries

_probe: ContextVar[list[Tensor] | None] = ContextVar("kvviz_query_probe", default=None)


class _Probed(Exception):
    """Stops an attention module's forward pass when its queries are known."""


class AttentionInputs:
    """The arguments of each attention module's last call with one cache, in decode steps."""

    def __init__(self) -> None:
        self._calls: dict[int, tuple[nn.Module, tuple[Any, ...], dict[str, Any]]] = {}

    def watch(self, model: nn.Module, cache: object) -> None:
        """Note the calls with `cache` among their arguments, for the lifetime of the cache.

        Raises UnsupportedModelError if the model's attention modules are not numbered.
        """
        cache_ref = weakref.ref(cache)
        modules = attention_modules("speculation", model)

        # torch adds and removes a hook in two steps; in between, another thread may call it without keyword arguments.
        def before(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any] | None = None) -> None:
            if kwargs is not None and carries(cache_ref, args, kwargs):
                self._note(module, args, kwargs)

        for module in modules:
            handle = module.register_forward_pre_hook(before, with_kwargs=True)
            weakref.finalize(cache, handle.remove)

    def speculate(self, layer: int) -> Callable[[], Tensor] | None:
        """A function that returns the layer's queries [B, Q, D] of this step, speculated; None for the first layer.

        It applies the layer's projections and RoPE to the attention input of the layer before, so its price is one
        projection of queries, keys and values.
        """
        return None if layer == 0 else lambda: self._queries(layer)

    def _note(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        layer = int(module.layer_idx)  # type: ignore[arg-type]  # checked in `watch`
        if _hidden_states(args, kwargs).shape[1] > 1:  # a prompt: not needed, and it would stay in memory
            self._calls.pop(layer, None)
            return
        # The cache refers to this object: a reference back would keep both until the garbage collector runs.
        kwargs = {name: _without_cache(value) for name, value in kwargs.items()}
        self._calls[layer] = (module, tuple(map(_without_cache, args)), kwargs)

    def _queries(self, layer: int) -> Tensor:
        call_before, call = self._calls.get(layer - 1), self._calls.get(layer)
        if call_before is None or call is None:
            raise UnsupportedModelError(
                "speculation", f"layer {layer} without the attention input of the layer before", "a plain decoder"
            )
        module, args, kwargs = call
        hidden = _hidden_states(*call_before[1:])
        if args:
            args = (hidden, *args[1:])
        else:
            kwargs = {**kwargs, "hidden_states": hidden}
        queries: list[Tensor] = []
        token = _probe.set(queries)
        try:
            with suppress(_Probed):
                module(*args, **kwargs)
        finally:
            _probe.reset(token)
        if not queries:
            raise UnsupportedModelError("speculation", type(module).__name__, "attention that kvviz is attached to")
        return queries[0][:, :, -1]


def attention_modules(operation: str, model: nn.Module) -> list[nn.Module]:
    """The attention modules of a model, each with its `layer_idx`.

    Raises UnsupportedModelError, which names `operation`, for a model without numbered attention modules.
    """
    modules = [m for m in model.modules() if type(m).__name__.endswith("Attention") and hasattr(m, "layer_idx")]
    if not modules:
        got = f"{type(model).__name__}, without numbered attention modules"
        raise UnsupportedModelError(operation, got, "a plain decoder")
    return modules


def note_queries(queries: Tensor) -> None:
    """Called by the attention function: during speculation, store its queries [B, Q, n, D] and stop the pass."""
    speculated = _probe.get()
    if speculated is not None:
        speculated.append(queries)
        raise _Probed


def _hidden_states(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor:
    """The attention input [B, n, width] of a call."""
    hidden: Tensor = args[0] if args else kwargs["hidden_states"]
    return hidden


def _without_cache(value: Any) -> Any:
    return None if isinstance(value, Cache) else value
