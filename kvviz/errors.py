"""The errors of kvviz: each names the operation, what it got and what it wanted."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from typing import Any


class KVVizError(Exception):
    """Base class of the errors of kvviz.

    Every message has three parts: the operation, what it got and what it wanted.
    They are also the attributes `operation`, `got` and `wanted`.
    """

    def __init__(self, operation: str, got: object, wanted: object) -> None:
        super().__init__(operation, got, wanted)
        self.operation = operation
        self.got = got
        self.wanted = wanted

    def __str__(self) -> str:
        return f"{self.operation}: got {self.got}; wanted {self.wanted}"


class InvalidInputError(KVVizError, ValueError):
    """A value that the operation does not accept."""


class UnknownNameError(KVVizError, LookupError):
    """An unknown name; the message suggests similar names and lists all known ones, as `name` and `known` do."""

    def __init__(self, operation: str, name: str, known: Iterable[str]) -> None:
        names = sorted(known)
        self.name, self.known = name, tuple(names)
        similar = difflib.get_close_matches(name, names, n=3, cutoff=0.5)
        hint = f" (did you mean {' or '.join(map(repr, similar))}?)" if similar else ""
        super().__init__(operation, repr(name) + hint, f"one of {', '.join(names) or '(none known)'}")


class IncompatibleFileError(KVVizError, ValueError):
    """A file that is damaged or truncated, or has the wrong version or kind."""


class UnsupportedModelError(KVVizError, TypeError):
    """A model whose attention kvviz does not support."""


class CacheMismatchError(KVVizError, RuntimeError):
    """A cache used with another model or batch size, or with a model that is not attached any more."""


class DamagedOffloadError(KVVizError, RuntimeError):
    """Offloaded keys and values that were damaged before they were fetched. `generation` as for OutOfSpaceError."""

    generation: Any = None


class OutOfSpaceError(KVVizError, MemoryError):
    """A memory tier with too few bytes left. `generation` is the Generation of `generate` so far, or None."""

    generation: Any = None


class MissingDependencyError(KVVizError, ImportError):
    """An optional package that is not installed; the message says how to install it."""

    def __init__(self, operation: str, package: str, extra: str | None = None, command: str | None = None) -> None:
        command = command or (f'pip install "kvviz[{extra}]"' if extra else f"pip install {package}")
        super().__init__(operation, f"no installed package {package!r}", f"it installed: {command}")
