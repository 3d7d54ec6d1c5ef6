"""Quest's scene: boxes, corners, bounds, the cut and the waste, held against NumPy on the trace alone."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import kvviz
from kvviz.generation.explore import Mechanism
from kvviz.trace import Trace
from kvviz.trace.scene import Bars, Plane, Rows, Ruler, Scene

LAYER, HEAD, STEP, QUERIES, TOKEN = 14, 1, 31, 32, 700
PAGE = TOKEN // 16


@pytest.fixture(scope="module")
def trace() -> Trace:
    return kvviz.open_runs(live=False).trace("prose")


@pytest.fixture(scope="module")
def scene(trace: Trace) -> Scene:
    return Mechanism(trace, kvviz.methods.create("quest", budget=256), QUERIES).scene(LAYER, HEAD, STEP, TOKEN)[0]


@pytest.fixture(scope="module")
def keys(trace: Trace) -> Any:
    return trace.keys[LAYER][HEAD].astype(np.float64)


@pytest.fixture(scope="module")
def queries(trace: Trace) -> Any:
    return trace.queries[LAYER][3:6, -1].astype(np.float64)


@pytest.fixture(scope="module")
def bounds(keys: Any, queries: Any) -> Any:
    """The bound of each query head and of each page but the newest, [3, 127]."""
    pages = keys.reshape(-1, 16, 64)[:-1]
    return np.maximum(queries[:, None] * pages.max(1), queries[:, None] * pages.min(1)).sum(-1)


def panels(scene: Scene, kind: type, chapter: str) -> list:
    return [panel for frame in scene.frames if frame.chapter == chapter for panel in frame.panels
            if isinstance(panel, kind)]  # fmt: skip


def test_the_box_holds_the_extremes_and_the_star_is_at_the_corner_of_the_largest_products(
    scene: Scene, keys: Any, queries: Any
) -> None:
    page, query = keys[PAGE * 16 : PAGE * 16 + 16], queries[0]
    parts = np.maximum(query * page.max(0), query * page.min(0))
    across, up = (np.flatnonzero(sign)[parts[sign].argmax()] for sign in (query > 0, query <= 0))
    plane = panels(scene, Plane, "bounds")[2]
    assert plane.axes == (f"channel {across}", f"channel {up}")
    dots, star = plane.dots
    assert list(dots.numbers) == list(range(PAGE * 16, PAGE * 16 + 16))
    np.testing.assert_allclose(np.stack([dots.x, dots.y]), page[:, [across, up]].T, rtol=1e-6)
    (box, _), *_ = plane.boxes
    np.testing.assert_allclose(box, np.stack([page.min(0), page.max(0)])[:, [across, up]].flatten(), rtol=1e-6)
    np.testing.assert_allclose([*star.x, *star.y], [page[:, across].max(), page[:, up].min()], rtol=1e-6)


def test_the_bound_is_right_of_all_products_and_heads_are_averaged(
    scene: Scene, keys: Any, queries: Any, bounds: Any
) -> None:
    dots, star = panels(scene, Plane, "bounds")[-1].dots
    np.testing.assert_allclose(dots.x, keys[PAGE * 16 : PAGE * 16 + 16] @ queries[0], rtol=1e-4)
    np.testing.assert_allclose(star.x, bounds[0, PAGE], rtol=1e-5)
    assert max(dots.x) < star.x[0]
    (heads,) = panels(scene, Bars, "bounds")
    np.testing.assert_allclose(heads.values, bounds[:, PAGE], rtol=1e-5)


def test_pages_are_ranked_by_bounds_beside_their_best_products_and_cut_at_the_budget(
    scene: Scene, keys: Any, queries: Any, bounds: Any
) -> None:
    ranked = np.argsort(-bounds.mean(0))
    _, ordered, _, exact = panels(scene, Bars, "scores")
    assert list(ordered.numbers) == ranked[:26].tolist()
    np.testing.assert_allclose(ordered.values, bounds.mean(0)[ordered.numbers], rtol=1e-5)
    best = (keys @ queries.mean(0)).reshape(-1, 16).max(1)
    np.testing.assert_allclose(exact.values, best[exact.numbers], rtol=1e-3)
    (cut,), (ruler,) = panels(scene, Bars, "cut"), panels(scene, Ruler, "cut")
    assert (cut.cut, ruler.cut) == (256 // 16 - 1, 256 - 16)


def test_wanted_and_wasted_tokens_of_a_page_and_other_page_sizes(
    scene: Scene, trace: Trace, keys: Any, queries: Any, bounds: Any
) -> None:
    logits = queries @ keys.T / 8
    weights = np.exp(logits - logits.max(-1, keepdims=True))
    weights = (weights / weights.sum(-1, keepdims=True)).mean(0)
    oracle = np.argsort(-weights, kind="stable")[:256]
    chosen = np.argsort(-bounds.mean(0))[:15]
    wanted = np.isin(np.arange(2048), oracle).reshape(-1, 16).sum(1)
    (rows,) = panels(scene, Rows, "whole pages")
    counts = {row.name: len(row.numbers) for row in rows.rows}
    assert counts.get("wanted", 0) == wanted[chosen].min()
    assert sum(counts.values()) == 16
    assert all(np.isin(row.numbers, oracle).all() == (row.name == "wanted") for row in rows.rows)
    recall, read = panels(scene, Bars, "whole pages")
    assert list(recall.numbers) == [4, 8, 16, 32, 64]
    for size, shown in zip(recall.numbers, recall.values, strict=True):
        replayed = kvviz.replay(trace, "quest", budget=256, page_size=size, queries=QUERIES)
        assert shown == pytest.approx(replayed.recall(STEP, LAYER)[HEAD])
    np.testing.assert_allclose(read.values, [2 * 64 * (2048 // size - 1) / 1000 for size in recall.numbers])


@pytest.mark.parametrize(
    ("fields", "place"),
    [
        ({"group": "each", "page_size": 8}, {"head": 2, "step": 3}),
        ({"sinks": 20, "recent": 40, "budget": 130}, {"token": 3}),  # among the sinks
        ({"page_size": 5, "budget": 30}, {"token": 227, "step": 1}),  # in the recent window
        ({"page_size": 64, "budget": 0.9, "group": "max"}, {"token": 100}),
        ({"page_size": 1, "budget": 20, "generated": "on_top", "group": "sum"}, {}),
    ],
)
def test_odd_fields_give_a_scene_that_ends_with_what_a_replay_selects(
    fields: dict[str, Any], place: dict[str, Any], trace: Trace
) -> None:
    short = small(trace)
    method = kvviz.methods.create("quest", **{"budget": 100} | fields)
    where = {"layer": LAYER, "head": HEAD, "step": 7} | place
    made = Mechanism(short, method, 8).scene(**where)[0]
    lit = made.frames[-1].lit
    replayed = kvviz.replay(short, method, queries=8).indices(where["step"], LAYER)[where["head"]]
    assert lit is not None
    assert np.asarray(lit.positions)[np.asarray(lit.attended)].tolist() == replayed[replayed >= 0].tolist()
    assert all(frame.panels for frame in made.frames[:-1])


def small(trace: Trace, length: int = 237) -> Trace:
    """The first tokens of a trace."""
    arrays = {
        name: {LAYER: getattr(trace, name)[LAYER][:, :length].copy()} for name in ("queries", "keys", "values")
    }  # fmt: skip
    return replace(trace, tokens=trace.tokens[:length], token_ids=trace.token_ids[:length], **arrays)
