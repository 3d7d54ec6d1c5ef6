"""The maps of steps × positions, zoomed in: drawn from the tokens of the slice, as Python draws all positions."""

from __future__ import annotations

import json
from itertools import pairwise

import numpy as np
import pytest

from kvviz import metrics
from kvviz.widgets import MethodComparer, comparer_view, unions, view
from tests.synthetic import recording
from tests.widgets.javascript import deno

POOL = """
import { unpack } from "./slice.js";
import { createZoom, mapOf, pooled } from "./map_zoom.js";
const [path, first, ...ranges] = Deno.args;
const slice = unpack(await Deno.readFile(path));
console.log(JSON.stringify(ranges.map((range) => {
  const { map_looks, map_positions, shapes } = pooled(slice, range.split("-").map(Number), first === "true");
  return [shapes.map_looks, [...map_looks], [...map_positions]];
})));
"""
ZOOM = """
import { createZoom } from "./map_zoom.js";
const changes = [], zoom = createZoom(32768, () => changes.push(zoom.range));
zoom.show(4096, 8192);
const kept = [zoom.firstOf(0), zoom.firstOf(384), zoom.columnOf(zoom.firstOf(200))];
zoom.by(0.5, 4096); zoom.by(0.5, 6143); zoom.by(4, 6143); zoom.shift(1); zoom.shift(-1);
while (zoom.by(0.5, 5000));
zoom.reset();
const again = zoom.reset();
console.log(JSON.stringify([kept, changes, again]));
"""


def run(code, *arguments):
    # `deno eval` takes no arguments, so that they are written into the code
    process = deno("eval", code.replace("Deno.args", json.dumps([str(argument) for argument in arguments])))
    assert process.returncode == 0, process.stderr
    return json.loads(process.stdout)


def arrays_of(name, made):
    arrays = unions.shown(made, 2, 1, "layer" if "union" in name else "none")
    return arrays if "stepper" in name else comparer_view.column(arrays, made.steps, made.prompt_length)


@pytest.mark.parametrize("name", ["stepper", "comparer", "stepper, union", "comparer, union"])
def test_a_range_is_drawn_as_python_draws_all_positions(tmp_path, name):
    made = recording(prompt_length=3000, steps=5, budget=400, n_clusters=40)
    arrays, length = arrays_of(name, made), len(made.tokens)
    path = tmp_path / "slice"
    path.write_bytes(view.pack(arrays, 2, 1))
    ranges = [(0, length), (0, 1000), (517, 1901), (2600, length), (700, 1000), (40, 48)]
    drawn = run(POOL, path, str("stepper" in name).lower(), *(f"{start}-{stop}" for start, stop in ranges))
    assert drawn[0][1:] == [arrays["map_looks"].ravel().tolist(), arrays["map_positions"].ravel().tolist()]
    ranks, looks = np.zeros((made.steps, length), np.float32), np.full((made.steps, length), view.NOTHING, np.uint8)
    for step, (start, stop) in enumerate(pairwise(arrays["offsets"])):
        tokens = {name: arrays[name][start:stop] for name in ("positions", "weights", "marks", "cell_looks")}
        first = (tokens["marks"] & view.ATTENDED > 0) if "stepper" in name else False
        ranks[step, tokens["positions"]] = tokens["weights"] + np.float32(1) + np.float32(1) * first
        looks[step, tokens["positions"]] = tokens["cell_looks"]
    for (start, stop), (shape, shown, positions) in zip(ranges, drawn, strict=True):
        expected = start + metrics.pool_argmax(ranks[:, start:stop], view.MAP_COLUMNS)
        assert shape == list(expected.shape)
        assert positions == expected.ravel().tolist()
        assert shown == np.take_along_axis(looks, expected, axis=1).ravel().tolist()
    assert drawn[-1][2] == list(range(40, 48)) * made.steps  # down to single tokens


def test_the_range_keeps_its_position_and_stays_inside():
    kept, changes, again = run(ZOOM)
    assert kept == [4096, 8192, 200]
    assert changes[:5] == [[4096, 8192], [4096, 6144], [5120, 6144], [2051, 6147], [4099, 8195]]
    assert changes[5] == [2051, 6147]
    assert all(stop - start >= 8 for start, stop in changes)
    assert changes[-2][1] - changes[-2][0] == 8
    assert changes[-1] == [0, 32768]
    assert again is False


def test_a_page_embeds_what_a_zoom_needs_and_little_more():
    made = recording(prompt_length=8000, steps=8, budget=256)
    (packed,) = MethodComparer([made]).slices
    arrays = comparer_view.column(view.token_arrays(made, 2, 0), made.steps, made.prompt_length)
    without = view.pack({name: array for name, array in arrays.items() if name != "cell_looks"}, 2, 0)
    assert len(packed) < 1.06 * len(without)
