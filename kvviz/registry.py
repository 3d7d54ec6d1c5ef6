"""Registries: classes by name. To add a method or task, add a file, or an entry point in another package."""

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
    """The classes of one kind by name: those imported so far. `names` and `find` first import all others.

    The classes are in the modules of `package` and in the entry points of the group with the package's name.
    """

    def __init__(self, kind: str, package: str) -> None:
        super().__init__()
        self.kind, self.package = kind, package
        self._complete = False

    def register(self, cls: type[T]) -> None:
        """Add a class under the `name` that its body defines. A class without one, such as a base class, is ignored.

        A class may be defined again. Raises KVVizError for a different class of the same name.
        """
        name = vars(cls).get("name")
        if name is None:
            return
        known = self.get(name)
        if known is not None and (known.__module__, known.__qualname__) != (cls.__module__, cls.__qualname__):
            raise KVVizError(
                f"register {self.kind} {name!r}",
                f"a second class ({cls.__module__}.{cls.__qualname__})",
                f"one class per name; it belongs to {known.__module__}.{known.__qualname__}",
            )
        self[name] = cls

    def names(self) -> tuple[str, ...]:
        """The names of all classes, sorted."""
        self._import_all()
        return tuple(sorted(self))

    def find(self, name: str) -> type[T]:
        """The class with this name. Raises UnknownNameError, which suggests similar names."""
        self._import_all()
        if name not in self:
            raise UnknownNameError(self.kind, name, self)
        return self[name]

    def create(self, name: str, /, **values: Any) -> T:
        """An instance of the class with this name and these fields. Raises UnknownNameError for an unknown field."""
        cls = self.find(name)
        known = {field.name for field in fields(cls)}  # type: ignore[arg-type]  # methods and tasks are dataclasses
        for field in values:
            if field not in known:
                raise UnknownNameError(f"{name}: field", field, known)
        return cls(**values)

    def table(self, columns: Mapping[str, Callable[[type[T]], str]]) -> str:
        """A Markdown table of all classes: their names, and one column per title, filled by its function."""
        titles = ["name", *columns]
        rows = [[f"`{name}`", *(column(self.find(name)) for column in columns.values())] for name in self.names()]
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
