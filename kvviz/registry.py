"""Classes by name: a new file, or an entry point of another package, is all that a new method or task needs."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable, Mapping
from dataclasses import fields
from importlib.metadata import entry_points
from typing import Any, TypeVar

from .errors import KVVizError, UnknownNameError

T = TypeVar("T")


class Registry(dict[str, type[T]]):
    """The classes of one kind by name: those imported so far; `names` and `find` import the others first.

    They come from the modules of `package`, and from the entry points of the group with the package's name.
    """

    def __init__(self, kind: str, package: str) -> None:
        super().__init__()
        self.kind, self.package = kind, package
        self._complete = False

    def register(self, cls: type[T]) -> None:
        """Add a class under the `name` in its own body; a class without one, such as a base class, is left out.

        A class that is defined again replaces itself. Raises KVVizError for a second class of the same name.
        """
        name = vars(cls).get("name")
        if name is None:
            return
        other = self.get(name)
        if other is not None and (other.__module__, other.__qualname__) != (cls.__module__, cls.__qualname__):
            raise KVVizError(
                f"register {self.kind} {name!r}",
                f"a second class ({cls.__module__}.{cls.__qualname__})",
                f"one class per name; it belongs to {other.__module__}.{other.__qualname__}",
            )
        self[name] = cls

    def names(self) -> tuple[str, ...]:
        """Names of all classes, sorted."""
        self._import_all()
        return tuple(sorted(self))

    def find(self, name: str) -> type[T]:
        """The class of that name; raises UnknownNameError with near matches."""
        self._import_all()
        if name not in self:
            raise UnknownNameError(self.kind, name, self)
        return self[name]

    def create(self, name: str, /, **values: Any) -> T:
        """An instance of the class of that name, with these fields; raises UnknownNameError for an unknown one."""
        found = self.find(name)
        known = {field.name for field in fields(found)}  # type: ignore[arg-type]  # methods and tasks are dataclasses
        for field in values:
            if field not in known:
                raise UnknownNameError(f"{name}: field", field, known)
        return found(**values)

    def table(self, columns: Mapping[str, Callable[[type[T]], str]]) -> str:
        """A Markdown table of all classes: their names, and columns made of a title and what it says of a class."""
        titles = ["name", *columns]
        rows = [[f"`{name}`", *(column(self[name]) for column in columns.values())] for name in self.names()]
        head, *body = (f"| {' | '.join(row)} |" for row in [titles, *rows])
        return "\n".join([head, "|" + "---|" * len(titles), *body])

    def _import_all(self) -> None:
        if self._complete:
            return
        for module in pkgutil.iter_modules(importlib.import_module(self.package).__path__):
            importlib.import_module(f"{self.package}.{module.name}")
        for entry_point in entry_points(group=self.package):
            entry_point.load()
        self._complete = True
