"""Scenes of methods: each number in a frame is the method's own, held against a computation from the trace alone."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.preprocessing import normalize

import kvviz
from kvviz.errors import InvalidInputError
from kvviz.generation.explore import Mechanism
from kvviz.methods import Method
from kvviz.trace import Trace
from kvviz.trace.scene import Bars, Dots, Frame, Plane, Ruler, Scene
from tests.browser.latency import repeated

LAYER, HEAD, STEP, QUERIES = 14, 1, 31, 32


@pytest.fixture(scope="module")
def trace() -> Trace:
    return kvviz.open_runs(live=False).trace("prose")


def played(trace: Trace, method: Method, **place: int | None) -> Scene:
    where: dict[str, int | None] = {"layer": LAYER, "head": HEAD, "step": STEP} | place
    return Mechanism(trace, method, QUERIES).scene(**where)[0]


def panels(scene: Scene, kind: type, chapter: str) -> list:
    return [panel for frame in scene.frames if frame.chapter == chapter for panel in frame.panels
            if isinstance(panel, kind)]  # fmt: skip


OWN = ("quest", "clusterkv", "centroidkv", "pqcache", "ctkvr")  # methods with a scene of their own


@pytest.mark.parametrize("name", OWN)
def test_frames_stay_short_on_a_longer_text(name: str, trace: Trace) -> None:
    """Scenes refuse longer ones, also where there are more blocks, pages and rounds to name."""
    longer = repeated(trace, 2 * len(trace))
    for budget in (256, 512):
        assert len(Mechanism(longer, name, QUERIES, budget=budget).scene(LAYER, HEAD, STEP)[0].frames) > 5


FIELDS = {
    "adakv": {"floor": 1.0},  # otherwise the heads of a layer share the number of tokens, as with infinigen
    "infinigen": {"preset": "top"},  # otherwise the heads of a layer share the number of tokens
    "tova": {"heads": "separate"},  # otherwise they share the choice
    "kvzip": {"preset": "prompt"},  # a trace has no model to repeat its text to
}


@pytest.mark.parametrize("name", [name for name in kvviz.methods.names() if not kvviz.methods.get(name).ignores_budget])
def test_every_method_has_a_scene_that_ends_with_what_a_replay_selects(name: str, trace: Trace) -> None:
    method = kvviz.methods.create(name, budget=256, **FIELDS.get(name, {}))
    scene = played(trace, method)
    lit = scene.frames[-1].lit
    assert lit is not None
    replayed = kvviz.replay(trace, method, queries=QUERIES).indices(STEP, LAYER)
    rows = len(replayed) // trace.geometry.n_kv_heads
    own = replayed[HEAD] if method.group == "each" else replayed[HEAD * rows : (HEAD + 1) * rows]
    expected = np.unique(own[own >= 0])
    assert np.asarray(lit.positions)[np.asarray(lit.attended)].tolist() == expected.tolist()
    assert all(len(frame.words.split()) <= 40 for frame in scene.frames)


@pytest.fixture(scope="module")
def clustered(trace: Trace) -> Scene:
    return played(trace, kvviz.methods.create("clusterkv", budget=256))


class TestClusterKV:
    def test_keys_join_the_centroid_with_the_largest_cosine_and_means_are_of_the_keys(
        self, clustered: Scene, trace: Trace
    ) -> None:
        keys = trace.keys[LAYER][HEAD, : len(trace) - QUERIES].astype(np.float64)
        maps = [panel.dots for panel in panels(clustered, Plane, "clusters")]
        initial = np.asarray(maps[0][1].at)
        labels = np.asarray(maps[1][0].groups)
        nearest = (normalize(keys) @ normalize(keys[initial]).T).argmax(-1)
        assert labels.tolist() == [-1] * 16 + nearest[16:].tolist()
        means = np.stack([keys[labels == number].mean(0) for number in range(26)])
        second = np.asarray(maps[3][0].groups)
        assert (second[16:] == (normalize(keys) @ normalize(means).T).argmax(-1)[16:]).mean() > 0.999  # float32

    def test_bars_ruler_and_cut_are_those_of_the_last_clusters(self, clustered: Scene, trace: Trace) -> None:
        keys = trace.keys[LAYER][HEAD, : len(trace) - QUERIES].astype(np.float64)
        query = trace.queries[LAYER][3:6, -1].astype(np.float64).mean(0)
        labels = np.asarray(clustered.members["cluster"])
        scores = np.array([query @ keys[labels == number].mean(0) for number in range(26)])
        bars = panels(clustered, Bars, "scores")[-1]
        np.testing.assert_allclose(bars.values, scores[bars.numbers], rtol=1e-4)
        assert list(bars.numbers) == np.argsort(-scores).tolist()
        (ruler, *_) = panels(clustered, Ruler, "cut")
        assert list(ruler.sizes) == np.bincount(labels[labels >= 0])[bars.numbers].tolist()
        assert ruler.cut == 256 - 16 - 1
        chosen = kvviz.replay(trace, "clusterkv", queries=QUERIES, budget=256).indices(STEP, LAYER)[HEAD]
        taken = np.bincount(labels[chosen[chosen < len(labels)]][16:], minlength=26)  # without the sinks
        (trimmed,) = np.flatnonzero((taken > 0) & (taken < np.bincount(labels[labels >= 0])))
        (told,) = [frame.words for frame in clustered.frames if "tokens are taken" in frame.words]
        assert f"cluster {trimmed}: {taken[trimmed]} of its {(labels == trimmed).sum()} tokens" in told
        assert "16 sinks and the newest token leave 239" in told
        (fetched,) = [frame.words for frame in clustered.frames if "wait for a cluster" in frame.words]
        assert f"on top of the budget: {(chosen >= 0).sum() - 256} here" in fetched


@pytest.mark.parametrize("name", ["full", "minference", "kivi"])
def test_a_method_that_chooses_nothing_is_refused(name: str, trace: Trace) -> None:
    with pytest.raises(InvalidInputError, match=rf"{name}(\(full\))?, which attends to all tokens"):
        Mechanism(trace, name)


@pytest.mark.parametrize(
    ("place", "words"),
    [
        ({"layer": 0}, "layer: got 0"),
        ({"head": 3}, "0 to 2"),
        ({"step": -1}, "0 to 31"),
        ({"token": 5000}, "2015"),
    ],
)
def test_a_place_that_there_is_not_is_refused(place: dict[str, int], words: str, trace: Trace) -> None:
    with pytest.raises(InvalidInputError, match=words):
        played(trace, kvviz.methods.create("quest", budget=256), **place)


def test_a_budget_that_covers_all_tokens_is_refused(trace: Trace) -> None:
    with pytest.raises(InvalidInputError, match=r"budget.*4000.*fewer than 2017"):
        played(trace, kvviz.methods.create("quest", budget=4000))


def test_texts_that_are_too_long_are_refused() -> None:
    with pytest.raises(InvalidInputError, match=r"41 words.*at most 40"):
        Scene(title="long", frames=[Frame(chapter="one", text="word " * 41)])


def test_columns_that_do_not_match_are_refused() -> None:
    dots = Dots(kind="token", numbers=[1, 2], groups=[0])
    with pytest.raises(InvalidInputError, match=r"groups of token.*1 for 2 numbers"):
        Scene(title="short", frames=[Frame(chapter="one", text="x", panels=[Plane(title="", dots=[dots])])])
