"""The stepper's data against brute force over the recording, its traits and its errors. No browser."""

from __future__ import annotations

import inspect
import re
import subprocess
import sys
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from safetensors.numpy import load

from kvviz import metrics, replay, widgets
from kvviz.errors import InvalidInputError
from kvviz.trace.hues import HUES, UNCHOSEN, hue
from kvviz.widgets import CanvasMatrix, DecodeStepper, TokenStrip, content, view
from tests.generation.test_explore import made_trace
from tests.synthetic import recording
from tests.widgets.javascript import SOURCES


def kept_recording():
    """A recording with 4 sinks and a window of the prompt's last 10 tokens, which have no score."""
    made = recording()
    events = dict(made.events)
    for layer, old in events.items():
        indices, groups, scores = old.indices.copy(), old.groups.copy(), old.scores.copy()
        for step, head in np.ndindex(indices.shape[:2]):
            chosen = np.flatnonzero((indices[step, head] >= 4) & (indices[step, head] < 120))
            early = np.linspace(4, 108, len(chosen) - 10).astype(int)
            indices[step, head, chosen] = [*early, *range(110, 120)]
            groups[step, head, chosen[-10:]], scores[step, head, chosen[-10:]] = -1, np.nan
            groups[step, head, chosen[:-10]], scores[step, head, chosen[:-10]] = early % 8, 1.0
        events[layer] = type(old)(**{**vars(old), "indices": indices, "groups": groups, "scores": scores})
    return made.replace(events=events, config={"sinks": 4})


@pytest.mark.parametrize("name", widgets.__all__)
def test_help_and_the_site_show_what_a_widget_takes(name):
    widget = getattr(widgets, name)
    parameters = list(inspect.signature(widget.__init__).parameters.values())[1:]  # without self
    assert list(inspect.signature(widget).parameters.values()) == parameters
    assert parameters[0].name not in ("args", "kwargs")


def test_the_packed_arrays_equal_the_recording():
    made = kept_recording()
    for layer in made.layers:
        rows = [view.row_arrays(made, layer, row) for row in range(2)]
        assert len(rows) == 2
        for head, arrays in enumerate(rows):
            for step in range(made.steps):
                shown = {
                    int(arrays["positions"][at]): (
                        int(arrays["groups"][at]),
                        float(arrays["scores"][at]),
                        float(arrays["weights"][at]),
                        int(arrays["marks"][at]),
                    )
                    for at in range(arrays["offsets"][step], arrays["offsets"][step + 1])
                }
                attended = [int(position) for position in made.indices(step, layer)[head] if position >= 0]
                oracle = {int(position) for position in made.oracle(step, layer)[head] if position >= 0}
                assert set(shown) == set(attended) | oracle
                for position, (group, score, weight, mark) in shown.items():
                    assert weight == made.attention(step, layer)[head, position]
                    assert bool(mark & view.ORACLE) == (position in oracle)
                    assert bool(mark & view.ATTENDED) == (position in attended)
                    assert bool(mark & view.GENERATED) == (position >= 120)
                    assert bool(mark & view.SINK) == (position in attended and position < 4)
                    assert bool(mark & view.RECENT) == (position in attended and 110 <= position < 120)
                    if position in attended:
                        slot = attended.index(position)
                        assert group == made.groups(step, layer)[head, slot]
                        np.testing.assert_equal(score, made.scores(step, layer)[head, slot])
                    else:
                        assert group == -1
                        assert np.isnan(score)
                assert arrays["recall"][step] == made.recall(step, layer)[head]
                assert arrays["mass"][step] == made.attention_mass(step, layer)[head]
                assert arrays["read_bytes"][step] == made.events[layer].read_bytes[step]
                assert arrays["moved_bytes"][step] == made.events[layer].moved_bytes[step]


