"""`LayerContext`, what a method knows about its layer, and `State`, what it keeps between decode steps."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, fields, is_dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from kvviz_kernels import gather_weights
from kvviz_kernels.softcap import softcap_
from torch import Tensor

from ..errors import InvalidInputError
from ..offload.growing import GrowingTensor
from ..offload.token_cache import TokenCache
from ..trace.rotation import Rotation
from .selection import Group

if TYPE_CHECKING:
    from transformers import PreTrainedModel


# Gets the number of the text, the layer, queries [1, Q, n, D], keys [1, H, L + n, D], logit scale and soft cap.
Watch = Callable[[int, int, Tensor, Tensor, float, float | None], None]
Feeder = Callable[["PreTrainedModel", Tensor, Iterable[Tensor], Watch], None]


@dataclass(eq=False)
class Prompt:
    """The first prompt of a cache, for methods that run the model on it once more (KVzip, `kvviz.cache.kvpress`).

    `model` is a weak reference. `ids` are its tokens [1, L], and `encode` gives the token ids of further text; both are
    None before `kvviz.generate`, `compare` or `evaluate` fills the cache, and if transformers' `generate` fills it.
    `feeder` is what runs the model: it is given by the cache, as methods know no transformers.
    """

    model: weakref.ref[PreTrainedModel]
    ids: Tensor | None = None
    encode: Callable[[str], list[int]] | None = None
    feeder: Feeder | None = None

    def feed(self, operation: str, texts: Iterable[Tensor], watch: Watch) -> None:
        """Prefill the prompt again, then feed each of `texts` [1, n] directly after it, and watch its attention.

        `watch(number, layer, queries, keys, scale, softcap)` is called for each text and each layer that attends to all
        tokens, before its attention: queries [1, Q, n, D] of the text, and keys [1, H, L + n, D] of prompt and text,
        after RoPE. Raises InvalidInputError, which names `operation`, if model or tokens are not known.
        """
        model = self.model()
        if model is None or self.ids is None or self.feeder is None:
            got = "a prompt of unknown model or tokens"
            raise InvalidInputError(operation, got, "a prompt of kvviz.generate, compare or evaluate")
        self.feeder(model, self.ids, texts, watch)


@dataclass(frozen=True)
class LayerContext:
    """The layer that a method serves: its position, its heads and its attention.

    `scale` multiplies the logits; `softcap` limits them (Gemma 2) or is None. With `details`, selections have groups
    and scores. `cached` reads the layer's keys and values; it is None on stored tensors (see `token_cache`). `prompt`
    is None without a running model. `rotation` is the layer's RoPE, None if it is not known.
    """

    index: int
    n_layers: int
    n_heads: int
    n_kv_heads: int
    head_dim: int
    scale: float
    softcap: float | None = None
    details: bool = False
    cached: TokenCache | None = None
    prompt: Prompt | None = None
    rotation: Rotation | None = None

    def selection_heads(self, group: Group) -> int:
        """The number of selection heads: query heads for group="each", otherwise KV heads."""
        return self.n_heads if group == "each" else self.n_kv_heads

    def logits(self, products: Tensor) -> Tensor:
        """Attention logits from inner products q·k of any shape: scaled and soft-capped."""
        return softcap_(products * self.scale, self.softcap)

    def known_rotation(self, operation: str) -> Rotation:
        """The layer's RoPE. Raises InvalidInputError, which names `operation`, if it is not known."""
        if self.rotation is None:
            got = f"layer {self.index}, whose RoPE is not known"
            wanted = "a model with RoPE of fixed frequencies, or a trace captured from one by this version of kvviz"
            raise InvalidInputError(operation, got, wanted)
        return self.rotation

    def token_cache(self, keys: Tensor, values: Tensor) -> TokenCache:
        """A cache in which a method can look up keys and values later: the layer's, or a new one that holds these."""
        if self.cached is not None:
            return self.cached
        cache = TokenCache()
        cache.append(keys, values)
        return cache


@dataclass
class State:
    """The state of a method in one layer between decode steps; subclasses add fields.

    `auxiliary` names the fields that hold copies of the keys (some channels, low rank, another layout). `extras` are
    what wrappers keep, by their name; every step reads all of it.
    """

    auxiliary: ClassVar[tuple[str, ...]] = ()

    layer: LayerContext
    prompt_length: int
    length: int
    extras: dict[str, Any] = field(default_factory=dict, init=False)

    @property
    def generated(self) -> int:
        """The number of tokens since the prompt."""
        return self.length - self.prompt_length

    def append(self, keys: Tensor, values: Tensor) -> None:
        """Count new tokens, keys and values [B, H, n, D]."""
        self.length += keys.shape[2]

    def append_prompt(self, keys: Tensor, values: Tensor) -> None:
        """Count the tokens of a later prompt as part of the prompt."""
        self.append(keys, values)
        self.prompt_length = self.length

    def metadata_bytes(self) -> int:
        """Bytes of all tensors that the method keeps in addition to the keys and values, without spare room."""
        names = (entry.name for entry in fields(self) if entry.name != "layer")  # the context is an input
        return sum(tensor_bytes(getattr(self, name)) for name in names)

    def auxiliary_bytes(self) -> int:
        """Bytes of copies of the keys, a part of `metadata_bytes`."""
        return sum(tensor_bytes(getattr(self, name)) for name in self.auxiliary)

    def read_bytes(self) -> int:
        """Bytes that one step reads to choose, without the attended keys and values; by default all metadata.

        Without `extras`. PQCache counts these as extra communication (arXiv 2407.12820, section 4.1).
        """
        return self.metadata_bytes() - tensor_bytes(self.extras)

    def choosing_bytes(self) -> int:
        """Bytes that one step reads to choose, extras included."""
        return self.read_bytes() + tensor_bytes(self.extras)


@dataclass
class TokenState(State):
    """A state with access to the keys and values of all tokens."""

    tokens: TokenCache

    def append(self, keys: Tensor, values: Tensor) -> None:
        """Count new tokens, and store them if no layer does."""
        self.tokens.append(keys, values)
        super().append(keys, values)

    def exact_weights(self, queries: Tensor, positions: Tensor, group: Group) -> Tensor:
        """Softmax weights [B, R, S] of the tokens at `positions` [B, R, S] among themselves, reduced over the group.

        queries [B, Q, D]; -1 for pads. If the keys are on the host, so is the computation: only positions, queries and
        weights are moved. Source: CTkvr (arXiv 2512.15550), section 3.2.
        """
        on_host = self.tokens.keys_on_host(positions)
        if on_host is not None:
            queries = self.tokens.to_host(queries)
        keys, places = self.tokens.keys_at(positions) if on_host is None else on_host
        layer = self.layer
        weights = gather_weights(queries, keys, places, scale=layer.scale, group=group, softcap=layer.softcap)
        return weights if on_host is None else self.tokens.to_device(weights, positions.device)


def tensor_bytes(value: object) -> int:
    """Bytes of all tensors and arrays in a list, tuple, dict, dataclass or growing tensor; 0 for anything else."""
    if isinstance(value, Tensor | np.ndarray):
        return value.nbytes
    if isinstance(value, GrowingTensor):
        return tensor_bytes(value.tensor)
    if isinstance(value, dict):
        return sum(map(tensor_bytes, value.values()))
    if isinstance(value, list | tuple):
        return sum(tensor_bytes(item) for item in value)
    if is_dataclass(value):
        return sum(tensor_bytes(getattr(value, entry.name)) for entry in fields(value))
    return 0
