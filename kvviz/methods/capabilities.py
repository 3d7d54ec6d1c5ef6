"""Capabilities of some methods: a method or a state inherits the class, and the cache checks for it by isinstance."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

from torch import Tensor

from ..clustering.merged import Merged
from ..offload.codec import Codec
from .state import LayerContext


class SparsePrefill(ABC):
    """A method with sparse attention over prompts (sparse prefill)."""

    @abstractmethod
    def attend_prompt(self, layer: LayerContext, queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        """Causal attention output [B, Q, n, D] of a prompt's last n tokens over keys and values [B, H, L, D]."""


class Speculative:
    """A method that chooses by speculated queries, computed from the attention input of the previous layer.

    In a running model `select` gets the speculated queries; on stored tensors it gets the layer's true queries.
    """


class Merging(ABC):
    """A method that merges tokens; later prompts attend to the merged tokens too."""

    @abstractmethod
    def merged(self, state: Any) -> Merged | None:
        """The merged tokens that replace dropped ones; None if there are none."""

    @abstractmethod
    def raw_tokens(self, state: Any) -> int:
        """The number of tokens per head that `keeps` keeps; once it falls, the layer frees merged tokens at once."""


class Quantising(ABC):
    """A method whose layers store keys and values in fewer bits.

    One rule holds for what the method sees. It is given tokens exactly, a prompt's in `build` and a new one in
    `extend`; what it looks up later in its TokenCache is what is stored.
    """

    @abstractmethod
    def codecs(self) -> tuple[Codec, Codec]:
        """How the keys of a layer are stored, and how its values."""


class HostMetadata(ABC):
    """A state that keeps metadata in host memory if the layer's keys are offloaded."""

    @abstractmethod
    def prefetch(self) -> None:
        """Start copying the metadata that the next step reads from host memory to the device."""

    @abstractmethod
    def host_metadata_bytes(self) -> int:
        """Bytes of the metadata in host memory, a part of `metadata_bytes`."""