def test_clusters_are_ranked_by_score_with_their_known_sizes():
    made = recording()
    arrays = view.row_arrays(made, 2, 1)
    for step in range(made.steps):
        groups, scores = made.groups(step, 2)[1], made.scores(step, 2)[1]
        indices, weights = made.indices(step, 2)[1], made.attention(step, 2)[1]
        ranked = sorted(
            {(-float(score), int(group)) for score, group in zip(scores, groups, strict=True) if group >= 0}
        )
        at = slice(arrays["group_offsets"][step], arrays["group_offsets"][step + 1])
        assert arrays["group_ids"][at].tolist() == [group for _, group in ranked]
        for group, count, mass, known in zip(
            *(arrays[f"group_{name}"][at] for name in ("ids", "counts", "masses", "known")), strict=True
        ):
            members = indices[groups == group]
            assert count == len(members)
            assert mass == pytest.approx(weights[members].sum(), rel=1e-5)
            earlier = {
                int(position)
                for s in range(made.steps)
                for position in made.indices(s, 2)[1][made.groups(s, 2)[1] == group]
            }
            assert known == len([position for position in earlier if position < made.visible(step)])


def test_the_known_size_of_a_page_grows_with_the_text():
    made = recording()
    events = {}
    for layer, old in made.events.items():
        groups = np.where(old.indices >= 120, 100 + (old.indices - 120) // 3, old.groups).astype(np.int32)
        events[layer] = type(old)(**{**vars(old), "groups": groups})
    arrays = view.row_arrays(made.replace(events=events), 2, 0)
    for step in range(made.steps):
        at = slice(arrays["group_offsets"][step], arrays["group_offsets"][step + 1])
        known = dict(zip(arrays["group_ids"][at].tolist(), arrays["group_known"][at].tolist(), strict=True))
        assert known[100] == min(step + 1, 3)
        assert known.get(101, 0) == max(step - 2, 0)
        assert arrays["group_ids"][at][-1] >= 100  # it has no score, so it comes after all ranked pages


def test_a_cluster_keeps_its_hue_and_neighbours_differ():
    hues = hue(np.arange(-1, 200))
    assert hues[0] == UNCHOSEN
    assert (hues[1:] < HUES).all()
    assert all(len(set(hues[start : start + HUES])) == HUES for start in range(1, 150))
    for made in (recording(), recording(seed=5)):
        for arrays in [view.row_arrays(made, 2, row) for row in range(2)]:
            chosen = arrays["groups"] >= 0
            assert (arrays["looks"][chosen] // view.LEVELS == hue(arrays["groups"][chosen])).all()
            assert (arrays["group_hues"] == hue(arrays["group_ids"])).all()


def test_javascript_gets_hues_and_does_not_compute_them():
    for path in SOURCES.glob("*.js"):
        assert not re.search(r"\* 7\b", path.read_text(encoding="utf-8")), path


def test_lightness_rises_with_attention():
    weights = np.geomspace(1e-9, 1, 500)
    levels = view.level(weights)
    assert (np.diff(levels.astype(int)) >= 0).all()
    assert set(levels) == set(range(view.LEVELS))
    assert view.level(0.0) == 0
    rounded = view.rounded_weights(weights[weights > 1e-7])
    np.testing.assert_allclose(2.0 ** ((rounded.astype(float) - 255) / 10), weights[weights > 1e-7], rtol=0.036)


@pytest.mark.parametrize(("length", "columns"), [(1, 1), (7, 3), (384, 384), (385, 384), (1000, 384), (5, 9)])
def test_pooling_keeps_the_largest_of_each_run(length, columns):
    values = np.random.default_rng(length).normal(size=(4, length))
    edges = np.linspace(0, length, min(columns, length) + 1).astype(int)
    expected = [[a + int(np.argmax(row[a:b])) for a, b in pairwise(edges)] for row in values]
    assert metrics.pool_argmax(values, columns).tolist() == expected


def test_the_map_prefers_attended_then_missed_tokens():
    made = recording(prompt_length=2000, budget=64)
    arrays = view.row_arrays(made, 3, 0)
    assert arrays["map_looks"].shape == (made.steps, view.MAP_COLUMNS)
    for step in range(made.steps):
        attended, oracle = set(made.indices(step, 3)[0].tolist()), set(made.oracle(step, 3)[0].tolist())
        edges = np.linspace(0, len(made.tokens), view.MAP_COLUMNS + 1).astype(int)
        for column, (start, end) in enumerate(pairwise(edges)):
            run, drawn, look = (
                range(start, end),
                arrays["map_positions"][step, column],
                arrays["map_looks"][step, column],
            )
            if attended & set(run):
                assert drawn == max(attended & set(run), key=lambda position: made.attention(step, 3)[0, position])
                assert look < view.MISSED_LOOK
            elif oracle & set(run):
                assert view.MISSED_LOOK <= look < view.MISSED_LOOK + view.LEVELS
            else:
                assert look == view.NOTHING


def test_step_layer_and_head_are_traits():
    made = recording()
    stepper = DecodeStepper(made)
    assert (stepper.step, stepper.layer, stepper.head) == (0, 2, 0)
    changes = []
    stepper.observe(lambda change: changes.append((change["name"], change["new"])), ["step", "layer", "head"])
    for step, layer, head in ((4, 2, 0), (4, 3, 0), (4, 3, 1), (0, 2, 1)):
        stepper.step, stepper.layer, stepper.head = step, layer, head
        indices = [int(position) for position in made.indices(step, layer)[head] if position >= 0]
        assert stepper.highlighted().tolist() == indices
        arrays = load(stepper.slice)
        at = slice(arrays["offsets"][step], arrays["offsets"][step + 1])
        assert arrays["positions"][at][arrays["marks"][at] & view.ATTENDED > 0].tolist() == indices
    assert changes == [("step", 4), ("layer", 3), ("head", 1), ("step", 0), ("layer", 2)]


def test_a_step_sends_no_arrays():
    stepper = DecodeStepper(recording())
    before = stepper.slice
    stepper.step = 3
    assert stepper.slice is before


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("step", 6, "0 to 5"),
        ("step", -1, "0 to 5"),
        ("layer", 0, "a recorded layer: 2, 3 (layers 0, 1 dense by choice)"),
        ("head", 2, "0 to 1"),
    ],
)
def test_unrecorded_steps_layers_and_heads_are_refused(name, value, message):
    stepper = DecodeStepper(recording(), step=1, layer=3, head=1)
    with pytest.raises(InvalidInputError, match=re.escape(message)):
        setattr(stepper, name, value)
    assert (stepper.step, stepper.layer, stepper.head) == (1, 3, 1)
    with pytest.raises(InvalidInputError, match=re.escape(message)):
        DecodeStepper(recording(), **{name: value})


