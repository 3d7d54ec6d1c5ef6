"""What only some methods can do: a method or a state inherits the class, and the cache asks for it by isinstance."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

from torch import Tensor

from ..clustering.merged import Merged
from .state import LayerContext


class SparsePrefill(ABC):
    """A method whose attention over prompts is sparse too."""

    @abstractmethod
    def attend_prompt(self, layer: LayerContext, queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        """Attention output [B, Q, n, D] of a prompt's last n tokens over keys and values [B, H, L, D], causal."""


class Speculative:
    """A method that chooses by a guess of the queries, from the attention input of the layer before.

    In a running model `select` gets these queries; on stored tensors it gets the layer's own.
    """


class Merging(ABC):
    """A method that merges tokens, which later prompts attend to as well."""

    @abstractmethod
    def merged(self, state: Any) -> Merged | None:
        """The merged tokens that stand for dropped ones; None while there are none."""


class HostMetadata(ABC):
    """A state whose metadata, or a part of it, is kept in host memory where the layer's keys are."""

    @abstractmethod
    def prefetch(self) -> None:
        """Begin to copy to the device what the next step reads of the metadata in host memory."""

    @abstractmethod
    def host_metadata_bytes(self) -> int:
        """Bytes of the metadata in host memory, a part of `metadata_bytes`."""
