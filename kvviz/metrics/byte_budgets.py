"""`kvviz.bytes`: a budget in bytes, and the rule of what counts in it."""

from __future__ import annotations

import re
from dataclasses import dataclass
from fractions import Fraction
from typing import TypeAlias

from ..errors import InvalidInputError
from .memory import bytes_text

UNITS = {"": 1, "b": 1, "kb": 10**3, "mb": 10**6, "gb": 10**9, "tb": 10**12,
         "kib": 2**10, "mib": 2**20, "gib": 2**30, "tib": 2**40}  # fmt: skip
WANTED = 'bytes, an int >= 1 or text such as "2 MiB", or a share of the full cache in (0, 1), such as 1/8 or "12.5%"'


@dataclass(frozen=True)
class Bytes:
    """A budget in bytes for one layer and one sequence; `kvviz.bytes` makes it.

    `bytes` is a number of bytes, or as a float in (0, 1) a share of the bytes that the layer's full cache has when the
    prompt ends: all keys and values of the prompt, as the model computed them.

    What counts, per layer and sequence (`Ledger.held_bytes` shows it):

    - of a method that drops, merges or quantizes tokens: the keys and values that it keeps, merged tokens included;
    - of a method that retrieves tokens and keeps all of them: what has to be on the device for one step if the rest is
      offloaded: the keys and values that a step may attend to, for group="each" by any query head;
    - of both: all metadata of the method, such as centroids, codes, lists and votes (`State.metadata_bytes`).

    Bytes are those of the tensors that are stored, whatever their type. Each layer finds its budget in tokens when a
    prompt is complete: the largest with which the method, as built for it, counts no more than these bytes; what the
    prompt does not fill counts too, since generated tokens will. The budget in tokens then holds as always. Generated
    tokens may add to the bytes: metadata (a code per token), those that wait for the method's index (`decode_window`),
    and with generated="on_top" all their keys and values. Layers that a method leaves dense keep everything, as with a
    budget in tokens. A method that gives layers different budgets (PyramidKV) counts what its mean layer would.

    A step that chooses among all keys, as the oracle's and SparQ's do, reads more than it holds: `Ledger.read_bytes`
    has the bytes read per step.
    """

    bytes: int | float

    def __post_init__(self) -> None:
        amount = self.bytes
        fits = 0 < amount < 1 if isinstance(amount, float) else isinstance(amount, int) and amount >= 1
        if isinstance(amount, bool) or not fits:
            raise InvalidInputError("kvviz.bytes", repr(amount), WANTED)

    @property
    def is_share(self) -> bool:
        """Whether this is a share of the full cache's bytes."""
        return isinstance(self.bytes, float)

    def of_cache(self, full_bytes: int) -> int:
        """The budget as a number of bytes, for a full cache of so many."""
        return int(self.bytes * full_bytes) if isinstance(self.bytes, float) else self.bytes

    def __str__(self) -> str:
        if isinstance(self.bytes, float):
            return f"{100 * self.bytes:.6g} % of the bytes"
        return bytes_text(self.bytes)

    def __repr__(self) -> str:
        return f"kvviz.bytes({self.bytes!r})"


Budget: TypeAlias = int | float | Bytes  # tokens, a share of the prompt's tokens, or bytes


def bytes(amount: int | float | str) -> Bytes:
    """A budget in bytes per layer: a number, a text with a unit, or a share of the full cache's bytes.

    `Bytes` says what counts. Raises InvalidInputError for anything else.

    >>> bytes("2 MiB"), bytes(1 / 8), bytes("25%")
    (kvviz.bytes(2097152), kvviz.bytes(0.125), kvviz.bytes(0.25))
    """
    return Bytes(_parsed(amount) if isinstance(amount, str) else amount)


def _parsed(text: str) -> int | float:
    found = re.fullmatch(r"\s*([0-9.]+|[0-9]+/[0-9]+)\s*(%|[a-zA-Z]*)\s*", text)
    try:
        if found is None:
            raise ValueError
        number, unit = Fraction(found[1]), found[2].lower()
        if unit == "%":
            return float(number / 100)
        return float(number) if number < 1 and not unit else int(number * UNITS[unit])
    except (ValueError, KeyError, ZeroDivisionError):
        raise InvalidInputError("kvviz.bytes", repr(text), WANTED) from None