def test_recordings_without_steps_are_refused_with_a_way_out():
    with pytest.raises(InvalidInputError, match="max_new_tokens"):
        DecodeStepper(
            recording().replace(
                events={}, tokens=["a"], token_ids=np.zeros(1, np.int64), next_tokens=[], prompt_length=1
            )
        )
    with pytest.raises(InvalidInputError, match="dense_layers"):
        DecodeStepper(recording().replace(events={}))
    with pytest.raises(InvalidInputError, match=r"got str; wanted a kvviz\.Recording"):
        DecodeStepper("recording.safetensors")


def test_a_method_without_groups_is_shown():
    made = recording()
    events = {
        layer: type(old)(
            **{**vars(old), "groups": np.full_like(old.groups, -1), "scores": np.full_like(old.scores, np.nan)}
        )
        for layer, old in made.events.items()
    }
    arrays = load(DecodeStepper(made.replace(events=events)).slice)
    assert len(arrays["group_ids"]) == 0
    attended = arrays["marks"] & view.ATTENDED > 0
    assert (arrays["looks"][attended] // view.LEVELS == UNCHOSEN).all()


def test_query_heads_are_named_as_such():
    made = recording(heads=4)
    events = {layer: replace(event, merged=event.merged[:, :2]) for layer, event in made.events.items()}
    per_query_head = made.replace(geometry=type(made.geometry)(4, 4, 2, 64, 4096), events=events)
    assert DecodeStepper(made).page["head_name"] == "KV head"
    assert DecodeStepper(per_query_head).page["head_name"] == "query head"
    assert DecodeStepper(per_query_head).page["heads"] == [0, 1, 2, 3]


def test_token_strip_and_canvas_matrix_hold_bytes():
    strip = TokenStrip(["a", "b", "c"])
    looks, marks = np.array([3, 255, 9], np.uint8), np.array([1, 0, 3], np.uint8)
    strip.paint(looks, marks)
    assert (strip.looks, strip.marks) == (looks.tobytes(), marks.tobytes())
    with pytest.raises(InvalidInputError, match=r"uint8 \[3\]"):
        strip.paint(looks[:2], marks)
    with pytest.raises(InvalidInputError, match=r"uint8 \[3\]"):
        strip.paint(looks.astype(np.int64), marks)
    with pytest.raises(InvalidInputError, match="at least one"):
        TokenStrip([])
    matrix = np.arange(6, dtype=np.uint8).reshape(2, 3)
    canvas = CanvasMatrix(matrix)
    canvas.paint(matrix.T)
    assert (canvas.shape, canvas.values) == ([3, 2], matrix.T.tobytes())
    for wrong in (matrix.astype(float), matrix[0], matrix[:0]):
        with pytest.raises(InvalidInputError, match="uint8"):
            canvas.paint(wrong)
    with pytest.raises(InvalidInputError, match=r"uint8 \[256, 4\]"):
        CanvasMatrix(matrix, colours=np.zeros((256, 3), np.uint8))


def run_python(code):
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)


