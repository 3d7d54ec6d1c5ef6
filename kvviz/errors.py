"""Errors that say what was tried, what came in and what would have worked."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from typing import Any


class KVVizError(Exception):
    """An operation that kvviz refused.

    Every message has the same three parts: the operation, what it got, what it wanted.
    They are kept as the attributes `operation`, `got` and `wanted`.
    """

    def __init__(self, operation: str, got: object, wanted: object) -> None:
        super().__init__(operation, got, wanted)
        self.operation = operation
        self.got = got
        self.wanted = wanted

    def __str__(self) -> str:
        return f"{self.operation}: got {self.got}; wanted {self.wanted}"


class InvalidInputError(KVVizError, ValueError):
    """A value outside what the operation can work with."""


class UnknownNameError(KVVizError, LookupError):
    """A name that nothing answers to; the message lists the nearest known names."""

    def __init__(self, operation: str, name: str, known: Iterable[str]) -> None:
        names = sorted(known)
        near = difflib.get_close_matches(name, names, n=3, cutoff=0.5)
        hint = f" (did you mean {' or '.join(map(repr, near))}?)" if near else ""
        super().__init__(operation, repr(name) + hint, f"one of {', '.join(names) or '(none known)'}")


class IncompatibleFileError(KVVizError, ValueError):
    """A file that is damaged, truncated, of another version or of another kind."""


class UnsupportedModelError(KVVizError, TypeError):
    """A model whose attention kvviz cannot serve."""


class CacheMismatchError(KVVizError, RuntimeError):
    """A cache that meets another model, another batch size, or a model that lost the link to it."""


class DamagedOffloadError(KVVizError, RuntimeError):
    """Offloaded keys and values that come back other than they went out. `generation` as for OutOfSpaceError."""

    generation: Any = None


class OutOfSpaceError(KVVizError, MemoryError):
    """A tier that has too few bytes left. `generation` is the Generation that `generate` had come to, or None."""

    generation: Any = None


class MissingDependencyError(KVVizError, ImportError):
    """An optional package that is not installed; the message says how to install it."""

    def __init__(self, operation: str, package: str, extra: str | None = None, command: str | None = None) -> None:
        command = command or (f'pip install "kvviz[{extra}]"' if extra else f"pip install {package}")
        super().__init__(operation, f"no installed package {package!r}", f"it installed: {command}")
