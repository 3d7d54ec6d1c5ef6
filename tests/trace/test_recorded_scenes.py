"""Scenes of recordings: what was recorded, without a method, keys or a kernel."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import kvviz
from kvviz.errors import InvalidInputError
from kvviz.trace import Recording, Trace
from kvviz.trace.recorded_scenes import RecordedScenes
from kvviz.trace.scene import Bars, Ruler, Scene
from tests.browser.latency import repeated

LAYER, HEAD, STEP, QUERIES, LENGTH = 14, 1, 5, 8, 237


@pytest.fixture(scope="module")
def trace() -> Trace:
    return repeated(kvviz.open_runs(live=False).trace("prose"), LENGTH)  # its first tokens


def recorded(trace: Trace, name: str, **fields: Any) -> Recording:
    return kvviz.replay(trace, name, queries=QUERIES, **fields)


def panels(scene: Scene, kind: type, chapter: str) -> list:
    return [panel for frame in scene.frames if frame.chapter == chapter for panel in frame.panels
            if isinstance(panel, kind)]  # fmt: skip


def test_recorded_groups_have_their_scores_tokens_and_attention(trace: Trace) -> None:
    recording = recorded(trace, "clusterkv", budget=80, n_clusters=12, sinks=4)
    scene, token = RecordedScenes(recording).scene(LAYER, HEAD, STEP)
    indices, groups, scores = (getattr(recording, name)(STEP, LAYER)[HEAD] for name in ("indices", "groups", "scores"))
    weights = recording.attention(STEP, LAYER)[HEAD]
    ordered = panels(scene, Bars, "scores")[1]
    by_group = {int(group): score for group, score in zip(groups, scores, strict=True) if group >= 0}
    assert list(ordered.numbers) == sorted(by_group, key=lambda group: -by_group[group])
    np.testing.assert_allclose(ordered.values, [by_group[group] for group in ordered.numbers])
    (ruler,) = panels(scene, Ruler, "cut")
    assert list(ruler.sizes) == [(groups == group).sum() for group in ordered.numbers]
    masses = panels(scene, Bars, "exact attention")[1]
    np.testing.assert_allclose(masses.values, [weights[indices[groups == group]].sum() for group in masses.numbers])
    lit = scene.frames[-1].lit
    assert lit is not None
    assert np.asarray(lit.positions)[np.asarray(lit.attended)].tolist() == indices[indices >= 0].tolist()
    assert f"recall {recording.recall(STEP, LAYER)[HEAD]:.2f}" in scene.frames[-1].words
    assert weights[token] == max(weights[position] for position in range(4, LENGTH - QUERIES))


@pytest.mark.parametrize(
    ("name", "fields"),
    [
        ("streaming_llm", {"budget": 80}),  # ranks nothing
        ("centroidkv", {"budget": 120}),  # merges
        ("sparq", {"budget": 60, "group": "each"}),  # a row for each query head
        ("snapkv", {"budget": 60, "recent": 16}),  # generated tokens on top
        ("quest", {"budget": 300}),  # the budget covers all tokens
        ("magicpig", {"budget": 100}),
    ],
)
def test_every_recorded_step_has_pictures_and_the_budget_is_what_was_attended_to(
    name: str, fields: dict[str, Any], trace: Trace
) -> None:
    recording = recorded(trace, name, **fields)
    scenes = RecordedScenes(recording)
    assert scenes.heads == len(recording.indices(0, LAYER))
    scene, _ = scenes.scene(LAYER, scenes.heads - 1, 0)
    assert all(frame.panels for frame in scene.frames[:-1])
    (ruler,) = panels(scene, Ruler, "budget")
    merged = int(recording.events[LAYER].merged[0, -1])
    assert sum(ruler.sizes) == (recording.indices(0, LAYER)[-1] >= 0).sum() + merged


@pytest.mark.parametrize(
    ("place", "words"),
    [({"layer": 3}, "layer: got 3"), ({"head": 3}, "0 to 2"), ({"step": 8}, "0 to 7"), ({"token": 229}, "0 to 228")],
)
def test_a_place_that_was_not_recorded_is_refused(place: dict[str, int], words: str, trace: Trace) -> None:
    scenes = RecordedScenes(recorded(trace, "streaming_llm", budget=80))
    with pytest.raises(InvalidInputError, match=words):
        scenes.scene(**{"layer": LAYER, "head": 0, "step": 0} | place)


class TestStepper:
    def test_a_recording_is_played_without_its_method(self, trace: Trace) -> None:
        recording = recorded(trace, "quest", budget=96)
        stepper = kvviz.widgets.MechanismStepper(recording, head=1, step=2, span=slice(40, 44))
        assert stepper.page["call"] == "kvviz.widgets.MechanismStepper(recording"
        assert (stepper.page["queries"], stepper.page["steps"]) == (None, list(range(QUERIES)))
        assert stepper.page["head_maps"][0]["measure"] == "share"
        assert stepper.scene.chapters == ["budget", "scores", "cut", "exact attention", "text"]
        stepper.layer, stepper.step = LAYER, 0
        assert "Quest, step by step" in stepper.to_html(steps=[0, 1])

    @pytest.mark.parametrize(
        ("values", "names"),
        [({"method": "quest"}, "method"), ({"budget": 64}, "budget"), ({"queries": 8, "page_size": 8}, "page_size")],
    )
    def test_methods_and_fields_are_refused(self, values: dict[str, Any], names: str, trace: Trace) -> None:
        recording = recorded(trace, "quest", budget=96)
        with pytest.raises(
            InvalidInputError, match=rf"MechanismStepper\(recording\).*{names}.*the recording is one of"
        ):
            kvviz.widgets.MechanismStepper(recording, **values)
