"""Presses of NVIDIA's kvpress as methods of `compare`, `evaluate` and `generate`, if kvpress is installed.

    from kvpress import SnapKVPress
    from kvviz.cache.kvpress import as_method
    kvviz.compare(lm, prompt, ["snapkv", as_method(SnapKVPress())], budgets=[256])

kvpress 0.5.5 requires transformers>=4.56.0,<5.3, and kvviz transformers>=5.0,<6: releases 5.0, 5.1 and 5.2 suit both.
`make agreement` makes such an environment. This module does not import kvpress. It relies on what kvpress documents:
a press is a dataclass with a `compression_ratio`, and called with a model, it compresses the cache of a prefill.
"""

from __future__ import annotations

import copy
from collections import defaultdict, deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, is_dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence
from transformers import DynamicCache

from ..errors import InvalidInputError
from ..methods.base import Generated, LayerContext
from ..methods.eviction import Eviction, EvictionState
from ..methods.selection import Selection
from ..metrics.byte_budgets import Budget
from .speculation import attention_modules

if TYPE_CHECKING:
    from transformers import PreTrainedModel

# Added to the tokens of a budget before it becomes a share: presses convert it back with int() or round().
MARGIN = 0.25


@dataclass
class Pressed(Eviction[EvictionState]):
    """A press as an eviction method (`as_method`): it keeps the tokens of a prompt that the press keeps.

    The press gets the budget through its `compression_ratio`, and may divide it among layers and heads. A press that
    exceeds the budget by more than one token per head is refused, because budgets would not be equal. `attention` is
    the implementation that the press runs under, "eager" for presses that need attention weights.

    A press needs modules and hidden states, which a method does not get. So each prompt is prefilled again for each
    press and budget, under the press and not in chunks; the tokens that it keeps are read from transformers' cache.
    `build_s` includes this prefill. Meanwhile no other thread may run the model, since the press would apply there too.

    A later prompt of a session is kept whole, since kvpress compresses only the first. Traces have no model and are
    refused. The class is not in `kvviz.methods.names()`, since a press cannot be made from a name.
    """

    title = "a press of kvpress"
    paper = "github.com/NVIDIA/kvpress"
    presets: ClassVar = {}
    needs_queries = False

    generated: Generated = "on_top"
    press: Any = None
    attention: str = "sdpa"

    def __post_init__(self) -> None:
        name = type(self.press).__name__
        # Set on the instance: a name on the class would register it.
        vars(self)["name"] = f"kvpress.{name}"
        super().__post_init__()
        if self.sinks or self.recent:
            got = f"sinks={self.sinks}, recent={self.recent}"
            raise InvalidInputError(self.name, got, "neither: if a press has them, they are fields of the press")
        if self.generated == "within":
            raise InvalidInputError(f"{self.name}: generated", "within", '"on_top": a press compresses prompts only')
        if isinstance(self.press, type) or not is_dataclass(self.press) or not callable(self.press):
            raise InvalidInputError("kvpress: press", name, "an instance of one of kvpress's presses")
        self.press = _with_ratio(self.press, 0)  # a copy, so that equal budgets of equal presses are equal methods
        self._last: tuple[Tensor, dict[int, Tensor]] | None = None  # the last prompt, and its kept positions

    @property
    def config(self) -> dict[str, Any]:
        """The budget, the dense layers, the attention, and the press with the presses that it wraps, as text."""
        values = {name: getattr(self, name) for name in ("budget", "dense_layers", "attention")}
        return {**values, "press": repr(self.press)}

    def build(self, layer: LayerContext, queries: Tensor, keys: Tensor, values: Tensor) -> EvictionState:
        """The state with the tokens that the press keeps; the prefill under the press runs in the first layer."""
        batch, _, length, _ = keys.shape
        if batch > 1:
            raise InvalidInputError(self.name, f"a batch of {batch} prompts", "one prompt")
        kept = self._kept(layer, length).to(keys.device) if self.budget_tokens(length) < length else None
        return self.whole(layer, keys, values, kept)

    def continue_prompt(self, state: EvictionState, queries: Tensor, keys: Tensor, values: Tensor) -> EvictionState:
        """The state with all tokens of a later prompt added."""
        state.append_prompt(keys, values)
        return state

    def select(self, state: EvictionState, queries: Tensor) -> Selection:
        """All kept tokens; heads may keep different numbers of them."""
        return replace(super().select(state, queries), padded=True)

    def _kept(self, layer: LayerContext, length: int) -> Tensor:
        prompt = layer.prompt
        model, ids = (None, None) if prompt is None else (prompt.model(), prompt.ids)
        if model is None or ids is None or ids.shape[1] != length:
            got = "a prompt of unknown model or tokens"
            raise InvalidInputError(self.name, got, "a prompt of kvviz.generate, compare or evaluate")
        if self._last is None or self._last[0] is not ids:
            budget = self.budget_tokens(length)
            press = _with_ratio(self.press, 1 - (budget + MARGIN) / length)
            kept = kept_positions(model, ids, press, self.attention)
            n_heads = sum(heads.shape[1] for heads in kept.values())
            count = sum(int((heads >= 0).sum()) for heads in kept.values()) / n_heads
            if count > budget + 1:  # presses round
                got = f"{count:.1f} tokens per head at a budget of {budget}"
                raise InvalidInputError(self.name, got, "a press that follows the compression_ratio it is given")
            self._last = ids, kept
        return self._last[1][layer.index]


