"""Where the mechanism stepper's pictures put bars, cuts and boxes, from the module that lays them out."""

from __future__ import annotations

import json
from typing import Any

import pytest

from .javascript import deno

PLAIN = {"kind": "token", "groups": None, "labels": None, "strength": None}


def marks(panel: dict[str, Any]) -> list[dict[str, Any]]:
    """The marks of one panel in a picture 500 px wide, where a letter is 6 px wide."""
    process = deno("eval", f"""
        import {{ layoutOf }} from "./mechanism_layout.js";
        const map = {{ positions: [], x: [], y: [] }};
        const {{ marks }} = layoutOf([{json.dumps(panel)}], map, 500, (text) => 6 * text.length);
        console.log(JSON.stringify(marks));
    """)  # fmt: skip
    assert process.returncode == 0, process.stderr
    return json.loads(process.stdout)


def test_bars_on_a_log_scale_differ_by_as_much_as_their_logarithms() -> None:
    bars = {"type": "bars", "title": "", "numbers": [1, 2, 3], "values": [1.0, 0.01, 1e-4], "cut": None, "log": True}
    widths = [mark["w"] for mark in marks(PLAIN | bars) if mark["shape"] == "bar"]
    assert widths[0] - widths[1] == pytest.approx(widths[1] - widths[2])
    assert widths[2] > 1
    linear = [mark["w"] for mark in marks(PLAIN | bars | {"log": False}) if mark["shape"] == "bar"]
    assert linear[0] > 50 * linear[1]


@pytest.mark.parametrize(("sizes", "side"), [([60, 4], "left"), ([40, 600], "right")])
def test_the_label_of_a_cut_at_the_end_of_a_ruler_is_left_of_it(sizes: list[int], side: str) -> None:
    ruler = {"type": "ruler", "title": "", "numbers": [1, 2], "sizes": sizes, "cut": 62}
    made = {mark["key"]: mark for mark in marks(PLAIN | ruler)}
    assert (made["cut of ruler"]["label"] == "62 tokens") == (side == "right")
    assert ("label of cut" in made) == (side == "left")


def test_a_box_around_all_dots_leaves_room_for_its_label() -> None:
    dots = {"numbers": [1, 2], "x": [0.0, 4.0], "y": [1.0, 3.0], "at": None, "shape": "dot"}
    plane = {"type": "plane", "title": "", "dots": [PLAIN | dots], "boxes": [[[0, 1, 4, 3], "box"]], "axes": ["", ""]}
    ground, box = (next(mark for mark in marks(plane) if mark["shape"] == shape) for shape in ("ground", "box"))
    assert box["y"] - ground["y"] > 24
    assert box["x"] - ground["x"] > 24