def test_widgets_load_on_first_use_and_without_torch():
    code = """
import sys, kvviz.widgets
assert "ipywidgets" not in sys.modules and "numpy" not in sys.modules, "kvviz.widgets is not lazy"
from kvviz.widgets import DecodeStepper
loaded = {"torch", "transformers", "plotly"} & set(sys.modules)
assert not loaded, loaded
"""
    process = run_python(code)
    assert process.returncode == 0, process.stderr


def test_a_missing_anywidget_is_named():
    process = run_python("import sys; sys.modules['anywidget'] = None\nfrom kvviz.widgets import DecodeStepper")
    assert "MissingDependencyError: kvviz.widgets: got no installed package 'anywidget'" in process.stderr
    assert "pip install anywidget" in process.stderr


def test_merged_centroids_are_listed_by_their_tokens_attention():
    made = replay(made_trace(120), "centroidkv", queries=3, budget=40, sinks=4, recent=8)
    arrays = view.row_arrays(made, 3, 1)
    for step in range(made.steps):
        members, weights = made.members(step, 3)[1], made.attention(step, 3)[1]
        masses = {label: weights[members == label].sum() for label in set(members.tolist()) - {-1}}
        listed = slice(*arrays["group_offsets"][step : step + 2])
        assert len(masses) == 28 == listed.stop - listed.start  # 40 entries without sinks and recent window
        for label, count, mass in zip(
            *(arrays[name][listed] for name in ("group_ids", "group_counts", "group_masses")), strict=True
        ):
            assert count == (members == label).sum()
            assert mass == pytest.approx(masses[label])
        assert (np.diff(arrays["group_masses"][listed]) <= 0).all()
        frame = slice(*arrays["offsets"][step : step + 2])
        merged = (arrays["marks"][frame] & view.MERGED) > 0
        assert arrays["groups"][frame][merged].tolist() == members[arrays["positions"][frame][merged]].tolist()
        assert not (arrays["marks"][frame][merged] & view.ATTENDED).any()
        assert merged.any()


def test_a_method_with_clusters_and_centroids_lists_the_clusters_by_score():
    made = replay(made_trace(240), "retroinfer", queries=3, budget=100, sinks=4, recent=8, tokens_per_cluster=4)
    assert not content.lists_centroids(made)
    assert content.lists_centroids(replay(made_trace(120), "centroidkv", queries=3, budget=40, sinks=4, recent=8))
    arrays = view.row_arrays(made, 3, 1)
    for step in range(made.steps):
        groups, scores = made.groups(step, 3)[1], made.scores(step, 3)[1]
        expected = {int(group): float(scores[groups == group][0]) for group in set(groups.tolist()) - {-1}}
        listed = slice(*arrays["group_offsets"][step : step + 2])
        assert dict(
            zip(arrays["group_ids"][listed].tolist(), arrays["group_scores"][listed].tolist(), strict=True)
        ) == (pytest.approx(expected))
        assert len(expected) > 1
        frame = slice(*arrays["offsets"][step : step + 2])
        merged = (arrays["marks"][frame] & view.MERGED) > 0
        members = made.members(step, 3)[1]
        assert arrays["groups"][frame][merged].tolist() == members[arrays["positions"][frame][merged]].tolist()
        assert not {*expected} & {*members[members >= 0].tolist()}, "a cluster is recalled, or has a centroid"
