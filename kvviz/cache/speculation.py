"""A layer's queries, guessed from the attention input of the layer before: InfiniGen (arXiv 2406.19707)."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from contextvars import ContextVar
from typing import Any

from torch import Tensor, nn
from transformers.cache_utils import Cache

from ..errors import UnsupportedModelError

_probe: ContextVar[list[Tensor] | None] = ContextVar("kvviz_query_probe", default=None)


class _Probed(Exception):
    """Ends an attention module's forward pass once its queries are known."""


class AttentionInputs:
    """What each attention module was last called with for one cache, a decode step at a time."""

    def __init__(self) -> None:
        self._calls: dict[int, tuple[nn.Module, tuple[Any, ...], dict[str, Any]]] = {}

    def watch(self, model: nn.Module, cache: object) -> None:
        """Note the calls that carry `cache`, until it is gone.

        Raises UnsupportedModelError where the model's attention modules cannot be told apart.
        """
        of_this = weakref.ref(cache)
        modules = attention_modules("speculation", model)
        noted = weakref.WeakMethod(self._note)

        # torch adds and removes a hook in two steps: between them another thread calls it without keyword arguments.
        def before(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any] | None = None) -> None:
            own, note = of_this(), noted()
            if (
                kwargs is not None
                and own is not None
                and note is not None
                and any(value is own for value in (*args, *kwargs.values()))
            ):
                note(module, args, kwargs)

        for module in modules:
            handle = module.register_forward_pre_hook(before, with_kwargs=True)
            weakref.finalize(cache, handle.remove)

    def speculate(self, layer: int) -> Callable[[], Tensor] | None:
        """A function that gives layer's queries [B, Q, D] of this step as the layer before would ask them.

        It runs the layer's own projections and RoPE on the attention input of the layer before, and so costs a
        projection of queries, keys and values. None for the first layer, which has none before.
        """
        return None if layer == 0 else lambda: self._queries(layer)

    def _note(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        layer = int(module.layer_idx)  # type: ignore[arg-type]  # checked in `watch`
        if _hidden_states(args, kwargs).shape[1] > 1:  # a prompt: nobody asks for it, and it would stay in memory
            self._calls.pop(layer, None)
            return
        # The cache holds this object: a reference back would keep both until the garbage collector runs.
        named = {name: _without_cache(value) for name, value in kwargs.items()}
        self._calls[layer] = (module, tuple(map(_without_cache, args)), named)

    def _queries(self, layer: int) -> Tensor:
        before, own = self._calls.get(layer - 1), self._calls.get(layer)
        if before is None or own is None:
            raise UnsupportedModelError(
                "speculation", f"layer {layer} without the attention input of the layer before", "a plain decoder"
            )
        module, args, kwargs = own
        hidden = _hidden_states(*before[1:])
        if args:
            args = (hidden, *args[1:])
        else:
            kwargs = {**kwargs, "hidden_states": hidden}
        found: list[Tensor] = []
        token = _probe.set(found)
        try:
            module(*args, **kwargs)
        except _Probed:
            pass
        finally:
            _probe.reset(token)
        if not found:
            raise UnsupportedModelError("speculation", type(module).__name__, "attention that kvviz is attached to")
        return found[0][:, :, -1]


def attention_modules(operation: str, model: nn.Module) -> list[nn.Module]:
    """The attention modules of a model, each with its `layer_idx`.

    Raises UnsupportedModelError, naming `operation`, where they cannot be told apart.
    """
    found = [m for m in model.modules() if type(m).__name__.endswith("Attention") and hasattr(m, "layer_idx")]
    if not found:
        got = f"{type(model).__name__}, without numbered attention modules"
        raise UnsupportedModelError(operation, got, "a plain decoder")
    return found


def note_queries(queries: Tensor) -> None:
    """Called by the attention function: where queries [B, Q, n, D] are being speculated, take them and stop there."""
    found = _probe.get()
    if found is not None:
        found.append(queries)
        raise _Probed


def _hidden_states(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor:
    """The attention input [B, n, width] of a call."""
    hidden: Tensor = args[0] if args else kwargs["hidden_states"]
    return hidden


def _without_cache(value: Any) -> Any:
    return None if isinstance(value, Cache) else value
