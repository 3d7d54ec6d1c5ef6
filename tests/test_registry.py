"""The one registry that methods and tasks share."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from kvviz import KVVizError, UnknownNameError, methods, registry, tasks
from kvviz.methods.base import REGISTRY as METHODS
from kvviz.tasks.base import REGISTRY as TASKS


@dataclass
class Shape:
    name = "square"
    side: int = 1


def shapes():
    found = registry.Registry("shape", "kvviz.metrics")  # a package whose modules register nothing here
    found.register(Shape)
    return found


def test_a_class_is_found_by_its_name_and_created_with_its_fields():
    found = shapes()
    assert found.names() == ("square",)
    assert found.find("square") is Shape
    assert found.create("square", side=3) == Shape(3)
    with pytest.raises(UnknownNameError, match=r"shape: got 'squre' \(did you mean 'square'\?\); wanted one of square"):
        found.find("squre")
    with pytest.raises(UnknownNameError, match=r"square: field: got 'sides' \(did you mean 'side'\?\)"):
        found.create("square", sides=3)


def test_only_a_name_of_its_own_registers_a_class():
    found = shapes()
    found.register(type("Nameless", (Shape,), {}))
    assert found.names() == ("square",)


def test_a_name_belongs_to_one_class():
    found = shapes()
    with pytest.raises(KVVizError, match=r"register shape 'square'.*it belongs to .*test_registry\.Shape"):
        found.register(type("Other", (), {"name": "square"}))
    again = type("Shape", (), {"name": "square", "__module__": Shape.__module__})
    found.register(again)
    assert found.find("square") is again, "a class that is defined again replaces itself"


def test_the_table_has_a_row_for_each_class():
    table = shapes().table({"sides": lambda shape: str(shape.side)})
    assert table == "| name | sides |\n|---|---|\n| `square` | 1 |"


@pytest.mark.parametrize(("room", "classes"), [(methods, METHODS), (tasks, TASKS)])
def test_a_package_of_a_third_party_adds_a_class_by_an_entry_point(room, classes, monkeypatch):
    """The entry point's group has the package's name; its class registers itself when it is loaded."""
    groups = []

    class EntryPoint:
        def load(self):
            classes["theirs"] = classes[known]

    def entry_points(group):
        groups.append(group)
        return [EntryPoint()]

    known = room.names()[0]
    monkeypatch.setattr(registry, "entry_points", entry_points)
    monkeypatch.setattr(classes, "_complete", False)
    try:
        assert "theirs" in room.names()
    finally:
        classes.pop("theirs", None)
    assert groups == [room.__name__]
