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
    classes = registry.Registry("shape", "kvviz.metrics")  # a package whose modules register nothing here
    classes.register(Shape)
    return classes


def test_a_class_is_found_by_its_name_and_created_with_its_fields():
    classes = shapes()
    assert classes.names() == ("square",)
    assert classes.find("square") is Shape
    assert classes.create("square", side=3) == Shape(3)
    with pytest.raises(UnknownNameError, match=r"shape: got 'squre' \(did you mean 'square'\?\); wanted one of square"):
        classes.find("squre")
    with pytest.raises(UnknownNameError, match=r"square: field: got 'sides' \(did you mean 'side'\?\)"):
        classes.create("square", sides=3)


def test_a_class_without_its_own_name_is_not_registered():
    classes = shapes()
    classes.register(type("Nameless", (Shape,), {}))
    assert classes.names() == ("square",)


def test_a_name_belongs_to_one_class():
    classes = shapes()
    with pytest.raises(KVVizError, match=r"register shape 'square'.*it belongs to .*test_registry\.Shape"):
        classes.register(type("Other", (), {"name": "square"}))
    redefined = type("Shape", (), {"name": "square", "__module__": Shape.__module__})
    classes.register(redefined)
    assert classes.find("square") is redefined, "a class that is defined again replaces itself"


def test_the_table_has_one_row_per_class():
    table = shapes().table({"sides": lambda shape: str(shape.side)})
    assert table == "| name | sides |\n|---|---|\n| `square` | 1 |"


@pytest.mark.parametrize(("room", "classes"), [(methods, METHODS), (tasks, TASKS)])
def test_another_package_adds_a_class_by_an_entry_point(room, classes, monkeypatch):
    """The entry-point group has the name of kvviz's package; loading the class registers it."""
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