def as_method(press: Any, budget: Budget | None = None, attention: str = "sdpa") -> Pressed:
    """A press as a method for `compare`, `evaluate` and `generate`: `Pressed`, named after the press's class.

    `budget` is by default the share that the press's `compression_ratio` leaves, if that is above 0; `compare` and
    `evaluate` set their budgets. `attention="eager"` is for presses that need attention weights
    (ObservedAttentionPress). Label two presses of one class: `{"alpha 0.2": as_method(AdaKVPress(...)), ...}`.

    A press is supported if it drops tokens in each layer of the prefill, per layer or per head, and has a
    `compression_ratio` that can be set. Raises InvalidInputError for a press without one, and, once it has run, for a
    press that changes or adds keys or values (ThinKPress, KeyRerotationPress, presses that merge).
    """
    if budget is not None:
        return Pressed(press=press, attention=attention, budget=budget)
    method = Pressed(press=press, attention=attention)
    return replace(method, budget=1 - press.compression_ratio) if press.compression_ratio else method


@torch.no_grad()
def kept_positions(model: PreTrainedModel, ids: Tensor, press: Any, attention: str = "sdpa") -> dict[int, Tensor]:
    """The positions [1, H, K] that a press keeps of a prompt `ids` [1, L], by layer: ascending, -1 pads.

    The prompt is prefilled into transformers' DynamicCache under the press, with the implementation `attention`. The
    remaining keys and values are looked up in the full cache, bit for bit; among identical tokens the earlier ones
    count as kept. Keys that a press masks for single heads but leaves in the cache (`masked_key_indices` of the
    attention module: AdaKVPress) are not kept, and the mask is removed from the module. Layers that cache only a part
    of the prompt (sliding windows) have no entry. Needs the memory of both caches.

    Raises InvalidInputError for keys or values that are not in the prompt's full cache.
    """
    modules = attention_modules("kvpress", model)
    cache = DynamicCache(config=model.config)
    layers: list[Any] = cache.layers
    full: dict[int, tuple[Tensor, Tensor]] = {}

    def note(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
        if any(value is cache for value in (*args, *kwargs.values())):
            index = int(module.layer_idx)  # type: ignore[arg-type]  # checked in attention_modules
            if index not in full:  # a press may run the model on more than the prompt
                full[index] = layers[index].keys.clone(), layers[index].values.clone()

    handles = [module.register_forward_hook(note, with_kwargs=True) for module in modules]  # before the press's
    try:
        with _implementation(model, attention), press(model):
            model(ids, past_key_values=cache, use_cache=True, logits_to_keep=1)
        kept = {}
        for module in modules:
            index = int(module.layer_idx)  # type: ignore[arg-type]  # checked in attention_modules
            if index in full and full[index][0].shape[2] == ids.shape[1]:
                remaining = layers[index].keys, layers[index].values
                places = _places(remaining, full[index], f"kvpress.{type(press).__name__} in layer {index}")
                kept[index] = _padded(places, getattr(module, "masked_key_indices", None)).to(ids.device)
        return kept
    finally:
        for handle in handles:
            handle.remove()
        for module in modules:
            if getattr(module, "masked_key_indices", None) is not None:
                module.masked_key_indices = None  # type: ignore[assignment]  # an attribute of kvpress


def _with_ratio(press: Any, ratio: float) -> Any:
    """A copy of the press with this compression ratio."""
    copied, name = copy.deepcopy(press), type(press).__name__
    wanted = "a press whose compression_ratio can be set"
    # Not hasattr(copied, ...): a ratio that is known only after a prefill raises until then.
    if "compression_ratio" not in vars(copied) and not hasattr(type(copied), "compression_ratio"):
        raise InvalidInputError("kvpress: press", f"{name} without a compression_ratio", wanted)
    try:
        copied.compression_ratio = ratio
    except (AttributeError, AssertionError, ValueError) as error:
        raise InvalidInputError("kvpress: press", f"{name}: {error}", wanted) from error
    return copied


@contextmanager
def _implementation(model: PreTrainedModel, attention: str) -> Iterator[None]:
    before = str(model.config._attn_implementation)
    model.set_attn_implementation(attention)
    try:
        yield
    finally:
        model.set_attn_implementation(before)


def _places(remaining: tuple[Tensor, Tensor], full: tuple[Tensor, Tensor], operation: str) -> list[list[int]]:
    """Positions in the prompt of one layer's remaining keys and values, in the order of the cache, per KV head."""
    wanted = "a press that drops tokens and leaves the keys and values of the others as they are"
    if remaining[0].shape[1] != full[0].shape[1] or remaining[0].shape[-1] != full[0].shape[-1]:
        raise InvalidInputError(operation, f"keys of shape {list(remaining[0].shape)}", wanted)
    heads = []
    for head in range(full[0].shape[1]):
        places: defaultdict[bytes, deque[int]] = defaultdict(deque)
        for place, row in enumerate(_rows(*full, head)):
            places[row].append(place)
        try:
            heads.append([places[row].popleft() for row in _rows(*remaining, head)])
        except IndexError as error:
            raise InvalidInputError(operation, "a key or value that the prompt does not have", wanted) from error
    return heads


def _rows(keys: Tensor, values: Tensor, head: int) -> list[bytes]:
    """The key and value of each token of a head, as bytes."""
    pairs = torch.cat([keys[0, head], values[0, head]], dim=-1).contiguous().view(torch.uint8).cpu().numpy()
    return [row.tobytes() for row in pairs]


def _padded(places: list[list[int]], masked: Any) -> Tensor:
    """The positions of each head without the masked ones, ascending, as [1, H, K] with -1 pads.

    `masked` is kvpress's triple of tensors: the batch row, head and place in the cache of each masked key; or None.
    """
    kept = [dict(enumerate(head)) for head in places]
    if masked is not None:
        for head, place in zip(masked[1].tolist(), masked[2].tolist(), strict=True):
            kept[head].pop(place, None)
    rows = [torch.tensor(sorted(head.values()), dtype=torch.int64) for head in kept]
    return pad_sequence(rows, batch_first=True, padding_value=-1)[None]
