"""`Quantised`, the base class of methods that store keys and values in fewer bits: a subclass implements `codecs`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from ..errors import InvalidInputError
from .base import Kind, Method
from .capabilities import Quantising
from .wrapper import Wrapper

KEEP_ALL: tuple[Kind, ...] = ("exact", "retrieval", "prefill")


@dataclass
class Quantised(Quantising, Wrapper):
    """Stores keys and values in fewer bits; what a step attends to is the choice of the method that it wraps.

    Alone it attends to all tokens: `create("kivi")` is `create("kivi", over="full")`. A prompt is prefilled and indexed
    in full precision, and encoded then; generated tokens are encoded while decoding goes on. Every step attends to the
    decoded tokens, so that its output differs from exact attention even if it attends to all. In layers where the other
    method leaves attention to the model, the model reads the decoded tokens of that layer.

    With left padding, groups of tokens count from the start of the padded row; its padding is not part of any range.
    """

    kind = "quantised"
    wraps: ClassVar[str] = "full"

    @classmethod
    def check_wrapped(cls, method: type[Method]) -> None:
        """Raise InvalidInputError for a method that drops or merges tokens, which a packed store does not give back."""
        if method.kind not in KEEP_ALL:
            wanted = f"a method that keeps all tokens, of kind {', '.join(KEEP_ALL)}"
            raise InvalidInputError(f"{cls.name} over {method.name}", f"kind {method.kind}", wanted)

    def is_dense(self, layer: int) -> bool:
        """As for the wrapped method; False if it attends to all tokens in every layer: they are decoded in parts."""
        return super().is_dense(layer) and not self.ignores_budget
