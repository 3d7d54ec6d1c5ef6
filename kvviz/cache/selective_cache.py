"""SelectiveCache: a transformers cache whose decode steps attend to a method's selection."""

from __future__ import annotations

import copy
import weakref
from typing import Any

from torch import Tensor
from transformers import DynamicCache, PreTrainedModel
from transformers.cache_utils import Cache, DynamicLayer

from ..errors import CacheMismatchError, InvalidInputError, UnsupportedModelError
from ..methods import resolve, resolve_prefill
from ..methods.base import LayerContext, Method
from ..methods.capabilities import Speculative
from ..methods.state import Prompt
from ..offload.background import device_clock
from ..offload.kvstore import KVStore, resolve_store
from ..trace import Geometry, Ledger
from ..trace.edit_parts import Group
from ..trace.edits import Edit
from ..trace.timeline import Timeline
from .accounting import ledger_of
from .layer_cache import LayerCache
from .passes import watch_passes
from .repeating import feed_after
from .rotations import rotations
from .selective_layer import SelectiveLayer
from .speculation import AttentionInputs
from .tiers import make_store


class SelectiveCache(Cache):
    """A cache for `model.generate(..., past_key_values=cache)` that decodes over the selection of `method`.

    Call `kvviz.attach(model)` once before. Prompts are prefilled with exact attention; each decoded token then attends
    to the selection. Later prompts on the same cache (multi-turn) attend to all tokens and are indexed again. If the
    method drops tokens, a later prompt attends exactly to the kept ones, whatever the prefill, and is added to them.
    Layers that no method supports (sliding windows, linear attention, keys that other layers attend to as well) stay as
    in transformers; `exact_layers` lists them. `store` is where keys and values are kept: "device", "host", "disk" or a
    KVStore. `prefill` names a method whose attention prompts use ("minference"); the default is the method's prefill,
    which is exact for nearly all methods. `timeline`, a new Timeline, records when compute, clustering and transfers
    run, but not those of a fork.
    `edit` changes what decode steps attend to (`kvviz.pin` and others), in every row of a batch; its tokens are
    positions in the prompt, without padding.

    Raises UnknownNameError for an unknown method, UnsupportedModelError for a model without attention layers,
    InvalidInputError for an unknown store, one that does not suit the method, a prefill that is exact, or a timeline
    with events.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        method: str | Method,
        store: str | KVStore = "device",
        *,
        prefill: str | Method | None = None,
        details: bool = False,
        retain_queries: bool = False,
        timeline: Timeline | None = None,
        edit: Edit | None = None,
    ) -> None:
        self.store = resolve_store(store)
        self.config = model.config.get_text_config(decoder=True)
        self.method, self.edit = resolve(method), edit
        self.prefill = self.method if prefill is None else resolve_prefill(prefill)
        self._inputs = AttentionInputs() if isinstance(self.method, Speculative) else None
        self.prompt = Prompt(weakref.ref(model), feeder=feed_after)  # shared with the forks: they have the same prompt
        layers = DynamicCache(config=model.config).layers
        self._geometry = geometry = Geometry.of_config("SelectiveCache", self.config)
        if getattr(model, "_is_stateful", False) and not hasattr(Cache, "has_previous_state"):
            got = f"{type(model).__name__}, which has a cache class of its own in this version of transformers"
            raise UnsupportedModelError("SelectiveCache", got, "a newer version")
        if not any(isinstance(layer, DynamicLayer) for layer in layers):
            raise UnsupportedModelError(
                "SelectiveCache", f"{type(model).__name__}, which has no attention layers", "a decoder with attention"
            )
        shared = _shared_layers(self.config)
        for index, layer in enumerate(layers):
            if type(layer) is DynamicLayer and index not in shared:
                context = LayerContext(
                    index, geometry.n_layers, geometry.n_heads, geometry.n_kv_heads, geometry.head_dim,
                    geometry.head_dim**-0.5, details=details, prompt=self.prompt, rotation=rotations(model).get(index),
                )  # fmt: skip
                kv = make_store(self.store, context, self.method)
                kv.timeline = None if timeline is None else timeline.of(index)
                cache = LayerCache(context, self.method, kv, retain_queries=retain_queries, edit=edit)
                layers[index] = self._selective(cache)
        super().__init__(layers=layers)
        _link(layers)
        self._last: SelectiveLayer | None = None
        self._model = weakref.ref(model)
        if self._inputs is not None:
            self._inputs.watch(model, self)
        self.timeline, self._expected = timeline, 0
        if timeline is not None:
            timeline.use(device_clock(model.device))
            watch_passes(model, self, timeline)

    def update(
        self, key_states: Tensor, value_states: Tensor, layer_idx: int, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        """As in transformers. Raises CacheMismatchError if the model's attention does not use this cache any more."""
        if self._last is not None and self._last.awaiting:
            raise CacheMismatchError(
                f"attention of layer {self._last.cache.context.index}",
                "keys of a SelectiveCache that did not reach kvviz's attention",
                "kvviz.attach(model) before use, a model that passes the cached keys to attention unchanged, "
                "and a new cache after an interrupted step",
            )
        if layer_idx >= len(self.layers):
            raise CacheMismatchError(
                "update of the cache", f"layer {layer_idx}", f"a model of {len(self.layers)} layers"
            )
        if self.timeline is not None:
            decodes = key_states.shape[2] == 1 and self.get_seq_length(layer_idx) >= max(self._expected, 1)
            self.timeline.arrive(layer_idx, "decode" if decodes else "prefill")
        updated: tuple[Tensor, Tensor] = super().update(key_states, value_states, layer_idx, *args, **kwargs)
        layer = self.layers[layer_idx]
        self._last = layer if isinstance(layer, SelectiveLayer) else None
        if self.timeline is not None and self._last is None:
            self.timeline.leave(layer_idx, "exact layer")
        return updated

    @property
    def selective_layers(self) -> list[LayerCache]:
        """The layers with a method, in ascending order."""
        return [layer.cache for layer in self.layers if isinstance(layer, SelectiveLayer)]

    @property
    def exact_layers(self) -> tuple[int, ...]:
        """The indices of the layers without a method, which keep the model's attention."""
        return tuple(index for index, layer in enumerate(self.layers) if not isinstance(layer, SelectiveLayer))

    @property
    def windows(self) -> dict[int, int]:
        """The exact layers with a sliding window, with the window's tokens."""
        return {index: window for index in self.exact_layers if (window := self._geometry.window(index))}

    def expect(self, prompt_length: int, new_tokens: int = 0) -> None:
        """Announce the length of the prompt, so that a prompt in chunks is indexed once, at its end.

        `new_tokens` is how many tokens may follow it: a tier too small for all then fails during the prefill.
        """
        self._expected = prompt_length
        for layer in self.layers:
            if isinstance(layer, SelectiveLayer):
                layer.expected_length = prompt_length
                layer.cache.store.expect(prompt_length + new_tokens if new_tokens else 0)

    def fork(self, method: str | Method, edit: Edit | None = None) -> SelectiveCache:
        """An independent copy of the cached prompt, indexed for another method, and with an edit.

        If the method needs the prompt's queries, this cache must have been made with `retain_queries`.
        """
        fork = copy.copy(self)
        fork.method, fork._last, fork.timeline = resolve(method), None, None
        fork.edit = edit
        fork.prefill = fork.method if self.prefill is self.method else self.prefill
        fork._inputs = AttentionInputs() if isinstance(fork.method, Speculative) else None
        fork.layers = [
            fork._selective(layer.cache.fork(fork.method, edit))
            if isinstance(layer, SelectiveLayer)
            else copy.deepcopy(layer)
            for layer in self.layers
        ]
        _link(fork.layers)
        model = self._model()
        if fork._inputs is not None and model is not None:
            fork._inputs.watch(model, fork)
        return fork

    def wait(self) -> None:
        """Wait until all states are built and all offloading is finished."""
        for layer in self.selective_layers:
            _ = layer.states
            layer.store.wait()

    def group_tokens(self, group: Group) -> tuple[int, ...]:
        """The positions of a group's tokens, once the prompt is indexed (`kvviz.group`).

        Raises InvalidInputError if there is no such group.
        """
        for layer in self.selective_layers:
            if layer.context.index == group.layer:
                return layer.group_tokens(group.head, group.number)
        raise InvalidInputError("group", f"layer {group.layer}", "a layer in which the method chooses")

    def ledger(self) -> Ledger:
        """The ledger of this cache: where its tokens and bytes are."""
        return ledger_of(self.selective_layers, self.exact_layers)

    def _selective(self, cache: LayerCache) -> SelectiveLayer:
        layer = SelectiveLayer(cache, self.prefill)
        cache.speculate = None if self._inputs is None else self._inputs.speculate(cache.context.index)
        layer.config = self.config
        layer.is_initialized = cache.store.length > 0
        return layer


def _shared_layers(config: Any) -> set[int]:
    """The layers whose keys later layers read too (Gemma 3n): of each kind, the last layer that has keys of its own."""
    count = getattr(config, "num_kv_shared_layers", None) or 0
    first, kinds = config.num_hidden_layers - count, getattr(config, "layer_types", None) or []
    own = {kind: index for index, kind in enumerate(kinds[:first])}  # the last of each kind
    return {own[kind] for kind in kinds[first:] if kind in own} if count else set()


def _link(layers: list[Any]) -> None:
    """Link each layer that selects to the next one, and the last to the first."""
    selecting = [layer for layer in layers if isinstance(layer, SelectiveLayer) and not layer.cache.dense]
    for layer, following in zip(selecting, selecting[1:] + selecting[:1], strict=True):
        layer.following = weakref.ref(following)
