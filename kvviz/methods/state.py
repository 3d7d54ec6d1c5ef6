"""What a method is told of a layer, and what it keeps of one between decode steps."""

from __future__ import annotations

import weakref
from dataclasses import dataclass, fields, is_dataclass
from typing import TYPE_CHECKING, ClassVar

from torch import Tensor

from ..offload.token_cache import TokenCache
from .selection import Group

if TYPE_CHECKING:
    from transformers import PreTrainedModel


@dataclass(eq=False)
class Prompt:
    """The prompt that a cache was filled with, for what has to run the model on it once more (`kvviz.cache.kvpress`).

    `model` is a weak reference. `ids` are the tokens [1, L] of the first prompt; None until `kvviz.generate`, `compare`
    or `evaluate` fills the cache, and where transformers' own `generate` does.
    """

    model: weakref.ref[PreTrainedModel]
    ids: Tensor | None = None


@dataclass(frozen=True)
class LayerContext:
    """What a method may know of the layer that it serves.

    `scale` multiplies the logits, `softcap` bounds them (Gemma 2) or is None. With `details`, selections carry groups
    and scores. `cached` looks up the layer's own keys and values; it is None on stored tensors (see `token_cache`).
    `prompt` is None without a running model; methods on tensors do not need it.
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

    def selection_heads(self, group: Group) -> int:
        """How many heads choose tokens: KV heads, or query heads where each chooses for itself."""
        return self.n_heads if group == "each" else self.n_kv_heads

    def token_cache(self, keys: Tensor, values: Tensor) -> TokenCache:
        """Where a method looks up keys and values later: the layer's own cache, or a new one with these."""
        if self.cached is not None:
            return self.cached
        own = TokenCache()
        own.append(keys, values)
        return own


@dataclass
class State:
    """What a method keeps of one layer between decode steps; each method adds its own fields.

    `auxiliary` names the fields that hold keys a second time (some channels, low rank, another layout).
    """

    auxiliary: ClassVar[tuple[str, ...]] = ()

    layer: LayerContext
    prompt_length: int
    length: int

    @property
    def generated(self) -> int:
        """Tokens since the prompt."""
        return self.length - self.prompt_length

    def append(self, keys: Tensor, values: Tensor) -> None:
        """Count new tokens, keys and values [B, H, n, D]."""
        self.length += keys.shape[2]

    def append_prompt(self, keys: Tensor, values: Tensor) -> None:
        """Count the tokens of a later prompt, as a part of the prompt."""
        self.append(keys, values)
        self.prompt_length = self.length

    def metadata_bytes(self) -> int:
        """Bytes of every tensor the method keeps beside the keys and values themselves."""
        own = (field.name for field in fields(self) if field.name != "layer")  # what the method was told, the prompt
        return sum(tensor_bytes(getattr(self, name)) for name in own)

    def auxiliary_bytes(self) -> int:
        """Bytes of the keys kept a second time, a part of `metadata_bytes`."""
        return sum(tensor_bytes(getattr(self, name)) for name in self.auxiliary)

    def read_bytes(self) -> int:
        """Bytes beside the attended keys and values that one step reads to choose; all metadata, unless less is.

        PQCache counts these as extra communication (arXiv 2407.12820, section 4.1).
        """
        return self.metadata_bytes()


@dataclass
class TokenState(State):
    """Beside the counts, where keys and values can be looked up."""

    tokens: TokenCache

    def append(self, keys: Tensor, values: Tensor) -> None:
        """Count new tokens, and keep them where no layer does."""
        self.tokens.append(keys, values)
        super().append(keys, values)


def tensor_bytes(value: object) -> int:
    """Bytes of every tensor in a tensor, a sequence or a dataclass; 0 for anything else."""
    if isinstance(value, Tensor):
        return value.numel() * value.element_size()
    if isinstance(value, list | tuple):
        return sum(tensor_bytes(item) for item in value)
    if is_dataclass(value):
        return sum(tensor_bytes(getattr(value, field.name)) for field in fields(value))
    return 0
